"""Compares the speed of two checkouts on this machine: each measurement in turns, in processes of their own.

python benchmarks/compare.py OLD NEW [--rounds 5] [--only trading cage2 …]

Rates are steps per second of CPU time on one thread, so that other load on the machine matters little; a start is
seconds of CPU time. The first round warms the kernel caches and does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

NUM_ENVS = 1024
SLICES, SLICE = 5, 0.2  # of stepping, in seconds; the median counts


def stepping(envs: Any, actions: list[Any]) -> float:
    """Return steps per second of CPU time."""
    envs.reset()
    rates = []
    for index in range(SLICES + 1):
        done, begin = 0, time.process_time()
        while time.process_time() - begin < SLICE:
            for chosen in actions:
                envs.step(chosen)
            done += len(actions)
        if index:
            rates.append(done * envs.num_envs / (time.process_time() - begin))
    return statistics.median(rates)


def trading(observation: str) -> float:
    import numpy as np

    import velodrome as vd

    features = ["log_return", "rsi_14", "volatility_20", "volume_z_50"]
    market = vd.build_market(vd.synthetic_bars("gbm", 100_000, seed=0), features=features, windows=32)
    options: dict[str, Any] = {"episode_length": 1000, "fee": 0.0005, "seed": 0, "threads": 1}
    envs = vd.make_vec("trading", NUM_ENVS, market=market, backend="native", observation=observation, **options)
    return stepping(envs, list(np.random.default_rng(0).integers(0, 3, (16, NUM_ENVS))))


def portfolio() -> float:
    import numpy as np

    import velodrome as vd

    bars = vd.synthetic_bars("factors", 20_000, seed=0, symbols=[f"S{k}" for k in range(7)])
    basket = vd.build_basket(bars, features=["log_return"], windows=5)
    options: dict[str, Any] = {"preset": "crypto", "episode_length": 1000, "seed": 0, "threads": 1}
    envs = vd.make_vec("portfolio", NUM_ENVS, market=basket, backend="native", observation="cursor", **options)
    return stepping(envs, list(np.random.default_rng(0).uniform(-1, 1, (16, NUM_ENVS, 7)).astype(np.float32)))


def cage2() -> float:
    import numpy as np

    import velodrome as vd

    envs = vd.make_vec("cage2", NUM_ENVS, backend="native", seed=0, threads=1)
    return stepping(envs, list(np.random.default_rng(0).integers(0, 145, (16, NUM_ENVS))))


def training(preset: str, steps: int) -> float:
    """Return training steps per second of CPU time, all threads together."""
    import velodrome as vd

    def train(steps: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            quiet = {"logging.folder": folder, "evaluation.every_steps": None, "checkpoint.every_seconds": None}
            vd.train(preset, steps=steps, mode="quiet", evaluate=False, device="cpu", **quiet)

    train(16_384)
    begin = time.process_time()
    train(steps)
    return steps / (time.process_time() - begin)


def first_step() -> float:
    import numpy as np

    import velodrome as vd

    market = vd.build_market(vd.synthetic_bars("gbm", 5_000, seed=0), features=["log_return"], windows=8)
    envs = vd.make_vec("trading", 64, market=market, backend="native", seed=0, episode_length=100)
    envs.reset()
    envs.step(np.zeros(64, int))
    return time.process_time()


def imports() -> float:
    import velodrome.learn.ppo
    import velodrome.runs.run
    import velodrome.vector.make  # noqa: F401

    return time.process_time()


MEASUREMENTS: dict[str, tuple[Callable[[], float], str]] = {
    "trading": (lambda: trading("flat"), "steps/s"),
    "trading, no windows": (lambda: trading("cursor"), "steps/s"),
    "portfolio of 7": (portfolio, "steps/s"),
    "cage2": (cage2, "steps/s"),
    "ppo": (lambda: training("trading", 300_000), "steps/s"),
    "dqn": (lambda: training("dqn", 50_000), "steps/s"),
    "imports": (imports, "s"),
    "first step": (first_step, "s"),
}


def measured(tree: str, name: str) -> float:
    variables = {**os.environ, "PYTHONPATH": os.path.abspath(tree)}
    command = [sys.executable, os.path.abspath(__file__), "--measure", name]
    with tempfile.TemporaryDirectory() as elsewhere:
        found = subprocess.run(command, cwd=elsewhere, env=variables, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{tree}, {name}: {found.stderr[-2000:]}")
    return float(json.loads(found.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", help="the two checkouts, old and new")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS))
    parser.add_argument("--measure", choices=MEASUREMENTS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.measure:
        print(json.dumps(MEASUREMENTS[chosen.measure][0]()))
        return
    if len(chosen.trees) != 2:
        parser.error("name two checkouts, old and new")
    print(f"{'':20} {'old':>10} {'new':>10}  new/old (least … most)")
    for name in chosen.only:
        rounds = []
        for index in range(chosen.rounds + 1):
            order = chosen.trees if index % 2 else chosen.trees[::-1]
            rounds.append({tree: measured(tree, name) for tree in order})
        old, new = ([found[tree] for found in rounds[1:]] for tree in chosen.trees)
        ratios = sorted(b / a for a, b in zip(old, new, strict=True))
        middle = f"{statistics.median(old):>10.4g} {statistics.median(new):>10.4g}"
        spread = f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} … {ratios[-1]:.3f})"
        print(f"{name:20} {middle} {MEASUREMENTS[name][1]}  {spread}", flush=True)


if __name__ == "__main__":
    main()
