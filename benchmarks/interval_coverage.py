"""How often the intervals of an evaluation hold the truth: the table of docs/evaluation.md.

python -m benchmarks.interval_coverage [SERIES]      # from the repository's root; 5,000 series of each kind
"""

from __future__ import annotations

import sys

from tests.evaluation.coverage import HIDDEN, KINDS, covered, many_series

LENGTHS = (250, 1000)


def main(series: int = 5000) -> None:
    """Print the table."""
    columns = [f"{name}, {length:,} bars" for length in LENGTHS for name in ("percentiles", "mean", "Sharpe ratio")]
    print(f"| returns | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for kind in (*KINDS, HIDDEN):
        shares = []
        for length in LENGTHS:
            values = many_series(kind, series, length)
            shares += [covered(values, widened=False), covered(values), covered(values, sharpe=0.1)]
        print(f"| {kind} | {' | '.join(f'{100 * share:.1f} %' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
