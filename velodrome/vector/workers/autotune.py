"""Which backend is the fastest for an environment on this machine: measure, predict, and try the best candidates.

The model, for n environments and w workers. A row (one environment's step, with its share of resets) takes `wall`
seconds, of which `cpu` on a core or queueing for one; the difference is waiting, for a simulator or a sleep.

    serial:   call + n · wall
    process:  round_trip(w) + max(⌈n / w⌉ · wall, n · cpu / cores)

`call` is the cost of a batch besides its rows, `round_trip` the cost of handing a step to workers and hearing that all
are done; both are measured on the environment itself. A worker beyond one per core is woken after the others: it adds
half of a worker's share to the round trip. If rows only compute, more workers than cores gain nothing; if they wait, up
to one worker per environment does. The model says which candidates are worth a trial, and the trial decides. It takes
all cores for free, so on a busy machine it promises too much of workers: serial is tried beside them in any case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from velodrome.errors import ConfigError
from velodrome.vector.argument_checks import checked_count
from velodrome.vector.cores import available_cores, free_memory
from velodrome.vector.messages import seconds_text
from velodrome.vector.workers.env_maker import EnvMaker, UnpicklableError, environment_makers, is_foreign
from velodrome.vector.workers.faults import EnvironmentFaultError
from velodrome.vector.workers.foreign_env import ForeignVectorEnv
from velodrome.vector.workers.measuring import (
    FEWEST_STEPS,
    RowCost,
    makers_of,
    measure_round_trip,
    measure_row,
    opened,
    take_turns,
)
from velodrome.vector.workers.options import MOST_WORKERS
from velodrome.vector.workers.process import ProcessVectorEnv
from velodrome.vector.workers.serial import SerialVectorEnv

AUTO_SECONDS = 1.0  # of measuring in backend="auto"
ROW_SHARE, ROUND_TRIP_SHARE = 0.15, 0.1  # of the seconds; the rest is for trials
MOST_TRIED = 3  # besides serial and one worker per core
HOPELESS = 0.6  # of the best prediction: below it a candidate is not tried
TIE = 0.03  # a simpler candidate is taken if it is slower by no more than this
MEMORY_SHARE = 0.8  # of the free memory that workers may take


@dataclass(frozen=True)
class Recommendation:
    """The fastest backend here, the reason, and what was measured to find it; None: not measured."""

    backend: Literal["serial", "process", "native"]
    workers: int  # processes; 0: none
    envs_per_worker: int  # of the worker that has the most; without workers, all
    reason: str  # one plain sentence with the numbers
    num_envs: int
    cores: int
    step_seconds: float | None = None  # of one environment, median
    step_cpu_seconds: float | None = None  # the part of it on a core; the rest is waiting
    reset_seconds: float | None = None
    episode_length: float | None = None  # mean steps with sampled actions; None: no episode ended
    make_seconds: float | None = None  # for one environment
    round_trip_seconds: float | None = None  # of a step of all workers, without the environments' own time
    bytes_per_worker: int | None = None  # of a worker with one environment
    bytes_per_environment: int | None = None  # that each further one adds
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


def candidate_name(workers: int) -> str:
    """Return the name of serial (no workers), or of process with this many workers."""
    return f"process, {workers}" if workers else "serial"


def recommend(env: Any, num_envs: int = 64, *, seconds: float = 2.0, **params: Any) -> Recommendation:
    """Return the backend, workers and environments per worker that are the fastest for an environment on this machine.

    env: as for `make_vec`. One environment (the first of a list) is made and stepped with sampled actions in this
    process; then batches of `num_envs` are tried, in processes too. All are closed again.
    seconds: about how long to measure. Starting workers, and steps that take longer than that, add to it.
    """
    checked_count("num_envs", num_envs)
    if is_foreign(env):
        return recommend_backend(environment_makers(env, params), num_envs, seconds)
    from velodrome.envs.catalog import CATALOG

    name = env if isinstance(env, str) else "this"
    if isinstance(env, str):
        CATALOG.get(env)  # refuses what is no environment at all
    reason = (
        f"{name} is a rule of Velodrome, compiled into one loop over all environments in this process, which no worker "
        f"process can beat. On an NVIDIA GPU, backend='cuda' serves too"
    )
    return Recommendation("native", 0, num_envs, reason, num_envs, available_cores())


def recommend_backend(makers: list[EnvMaker], num_envs: int, seconds: float = AUTO_SECONDS) -> Recommendation:
    """Return what `recommend` returns, given the makers of the environments."""
    checked_count("num_envs", num_envs)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.0 < seconds < math.inf:
        raise ConfigError(f"seconds = {seconds!r}: needs a positive number, about how long to measure")
    cores = available_cores()
    with named_faults(makers[0].name), ExitStack() as stack:
        cost = measure_row(makers[:1], ROW_SHARE * seconds)
        serial = predict(cost, 0.0, num_envs, 0, cores, cores)
        known = replace(
            Recommendation("serial", 0, num_envs, "", num_envs, cores, predicted={candidate_name(0): serial}),
            step_seconds=cost.step,
            step_cpu_seconds=cost.step_cpu,
            reset_seconds=cost.reset,
            episode_length=cost.episode_length,
            make_seconds=cost.make,
        )
        # At best there is no round trip: if serial is as fast even then, no process has to be started to know.
        ideal = max((predict(cost, 0.0, num_envs, w, cores, w) for w in worker_counts(num_envs)), default=0.0)
        if ideal <= (1.0 + TIE) * serial:
            return replace(known, reason=serial_alone(cost, num_envs, cores))
        first = min(cores if cores > 1 else 2, num_envs)
        try:
            workers = stack.enter_context(opened(ProcessVectorEnv, makers_of(makers, first), first, workers=first))
        except UnpicklableError as error:
            return replace(known, reason=f"{error}, so no worker can make it; {rate_text(serial)}")
        assert isinstance(workers, ProcessVectorEnv)
        round_trip = measure_round_trip(workers, ROUND_TRIP_SHARE * seconds)
        per_worker = workers.memory_of_workers() // first
        counts = [w for w in worker_counts(num_envs) if fits(w, per_worker)]
        predicted = {candidate_name(0): serial} | {
            candidate_name(w): predict(cost, round_trip, num_envs, w, cores, first) for w in counts
        }
        known = replace(known, round_trip_seconds=round_trip, bytes_per_worker=per_worker, predicted=predicted)
        # A serial step that takes this long is no guess: it is the measured row, so many times.
        slow = FEWEST_STEPS * num_envs * cost.wall > seconds
        tried = worth_a_trial(predicted, [0, *counts], first, with_serial=not slow)
        measured: dict[str, float] = {}
        # A trial is not worth it if making its environments takes longer.
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
    """Say which environment failed, and that it was only being measured."""
    try:
        yield
    except EnvironmentFaultError as error:
        raise EnvironmentFaultError(
            error.faults, f"{name} failed while it was measured to choose a backend. Mend it, or name a backend."
        ) from error


# Predicting


def worker_counts(num_envs: int) -> list[int]:
    """Return every number of workers above one that makes a difference to the most rows that a worker has."""
    counts = {math.ceil(num_envs / rows) for rows in range(1, num_envs + 1)}
    return sorted(count for count in counts if 1 < count <= MOST_WORKERS)


def predict(cost: RowCost, round_trip: float, num_envs: int, workers: int, cores: int, measured_workers: int) -> float:
    """Return the steps per second that the model predicts; no workers means serial."""
    if workers == 0:
        return num_envs / (cost.call + num_envs * cost.wall)
    beyond = max(0, workers - measured_workers) / (2 * measured_workers)
    rows = math.ceil(num_envs / workers) * cost.wall
    return num_envs / (round_trip * (1.0 + beyond) + max(rows, num_envs * cost.cpu / cores))


def fits(workers: int, bytes_per_worker: int) -> bool:
    """Return whether this many workers fit into the memory that is free now."""
    return workers * bytes_per_worker <= MEMORY_SHARE * free_memory()


def worth_a_trial(predicted: dict[str, float], counts: list[int], first: int, with_serial: bool = True) -> list[int]:
    """Return the worker counts (0: serial) of the candidates near the best prediction, the simplest first.

    with_serial: beside workers try serial, too, whatever the model says of it.
    """
    best = max(predicted.values())
    near = [count for count in counts if predicted[candidate_name(count)] >= HOPELESS * best]
    ranked = sorted(near, key=lambda count: -predicted[candidate_name(count)])[:MOST_TRIED]
    simple = {0, *ranked} if with_serial else set(ranked)
    return sorted(simple | {count for count in (0, first) if count in near})


# Trying


def trial_batches(
    stack: ExitStack, makers: list[EnvMaker], num_envs: int, counts: list[int], workers: ProcessVectorEnv
) -> dict[str, ForeignVectorEnv]:
    """Return a batch of each candidate; workers that run already take more environments."""
    batches: dict[str, ForeignVectorEnv] = {}
    for count in counts:
        batch: ForeignVectorEnv = workers
        if count == workers.num_workers and len(makers) == 1:
            workers.resize(num_envs)
        else:
            kind = ProcessVectorEnv if count else SerialVectorEnv
            batch = stack.enter_context(opened(kind, makers, num_envs, count or None))
        batches[candidate_name(count)] = batch
    return batches


# Choosing


def chosen(known: Recommendation, rates: dict[str, float], tried: list[int]) -> Recommendation:
    """Return the fastest candidate; of those about as fast, the one with the fewest workers."""
    best = max(rates.values())
    workers = next(count for count in tried if rates[candidate_name(count)] >= (1.0 - TIE) * best)
    own = candidate_name(workers)
    assert known.step_seconds is not None
    assert known.step_cpu_seconds is not None
    took = f"a step takes {seconds_text(known.step_seconds)}"
    if known.step_cpu_seconds < 0.7 * known.step_seconds:
        took += f" ({1.0 - known.step_cpu_seconds / known.step_seconds:.0%} of it waiting)"
    assert known.round_trip_seconds is not None
    # People compare with serial or, if that is the choice, with the best that has workers; like with like.
    rest = dict(known.measured or known.predicted)
    rest.pop(own)
    rival = candidate_name(0) if candidate_name(0) in rest else max(rest, key=rest.__getitem__)
    told = f"{rival} workers" if rival != candidate_name(0) else rival
    how = "" if known.measured else ", both by the model"
    compared = f"{rate_text(rates[own])}; {told.replace(', ', ' with ')} {rest[rival]:,.0f}{how}"
    reason = f"{took} and waking workers {seconds_text(known.round_trip_seconds)} ({compared})"
    if not workers:
        return replace(known, reason=reason)
    per_worker = math.ceil(known.num_envs / workers)
    return replace(known, backend="process", workers=workers, envs_per_worker=per_worker, reason=reason)


def serial_alone(cost: RowCost, num_envs: int, cores: int) -> str:
    """Say why no number of workers could be faster."""
    rate = rate_text(predict(cost, 0.0, num_envs, 0, cores, 1))
    why = "there is one environment" if num_envs == 1 else f"it computes, and there is {cores} core"
    return f"a step takes {seconds_text(cost.step)}, {why}: workers could not be faster ({rate})"


def rate_text(rate: float) -> str:
    return f"{rate:,.0f} steps/s"
