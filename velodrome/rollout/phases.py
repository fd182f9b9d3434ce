"""Where the time of an iteration goes: environment, inference, learning, and the rest."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType

import torch

from velodrome.errors import BackendError, ConfigError, did_you_mean

PHASES = ("environment", "inference", "learning")
MOST_PENDING = 8192  # CUDA intervals kept unread; past this they are read early, at the price of one synchronisation


class PhaseClock:
    """Counts the seconds spent in each named phase.

    Use as `with clock("environment"): …`. A phase inside another one pauses the outer one, so no time is counted
    twice. On a GPU the phases are bounded by events on the current stream, which `take` reads after a single
    synchronisation: work counts for the phase that queued it, and training is not held up. Do not enter a phase while
    a CUDA graph is being captured. For one thread only.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise BackendError(f"Phases can be timed on cpu and cuda; received device={self.device}.")
        on_gpu = self.device.type == "cuda"
        if on_gpu and not torch.cuda.is_available():
            raise BackendError(f"No CUDA device is visible; received device={self.device}, use device=cpu.")
        self._marks = _CudaMarks(self.device) if on_gpu else _HostMarks()
        self._phases = {name: _Phase(name, self._marks, self) for name in PHASES}
        self.failed: str | None = None  # the phase in which the last error was raised
        self._started = perf_counter()

    def __call__(self, name: str) -> _Phase:
        """Return the context in which time counts for this phase."""
        try:
            return self._phases[name]
        except KeyError:
            raise ConfigError(
                f"No phase {name!r}; there are {', '.join(PHASES)}.{did_you_mean(name, PHASES)}"
            ) from None

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call: in each phase, in none of them (`other`), and in all (`total`)."""
        seconds = self._marks.take()
        now = perf_counter()
        wall = now - self._started
        self._started = now
        named = sum(seconds.values())
        # Clocks of device and host differ by microseconds, so `other` could come out below 0.
        seconds["other"] = max(wall - named, 0.0)
        seconds["total"] = max(wall, named)
        return seconds


class _HostMarks:
    """Phase boundaries on the host's clock."""

    __slots__ = ("mark", "open", "seconds")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.open: list[str] = []
        self.mark = 0.0

    def enter(self, name: str) -> None:
        now = perf_counter()
        if self.open:
            self.seconds[self.open[-1]] += now - self.mark
        self.open.append(name)
        self.mark = now

    def leave(self) -> None:
        now = perf_counter()
        self.seconds[self.open.pop()] += now - self.mark
        self.mark = now

    def take(self) -> dict[str, float]:
        if self.open:
            now = perf_counter()
            self.seconds[self.open[-1]] += now - self.mark
            self.mark = now
        taken = self.seconds
        self.seconds = dict.fromkeys(PHASES, 0.0)
        return taken


class _CudaMarks:
    """Phase boundaries as events on the device's current stream."""

    __slots__ = ("device", "free", "mark", "open", "pending", "recorded", "seconds")

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.open: list[str] = []
        self.free: list[torch.cuda.Event] = []
        self.recorded: list[torch.cuda.Event] = []
        self.pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self.mark = self._record()

    def enter(self, name: str) -> None:
        self._boundary()
        self.open.append(name)

    def leave(self) -> None:
        self._boundary()
        self.open.pop()
        if len(self.pending) > MOST_PENDING:
            self._read()

    def take(self) -> dict[str, float]:
        self._boundary()
        self._read()
        taken = self.seconds
        self.seconds = dict.fromkeys(PHASES, 0.0)
        return taken

    def _record(self) -> torch.cuda.Event:
        event = self.free.pop() if self.free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        self.recorded.append(event)
        return event

    def _boundary(self) -> None:
        """End the innermost interval here and begin the next."""
        event = self._record()
        if self.open:
            self.pending.append((self.open[-1], self.mark, event))
        self.mark = event

    def _read(self) -> None:
        """Wait for the device once, add up the pending intervals and keep their events for the next ones."""
        torch.cuda.synchronize(self.device)
        for name, begin, end in self.pending:
            self.seconds[name] += begin.elapsed_time(end) / 1000.0  # milliseconds
        # The last boundary begins the next interval. All others are free, but only now: an event may end one interval
        # and begin another.
        self.free.extend(self.recorded[:-1])
        self.recorded = self.recorded[-1:]
        self.pending.clear()


class _Phase:
    """The context of one phase, made once and entered many times."""

    __slots__ = ("_clock", "_marks", "_name")

    def __init__(self, name: str, marks: _HostMarks | _CudaMarks, clock: PhaseClock) -> None:
        self._name, self._marks, self._clock = name, marks, clock

    def __enter__(self) -> None:
        self._marks.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._clock.failed is None:
            self._clock.failed = self._name
        self._marks.leave()
