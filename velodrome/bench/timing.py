"""How long a step takes: contenders take turns, so that a burst of other load on the machine falls on all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

WARM_UP_CALLS = 3
WARM_UP_SHARE = 0.2  # of the seconds of a measurement


class Stepper(NamedTuple):
    """A contender that is ready to be stepped."""

    step: Callable[[int], object]  # steps the batch once, with the k-th actions of the ring
    prepare: Callable[[], object] = lambda: None  # called before each timed slice, not timed


class Timing(NamedTuple):
    """Steps per second of single environments."""

    median: float
    low: float  # slowest repeat
    high: float  # fastest repeat
    repeats: int
    calls: int  # batches stepped, all repeats


def seconds_per_call(stepper: Stepper, seconds: float) -> float:
    """Warm a contender up for so many seconds at least; return what a call then takes."""
    stepper.prepare()
    for k in range(WARM_UP_CALLS):
        stepper.step(k)
    calls, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds or calls == 0:
        stepper.step(calls)
        calls += 1
    return elapsed / calls


def time_slice(stepper: Stepper, calls: int) -> float:
    """Return the seconds that so many calls take."""
    stepper.prepare()
    step = stepper.step
    started = time.perf_counter()
    for k in range(calls):
        step(k)
    return time.perf_counter() - started


def take_turns(
    steppers: Sequence[Stepper], num_envs: Sequence[int], seconds: float, repeats: int
) -> Iterator[tuple[int, Timing]]:
    """Time each contender once per round, in rounds; after each slice yield its index and its timing so far."""
    calls = []
    for stepper in steppers:
        per_call = seconds_per_call(stepper, WARM_UP_SHARE * seconds)
        calls.append(max(1, round(seconds / repeats / per_call)))
    rates: list[list[float]] = [[] for _ in steppers]
    for _ in range(repeats):
        for index, stepper in enumerate(steppers):
            elapsed = time_slice(stepper, calls[index])
            rates[index].append(calls[index] * num_envs[index] / elapsed)
            yield index, summary(rates[index], calls[index])


def summary(rates: Sequence[float], calls_per_repeat: int) -> Timing:
    """Return the median and the spread of some repeats."""
    return Timing(float(np.median(rates)), min(rates), max(rates), len(rates), calls_per_repeat * len(rates))
