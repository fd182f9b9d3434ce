"""How many planted leaks the leak check finds, and how many honest features it refuses: the table of docs/leaks.md.

python -m benchmarks.leak_detection [ROWS [SYMBOLS [SECONDS]]] [--only TEXT] [--json FILE]

From the root of the repository, a feature at a time. Seconds are those of the processor, so that other work on the
machine does not shorten the check.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

from tests.tables.honest import HONEST
from tests.tables.planted import LEAKS, Planted, planted_bars
from velodrome.tables import check_leaks
from velodrome.tables.leaks import functions
from velodrome.writing import replace_text


def kind_of(name: str, planted: Planted) -> str:
    """The line of the table that a feature belongs to."""
    if name in HONEST:
        return "honest features"
    if planted.share == 1.0:
        return "on all rows"
    return "on 1 % of the rows or more" if planted.share >= 0.01 else "on fewer rows"


def main() -> None:
    """Print one line for each feature as it comes, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=int, nargs="?", default=100_000)
    parser.add_argument("symbols", type=int, nargs="?", default=6)
    parser.add_argument("seconds", type=float, nargs="?", default=20.0)
    parser.add_argument("--only", default="", help="features whose line of the table or name has this text")
    parser.add_argument("--json", type=Path, help="file for the results")
    chosen = parser.parse_args()
    functions.clock = time.process_time  # type: ignore[assignment]
    bars = planted_bars(chosen.rows, chosen.symbols)
    results = []
    for name, planted in {**LEAKS, **HONEST}.items():
        kind = kind_of(name, planted)
        if chosen.only not in kind and chosen.only not in name:
            continue
        function, begin = planted.make(bars), time.process_time()
        report = check_leaks(bars, [(name, function)], 4, leak_seconds=chosen.seconds)
        seconds, right = time.process_time() - begin, report.passed == (name in HONEST)
        found = [f"{leak.kind} {leak.symbol} {leak.row}: {leak.detail}" for leak in report.findings[:1]]
        result = {"kind": kind, "name": name, "share": planted.share, "right": right, "seconds": round(seconds, 2)}
        results.append({**result, "found": found, "coverage": [*map(str, report.coverage)], "notes": report.notes})
        print(f"{'' if right else 'WRONG '}{kind}: {name}, {seconds:.1f} s {' '.join(found)}", flush=True)
        if chosen.json:
            options = {"rows": chosen.rows, "symbols": chosen.symbols, "leak_seconds": chosen.seconds}
            replace_text(chosen.json, json.dumps({**options, "results": results}, indent=1, ensure_ascii=False))
    print("\n| planted | features | found | median | slowest |\n|---|---|---|---|---|")
    for kind in dict.fromkeys(result["kind"] for result in results):
        own = [result for result in results if result["kind"] == kind]
        found = sum(result["right"] != (kind == "honest features") for result in own)
        times = [float(result["seconds"]) for result in own]
        print(f"| {kind} | {len(own)} | {found} | {statistics.median(times):.1f} s | {max(times):.1f} s |")


if __name__ == "__main__":
    main()
