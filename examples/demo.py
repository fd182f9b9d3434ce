"""What `make demo` runs: a market with a known optimum, thousands of environments, baselines, a measurement."""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import velodrome as vd
from velodrome.bench.options import StepBenchmarkOptions
from velodrome.bench.step import run_step_benchmark
from velodrome.tables.leaks import rich_table as leak_table

SHORT, FLAT, LONG = 0, 1, 2  # the actions of the default levels (−1, 0, 1)
FEE = 0.0001  # of every traded notional

console = Console(width=None if sys.stdout.isatty() else 120)


def make_market(length: int) -> vd.Market:
    console.rule("1. A market without look-ahead")
    bars = vd.synthetic_bars("ar1", length, seed=0)
    console.print(leak_table(vd.check_leaks(bars)))
    market = vd.build_market(bars)
    console.print(f"{len(market):,} bars of {market.timeframe}; splits: {', '.join(market.splits)}")
    console.print(f"an observation shows 32 bars of {', '.join(market.feature_names[0])}")
    return market


def step_many(market: vd.Market, num_envs: int, steps: int) -> None:
    console.rule(f"2. {num_envs:,} environments at once")
    envs = vd.make_vec("trading", num_envs=num_envs, market=market, split="train", episode_length=256, fee=FEE, seed=0)
    envs.reset()
    actions = np.random.default_rng(0).integers(0, 3, (64, num_envs))
    started = time.perf_counter()
    for k in range(32):  # compiles where it must, and finds out how many cores are worth it
        envs.step(actions[k])
    console.print(f"ready after {time.perf_counter() - started:.1f} s (the first start compiles, later ones do not)")
    started = time.perf_counter()
    for k in track(range(steps), "stepping", console=console):
        envs.step(actions[k % 64])
    seconds, count = time.perf_counter() - started, num_envs * steps
    console.print(f"{count:,} steps in {seconds:.2f} s: [bold]{count / seconds:,.0f} steps/s[/bold], windows and all")


def backtest(market: vd.Market) -> None:
    console.rule("3. Baselines on the test split, which nothing was fitted on")
    test = market.split("test")
    policies = ("buy and hold", "always flat", "random")
    # One environment for each policy, all from the split's first bar to its last.
    envs = vd.make_vec("trading", num_envs=len(policies), market=test, start="first", fee=FEE, seed=0)
    envs.reset(options={"cursor": int(test.begin[0])})
    random = np.random.default_rng(1)
    ended = np.zeros(len(policies), bool)
    results: dict[str, dict[str, float]] = {}
    while not ended.all():
        _, _, terminated, truncated, infos = envs.step(np.array([LONG, FLAT, random.integers(0, 3)]))
        for i in np.flatnonzero((terminated | truncated) & ~ended):
            results[policies[i]] = {name: float(values[i]) for name, values in infos["statistics"].items()}
        ended |= terminated | truncated
    table = Table(title=f"{test.symbols[0]}, test split, fee {FEE:.2%} of every trade")
    for heading in ("policy", "bars", "return", "Sharpe/bar", "drawdown", "turnover", "fees"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for policy in policies:
        found = results[policy]
        table.add_row(
            policy, f"{found['length']:,.0f}", f"{found['return']:+.1%}", f"{found['sharpe']:+.4f}",
            f"{found['max_drawdown']:.1%}", f"{found['turnover']:,.1f}", f"{found['fees']:,.2f}",
        )  # fmt: skip
    console.print(table)
    console.print(f"Known optimum of this synthetic market, before costs: a log return of {market.optimum:.2e} a bar.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", type=int, default=100_000)
    parser.add_argument("--envs", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=1000, help="steps of the batch")
    parser.add_argument("--bench", action=argparse.BooleanOptionalAction, default=True, help="measure at the end")
    chosen = parser.parse_args()
    market = make_market(chosen.bars)
    step_many(market, chosen.envs, chosen.steps)
    backtest(market)
    if chosen.bench:
        console.rule("4. Steps a second on this machine (coarse; `make bench` takes its time)")
        run_step_benchmark(StepBenchmarkOptions(quick=True), console)


if __name__ == "__main__":
    main()
