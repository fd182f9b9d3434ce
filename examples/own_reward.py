"""A reward of your own: a plain Python function of the account before and after a step, compiled with the rule."""

from __future__ import annotations

import argparse
import math

import numpy as np

import velodrome as vd
from velodrome.envs.trading import RewardAccount


def cautious(old: RewardAccount, new: RewardAccount) -> float:
    """Log return, less a tenth of the drawdown that the account is in, less 1 % of what was traded."""
    if new.equity <= 0.0 or old.equity <= 0.0:
        return -10.0
    drawdown = 1.0 - new.equity / new.peak
    return math.log(new.equity / old.equity) - 0.1 * drawdown - 0.01 * new.turnover


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", type=int, default=5_000)
    parser.add_argument("--steps", type=int, default=300)
    chosen = parser.parse_args()
    market = vd.build_market(vd.synthetic_bars("regimes", chosen.bars, seed=1), windows=8)
    actions = np.random.default_rng(0).integers(0, 3, (chosen.steps, 32))
    for name, reward in (("log_return", "log_return"), ("cautious", cautious)):
        envs = vd.make_vec("trading", num_envs=32, market=market, reward=reward, seed=0)
        envs.reset()
        total = sum(envs.step(action)[1].astype(float) for action in actions)
        print(f"{name:>10}: mean reward of a step {np.mean(total) / chosen.steps:+.3e}")

    # The same function runs uncompiled with backend="python": a breakpoint in it is hit there.
    compiled, plain = (
        vd.make("trading", market=market, reward=cautious, backend=backend, seed=0) for backend in ("native", "python")
    )
    compiled.reset()
    plain.reset()
    same = all(compiled.step(2)[1] == plain.step(2)[1] for _ in range(20))
    print(f"compiled and plain Python give the same rewards: {same}")


if __name__ == "__main__":
    main()
