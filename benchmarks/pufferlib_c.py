"""Two of PufferLib's environments in C beside the same rules in Velodrome.

    python benchmarks/pufferlib_c.py [--num-envs 1024 4096] [--rounds 7] [--seconds 0.3] [--json FILE]

`cartpole` has four numbers and physics; `squared`, its template, a grid of 121 cells, which C changes where something
moved and Velodrome writes anew in every step, as floats. Both sides play the same actions from the same starts first,
until an episode ends, and must agree. Then they take turns: Velodrome on one thread and on all, with and without its
look for NaN and infinities, which C has not, and C in one process and spread over PufferLib's workers, one for each
core, all at once. benchmarks/README.md says how C is built.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

import velodrome as vd
from velodrome.bench.machine import machine_stamp
from velodrome.bench.peers import pufferlib
from velodrome.envs.contract import Float64, Int32, Rule, UInt64, World
from velodrome.envs.elementary import sine_and_cosine
from velodrome.envs.parameters import EnvConfig
from velodrome.envs.rng import uniform
from velodrome.vector.cores import available_cores
from velodrome.writing import replace_text

SIZE = 11  # cells of squared's side
CELLS, MIDDLE = SIZE * SIZE, SIZE * SIZE // 2
PER_MASS = 1.0 / 1.1


class Empty(NamedTuple):
    """The rules have no data."""

    none: NDArray[np.float64]


class Params(NamedTuple):
    """What the rules are told."""

    longest: int  # steps of an episode of cartpole


class CartState:
    """A cart and its pole."""

    rng_key: UInt64
    rng_counter: UInt64
    cursor: Int32
    x: Float64
    speed: Float64
    angle: Float64
    turning: Float64
    score: Float64


def reset_cart(i: int, state: CartState, tables: Empty, params: Any) -> None:
    state.cursor[i] = 0
    state.score[i] = 0.0
    state.x[i] = uniform(i, state) * 0.08 - 0.04
    state.speed[i] = uniform(i, state) * 0.08 - 0.04
    state.angle[i] = uniform(i, state) * 0.08 - 0.04
    state.turning[i] = uniform(i, state) * 0.08 - 0.04


def step_cart(i: int, action: Any, state: CartState, tables: Empty, params: Any) -> tuple[float, bool, bool]:
    x, speed, angle, turning = state.x[i], state.speed[i], state.angle[i], state.turning[i]
    sine, cosine = sine_and_cosine(angle)
    force = 10.0 if action == 1 else -10.0
    common = (force + 0.05 * turning * turning * sine) * PER_MASS
    twist = (9.8 * sine - cosine * common) / (0.5 * (4.0 / 3.0 - 0.1 * PER_MASS * cosine * cosine))
    push = common - 0.05 * PER_MASS * twist * cosine
    x += 0.02 * speed
    angle += 0.02 * turning
    cursor = state.cursor[i] + 1
    terminated = (abs(x) > 2.4) | (abs(angle) > 12.0 * 2.0 * math.pi / 360.0)
    truncated = cursor >= params.longest
    reward = 0.0 if terminated | truncated else 1.0
    state.cursor[i] = cursor
    state.score[i] += reward
    state.x[i] = x
    state.speed[i] = speed + 0.02 * push
    state.angle[i] = angle
    state.turning[i] = turning + 0.02 * twist
    return reward, terminated, truncated


def observe_cart(i: int, state: CartState, tables: Empty, params: Any, out: NDArray[np.float32]) -> None:
    out[0] = state.x[i]
    out[1] = state.speed[i]
    out[2] = state.angle[i]
    out[3] = state.turning[i]


class SquaredState:
    """Who walks, and to where."""

    rng_key: UInt64
    rng_counter: UInt64
    cursor: Int32
    row: Int32
    column: Int32
    target: Int32
    score: Float64


def reset_squared(i: int, state: SquaredState, tables: Empty, params: Any) -> None:
    state.cursor[i] = 0
    state.score[i] = 0.0
    state.row[i] = SIZE // 2
    state.column[i] = SIZE // 2
    cell = int(uniform(i, state) * (CELLS - 1))
    state.target[i] = cell if cell < MIDDLE else cell + 1


def step_squared(i: int, action: Any, state: SquaredState, tables: Empty, params: Any) -> tuple[float, bool, bool]:
    state.row[i] += (1 if action == 1 else 0) - (1 if action == 2 else 0)
    state.column[i] += (1 if action == 4 else 0) - (1 if action == 3 else 0)
    state.cursor[i] += 1
    row, column = state.row[i], state.column[i]
    lost = (state.cursor[i] > 3 * SIZE) | (row < 0) | (column < 0) | (row >= SIZE) | (column >= SIZE)
    won = row * SIZE + column == state.target[i]
    reward = -1.0 if lost else (1.0 if won else 0.0)
    state.score[i] += reward
    return reward, lost | won, False


def observe_squared(i: int, state: SquaredState, tables: Empty, params: Any, out: NDArray[np.float32]) -> None:
    for cell in range(CELLS):
        out[cell] = 0.0
    out[state.target[i]] = 2.0
    place = state.row[i] * SIZE + state.column[i]
    if (place >= 0) & (place < CELLS):
        out[place] = 1.0


def finish(i: int, state: Any, tables: Empty, params: Any, out: NDArray[np.float64]) -> None:
    out[0] = state.score[i]
    out[1] = state.cursor[i]


class Problem(NamedTuple):
    """A rule here and there."""

    rule: Rule
    state_type: Any
    actions: int
    observed: tuple[str, ...]
    begin: Callable[[NDArray], dict[str, NDArray]]  # the state that first observations show

    def world(self, **_: Any) -> World:
        """Assemble the environment."""
        space, tables = gymnasium.spaces.Discrete(self.actions), Empty(np.zeros(1))
        shared: dict[str, Any] = {"rule": self.rule, "state_type": self.state_type, "params": GIVEN, "tables": tables}
        return World(name="c", action_space=space, observed=self.observed, statistics=("reward", "length"), **shared)


GIVEN = Params(longest=200)
CART = ("x", "speed", "angle", "turning")
PROBLEMS = {
    "cartpole": Problem(
        Rule(reset_cart, step_cart, observe_cart, finish),
        *(CartState, 2, CART),
        lambda shown: dict(zip(CART, shown.astype(float).T.copy(), strict=True)),
    ),
    "squared": Problem(
        Rule(reset_squared, step_squared, observe_squared, finish),
        *(SquaredState, 5, tuple(f"cell_{cell}" for cell in range(CELLS))),
        lambda shown: {
            "target": shown.argmax(1),
            **{name: np.full(len(shown), SIZE // 2) for name in ("row", "column")},
        },
    ),
}


def in_c(name: str) -> Any:
    """Return PufferLib's class of an environment."""
    return getattr(pufferlib.imported(f"ocean.{name}.{name}"), name.capitalize())


