"""How long a step takes: contenders take turns, so that a burst of other load on the machine falls on all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import gymnasium

from velodrome.bench.options import BenchmarkOptions
from velodrome.bench.report import OURS, Measurement, Report
from velodrome.errors import VelodromeError

WARM_UP_CALLS = 3
WARM_UP_SHARE = 0.2  # of the seconds of a measurement
RING = 64  # batches of actions that are cycled through

Tell = Callable[[str, int], object]  # says what is done, and how many turns that was


class PeerFailedError(VelodromeError):
    """A peer that is installed but could not be measured."""


class Contender(NamedTuple):
    """Somebody who is to be measured."""

    row: Measurement
    open: Callable[[], Any]  # a Stepper, or what is warmed up, timed and closed like one: a Host, a Trainer


class Stepper(NamedTuple):
    """A batch in this process."""

    step: Callable[[int], object]  # steps it once, with the k-th actions of the ring
    prepare: Callable[[], object] = lambda: None  # called before each timed slice, not timed
    close: Callable[[], object] = lambda: None
    rest: Callable[[], object] = lambda: None  # called by a host after each timed slice: leaves the cores to the next
    uncounted: Callable[[], int] | None = None  # steps since `prepare` that were done before, or only began an episode

    def warm_up(self, seconds: float) -> float:
        """Step for that long at least; return the seconds of a call."""
        self.prepare()
        for k in range(WARM_UP_CALLS):
            self.step(k)
        calls, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds or calls == 0:
            self.step(calls)
            calls += 1
        return elapsed / calls

    def time(self, calls: int) -> dict[str, float]:
        """Return the `seconds` that these calls take, and steps that are not to be counted; others know more."""
        self.prepare()
        step = self.step
        started = time.perf_counter()
        for k in range(calls):
            step(k)
        found: dict[str, float] = {"seconds": time.perf_counter() - started}
        return found if self.uncounted is None else {**found, "uncounted": self.uncounted()}


class Batch(NamedTuple):
    """Environments that step together, in the same terms whoever made them."""

    reset: Callable[[int], Any]  # seed -> observations
    step: Callable[[Any], tuple[Any, ...]]  # actions -> observations, rewards, done
    close: Callable[[], Any] = lambda: None
    envs: Any = None
    action_space: Any = None  # of one environment


class Source(NamedTuple):
    """What a peer makes its batch of."""

    makers: Sequence[Callable[[], gymnasium.Env]]  # one for each environment
    seed: int = 0
    tables: Any = None  # data and parameters, for a peer that has no single environments
    workers: int = 0  # processes, for a peer that is told how many
    received: int | None = None  # environments that it waits for; None: all


def action_ring(space: gymnasium.Space, num_envs: int, seed: int, count: int = RING) -> list[Any]:
    """Return batches of sampled actions, the same for every contender."""
    batched = gymnasium.vector.utils.batch_space(space, num_envs)
    batched.seed(seed)
    return [batched.sample() for _ in range(count)]


@contextmanager
def excused(row: Measurement, report: Report) -> Iterator[None]:
    """Report a peer that fails as missing, so that the rest goes on; one of ours is an error."""
    try:
        yield
    except Exception as error:
        if row.peer == OURS:
            raise
        told = str(error) if isinstance(error, VelodromeError) else f"failed: {type(error).__name__}: {error}"
        report.note_missing(row.peer, f"{row.label} with {row.num_envs:,} environments {told.splitlines()[0]}")


def take_turns(
    contenders: Sequence[Contender],
    options: BenchmarkOptions,
    report: Report,
    rows: list[Measurement],
    tell: Tell = lambda done, turns: None,
    check: Callable[[list[Any]], object] = lambda ready: None,
) -> None:
    """Time each contender once per round; `rows` holds those that were measured, as far as they were.

    `check` is called before anything is timed and may refuse what it gets.
    """
    with ExitStack() as stack:
        ready: list[tuple[Measurement, Any, int]] = []
        for row, start in contenders:
            tell(f"opening {row.label}", 0)
            with excused(row, report):
                timed = start()
                stack.callback(timed.close)
                per_call = timed.warm_up(WARM_UP_SHARE * options.seconds)
                ready.append((row, timed, max(1, round(options.seconds / options.repeats / per_call))))
        check([timed for _, timed, _ in ready])
        for _ in range(options.repeats):
            for row, timed, calls in tuple(ready):
                with excused(row, report):
                    row.add(calls, timed.time(calls))
                    if len(row.rounds) == 1:
                        rows.append(row)
                    tell(f"{row.num_envs:,} × {row.label}", 1)
                    continue
                ready.remove((row, timed, calls))
