"""What PPO, DQN and SAC learn here and in Stable-Baselines3 from the same settings, and how long that takes.

    python benchmarks/learning.py [--quick] [--json FILE] [--processes N] [--seeds 5] [--only dqn CartPole-v1]

A cell is one training: algorithm, environment, library and seed, in a process with one thread; as many run at once as
there are cores. Every finished cell is written to the file, and a second call runs only those that are missing. The
table at the end is Markdown. Needs Stable-Baselines3, and Box2D for LunarLander (skipped and said where it is missing).

A training has two measures, taken alike for both libraries: the mean return of the episodes that ended in its last
quarter, exploration included, and that of `EPISODES` episodes which the finished policy plays without exploration.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.writing import replace_text

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
EPISODES = 40  # played by a finished policy
EVALUATION_SEED = 1_000_000
RESAMPLES = 10_000
FEWEST = 3  # seeds from which an interval says anything
QUICK = 0.05  # part of the steps
LIBRARIES = ("velodrome", "sb3")
MEASURES = {"last_quarter": "last quarter of training", "evaluated": "finished policy"}

# Settings in the terms of Stable-Baselines3, close to those of its zoo; without gSDE, and with constant rates.
PPO = {
    "num_envs": 8,
    "n_steps": 128,
    "batch_size": 256,
    "n_epochs": 10,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "clip_range": 0.2,
    "max_grad_norm": 0.5,
    "hidden": [64, 64],
    "activation": "tanh",
}
CONTINUOUS = {"log_std_init": 0.0, "num_envs": 4}
DQN = {
    "num_envs": 1,
    "learning_rate": 6.3e-4,
    "batch_size": 64,
    "buffer_size": 50_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "train_freq": 4,
    "gradient_steps": 2,
    "target_update_interval": 250,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.05,
    "max_grad_norm": 10.0,
    "hidden": [64, 64],
    "activation": "relu",
}

SAC = {
    "num_envs": 1,
    "learning_rate": 1e-3,
    "batch_size": 256,
    "buffer_size": 50_000,
    "learning_starts": 1_000,
    "gamma": 0.99,
    "train_freq": 1,
    "gradient_steps": 1,
    "tau": 0.005,
    "hidden": [64, 64],
    "activation": "relu",
}


class Task(NamedTuple):
    """One algorithm on one environment."""

    algorithm: str  # ppo, dqn or sac
    env: str
    steps: int
    seconds: tuple[int, int]  # that a training took here and in Stable-Baselines3 (docs/performance.md)
    settings: Mapping[str, Any]


HARDER = {"gradient_steps": 4, "batch_size": 128, "hidden": [128, 128]}
NORMALISED = {"normalise": True}  # observations and rewards, by running moments
TASKS = (
    Task("ppo", "CartPole-v1", 50_000, (4, 11), PPO | {"n_steps": 32, "gae_lambda": 0.8, "gamma": 0.98}),
    Task("ppo", "Acrobot-v1", 100_000, (14, 25), PPO | NORMALISED | {"gae_lambda": 0.94, "n_epochs": 4}),
    Task("ppo", "Pendulum-v1", 200_000, (23, 116), PPO | CONTINUOUS | {"n_steps": 512, "batch_size": 64, "gamma": 0.9}),
    Task(
        "ppo",
        "MountainCarContinuous-v0",
        100_000,
        (15, 30),
        PPO | CONTINUOUS | NORMALISED | {"n_steps": 256, "gamma": 0.9999, "learning_rate": 3e-4},
    ),
    Task("ppo", "LunarLander-v3", 300_000, (38, 83), PPO | {"learning_rate": 5e-4, "gamma": 0.999, "gae_lambda": 0.98}),
    Task("dqn", "CartPole-v1", 50_000, (45, 61), DQN),
    Task("dqn", "Acrobot-v1", 100_000, (110, 138), DQN),
    Task("dqn", "LunarLander-v3", 150_000, (332, 332), DQN | HARDER),
    Task("sac", "Pendulum-v1", 20_000, (60, 80), SAC),
)


class Cell(NamedTuple):
    """One training; its name is the key of its results."""

    task: Task
    library: str
    seed: int
    steps: int

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return f"{self.task.algorithm} {self.task.env} {self.library} seed {self.seed}, {self.steps} steps"

    @property
    def seconds(self) -> float:
        """About how long it takes, on one core of the machine of docs/performance.md."""
        return self.task.seconds[LIBRARIES.index(self.library)] * self.steps / self.task.steps


# Velodrome

# Settings of Stable-Baselines3 that have another name here.
NAMES = {
    "n_steps": "rollout_length",
    "n_epochs": "epochs",
    "ent_coef": "entropy",
    "clip_range": "clip",
    "max_grad_norm": "max_gradient_norm",
    "train_freq": "rollout_length",
    "gradient_steps": "updates",
    "exploration_fraction": "epsilon_fraction",
    "exploration_final_eps": "epsilon_end",
    "tau": "target_share",
}


def velodrome_config(task: Task, steps: int, seed: int, folder: str) -> dict[str, Any]:
    """Return a run's configuration with the settings of a task."""
    given = dict(task.settings)
    num_envs = given.pop("num_envs")
    network = {"hidden": given.pop("hidden"), "activation": given.pop("activation")}
    if task.algorithm == "ppo":
        if "log_std_init" in given:
            network["initial_log_std"] = given.pop("log_std_init")
        normalise = given.pop("normalise", False)
        own = {
            "minibatches": num_envs * given["n_steps"] // given.pop("batch_size"),
            "value_weight": 2.0 * given.pop("vf_coef"),  # here the loss is half of the squared error, there all of it
            "normalise_observations": normalise,
            "normalise_rewards": normalise,
        }
    elif task.algorithm == "sac":
        # As Stable-Baselines3 has it: no gradient is shortened, and a nat of entropy is worth 1 at first.
        own = {"normalise_rewards": False, "max_gradient_norm": 1e9, "entropy_start": 1.0}
    else:
        interval = given.pop("target_update_interval")  # in environment steps; ours is in gradient steps
        own = {
            "target_every": max(interval * given["gradient_steps"] // given["train_freq"], 1),
            "double": False,  # which Stable-Baselines3 has not
            "duelling": False,
        }
    return {
        "env": task.env,
        "algorithm": task.algorithm,
        "steps": steps,
        "seed": seed,
        "device": "cpu",
        "vector": {"num_envs": num_envs, "env_type": "serial"},
        "network": network,
        task.algorithm: own | {NAMES.get(name, name): value for name, value in given.items()},
        "evaluation": {"every_steps": None},
        "checkpoint": {"every_seconds": None},
        "logging": {"folder": folder, "log_every": 100},
    }


def train_velodrome(task: Task, steps: int, seed: int, folder: str) -> tuple[Path, Callable[[NDArray], NDArray]]:
    """Train by `vd.train`; return the file of episodes and the finished policy."""
    import velodrome as vd

    run = vd.train(velodrome_config(task, steps, seed, folder), mode="quiet", evaluate=False)
    policy = run.load_policy("latest")
    policy.begin(EPISODES)
    return run.folder.monitor_path, policy.act


# Stable-Baselines3


def train_sb3(task: Task, steps: int, seed: int, folder: str) -> tuple[Path, Callable[[NDArray], NDArray]]:
    """Train by `learn`; return the file of episodes and the finished policy."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

    given = dict(task.settings)
    make = [lambda: gymnasium.make(task.env)] * given.pop("num_envs")
    path = Path(folder) / "monitor.csv"
    envs: Any = VecMonitor(DummyVecEnv(make), str(path))
    if given.pop("normalise", False):
        envs = VecNormalize(envs, gamma=given["gamma"])
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[given.pop("activation")]
    network: dict[str, Any] = {"net_arch": given.pop("hidden"), "activation_fn": activation}
    if "log_std_init" in given:
        network["log_std_init"] = given.pop("log_std_init")
    algorithm = getattr(stable_baselines3, task.algorithm.upper())
    model = algorithm("MlpPolicy", envs, seed=seed, device="cpu", policy_kwargs=network, **given)
    model.learn(steps)

    def act(observations: NDArray) -> NDArray:
        seen = envs.normalize_obs(observations) if isinstance(envs, VecNormalize) else observations
        return model.predict(seen, deterministic=True)[0]

    return path, act


# A cell


def run_cell(cell: Cell) -> dict[str, Any]:
    """Train once, and return the two measures and the time that the training took."""
    import torch

    torch.set_num_threads(1)
    train = {"velodrome": train_velodrome, "sb3": train_sb3}[cell.library]
    task = cell.task
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as folder:
        # What is imported and compiled once in a process counts for neither.
        train(task, task.settings["num_envs"] * task.settings.get("n_steps", 64), cell.seed, first)
        began, began_cpu = time.perf_counter(), time.process_time()
        episodes, act = train(task, cell.steps, cell.seed, folder)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - began_cpu
        last_quarter = mean_of_last_quarter(episodes)
    evaluated = float(np.mean(play(task.env, act)))
    return {
        "algorithm": task.algorithm,
        "env": task.env,
        "library": cell.library,
        "seed": cell.seed,
        "steps": cell.steps,
        "last_quarter": last_quarter,
        "evaluated": evaluated,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }


def mean_of_last_quarter(path: Path) -> float:
    """Return the mean return of the episodes that ended in the last quarter of the steps; both libraries write them."""
    with path.open(encoding="utf-8") as file:
        next(file)  # a comment
        rows = [(float(row["r"]), int(row["l"])) for row in csv.DictReader(file)]
    returns, lengths = (np.array(column) for column in zip(*rows, strict=True))
    ended = np.cumsum(lengths)
    return float(returns[ended > 0.75 * ended[-1]].mean())


def play(env: str, act: Callable[[NDArray], NDArray]) -> NDArray[np.float64]:
    """Return the returns of the first episode of many environments, the same ones for all."""
    envs = gymnasium.make_vec(env, EPISODES, vectorization_mode="sync")
    observations, _ = envs.reset(seed=EVALUATION_SEED)
    returns, playing = np.zeros(EPISODES), np.ones(EPISODES, bool)
    while playing.any():
        observations, rewards, terminated, truncated, _ = envs.step(act(observations))
        returns += rewards * playing
        playing &= ~(terminated | truncated)
    envs.close()
    return returns


# All of them


def run_missing(cells: list[Cell], path: Path, processes: int) -> dict[str, Any]:
    """Run the cells that the file does not have, write each when it is done, and return the file's content."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"machine": machine(), "cells": {}}
    # The longest first, so that none is left running alone at the end.
    missing = sorted((cell for cell in cells if cell.name not in found["cells"]), key=lambda cell: -cell.seconds)
    expected = sum(cell.seconds for cell in missing)
    print(
        f"{len(cells) - len(missing)} of {len(cells)} cells are in {path}; {processes} at once, about "
        f"{max(expected / processes, missing[0].seconds if missing else 0.0) / 60:.1f} minutes",
        flush=True,
    )
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=fresh) as pool:
        running = {pool.submit(run_cell, cell): cell for cell in missing}
        try:
            for left, done in zip(reversed(range(len(missing))), as_completed(running), strict=True):
                found["cells"][running[done].name] = result = done.result()
                replace_text(path, json.dumps(found, indent=1))
                told = ", ".join(f"{what} {result[what]:.1f}" for what in (*MEASURES, "seconds"))
                print(f"{left} left; {running[done].name}: {told}", flush=True)
        finally:
            # After a failure or an interruption, those that have not begun would only delay the message.
            pool.shutdown(cancel_futures=True)
    return found


