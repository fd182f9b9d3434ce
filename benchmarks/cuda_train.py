"""Measure whole PPO on a GPU: rollout and update as CUDA graphs, the full trading rule, windows by cursor.

python benchmarks/cuda_train.py --json cuda-train.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

import velodrome as vd
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.ppo import PPO
from velodrome.rollout.worlds import make_worlds
from velodrome.writing import replace_text

BARS = 100_000


def make_learner(market: vd.Market, num_envs: int, steps: int, hidden: int, seed: int = 0, **options) -> PPO:
    """Return PPO as the preset `gpu` sets it up."""
    config = PPOConfig(
        rollout_length=steps, gamma=0.9, gae_lambda=0.9, normalise_rewards=True, learning_rate=1e-3, **options
    )
    envs = vd.make_vec(
        "trading", num_envs, market=market, split="train", backend="cuda", observation="cursor", seed=seed,
        episode_length=(128, 512), check_actions=False,
    )  # fmt: skip
    dtype = torch.bfloat16 if config.precision == "bfloat16" else torch.float32
    network = NetworkConfig(hidden=(hidden, hidden), shared=True, activation="relu")
    return PPO(make_worlds(envs, dtype=dtype), network, config, total_steps=10**12, seed=seed)


def measure(learner: PPO, iterations: int) -> dict:
    """Return steps per second over some iterations, after the graphs are captured."""
    for _ in range(4):
        learner.iterate()
    torch.cuda.synchronize()
    seconds, phases = [], []
    for _ in range(iterations):
        started = time.perf_counter()
        found = learner.iterate()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        phases.append({name: found[f"time/{name}"] for name in ("inference", "learning", "environment", "other")})
    return {
        "steps_per_second": learner.rollout.samples / statistics.median(seconds),
        "milliseconds": {name: 1e3 * statistics.median(one[name] for one in phases) for name in phases[0]},
        "reward_per_step": found["episode/mean_reward"],
        "gigabytes": torch.cuda.max_memory_allocated() / 1e9,
    }


CURVES = {
    "graphs, bfloat16": {"precision": "bfloat16"},
    "eager, bfloat16": {"precision": "bfloat16", "cuda_graphs": False},
    "eager, float32, autograd": {"cuda_graphs": False, "engine": "autograd"},
}


def learning_curves(market: vd.Market, iterations: int, seeds: int) -> dict[str, list[list[float]]]:
    """Return the reward per step along the way, by engine and seed."""
    found: dict[str, list[list[float]]] = {}
    for name, options in CURVES.items():
        found[name] = []
        for seed in range(seeds):
            learner = make_learner(market, 4096, 32, 64, seed=seed, **options)
            curve = [learner.iterate()["episode/mean_reward"] for _ in range(iterations)]
            found[name].append(curve)
            shown = " ".join(f"{1e4 * value:6.3f}" for value in curve[iterations // 8 - 1 :: iterations // 8])
            print(f"reward per step x 1e4, seed {seed}, {name:>26}: {shown}", flush=True)
    return found


def profile(learner: PPO, path: Path | None) -> None:
    """Print the kernels that take most time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(2):
            learner.iterate()
        torch.cuda.synchronize()
    print(found.key_averages().table(sort_by="cuda_time_total", row_limit=45, max_name_column_width=90))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the promised setting only")
    parser.add_argument("--autograd", action="store_true", help="measure learning by autograd too")
    chosen = parser.parse_args()
    market = vd.build_market(vd.synthetic_bars("ar1", BARS, seed=0), windows=32, session="6h")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}")
    settings = [(65_536, 32, 128, {"precision": "bfloat16"})]
    if chosen.autograd:
        settings += [
            (65_536, 32, 128, {"precision": "bfloat16", "engine": "autograd", "per_bar": per_bar})
            for per_bar in ("auto", "never")
        ]
    if not chosen.quick:
        settings += [
            (16_384, 32, 128, {"precision": "bfloat16"}),
            (65_536, 32, 128, {"precision": "float32"}),
            (65_536, 32, 64, {"precision": "bfloat16", "epochs": 1}),
            (4_096, 32, 128, {"precision": "bfloat16"}),
            (4_096, 32, 128, {"precision": "bfloat16", "cuda_graphs": False}),
        ]
    results = []
    for num_envs, steps, hidden, options in settings:
        torch.cuda.reset_peak_memory_stats()
        learner = make_learner(market, num_envs, steps, hidden, **options)
        found = measure(learner, 10)
        shown = " ".join(f"{name}={value}" for name, value in options.items())
        parts = ", ".join(f"{name} {value:.1f} ms" for name, value in found["milliseconds"].items())
        print(f"{num_envs:>7,} x {steps} hidden {hidden} {shown}: {found['steps_per_second'] / 1e6:.1f} M steps/s "
              f"({parts}; {found['gigabytes']:.1f} GB)", flush=True)  # fmt: skip
        results.append({"num_envs": num_envs, "rollout_length": steps, "hidden": hidden, **options, **found})
        if chosen.profile:
            profile(learner, None)
        del learner
    curves = {} if chosen.quick else learning_curves(market, 80, 3)
    if chosen.json:
        machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        replace_text(
            chosen.json, json.dumps({"machine": machine, "results": results, "curves": curves}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
