"""How long environments and workers take: one environment in this process, waking workers, batches in turns."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import closing
from typing import Any, NamedTuple

from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.foreign_env import ForeignVectorEnv
from velodrome.vector.workers.options import WorkerOptions
from velodrome.vector.workers.process import ProcessVectorEnv
from velodrome.vector.workers.serial import SerialVectorEnv

FEWEST_STEPS = 3  # of an environment so slow that one fills its share
RESETS = 3
RING = 32  # sampled actions that are cycled through
ROUNDS = 7  # in which candidates take turns


class RowCost(NamedTuple):
    """What one environment in this process takes, in seconds."""

    wall: float  # a row, with its share of resets
    cpu: float  # of it on a core
    call: float  # of a batch, beside its rows
    step: float
    step_cpu: float
    reset: float
    make: float
    episode_length: float | None


def opened(kind: type[ForeignVectorEnv], makers: list[EnvMaker], num_envs: int, workers: int | None = None) -> Any:
    """Make a batch to be measured, which is closed at the end of a `with`."""
    return closing(kind(makers, num_envs, seed=0, options=WorkerOptions(workers=workers)))


def makers_of(makers: list[EnvMaker], num_envs: int) -> list[EnvMaker]:
    """Return the makers of the first environments, where each has its own."""
    return makers if len(makers) == 1 else makers[:num_envs]


def sampled_actions(envs: ForeignVectorEnv) -> list[Any]:
    envs.action_space.seed(0)
    return [envs.action_space.sample() for _ in range(RING)]


def measure_row(makers: list[EnvMaker], seconds: float) -> RowCost:
    """Step one environment in this process for a time, or a few steps if one takes longer."""
    began = time.perf_counter()
    with opened(SerialVectorEnv, makers, 1) as envs:
        make = time.perf_counter() - began
        envs.reset()
        resets = []
        for _ in range(RESETS):
            began = time.perf_counter()
            envs.reset()
            resets.append(time.perf_counter() - began)
            if sum(resets) > seconds:
                break
        actions, step_seconds = sampled_actions(envs), envs.arrays.step_seconds
        calls: list[float] = []
        rows: list[float] = []
        ended: list[bool] = []
        for k in range(FEWEST_STEPS):  # the first steps of an environment may import, allocate, compile
            envs.step(actions[k])
        clocks = Clocks()
        until = time.perf_counter() + seconds
        while len(calls) < FEWEST_STEPS or time.perf_counter() < until:
            action = actions[len(calls) % RING]
            before = time.perf_counter()
            _, _, terminated, truncated, _ = envs.step(action)
            calls.append(time.perf_counter() - before)
            rows.append(float(step_seconds[0]))
            ended.append(bool(terminated[0] or truncated[0]))
        share = clocks.computing_share()
    plain = [row for row, end in zip(rows, ended, strict=True) if not end] or rows
    step, wall = statistics.median(plain), trimmed_mean(rows)
    call = statistics.median(call - row for call, row in zip(calls, rows, strict=True))
    length = len(rows) / sum(ended) if any(ended) else None
    return RowCost(wall, wall * share, call, step, step * share, statistics.median(resets), make, length)


class Clocks:
    """How much of the time since it was made this process has computed, or wanted to, rather than waited."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()
        self.thread, self.queued = time.thread_time(), queued_seconds()

    def computing_share(self) -> float:
        """Return the share, 0 to 1. Time in which another program had the core does not count as waiting.

        Work of the environment's other threads counts too.
        """
        wall = max(time.perf_counter() - self.wall, 1e-9)
        own = time.thread_time() - self.thread + queued_seconds() - self.queued
        return min(1.0, max(own, time.process_time() - self.processor) / wall)


def queued_seconds() -> float:
    """Return how long this thread was ready to run but had no core; 0 on systems that do not say (all but Linux)."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


def trimmed_mean(values: list[float]) -> float:
    """Return the mean without the highest hundredth, which is due to whatever else the machine did."""
    kept = sorted(values)[: max(1, math.ceil(0.99 * len(values)))]
    return statistics.fmean(kept)


def measure_round_trip(envs: ProcessVectorEnv, seconds: float) -> float:
    """Return the seconds of a step of workers with one environment each, less those of the slowest environment."""
    envs.reset()
    actions, step_seconds = sampled_actions(envs), envs.arrays.step_seconds
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < 2 * FEWEST_STEPS or time.perf_counter() < until:
        began = time.perf_counter()
        envs.step(actions[len(found) % RING])
        found.append(max(0.0, time.perf_counter() - began - float(step_seconds.max())))
    return statistics.median(found[FEWEST_STEPS:])


def take_turns(batches: dict[str, ForeignVectorEnv], seconds: float) -> dict[str, float]:
    """Return steps per second of batches that step in turns, so that other load falls on all alike."""
    actions = {name: sampled_actions(envs) for name, envs in batches.items()}
    per_turn = seconds / ROUNDS / len(batches)
    calls: dict[str, int] = {}
    for name, envs in batches.items():
        envs.reset()
        shortest = min(seconds_of(envs, actions[name], 1) for _ in range(FEWEST_STEPS))
        calls[name] = max(1, round(per_turn / max(shortest, 1e-6)))
    rates: dict[str, list[float]] = {name: [] for name in batches}
    until = time.perf_counter() + 1.5 * seconds
    for _ in range(ROUNDS):
        for name, envs in batches.items():
            rates[name].append(calls[name] * envs.num_envs / seconds_of(envs, actions[name], calls[name]))
        if time.perf_counter() > until:
            break
    # Other load can only slow a turn down, so the better turns say more than the worse.
    return {name: statistics.quantiles(found, n=4)[-1] if len(found) > 1 else found[0] for name, found in rates.items()}


def seconds_of(envs: ForeignVectorEnv, ring: list[Any], calls: int) -> float:
    """Return how long some steps take."""
    step = envs.step
    began = time.perf_counter()
    for k in range(calls):
        step(ring[k % RING])
    return time.perf_counter() - began
