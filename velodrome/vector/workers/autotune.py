"""Which backend is the fastest for an environment here: a short measurement, a cost model, and a trial of the best.

The model, for n environments and w workers. A row (one environment's step, with its share of resets) takes `wall`
seconds, of which `cpu` on a core or queueing for one; the difference is waiting, for a simulator or a sleep.

    serial:   call + n · wall
    process:  round_trip(w) + max(⌈n / w⌉ · wall, n · cpu / cores)

`call` is what a batch costs beside its rows, `round_trip` what it costs to hand a step to workers and to hear that all
are done, both measured on the environment itself. A worker beyond the one for each core is woken after the others: it
adds half of a worker's share to the round trip. Where rows only compute, more workers than cores gain nothing; where
they wait, up to one for each environment do. The model says who is worth a trial, and the trial decides.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import psutil

from velodrome.vector.workers.options import TIMEOUT
from velodrome.vector.argument_checks import check_num_envs
from velodrome.vector.cores import available_cores
from velodrome.vector.fleet.step_times import seconds_text
from velodrome.vector.workers.faults import EnvironmentFaultError, FaultSettings
from velodrome.vector.workers.foreign_env import ForeignVectorEnv
from velodrome.vector.workers.make_foreign import is_foreign
from velodrome.vector.workers.env_maker import EnvMaker, UnpicklableError, environment_makers
from velodrome.vector.workers.process import ProcessVectorEnv
from velodrome.vector.workers.worker.protocol import MOST_WORKERS
from velodrome.vector.workers.serial import SerialVectorEnv

AUTO_SECONDS = 1.0  # of measuring in backend="auto"
ROW_SHARE, ROUND_TRIP_SHARE = 0.15, 0.1  # of the seconds; the rest is for trials
FEWEST_STEPS = 3  # of an environment so slow that one fills its share
RESETS = 3
RING = 32  # sampled actions that are cycled through
ROUNDS = 7  # in which candidates take turns
MOST_TRIED = 3  # beside serial and one worker for each core
HOPELESS = 0.6  # of the best prediction: below it a candidate is not tried
TIE = 0.03  # a simpler candidate that is slower by no more than this is taken
MEMORY_SHARE = 0.8  # of the free memory that workers may take


@dataclass(frozen=True)
class Recommendation:
    """The backend that is the fastest here, why, and what was measured to find out; None where nothing was."""

    backend: Literal["serial", "process", "native"]
    workers: int  # processes; 0: none
    envs_per_worker: int  # of the worker that has most; without workers, all
    reason: str  # one plain sentence with the numbers
    num_envs: int
    cores: int
    step_seconds: float | None = None  # of one environment, median
    step_cpu_seconds: float | None = None  # of it on a core; the rest is waiting
    reset_seconds: float | None = None
    episode_length: float | None = None  # steps with sampled actions, mean; None: no episode ended
    make_seconds: float | None = None  # for one environment
    round_trip_seconds: float | None = None  # of a step of all workers beside the environments' own time
    bytes_per_worker: int | None = None  # a worker with one environment
    bytes_per_environment: int | None = None  # what each further one adds to it
    predicted: dict[str, float] = field(default_factory=dict)  # candidate -> steps per second
    measured: dict[str, float] = field(default_factory=dict)  # those that were tried

    @property
    def candidate(self) -> str:
        """The key of this choice in `predicted` and `measured`."""
        return candidate_name(self.workers) if self.backend != "native" else "native"

    def sentence(self) -> str:
        """Return the choice and the reason in one line for people."""
        if self.backend != "process":
            return f"{self.backend}: {self.reason}"
        each = f"{self.envs_per_worker} environment{'s' if self.envs_per_worker > 1 else ''}"
        return f"process, {self.workers} workers × {each}: {self.reason}"


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


def candidate_name(workers: int) -> str:
    """Return the name of serial (no workers) or of process with so many."""
    return f"process, {workers}" if workers else "serial"


def recommend(env: Any, num_envs: int = 64, *, seconds: float = 2.0, **params: Any) -> Recommendation:
    """Return the backend, workers and environments per worker that are the fastest for an environment on this machine.

    env: as for `make_vec`. One environment (of a list, the first) is made and stepped with sampled actions in this
    process, then batches of `num_envs` are tried, in processes too; all are closed again. seconds: about how long to
    measure; starting workers, and a step that takes longer, come on top.
    """
    check_num_envs(num_envs)
    if is_foreign(env):
        return recommend_backend(environment_makers(env, params), num_envs, seconds)
    from velodrome.envs.catalog import CATALOG

    name = env if isinstance(env, str) else "this"
    if isinstance(env, str):
        CATALOG.get(env)  # refuses what is no environment at all
    return Recommendation(
        "native", 0, num_envs,
        f"{name} is a rule of Velodrome, compiled into one loop over all environments in this process, which no worker "
        f"process can beat. On an NVIDIA GPU, backend='cuda' serves too",
        num_envs, available_cores(),
    )  # fmt: skip


def recommend_backend(makers: list[EnvMaker], num_envs: int, seconds: float = AUTO_SECONDS) -> Recommendation:
    """Return what `recommend` does, for what makes the environments."""
    check_num_envs(num_envs)
    cores = available_cores()
    with named_faults(makers[0].name), ExitStack() as stack:
        cost = measure_row(makers[:1], ROW_SHARE * seconds)
        serial = predict(cost, 0.0, num_envs, 0, cores, cores)
        known = Recommendation(
            "serial", 0, num_envs, "", num_envs, cores, step_seconds=cost.step, step_cpu_seconds=cost.step_cpu,
            reset_seconds=cost.reset, episode_length=cost.episode_length, make_seconds=cost.make,
            predicted={candidate_name(0): serial},
        )  # fmt: skip
        # Without a round trip, at best: if serial is as fast even so, no process need be started to know.
        ideal = max((predict(cost, 0.0, num_envs, w, cores, w) for w in worker_counts(num_envs)), default=0.0)
        if ideal <= (1.0 + TIE) * serial:
            return replace(known, reason=serial_alone(cost, num_envs, cores))
        first = min(cores if cores > 1 else 2, num_envs)
        try:
            workers = stack.enter_context(opened(ProcessVectorEnv, makers_of(makers, first), first, workers=first))
        except UnpicklableError as error:
            return replace(known, reason=f"{error}, so that no worker can make it; {rate_text(serial)}")
        assert isinstance(workers, ProcessVectorEnv)
        round_trip = measure_round_trip(workers, ROUND_TRIP_SHARE * seconds)
        per_worker = workers.memory_of_workers() // first
        counts = [w for w in worker_counts(num_envs) if fits(w, per_worker)]
        predicted = {candidate_name(0): serial} | {
            candidate_name(w): predict(cost, round_trip, num_envs, w, cores, first) for w in counts
        }
        known = replace(known, round_trip_seconds=round_trip, bytes_per_worker=per_worker, predicted=predicted)
        tried = worth_a_trial(predicted, [0, *counts], first)
        measured: dict[str, float] = {}
        # Making environments for a trial must not take longer than the trial.
        affordable = cost.make * num_envs * len(tried) <= max(seconds, 1.0)
        if len(tried) > 1 and affordable:
            batches = trial_batches(stack, makers, num_envs, tried, workers)
            measured = take_turns(batches, (1.0 - ROW_SHARE - ROUND_TRIP_SHARE) * seconds)
            full = batches.get(candidate_name(first))
            if isinstance(full, ProcessVectorEnv) and num_envs > first:
                grown = full.memory_of_workers() - per_worker * first
                known = replace(known, bytes_per_environment=max(0, grown // (num_envs - first)))
        rates = measured or {candidate_name(w): predicted[candidate_name(w)] for w in tried}
        return chosen(replace(known, measured=measured), rates, tried)


@contextmanager
def named_faults(name: str) -> Iterator[None]:
    """Say of a fault which environment it was, and that it was only being measured."""
    try:
        yield
    except EnvironmentFaultError as error:
        raise EnvironmentFaultError(
            error.faults, f"{name} failed while it was measured to choose a backend. Mend it, or name a backend."
        ) from error


@contextmanager
def opened(kind: type[ForeignVectorEnv], makers: list[EnvMaker], num_envs: int, **options: Any) -> Iterator[Any]:
    """Make a batch to be measured, and close it in the end."""
    timeout = None if kind is SerialVectorEnv else TIMEOUT
    envs = kind(makers, num_envs, seed=0, copy=False, autoreset=True, faults=FaultSettings(timeout=timeout), **options)
    try:
        yield envs
    finally:
        envs.close()


def makers_of(makers: list[EnvMaker], num_envs: int) -> list[EnvMaker]:
    """Return makers for fewer environments than they were meant for."""
    return makers if len(makers) == 1 else makers[:num_envs]


def sampled_actions(envs: ForeignVectorEnv) -> list[Any]:
    envs.action_space.seed(0)
    return [envs.action_space.sample() for _ in range(RING)]


# Measuring


def measure_row(makers: list[EnvMaker], seconds: float) -> RowCost:
    """Step one environment in this process for so many seconds, or a few steps."""
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
        actions, step_seconds = sampled_actions(envs), envs.rows.step_seconds
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
    """How much of the time since it was made this process computed, or wanted to, rather than waited."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()
        self.thread, self.queued = time.thread_time(), queued_seconds()

    def computing_share(self) -> float:
        """Return the share, 0 to 1. Another program that had the core meanwhile does not make this one a waiting one.

        Work of the environment's other threads counts too.
        """
        wall = max(time.perf_counter() - self.wall, 1e-9)
        own = time.thread_time() - self.thread + queued_seconds() - self.queued
        return min(1.0, max(own, time.process_time() - self.processor) / wall)


