"""How far a training is, and the plain lines and JSON objects that say so without a terminal."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from numbers import Real
from typing import Any, NamedTuple

from velodrome.evaluation.measures import Unit, format_figure
from velodrome.evaluation.named_policy import USED_FOR_SELECTION
from velodrome.runs.live.bottleneck import Bottleneck, RunFacts, find_bottleneck
from velodrome.runs.machine.use import MachineUse
from velodrome.runs.metrics import EQUITY_RETURN, RETURNS
from velodrome.vector.compile import kernel_cache

PHASE_NAMES = ("environment", "inference", "learning", "other")
# Figures of an account that are written in per cent.
SHARES: Mapping[str, Unit] = {
    "return": "change",
    "equity_return": "change",
    "max_drawdown": "share",
    "of_optimum": "share",
    "win_rate": "share",
    "mean_log_return": "rate",
}
ASCII = str.maketrans({"−": "-", "⁶": "^6", "∞": "inf", "–": "-"})
REPORT_SECONDS = 2.0  # that the report of an evaluation takes, and all that does not grow with its bars
RECENT = 10.0  # seconds over which the speed "now" and the split into phases are measured
LONGEST_HISTORY = 512  # points of a curve; older ones are thinned to every second one


class Curve:
    """The history of one number, thinned evenly once it is long."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._stride = 1
        self._skipped = 0

    def add(self, value: float) -> None:
        """Take in a value; NaN and infinities have no place in a curve."""
        if not math.isfinite(value):
            return
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        self.values.append(value)
        if len(self.values) >= LONGEST_HISTORY:
            self.values = self.values[1::2]
            self._stride *= 2


@dataclass
class _Stretch:
    """An iteration: when it ended, how far the run was, and the seconds of its phases."""

    ended: float
    steps: int
    phases: dict[str, float] = field(default_factory=dict)


class Besides(NamedTuple):
    """What a command does besides learning."""

    every: int | None = None  # steps between validations
    final: float | None = None  # validations that take as long as the evaluation at the end; None: there is none


