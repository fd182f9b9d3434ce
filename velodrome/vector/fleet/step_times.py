"""How long steps take in each environment, and how many there are per second."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from velodrome.vector.space_arrays import resized

BINS_PER_DECADE = 10
SHORTEST, LONGEST = -8, 2  # powers of ten, in seconds; times outside count in the first or the last bin
BINS = (LONGEST - SHORTEST) * BINS_PER_DECADE
EDGES = 10.0 ** (np.arange(BINS + 1) / BINS_PER_DECADE + SHORTEST)  # [BINS + 1] seconds
# Steps whose times are kept before they are sorted into bins: sorting each one alone costs as much as a cheap step.
STEPS_TOGETHER = 64

SPAN = 5.0  # seconds over which throughput is measured
MARK_EVERY = 0.1  # seconds


class StepTimes:
    """Histograms of step times: one for each environment, or one for all if only the batch can be timed."""

    def __init__(self, num_envs: int, one_each: bool) -> None:
        self.num_envs, self.one_each = num_envs, one_each
        rows = num_envs if one_each else 1
        self._counts = np.zeros((rows, BINS), np.int64)
        self._sums = np.zeros(rows)  # seconds
        self._waiting = np.full((STEPS_TOGETHER, rows), np.nan)  # seconds; NaN: not stepped
        self._kept = 0

    def add_batch(self, seconds: float) -> None:
        """Count a step of all environments, given the seconds per environment."""
        place = int((math.log10(max(seconds, 1e-300)) - SHORTEST) * BINS_PER_DECADE)
        self._counts[0, min(max(place, 0), BINS - 1)] += 1
        self._sums[0] += seconds

    def add(
        self, seconds: NDArray[np.float64], rows: NDArray[np.int64] | slice, skipped: NDArray[np.bool_] | None
    ) -> None:
        """Count a step of some environments, given the seconds of all, [n], and which of the rows did not step."""
        kept = self._waiting[self._kept]
        kept[rows] = seconds[rows]
        if skipped is not None:
            kept[rows] = np.where(skipped, np.nan, kept[rows])
        self._kept += 1
        if self._kept == STEPS_TOGETHER:
            self._sort()

    def _sort(self) -> None:
        waiting = self._waiting[: self._kept]
        step, row = np.nonzero(~np.isnan(waiting))
        seconds = waiting[step, row]
        place = np.floor((np.log10(np.maximum(seconds, 1e-300)) - SHORTEST) * BINS_PER_DECADE).astype(np.int64)
        flat = row * BINS + np.clip(place, 0, BINS - 1)
        self._counts += np.bincount(flat, minlength=self._counts.size).reshape(self._counts.shape)
        self._sums += np.bincount(row, seconds, minlength=len(self._sums))
        waiting[:] = np.nan
        self._kept = 0

    def counts(self) -> NDArray[np.int64]:
        """Return [n, BINS] how many steps of each environment fell between EDGES; read-only if all share one."""
        self._sort()
        return self._counts.copy() if self.one_each else np.broadcast_to(self._counts.copy(), (self.num_envs, BINS))

    def means(self) -> NDArray[np.float64]:
        """Return [n] the mean seconds of a step, NaN for an environment that never stepped."""
        self._sort()
        steps = self._counts.sum(axis=1)
        means = np.where(steps > 0, self._sums / np.maximum(steps, 1), np.nan)
        return means if self.one_each else np.repeat(means, self.num_envs)

    def resize(self, num_envs: int) -> None:
        """Follow a change of the number of environments: those that stay keep their times."""
        self.num_envs = num_envs
        if not self.one_each:
            return
        self._sort()
        self._counts, self._sums = resized(self._counts, num_envs), resized(self._sums, num_envs)
        self._waiting = np.full((STEPS_TOGETHER, num_envs), np.nan)


def quantile(counts: NDArray[np.int64], share: float) -> float:
    """Return the seconds below which a share of the steps in a histogram, [BINS], lies; NaN if it is empty.

    Within a bin, times count as evenly spread on a logarithmic scale, so the error is less than a bin, 26 %.
    """
    below = np.cumsum(counts)
    if not below[-1]:
        return math.nan
    wanted = share * below[-1]
    place = min(int(np.searchsorted(below, wanted)), BINS - 1)
    inside = (wanted - (below[place] - counts[place])) / max(int(counts[place]), 1)
    return float(10.0 ** ((place + inside) / BINS_PER_DECADE + SHORTEST))


class Throughput:
    """Steps per second over the last seconds, including whatever the caller did between steps."""

    def __init__(self) -> None:
        self.steps = 0
        self._marks: deque[tuple[float, int]] = deque()  # (seconds, steps until then), MARK_EVERY apart

    def begin(self, now: float) -> None:
        """Start the clock; only the first call counts."""
        if not self._marks:
            self._marks.append((now, self.steps))

    def add(self, now: float, steps: int) -> None:
        """Count steps."""
        self.steps += steps
        if now - self._marks[-1][0] >= MARK_EVERY:
            self._marks.append((now, self.steps))
            self._drop(now)

    def _drop(self, now: float) -> None:
        """Forget all marks before the last one that is as old as the span."""
        while len(self._marks) > 1 and self._marks[1][0] <= now - SPAN:
            self._marks.popleft()

    def rate(self, now: float) -> float:
        """Return steps per second, 0 before the first."""
        self._drop(now)
        if not self._marks or now <= self._marks[0][0]:
            return 0.0
        first, steps = self._marks[0]
        return (self.steps - steps) / (now - first)