def machine() -> dict[str, Any]:
    """Return what a reader must know to judge times."""
    import stable_baselines3
    import torch

    import velodrome

    libraries = (velodrome, stable_baselines3, gymnasium, torch, np)
    versions = {library.__name__: library.__version__ for library in libraries}
    return {"system": platform.platform(), "cores": os.cpu_count(), "python": platform.python_version(), **versions}


# What was found


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half along the last axis; what lies across a quartile counts in part."""
    ordered = np.sort(values, axis=-1)
    count = ordered.shape[-1]
    edges = np.arange(count + 1) / count
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return ordered @ inside / 0.5


def compared(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> dict[str, tuple[float, float, float]]:
    """Return interquartile means of both and their difference, each with the ends of a bootstrapped 95 % interval."""
    rng = np.random.default_rng(0)
    drawn = {}
    for name, values in (("velodrome", ours), ("sb3", theirs)):
        resampled = values[rng.integers(0, len(values), (RESAMPLES, len(values)))]
        drawn[name] = (interquartile_mean(values), interquartile_mean(resampled))
    both = drawn["velodrome"], drawn["sb3"]
    drawn["difference"] = (both[0][0] - both[1][0], both[0][1] - both[1][1])
    return {
        name: (float(value), *(float(end) for end in np.quantile(resampled, (0.025, 0.975))))
        for name, (value, resampled) in drawn.items()
    }


def rows_of(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what was found for every algorithm, environment and measure; `verdict` says who is ahead."""
    cells = list(found["cells"].values())
    for key in dict.fromkeys((cell["algorithm"], cell["env"], cell["steps"]) for cell in cells):
        own = {
            library: [
                cell
                for cell in cells
                if (cell["algorithm"], cell["env"], cell["steps"]) == key and cell["library"] == library
            ]
            for library in LIBRARIES
        }
        if not all(own.values()):
            continue
        seconds = {library: float(np.median([cell["seconds"] for cell in own[library]])) for library in LIBRARIES}
        for measure in MEASURES:
            values = (np.array([cell[measure] for cell in own[library]]) for library in LIBRARIES)
            result = compared(*values)
            _, low, high = result["difference"]
            verdict = "ahead" if low > 0.0 else "behind" if high < 0.0 else "level"
            if len(own["velodrome"]) < FEWEST:
                verdict = "too few seeds"
            about = {"algorithm": key[0], "env": key[1], "steps": key[2], "seeds": len(own["velodrome"])}
            yield about | {"measure": measure, "verdict": verdict, "seconds": seconds, **result}


