"""The metrics of a run on their way to where they are kept, without making training wait.

Every sink has a thread of its own, so that one that is slow or fails holds up neither training nor the others.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from velodrome.errors import MetricsError, VelodromeError

if TYPE_CHECKING:
    import polars as pl

CAPACITY = 10_000  # entries that may wait for a sink
# Names that say how episodes went, the first that there is: an account's return, in per cent; the sum of rewards, which
# is none even where there is an account.
RETURNS = EQUITY_RETURN, REWARDS = "episode/equity_return", "episode/return"
END_SECONDS = 120.0  # how long the end waits for a sink that is stuck

log = logging.getLogger("velodrome.runs")


class Entry(NamedTuple):
    """Metrics that were added together."""

    step: int
    time: float  # seconds since 1970
    values: dict[str, float]


class Sink(Protocol):
    """A place that keeps metrics; see `velodrome/runs/store/sinks.py`."""

    name: str  # as a person would call it
    is_copy: bool  # whether another sink has the same: then nobody waits for it, and its failure is but a warning

    def write(self, entries: Sequence[Entry]) -> None:
        """Keep entries so that they survive this process.

        After an error the same entries come again with later ones, so writing a part of them twice must do no harm.
        """

    def close(self) -> None:
        """Let go of files and connections."""


# Names that users of TorchTrade know; an evaluation's has its split in the middle.
TORCHTRADE_NAMES = {
    "time/sps_collecting": "time/SPS-collecting",
    "time/sps_total": "time/SPS-total",
    "episode/return": "train/reward",
}


def with_names_of(names: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics, and beside them those that another system has a name for (logging.metric_names)."""
    if names != "torchtrade":
        return dict(metrics)
    further = {theirs: metrics[ours] for ours, theirs in TORCHTRADE_NAMES.items() if ours in metrics}
    judged = {name.rpartition("/")[2]: value for name, value in metrics.items() if name.startswith("evaluation/")}
    reward = judged.get("reward", judged.get("return"))  # of environments without a market the two are one
    return {**metrics, **further, **({} if reward is None else {"eval/reward": reward})}


def last_values(metrics: pl.DataFrame) -> dict[str, float]:
    """Return the last value of everything in a run's metrics, by name."""
    latest = metrics.sort("step").group_by("name").last()
    return dict(zip(latest["name"].to_list(), latest["value"].to_list(), strict=True))


