"""What a user of Stable-Baselines3 gains: by its environments alone, and by the move to `vd.train`.

    python benchmarks/sb3_users.py [--steps 32768] [--num-envs 8 64 256]

The trading rule, 264 floats observed: as a plain Gymnasium environment under DummyVecEnv, by `vd.to_sb3`, and by
Velodrome's own PPO with the same settings. Steps per second of CPU time on one thread, contenders in turns, medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"))

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv

import velodrome as vd
from velodrome.bench.problems.trading import trading_case
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.ppo import PPO as OwnPPO
from velodrome.rollout.worlds import make_worlds

BATCH, MINIBATCHES, EPOCHS, ROUNDS = 8_192, 4, 4, 3
RULE = {"fee": 0.0005, "episode_length": 1_000}


def stepping(envs: Any) -> Callable[[int], None]:
    """Return what steps a VecEnv so many times with random actions."""
    envs.reset()
    actions = np.random.default_rng(0).integers(0, 3, (64, envs.num_envs))

    def go(steps: int) -> None:
        for index in range(steps // envs.num_envs):
            envs.step(actions[index % 64])

    return go


def their_ppo(envs: Any) -> Callable[[int], None]:
    """Return what trains SB3's PPO for so many steps."""
    sizes = {"n_steps": BATCH // envs.num_envs, "batch_size": BATCH // MINIBATCHES, "n_epochs": EPOCHS}
    model = PPO("MlpPolicy", envs, seed=0, device="cpu", **sizes)
    return lambda steps: model.learn(steps, reset_num_timesteps=False)  # type: ignore[return-value]


def our_ppo(envs: Any) -> Callable[[int], None]:
    """Return what trains Velodrome's PPO for so many steps."""
    config = PPOConfig(rollout_length=BATCH // envs.num_envs, minibatches=MINIBATCHES, epochs=EPOCHS, value_weight=1.0)
    learner = OwnPPO(make_worlds(envs), NetworkConfig(), config, total_steps=10**9, seed=0)

    def go(steps: int) -> None:
        until = learner.steps + steps
        while learner.steps < until:
            learner.iterate()

    return go


def rates(contenders: dict[str, Callable[[int], None]], steps: int) -> dict[str, float]:
    """Return the median steps per second of CPU time; the first round warms up and does not count."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for index in range(ROUNDS + 1):
        for name, go in contenders.items():
            began = time.process_time()
            go(steps)
            if index:
                found[name].append(steps / (time.process_time() - began))
    return {name: statistics.median(values) for name, values in found.items()}


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4 * BATCH, help=f"of a round, a multiple of {BATCH:,}")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[8, 64, 256])
    given = parser.parse_args()
    torch.set_num_threads(1)
    market = vd.build_market(vd.synthetic_bars("ar1", 20_000, seed=0), windows=32, check_leaks=False)
    plain = trading_case(market, RULE).plain
    print("| environments | | plain, DummyVecEnv | `vd.to_sb3` | Velodrome's PPO |\n|---:|---|---:|---:|---:|")
    for num_envs in given.num_envs:
        make = partial(vd.make_vec, "trading", num_envs, market=market, seed=0, threads=1, **RULE)
        theirs, ours = DummyVecEnv([plain] * num_envs), vd.to_sb3(make())
        steps = rates({"plain": stepping(theirs), "to_sb3": stepping(ours)}, 4 * given.steps)
        trainings = {"plain": their_ppo(theirs), "to_sb3": their_ppo(ours), "own": our_ppo(make(observation="cursor"))}
        for what, found in (("steps", steps), ("whole PPO", rates(trainings, given.steps))):
            cells = (f"{rate:,.0f}, {rate / found['plain']:.2f} ×" for rate in found.values())
            print(f"| {num_envs} | {what} | {' | '.join(cells)} {'' if len(found) > 2 else '| '}|", flush=True)


if __name__ == "__main__":
    main()
