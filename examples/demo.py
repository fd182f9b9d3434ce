"""What `make demo` runs: a market with a known optimum, an agent trained on it, its result on data it never saw."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

import velodrome as vd
from velodrome.runs.config.files import load_run_config
from velodrome.tables.leaks import rich_table as leak_table

console = Console(width=None if sys.stdout.isatty() else 120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", help="settings of the run as key=value, such as steps=500_000")
    chosen = parser.parse_args()
    started = time.perf_counter()
    config = load_run_config("trading", chosen.settings)

    console.rule("1. A market without look-ahead, whose best return is known")
    bars = config.market.bars()
    console.print(leak_table(vd.check_leaks(bars)))
    market = config.market.build()
    console.print(f"{len(market):,} bars of {market.timeframe}; splits: {', '.join(market.splits)}")
    console.print(f"an observation shows {market.windows.length[0]} bars of {', '.join(market.feature_names[0])}")
    console.print(f"known optimum before costs: a log return of {market.optimum:.4%} a bar")

    console.rule(f"2. Train: {config.num_envs} environments at once, {config.steps:,} steps (the first start compiles)")
    run = vd.train(config, market=market, console=console, evaluate=False)
    speed = run.metrics.filter(name="time/steps_per_second")["value"].median()
    console.print(f"median iteration: {speed:,.0f} steps a second; the average above includes compiling and validation")

    console.rule("3. Evaluate on the test split, which nothing was fitted on")
    evaluation = vd.evaluate(run, progress=sys.stdout.isatty())
    console.print(evaluation.table())
    console.print(f"report, to open in a browser: {run.folder.report_path}", soft_wrap=True)
    console.print(f"done in {time.perf_counter() - started:.0f} s. The same again: velodrome train")
    console.print("all runs, in a browser: velodrome serve")


if __name__ == "__main__":
    main()