def table(found: Mapping[str, Any]) -> str:
    """Return the Markdown table."""
    lines = [
        "| | steps | seeds | measure | Velodrome | SB3 | difference | | seconds, Velodrome : SB3 |",
        "|---|---:|---:|---|---:|---:|---:|---|---:|",
    ]
    for row in rows_of(found):
        values = (
            f"{value:,.1f} ({low:,.1f} … {high:,.1f})"
            for value, low, high in (row[name] for name in ("velodrome", "sb3", "difference"))
        )
        times = " : ".join(f"{row['seconds'][library]:,.0f}" for library in LIBRARIES)
        lines.append(
            f"| {row['algorithm'].upper()}, {row['env']} | {row['steps']:,} | {row['seeds']} "
            f"| {MEASURES[row['measure']]} | {' | '.join(values)} | {row['verdict']} | {times} |"
        )
    return "\n".join(lines)


def chosen_cells(only: list[str], seeds: int, share: float) -> list[Cell]:
    """Return the cells of the tasks whose algorithm and environment are named, all if none is."""
    algorithms, envs = ({getattr(task, field) for task in TASKS} & set(only) for field in ("algorithm", "env"))
    if unknown := set(only) - algorithms - envs:
        names = sorted({name for task in TASKS for name in task[:2]})
        raise SystemExit(f"--only {' '.join(sorted(unknown))}: there are {', '.join(names)}.")
    tasks = [
        task for task in TASKS if (not algorithms or task.algorithm in algorithms) and (not envs or task.env in envs)
    ]
    if importlib.util.find_spec("Box2D") is None:
        skipped = [task.env for task in tasks if task.env.startswith("LunarLander")]
        tasks = [task for task in tasks if task.env not in skipped]
        if skipped:
            print("LunarLander is skipped: Box2D is not installed (pip install box2d)", file=sys.stderr)
    return [
        Cell(task, library, seed, round(task.steps * share))
        for task in tasks
        for seed in range(seeds)
        for library in LIBRARIES
    ]


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", type=Path, default=Path("learning.json"), help="file of results, continued if it exists"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="trainings at once")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of every training; each task's own unless given")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="algorithms and environments")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:.0%} of the steps, one seed: does it run?")
    given = parser.parse_args()
    os.environ.update(dict.fromkeys(THREADS, "1"))  # of the processes, which import NumPy and torch after this
    cells = chosen_cells(given.only, 1 if given.quick else given.seeds, QUICK if given.quick else 1.0)
    if given.steps is not None:
        cells = [cell._replace(steps=given.steps) for cell in cells]
    found = run_missing(cells, given.json, given.processes)
    print(f"\n{found['machine']}\n\n{table(found)}")


if __name__ == "__main__":
    main()