def check(name: str, problem: Problem, count: int = 256, steps: int = 60) -> str:
    """Play the same actions from the same starts on both sides, each environment until it ends; return what agreed."""
    theirs, compared, ended = in_c(name)(num_envs=count), 0, 0
    shown = theirs.reset(seed=0)[0]
    state: Any = SimpleNamespace(cursor=np.zeros(count, int), score=np.zeros(count), **problem.begin(shown))
    alive, generator, own = np.ones(count, bool), np.random.default_rng(0), np.zeros(shown.shape[1], np.float32)
    for _ in range(steps):
        actions = generator.integers(0, problem.actions, count)
        shown, rewards, terminated, *_ = theirs.step(actions)
        for i in np.flatnonzero(alive):
            reward, done, _ = problem.rule.step(i, actions[i], state, None, GIVEN)
            assert (reward, done) == (rewards[i], terminated[i]), f"{name}: environment {i} gives another reward or end"
            if not done:
                problem.rule.observe(i, state, None, GIVEN, own)
                assert np.allclose(own, shown[i], atol=1e-4), f"{name}: environment {i} shows something else"
            compared, ended, alive[i] = compared + 1, ended + done, not done
    theirs.close()
    return f"{name}: {compared:,} steps agree, {ended} ends"


def contenders(name: str, size: int, opened: ExitStack) -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Return what steps a batch, by name, and the type of its actions."""
    found: dict[str, tuple[Callable[[Any], Any], Any]] = {}
    for threads, checks in itertools.product(sorted({1, available_cores()}), (True, False)):
        how: dict[str, Any] = {"threads": threads, "check_actions": False, "check_values": checks}
        envs: Any = vd.make_vec(f"c_{name}", size, backend="native", seed=0, **how)
        envs.reset()
        found[f"velodrome, {threads} thr.{'' if checks else ', values not checked'}"] = envs.step, np.int64
    logs = {"log_interval" if name == "squared" else "report_interval": 128}  # steps between two; else a step's third
    alone = in_c(name)(num_envs=size, **logs)
    alone.reset(seed=0)
    found["PufferLib in C, 1 process"] = alone.step, alone.actions.dtype
    vector, workers = pufferlib.imported(), available_cores()
    given: dict[str, Any] = {"env_kwargs": {"num_envs": size // workers, **logs}, "backend": vector.Multiprocessing}
    workers_envs = vector.make(in_c(name), num_envs=workers, num_workers=workers, batch_size=workers, **given)
    opened.callback(workers_envs.close)
    workers_envs.reset(seed=0)
    found[f"PufferLib in C, {workers} workers"] = workers_envs.step, np.int32
    return found


def main() -> None:
    """Check, measure in turns, print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if importlib.util.find_spec("pufferlib") is None:
        parser.error("PufferLib is not installed; benchmarks/README.md says how it is built.")
    report: dict[str, Any] = {
        "machine": machine_stamp(),
        "options": {**vars(given), "json": str(given.json)},
        "rows": [],
    }
    for name, problem in PROBLEMS.items():
        vd.register_env(f"c_{name}", problem.world, parameters=EnvConfig)
        print(check(name, problem))
    print("| environments | | median steps/s | slowest … fastest |\n|---:|---|---:|---:|")
    for name, problem in PROBLEMS.items():
        for size in given.num_envs:
            drawn = np.random.default_rng(0).integers(0, problem.actions, (64, size))
            rates: dict[str, list[float]] = {}
            with ExitStack() as opened:
                who = contenders(name, size, opened)
                for _, (label, (step, kind)) in itertools.product(range(given.rounds), who.items()):
                    rates.setdefault(label, []).append(rate(step, drawn.astype(kind), given.seconds))
                    if "workers" in label:
                        time.sleep(pufferlib.FALL_ASLEEP_SECONDS)
            for label, found in rates.items():
                report["rows"].append({"rule": name, "num_envs": size, "label": label, "rounds": found})
                spread = f"{min(found) / 1e6:.1f} … {max(found) / 1e6:.1f} M"
                print(f"| {size:,} {name} | {label} | {statistics.median(found) / 1e6:.1f} M | {spread} |", flush=True)
    if given.json:
        replace_text(given.json, json.dumps(report, indent=2) + "\n")


def rate(step: Callable[[Any], Any], actions: NDArray, seconds: float) -> float:
    """Return steps per second of single environments, once it is warm."""
    for index in range(64):
        step(actions[index])
    calls, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for index in range(16):
            step(actions[(calls + index) % 64])
        calls += 16
    return calls * actions.shape[1] / elapsed


if __name__ == "__main__":
    main()