class Progress:
    """Everything that the views show of a training. Safe to read from another thread."""

    def __init__(
        self,
        total_steps: int,
        first_steps: int = 0,
        facts: RunFacts | None = None,
        clock: Callable[[], float] = time.monotonic,
        besides: Besides | None = None,
        saved: tuple[float, str] | None = None,
    ) -> None:
        self.total_steps = total_steps
        self.besides = besides or Besides()
        self._validations: deque[tuple[float, float]] = deque(maxlen=64)  # when each ended, and its seconds
        self.first_steps = first_steps  # done before: a resumed run does not begin at 0
        self.facts = facts or RunFacts()
        self.metrics: dict[str, float] = {}  # the last finite value of each
        self.counted: set[str] = set()  # metrics that were not always 0
        self.curves: dict[str, Curve] = {name: Curve() for name in RETURNS}
        self.evaluations: dict[str, dict[str, float]] = {}  # the last of each split
        self.notes: deque[str] = deque(maxlen=3)
        # When the last one was noted, by the clock, and the remark.
        self.checkpoint = None if saved is None else (clock() - saved[0], saved[1])
        self.steps = first_steps
        self.clock = clock
        self.lock = threading.RLock()
        self._started = clock()
        self._recent: deque[_Stretch] = deque([_Stretch(self._started, first_steps)])

    def begin(self) -> None:
        """Count the time from now on."""
        with self.lock:
            self._started = self.clock()
            self._recent = deque([_Stretch(self._started, self.first_steps)])

    def update(self, steps: int, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of an iteration that ended with this many steps done."""
        with self.lock:
            now = self.clock()
            self.steps = steps
            for name, value in metrics.items():
                if math.isfinite(value):
                    self.metrics[name] = value
                    if value:
                        self.counted.add(name)
            for name in RETURNS:
                self.curves[name].add(metrics.get(name, math.nan))
            phases = {name: metrics.get(f"time/{name}", 0.0) for name in PHASE_NAMES}
            if len(self._recent) > 2 and now - self._recent[-2].ended < RECENT / 20:
                # Thousands of short iterations a second would make a long list.
                last = self._recent[-1]
                last.ended, last.steps = now, steps
                last.phases = {name: last.phases[name] + seconds for name, seconds in phases.items()}
            else:
                self._recent.append(_Stretch(now, steps, phases))
            while len(self._recent) > 2 and self._recent[1].ended < now - RECENT:
                self._recent.popleft()

    def evaluated(self, split: str, results: Mapping[str, float], seconds: float = 0.0) -> None:
        """Take in the results of an evaluation on a split, and how long it took."""
        with self.lock:
            self._validations.append((self.clock(), seconds))
            self.evaluations[split] = dict(results)
            curve = self.curves.setdefault(f"evaluation/{split}", Curve())
            curve.add(self.main_result(split)[1])

    def main_result(self, split: str) -> tuple[str, float]:
        """Return the name and value by which an evaluation is followed: the return, or else what comes first."""
        results = self.evaluations.get(split, {})
        name = "return" if "return" in results else next(iter(results), "return")
        return name, results.get(name, math.nan)

    def told_result(self, split: str) -> str:
        """Return the result by which an evaluation is followed, for people: it is what checkpoints are chosen by."""
        name, value = self.main_result(split)
        return f"{name} {figure(name, value, self.evaluations.get(split, {}))} ({USED_FOR_SELECTION})"

    def in_sample(self) -> str | None:
        """Return the metric that says how the last episodes went; None before any has ended."""
        return next((name for name in RETURNS if name in self.metrics), None)

    def told_return(self, metric: str) -> str:
        """Return how the last episodes went for people. metric: what `in_sample` returned."""
        value = self.metrics[metric]
        told = format_figure(value, "change").translate(ASCII) if metric == EQUITY_RETURN else f"{value:.4g}"
        return f"return {told}"

    def note(self, text: str) -> None:
        """Take in a remark; one that begins with "checkpoint" says that one was saved."""
        with self.lock:
            if text.lower().startswith("checkpoint"):
                self.checkpoint = (self.clock(), text)
            else:
                self.notes.append(text)

    @property
    def elapsed(self) -> float:
        """Seconds since the training began."""
        return max(self.clock() - self._started, 0.0)

    @property
    def share(self) -> float:
        """Part of the steps that is done, 0 to 1."""
        return min(max(self.steps / self.total_steps, 0.0), 1.0) if self.total_steps > 0 else 1.0

    def speed_now(self) -> float:
        """Return the steps per second over the last iterations, at least RECENT seconds if there were that many."""
        with self.lock:
            if len(self._recent) < 2:
                return math.nan
            first, last = self._recent[0], self._recent[-1]
            seconds = last.ended - first.ended
            return (last.steps - first.steps) / seconds if seconds > 0 else math.nan

    def speed_mean(self) -> float:
        """Return the steps per second since the training began here."""
        with self.lock:
            seconds = self._recent[-1].ended - self._started
            return (self.steps - self.first_steps) / seconds if seconds > 0 else math.nan

    def seconds_left(self) -> float:
        """Return the time to go at the present speed, for everything that is still to be done; NaN before there is one.

        That is learning, the validations meanwhile, and the evaluation and report at the end.
        """
        with self.lock:
            if not self.speed_now() > 0.0:
                return math.nan
            first, last = self._recent[0], self._recent[-1]
            left, every = self.total_steps - self.steps, self.besides.every
            learning = last.ended - first.ended - self._validating(first.ended, last.ended)
            one = sum(seconds for _, seconds in self._validations) / max(len(self._validations), 1)
            number = 0 if every is None else self.total_steps // every - self.steps // every
            now = self.clock()
            # The iteration under way has done part of its work.
            since = now - last.ended - self._validating(last.ended, now)
            training = max(left * learning / (last.steps - first.steps) + number * one - since, 0.0)
            return training + (0.0 if self.besides.final is None else REPORT_SECONDS + self.besides.final * one)

    def _validating(self, begin: float, end: float) -> float:
        """Return the seconds of the validations that ended in a stretch of time."""
        return sum(seconds for ended, seconds in self._validations if begin < ended <= end)

    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase over the last iterations."""
        with self.lock:
            # The first one only marks where the others begin.
            stretches = list(self._recent)[1:]
            return {name: sum(stretch.phases.get(name, 0.0) for stretch in stretches) for name in PHASE_NAMES}

    def bottleneck(self, use: MachineUse | None) -> Bottleneck:
        """Return what holds the training up at present."""
        with self.lock:
            begin, end = self._recent[0].ended, self._recent[-1].ended
        compiled = any(begin <= when <= end for when in kernel_cache.announced)
        return find_bottleneck(self.phases(), use, replace(self.facts, compiled=compiled))

    def action_mix(self) -> dict[str, float]:
        """Return the share of each discrete action by its index, in order; empty for continuous actions."""
        with self.lock:
            names = [name.removeprefix("action/") for name in self.metrics if name.startswith("action/")]
            indices = sorted((name for name in names if name.isdecimal()), key=int)
            return {index: self.metrics[f"action/{index}"] for index in indices}


def compact(number: float) -> str:
    """Write a number in three digits: 912, 45.6 k, 7.89 M; a NaN is a dash."""
    if not math.isfinite(number):
        return "-"
    for limit, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        # Three digits of 999.9 k are 1,000 k.
        if abs(number) >= limit * 0.9995:
            scaled = number / limit
            size = abs(scaled)
            return f"{scaled:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}{unit}"
    return f"{number:.3g}"


def figure(name: str, value: float, beside: Collection[str]) -> str:
    """Write a figure: shares of an account in per cent. beside: the figures that were measured together.

    A return that has a drawdown beside it is an account's; any other is a sum of rewards.
    """
    share = SHARES.get(name) if "max_drawdown" in beside else None
    return f"{value:.4g}" if share is None or math.isnan(value) else format_figure(value, share).translate(ASCII)


def told_figures(figures: Mapping[str, float], sharpe: str = "Sharpe") -> dict[str, str]:
    """Return figures that were measured together by their names for people."""
    named = {name: sharpe if name == "sharpe" else name.replace("_", " ") for name in figures}
    return {named[name]: figure(name, value, figures) for name, value in figures.items()}


def duration(seconds: float) -> str:
    """Write a time: 42 s, 3:07, 2:03:07, 5 d 2 h; a NaN is a dash."""
    if not math.isfinite(seconds):
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours == 0:
        return f"{minutes}:{left:02d}"
    return f"{hours}:{minutes:02d}:{left:02d}" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def sparkline(values: Sequence[float], width: int, levels: str) -> str:
    """Draw a curve in one line of at most `width` characters, each the mean of its part, from lowest to highest."""
    if not values or width <= 0:
        return ""
    count = min(width, len(values))
    edges = [index * len(values) // count for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if not high > low:
        return levels[len(levels) // 2] * count
    return "".join(levels[min(int((mean - low) / (high - low) * len(levels)), len(levels) - 1)] for mean in means)


def plain_line(progress: Progress) -> str:
    """Return the essentials in one line of ASCII."""
    with progress.lock:
        parts = [
            f"{progress.share:4.0%}",
            f"{compact(progress.steps)}/{compact(progress.total_steps)} steps",
            f"{compact(progress.speed_now())} steps/s",
            f"{duration(progress.seconds_left())} left",
        ]
        if (metric := progress.in_sample()) is not None:
            parts.append(progress.told_return(metric))
        parts += [f"{split} {progress.told_result(split)}" for split in progress.evaluations]
        for name, label in (("episode/turnover", "turnover"), ("policy/entropy", "entropy")):
            if name in progress.metrics:
                parts.append(f"{label} {progress.metrics[name]:.3g}")
        phases = progress.phases()
    total = sum(phases.values())
    if total > 0:
        largest = max(phases, key=lambda name: phases[name])
        parts.append(f"{largest} {phases[largest] / total:.0%} of the time")
    return "  ".join(parts)


def evaluation_line(progress: Progress, split: str, results: Mapping[str, float]) -> str:
    """Return the results of an evaluation in one line."""
    values = "  ".join(f"{name} {value}" for name, value in told_figures(results).items())
    return f"evaluation at {progress.steps:,} steps on {split} ({USED_FOR_SELECTION}): {values}"


def closing_line(progress: Progress, use: MachineUse | None, error: BaseException | None) -> str:
    """Return how the training ended: steps, time, mean speed, and what the bottleneck was."""
    how = "done" if error is None else f"stopped by {type(error).__name__}"
    if isinstance(error, KeyboardInterrupt):
        how = "interrupted"
    line = (
        f"{how}: {progress.steps:,} of {progress.total_steps:,} steps in {duration(progress.elapsed)}, "
        f"{compact(progress.speed_mean())} steps/s on average"
    )
    found = progress.bottleneck(use)
    return line if found.kind == "unknown" else f"{line}. {found.sentence}"


def update_object(progress: Progress, metrics: Mapping[str, float], use: MachineUse | None) -> dict[str, Any]:
    """Return an iteration as an object for JSON."""
    found = progress.bottleneck(use)
    return {
        "event": "update",
        "steps": progress.steps,
        "total_steps": progress.total_steps,
        "seconds": progress.elapsed,
        "seconds_left": progress.seconds_left(),
        "steps_per_second": progress.speed_now(),
        "metrics": dict(metrics),
        "machine": None if use is None else asdict(use),
        "warnings": [] if use is None else use.warnings(),
        "bottleneck": asdict(found),
    }


def json_line(content: Mapping[str, Any]) -> str:
    """Write an object on one line of ASCII; JSON has no NaN and no infinities, which become null."""
    return json.dumps(_plain(content), allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Real) and not isinstance(value, int):  # NumPy's numbers too
        return float(value) if math.isfinite(value) else None
    return value
