"""A portfolio from a folder of price files: lay them on one grid, train briefly, compare with equal weights and others.

Without a folder a few synthetic files are written first, whose best return is known.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import polars as pl
from rich.console import Console

import velodrome as vd

console = Console(width=None if sys.stdout.isatty() else 150)


def write_files(folder: Path, length: int, instruments: int) -> None:
    """Write daily bars of instruments that share shocks; the last is listed later than the others."""
    symbols = [f"S{number}" for number in range(1, instruments + 1)]
    bars = vd.synthetic_bars("factors", length, seed=1, symbols=symbols, volatility=0.01, timeframe="1d",
                             start="1990-01-01")  # fmt: skip
    for symbol in bars:
        series = bars[symbol]
        columns = {name: series.column(name) for name in ("open", "high", "low", "close", "volume")}
        frame = pl.DataFrame({"time": series.time.astype("datetime64[ns]"), **columns})
        frame[length // 10 if symbol == symbols[-1] else 0 :].write_csv(folder / f"{symbol}.csv")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", help="folder of CSV or Parquet files, one for each instrument")
    parser.add_argument("--instruments", type=int, default=7)
    parser.add_argument("--bars", type=int, default=8_000)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--runs", default="runs")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        if chosen.folder is None:
            write_files(Path(made), chosen.bars, chosen.instruments)
        basket = vd.build_basket(
            chosen.folder or made, features=["log_return", "rank:log_return", "volatility_20"], windows=4
        )
    shares = ", ".join(
        f"{s} {share:.0%}" for s, share in zip(basket.symbols, basket.tradable.mean(axis=0), strict=True)
    )
    console.print(f"{len(basket):,} bars of {basket.timeframe}; instruments and when they can be traded: {shares}")

    # The preset's learner on a basket of our own, with fees, for which it has to look ahead. From the command line:
    # velodrome train portfolio market.source=FOLDER params.fee=1e-4 ppo.gamma=0.9
    run = vd.train(
        "portfolio", market=basket, console=console, evaluate=False, steps=chosen.steps,
        **{"params.fee": 1e-4, "ppo.gamma": 0.9, "ppo.gae_lambda": 0.9,
           "logging.folder": chosen.runs},
    )  # fmt: skip
    evaluation = vd.evaluate(run, market=basket)
    console.print(evaluation.table())
    for row in evaluation.information["contributions"]:
        console.print(f"{row['symbol']}: mean weight {row['mean_weight']:.1%}, contributed {row['contribution']:+.1%}")
    console.print(f"report, to open in a browser: {run.folder.report_path}", soft_wrap=True)


if __name__ == "__main__":
    main()