def queued_seconds() -> float:
    """Return how long this thread was ready to run and had no core; 0 where the kernel (not Linux) does not tell."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) * 1e-9
    except (OSError, IndexError, ValueError):
        return 0.0


def trimmed_mean(values: list[float]) -> float:
    """Return the mean without the highest hundredth, which belongs to whatever else the machine did."""
    kept = sorted(values)[: max(1, math.ceil(0.99 * len(values)))]
    return statistics.fmean(kept)


def measure_round_trip(envs: ProcessVectorEnv, seconds: float) -> float:
    """Return what a step of workers with one environment each takes, beside the slowest of their environments."""
    envs.reset()
    actions, step_seconds = sampled_actions(envs), envs.rows.step_seconds
    found: list[float] = []
    until = time.perf_counter() + seconds
    while len(found) < 2 * FEWEST_STEPS or time.perf_counter() < until:
        began = time.perf_counter()
        envs.step(actions[len(found) % RING])
        found.append(max(0.0, time.perf_counter() - began - float(step_seconds.max())))
    return statistics.median(found[FEWEST_STEPS:])


# Predicting


def worker_counts(num_envs: int) -> list[int]:
    """Return every number of workers above one that makes a difference: each has its own most rows per worker."""
    counts = {math.ceil(num_envs / rows) for rows in range(1, num_envs + 1)}
    return sorted(count for count in counts if 1 < count <= MOST_WORKERS)


def predict(cost: RowCost, round_trip: float, num_envs: int, workers: int, cores: int, measured_workers: int) -> float:
    """Return steps per second by the model; no workers is serial."""
    if workers == 0:
        return num_envs / (cost.call + num_envs * cost.wall)
    beyond = max(0, workers - measured_workers) / (2 * measured_workers)
    rows = math.ceil(num_envs / workers) * cost.wall
    return num_envs / (round_trip * (1.0 + beyond) + max(rows, num_envs * cost.cpu / cores))


def fits(workers: int, bytes_per_worker: int) -> bool:
    """Return whether so many workers fit into the memory that is free now."""
    return workers * bytes_per_worker <= MEMORY_SHARE * psutil.virtual_memory().available


def worth_a_trial(predicted: dict[str, float], counts: list[int], first: int) -> list[int]:
    """Return the worker counts (0: serial) of the candidates near the best prediction, the simplest first."""
    best = max(predicted.values())
    near = [count for count in counts if predicted[candidate_name(count)] >= HOPELESS * best]
    ranked = sorted(near, key=lambda count: -predicted[candidate_name(count)])[:MOST_TRIED]
    return sorted({*ranked, *(count for count in (0, first) if count in near)})


# Trying


def trial_batches(
    stack: ExitStack, makers: list[EnvMaker], num_envs: int, counts: list[int], workers: ProcessVectorEnv
) -> dict[str, ForeignVectorEnv]:
    """Return a batch of each candidate; workers that are there already take more environments."""
    batches: dict[str, ForeignVectorEnv] = {}
    for count in counts:
        if count == workers.num_workers and len(makers) == 1:
            workers.resize(num_envs)
            batches[candidate_name(count)] = workers
        elif count == 0:
            batches[candidate_name(0)] = stack.enter_context(opened(SerialVectorEnv, makers, num_envs))
        else:
            batches[candidate_name(count)] = stack.enter_context(
                opened(ProcessVectorEnv, makers, num_envs, workers=count)
            )
    return batches


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
    # Other load only ever slows down: the better turns say more than the worse.
    return {name: statistics.quantiles(found, n=4)[-1] if len(found) > 1 else found[0] for name, found in rates.items()}


def seconds_of(envs: ForeignVectorEnv, ring: list[Any], calls: int) -> float:
    """Return how long so many steps take."""
    step = envs.step
    began = time.perf_counter()
    for k in range(calls):
        step(ring[k % RING])
    return time.perf_counter() - began


# Choosing


def chosen(known: Recommendation, rates: dict[str, float], tried: list[int]) -> Recommendation:
    """Return the fastest of the candidates, or the one with the fewest workers of those as fast."""
    best = max(rates.values())
    workers = next(count for count in tried if rates[candidate_name(count)] >= (1.0 - TIE) * best)
    own = candidate_name(workers)
    assert known.step_seconds is not None
    assert known.step_cpu_seconds is not None
    took = f"a step takes {seconds_text(known.step_seconds)}"
    if known.step_cpu_seconds < 0.7 * known.step_seconds:
        took += f" ({1.0 - known.step_cpu_seconds / known.step_seconds:.0%} of it waiting)"
    assert known.round_trip_seconds is not None
    # What people compare with is serial, or, if that is the choice, the best with workers.
    rest = {**known.predicted, **known.measured}
    rest.pop(own)
    rival = candidate_name(0) if workers else max(rest, key=rest.__getitem__)
    told = f"{rival} workers" if rival != candidate_name(0) else rival
    how = "" if rival in known.measured else " by the model"
    compared = f"{rate_text(rates[own])}; {told.replace(', ', ' with ')} {rest[rival]:,.0f}{how}"
    reason = f"{took} and waking workers {seconds_text(known.round_trip_seconds)} ({compared})"
    if not workers:
        return replace(known, reason=reason)
    per_worker = math.ceil(known.num_envs / workers)
    return replace(known, backend="process", workers=workers, envs_per_worker=per_worker, reason=reason)


def serial_alone(cost: RowCost, num_envs: int, cores: int) -> str:
    """Return why no number of workers could be faster."""
    rate = rate_text(predict(cost, 0.0, num_envs, 0, cores, 1))
    why = "there is one environment" if num_envs == 1 else f"it computes, and there is {cores} core"
    return f"a step takes {seconds_text(cost.step)}, {why}: workers could not be faster ({rate})"


def rate_text(rate: float) -> str:
    return f"{rate:,.0f} steps/s"
