"""From a price file to a stepped environment: write a small CSV, check it, read it, build a market, step."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console

import velodrome as vd
from velodrome.bars.check import PrintedReport


def write_csv(path: Path, length: int) -> None:
    """Write hourly bars such as an exchange would offer for download."""
    series = vd.synthetic_bars("gbm", length, seed=3, timeframe="1h", volatility=0.005)["gbm_0"]
    columns = {name: series.column(name) for name in ("open", "high", "low", "close", "volume")}
    pl.DataFrame({"time": series.time.astype("datetime64[ns]"), **columns}).write_csv(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=200)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "BTCUSD.csv"
        write_csv(path, chosen.bars)
        Console(width=140).print(PrintedReport(vd.check_bars(path)))
        bars = vd.read_bars(path)
    print(f"read {len(bars):,} bars of {bars.timeframe}: {', '.join(bars.symbols)}")

    # An observation shows the last 24 hours and the last 7 whole days; the day that is still running is not in it.
    market = vd.build_market(
        bars,
        features={"1h": ["log_return", "rsi_14", "volume_z_50"], "1d": ["log_return", "range"]},
        windows={"1h": 24, "1d": 7},
    )
    print(f"windows {market.window_names}, decisions from row {market.begin[0]} on, splits {dict(market.splits)}")

    envs = vd.make_vec(
        "trading", num_envs=64, market=market, split="train", observation="dict", episode_length=100, fee=0.0005, seed=0
    )
    observations, _ = envs.reset()
    print({name: values.shape for name, values in observations.items()})
    policy = np.random.default_rng(0)
    returns: list[float] = []
    for _ in range(chosen.steps):
        *_, infos = envs.step(policy.integers(0, 3, envs.num_envs))
        if "statistics" in infos:
            returns.extend(infos["statistics"]["return"][infos["_statistics"]].tolist())
    if returns:
        print(f"{len(returns)} episodes of a random policy: mean return {np.mean(returns):+.2%}")


if __name__ == "__main__":
    main()
