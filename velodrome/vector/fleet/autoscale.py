"""How many environments to play at once: found by measuring, between bounds, while the training goes on.

Throughput rises with the number of environments until something is full (cores, caches, a GPU), and may then fall.
Sizes are doubled or halved, and a size is kept only if it was faster by more than a margin and more than the noise of
the measurements. Nothing here knows a backend: the training loop reports what it measured and follows the answer.

    autoscaler = Autoscaler(4, 4096, memory_limit=8 * 2**30)
    while training:
        ...  # an iteration
        wanted = autoscaler.observe(num_envs, steps, seconds, bytes_in_use())
        if wanted is not None:
            learner.resize(wanted)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from velodrome.errors import ConfigError
from velodrome.vector.argument_checks import checked_count

# With normal noise, a median deviates by 1.2533 standard errors of a mean, and a standard deviation is 1.4826 median
# absolute deviations.
MEDIAN_ERROR = 1.2533 * 1.4826
MOST_OBSERVATIONS = 4  # times as many as asked for, if measurements scatter
WIDEST_LOOK = 4  # a search goes at most to this multiple of the best size if sizes make no difference
LONGEST_REST = 16  # times as long as asked for, after searches that found nothing better


class Measurement(NamedTuple):
    """Throughput of one size."""

    rate: float  # steps per second, the median
    error: float  # of that, one standard deviation


class Autoscaler:
    """Chooses a number of environments from the measurements that `observe` takes in; see the module.

    `tried` holds the measurement of each size in the current or last search, `best` the size to which it leads.
    """

    def __init__(
        self,
        least: int,
        most: int,
        *,
        memory_limit: float | None = None,
        environment_bytes: float | None = None,
        observations: int = 5,
        margin: float = 0.04,
        rest: int = 200,
    ) -> None:
        """Choose between `least` and `most` environments.

        memory_limit: bytes that the process and its workers may use; None: no limit.
        environment_bytes: of one environment, if known. Otherwise two sizes have to be seen first. Until then all
            memory in use counts as that of the environments, so the first step may be smaller than a doubling.
        observations: measurements before a decision, besides the first of each size, which includes its setup.
        margin: the fraction by which a size must be faster to be kept.
        rest: observations between two searches, since other programs may leave cores or take them. After a search that
            finds nothing better the next rest is twice as long, up to 16 times.
        """
        self.least, self.most = checked_count("least", least), checked_count("most", most)
        if self.most < self.least:
            raise ConfigError(f"most = {most} is less than least = {least}")
        for name, value in (("memory_limit", memory_limit), ("environment_bytes", environment_bytes)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} = {value!r}: needs bytes, more than 0, or None")
        if not 0.0 <= margin < 1.0:
            raise ConfigError(f"margin = {margin!r}: needs a fraction from 0 to less than 1")
        self.memory_limit, self.environment_bytes = memory_limit, environment_bytes
        self.observations, self.rest = checked_count("observations", observations), checked_count("rest", rest)
        self.margin = margin
        self._size: int | None = None
        self._seen = 0  # observations of that size
        self._memory = 0.0  # bytes at the last of them
        self._calm = 0  # observations since the last search
        self._patience = self.rest
        self._shrunk = False  # to the current size, for lack of memory
        self._search_again()

    def _search_again(self) -> None:
        """Begin a search from the current size, whatever was measured before."""
        self.tried: dict[int, Measurement] = {}
        self.best: int | None = None
        self.searching = True
        self._grows = True  # the search goes upwards
        self._climbed = False  # larger sizes were faster, so smaller ones need not be tried
        self._rates: list[float] = []  # of the current size
        self._begun_at: int | None = None  # size at which the search began

    def observe(self, num_envs: int, steps: int, seconds: float, memory: float) -> int | None:
        """Take in the measurements of an iteration; return how many environments to go on with, or None: no change.

        steps: of all environments together. memory: bytes in use at its end, as `bytes_in_use` returns them.
        """
        checked_count("num_envs", num_envs)
        if not (steps > 0 and seconds > 0.0 and memory >= 0):
            raise ConfigError(
                f"steps = {steps!r}, seconds = {seconds!r}, memory = {memory!r}: needs steps and seconds above 0 and "
                f"bytes of at least 0"
            )
        if num_envs != self._size:
            self._learn_bytes(num_envs, memory)
            self._size, self._rates, self._seen = num_envs, [], 0
        self._memory, self._seen = memory, self._seen + 1
        inside = min(max(num_envs, self.least), self.most)
        if inside != num_envs:
            return inside
        if self.memory_limit is not None and memory > self.memory_limit:
            return self._shrink(num_envs)
        if self._seen == 1:
            return None
        self._rates.append(steps / seconds)
        if not self.searching:
            self._calm += 1
            if self._calm >= self._patience:
                self._search_again()
            return None
        measured = self._measured()
        if measured is None:
            return None
        self.tried[num_envs] = measured
        self._rates, self._shrunk = [], False
        wanted = self._next(num_envs)
        return None if wanted == num_envs else wanted

    # Throughput

    def _measured(self) -> Measurement | None:
        """Return the throughput of the current size, or None if it is not known well enough yet."""
        count = len(self._rates)
        if count < self.observations:
            return None
        rate = float(np.median(self._rates))
        error = MEDIAN_ERROR * float(np.median(np.abs(np.array(self._rates) - rate))) / math.sqrt(count)
        if error > rate * self.margin / 3 and count < MOST_OBSERVATIONS * self.observations:
            return None
        return Measurement(rate, error)

    def _compare(self, size: int, best: int) -> int:
        """Return 1 if a size is faster than the best, −1 if it is slower, 0 if the difference may be chance."""
        one, other = self.tried[size], self.tried[best]
        certain = max(self.margin * other.rate, 2.0 * math.hypot(one.error, other.error))
        difference = one.rate - other.rate
        return 0 if abs(difference) <= certain else int(math.copysign(1, difference))

    def _next(self, size: int) -> int:
        """Return the size to play after one was measured: a new one, or the best if none is left to try."""
        if self.best is None:
            self.best = self._begun_at = size
        verdict = 0
        if size != self.best:
            verdict = self._compare(size, self.best)
            if verdict > 0:
                self._climbed |= size > self.best
                self.best = size
        candidate = self._further(size) if verdict >= 0 else None
        if candidate is None and self._grows and not self._climbed:
            self._grows = False
            candidate = self._further(self.best)
        if candidate is None:
            return self._settle()
        return candidate

    def _further(self, size: int) -> int | None:
        """Return the next size in the direction of the search, or None if it is too far or not legal."""
        assert self.best is not None
        if self._grows:
            candidate = min(2 * size, self.most, self._affordable())
            legal = size < candidate <= WIDEST_LOOK * self.best
        else:
            candidate = max(size // 2, self.least)
            legal = size > candidate >= self.best // WIDEST_LOOK
        return candidate if legal and candidate not in self.tried else None

    def _settle(self) -> int:
        """End the search and return what it found."""
        assert self.best is not None
        self.searching, self._calm = False, 0
        changed = self.best != self._begun_at
        self._patience = self.rest if changed else min(2 * self._patience, LONGEST_REST * self.rest)
        return self.best

    # Memory

    def _learn_bytes(self, num_envs: int, memory: float) -> None:
        """Learn from a change of size how much memory an environment takes."""
        if self._size is None:
            return
        found = (memory - self._memory) / (num_envs - self._size)
        if num_envs > self._size:
            # If memory did not grow, environments are too small to matter.
            self.environment_bytes = max(found, self.environment_bytes or 1.0)
        elif found > 0 and self.environment_bytes is None:
            # A process need not return what it frees, so this may be too little.
            self.environment_bytes = found

    def _affordable(self) -> int:
        """Return the largest number of environments that the limit on memory allows, as far as is known."""
        if self.memory_limit is None:
            return self.most
        assert self._size is not None
        each = max(self.environment_bytes or self._memory / self._size, 1.0)
        return self._size + math.floor((self.memory_limit - self._memory) / each)

    def _shrink(self, size: int) -> int | None:
        """Return a size, half of this one or less, that fits the memory; None if there is no smaller one."""
        if self._shrunk and self._seen <= self.observations:
            return None  # memory of ended workers and freed arrays is returned only gradually
        self._search_again()
        self._shrunk = True
        affordable, wanted = self._affordable(), max(size // 2, self.least)
        while wanted > max(affordable, self.least):
            wanted = max(wanted // 2, self.least)
        return None if wanted == size else wanted


def bytes_in_use() -> int:
    """Return the memory of this process and its children: their resident sets, with shared memory counted in each."""
    import psutil

    process = psutil.Process()
    total = process.memory_info().rss
    for child in process.children(recursive=True):
        try:
            total += child.memory_info().rss
        except psutil.NoSuchProcess:  # it ended since it was listed
            continue
    return total