class MetricsWriter:
    """Hands metrics to sinks from background threads.

    `add` takes microseconds. At most `capacity` entries wait for a sink; if it is that far behind, `add` waits for
    room and counts it in `waits` and `waited_seconds`, so nothing is lost. What was added more than
    `flush_every_seconds` ago survives a kill. The threads do not keep the process alive; leaving the `with` block,
    `close` and the end of the program write what is left.
    """

    def __init__(self, sinks: Sequence[Sink], flush_every_seconds: float = 1.0, capacity: int = CAPACITY):
        self._lanes = [_Lane(sink, flush_every_seconds, capacity) for sink in sinks]
        self._closed = False
        self._at_exit = _close_at_exit(self)

    @property
    def waits(self) -> int:
        """How often `add` had to wait for a sink."""
        return sum(lane.waits for lane in self._lanes)

    @property
    def waited_seconds(self) -> float:
        """How long `add` has waited for sinks, altogether."""
        return sum(lane.waited_seconds for lane in self._lanes)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step.

        If a sink has failed since the last call this raises MetricsError, once, after all sinks have taken the metrics;
        the sink is tried again every interval, and one that works again has lost nothing.
        """
        if self._closed:
            raise MetricsError(f"metrics of step {step} came after the writer was closed.")
        entry = Entry(int(step), time.time(), {name: float(value) for name, value in metrics.items()})
        self._raise([problem for lane in self._lanes if (problem := lane.put(entry))])

    def flush(self) -> None:
        """Wait until everything added so far is kept, but for copies; MetricsError if a sink could not."""
        if self._closed:
            return
        asked = [(lane, lane.ask()) for lane in self._lanes]
        waited = ((lane, attempt) for lane, attempt in asked if not lane.sink.is_copy)
        self._raise([problem for lane, attempt in waited if (problem := lane.wait_for(attempt))])

    def close(self) -> None:
        """Write what is left, then close the sinks; MetricsError if one could not. Of copies, that is a warning."""
        self._raise(self._finish())

    def _finish(self) -> list[str]:
        """Close and return what went wrong."""
        if self._closed:
            return []
        for lane in self._lanes:
            lane.stop()
        problems: list[str] = []
        for lane in self._lanes:
            found = lane.finish()
            if lane.sink.is_copy:
                for problem in found:
                    log.warning("%s", problem)
            else:
                problems += found
        self._closed = True
        atexit.unregister(self._at_exit)
        return problems

    def _raise(self, problems: Sequence[str]) -> None:
        if problems:
            healthy = [lane.sink.name for lane in self._lanes if lane.error is None]
            others = f" The others carry on: {', '.join(healthy)}." if healthy else ""
            raise MetricsError(" ".join(problems) + others)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        for problem in self._finish():  # the error that ends the block is the one to show
            log.error("%s", problem)


class _Lane:
    """One sink, its thread, and what waits for it."""

    def __init__(self, sink: Sink, interval: float, capacity: int):
        self.sink = sink
        self.waits = 0
        self.waited_seconds = 0.0
        self.error: Exception | None = None  # of the last attempt
        self._interval = interval
        self._capacity = capacity
        self._not_closed: Exception | None = None  # why
        self._told = False
        self._changed = threading.Condition()
        self._pending: list[Entry] = []
        self._begun = 0  # attempts to write
        self._finished = 0
        self._hurry = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"metrics to {sink.name}", daemon=True)
        self._thread.start()

    def put(self, entry: Entry) -> str | None:
        """Take an entry and return a problem that has not been reported yet."""
        with self._changed:
            if len(self._pending) >= self._capacity and self.error is None:
                self._wait_for_room()
            if len(self._pending) >= self._capacity:
                return f"{self._problem()} No more of them fit in memory: step {entry.step:,} was not taken."
            self._pending.append(entry)
            if self.error is None or self._told:
                return None
            self._told = True
            return self._problem()

    def _wait_for_room(self) -> None:
        begin = time.perf_counter()
        self._hurry = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: len(self._pending) < self._capacity or self.error is not None)
        self.waits += 1
        self.waited_seconds += time.perf_counter() - begin

    def ask(self) -> int:
        """Ask for everything to be written at once and return the number of the attempt that will do it."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            return self._begun + 1

    def wait_for(self, attempt: int) -> str | None:
        """Wait for the end of an attempt and return what went wrong."""
        with self._changed:
            self._changed.wait_for(lambda: self._finished >= attempt)
            if self.error is None:
                return None
            self._told = True
            return self._problem()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def finish(self) -> list[str]:
        """Wait until the last attempt was made and the sink is closed, and return what went wrong."""
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():  # it does not keep the process alive
            return [f"metrics could not be written to {self.sink.name}: it was stuck for {END_SECONDS:g} seconds."]
        problems = [self._problem()] if self.error is not None else []
        if self._not_closed is not None:
            problems.append(f"{self.sink.name} could not be closed: {_told(self._not_closed)}.")
        return problems

    def _problem(self) -> str:
        steps = f"{self._pending[0].step:,} to {self._pending[-1].step:,}" if self._pending else "so far"
        assert self.error is not None
        return (
            f"metrics could not be written to {self.sink.name}: {_told(self.error)}. Those of steps {steps} are in "
            f"memory only; they are written with the next ones when it works again."
        )

    def _run(self) -> None:
        self._write_until_the_end()
        try:
            self.sink.close()
        except Exception as error:
            self._not_closed = error

    def _write_until_the_end(self) -> None:
        last = False
        while not last:
            with self._changed:
                self._changed.wait_for(lambda: self._hurry or self._stopping, timeout=self._interval)
                batch, self._pending = self._pending, []
                self._hurry, last = False, self._stopping
                self._begun += 1
                self._changed.notify_all()
            error: Exception | None = None
            try:
                if batch:
                    self.sink.write(batch)
            except Exception as problem:  # a sink may fail in any way; training learns of it at its next call
                error = problem
            with self._changed:
                if error is not None:
                    self._pending = batch + self._pending
                    if self.error is None:
                        self._told = False
                        log.warning("metrics could not be written to %s: %s", self.sink.name, _told(error))
                elif self.error is not None:
                    log.warning("metrics are written to %s again, none were lost", self.sink.name)
                self.error = error
                self._finished = self._begun
                self._changed.notify_all()


def _close_at_exit(writer: MetricsWriter) -> Callable[[], None]:
    """Close a writer that is still open when the program ends, unless this is a process forked from the writer's."""
    reference, owner = weakref.ref(writer), os.getpid()

    def close() -> None:
        left = reference()
        if left is not None and os.getpid() == owner:
            for problem in left._finish():
                log.error("%s", problem)

    return atexit.register(close)


def _told(error: BaseException) -> str:
    return str(error).rstrip(".") if isinstance(error, VelodromeError) else f"{type(error).__name__}: {error}"
