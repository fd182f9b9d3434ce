"""Whether what environments return lies in their spaces: one look at all of them after each step.

To look at each value as it comes would cost a good part of a cheap step. All values of a step are compared with their
limits at once instead, in about a microsecond; only if one of them is wrong is it looked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy.typing import NDArray

from velodrome.vector.space_arrays import flat_leaves, leaf_spaces
from velodrome.vector.workers.batch_arrays import BatchArrays
from velodrome.vector.workers.options import CheckedValues

LEARNT = np.dtype(np.float32)  # what learners make of rewards
FEW_VALUES = 16_384  # of one array: so many are copied between their limits
FEW_NUMBERS = 32  # of all observations: so many are added up by Python in less time than NumPy takes to begin

Copy = tuple[Any, Any]  # target and source, for target[:] = source


class Part(NamedTuple):
    """One array with a row per environment, and what its values must lie between."""

    name: str
    values: NDArray  # [n, …]
    low: Any  # one number, or an array as large as a row, of the type in which values are compared
    high: Any

    def are_right(self, rows: Any) -> bool:
        """Return whether all values of some rows lie between their limits; NaN does not."""
        values = self.values[rows]
        return bool((values >= self.low).all() and (values <= self.high).all())


class ValueCheck:
    """Compares observations and rewards of rows with what their space says, and keeps the last right observations."""

    def __init__(self, space: Space, arrays: BatchArrays, rows: list[int], level: CheckedValues) -> None:
        self.rows, self.level = rows, level
        steps = set(np.diff(rows).tolist()) or {1}
        # Rows at equal distances, as they mostly are; else all between them, of which those of others are passed over.
        self.at = slice(rows[0], rows[-1] + 1, min(steps) if len(steps) == 1 else 1)
        self.finals = parts_of(space, arrays.final_observations, "the last observation", level)
        for part in self.finals:
            # Memory that was never written lies within the limits too.
            part.values[rows] = np.clip(part.values[rows], part.low, part.high)
        rewards = Part("the reward", arrays.rewards, *limits_of(LEARNT))
        self.parts = [*parts_of(space, arrays.observations, "the observation", level), rewards]
        # Where no observation can be wrong, a new one is as good as the one before.
        self._observed = flat_leaves(space, arrays.observations) if len(self.parts) > 1 else []
        self._kept = [np.empty_like(values) for values in self._observed]
        self._keeps = self._copies_of_observed(self.at)
        self.keep()
        self._all = Between([*self.parts, *self.finals], self.at)
        self._copies, self._final_copies = (self._all.copies(parts, self.at) for parts in (self.parts, self.finals))
        # Of one row: rewards, of which there is one, are compared as they are.
        self._rewards, self._limits = arrays.rewards.data, tuple(map(float, limits_of(LEARNT)))
        self._one = Between([*self.parts[:-1], *self.finals], slice(rows[0], rows[0] + 1))
        self._of_row: dict[int, tuple[list[Copy], list[Copy], list[Copy]]] = {}
        self._numbers = numbers_of(self.parts[:-1], self.at, level)
        self._numbers_of_row: dict[int, list[Any] | None] = {}
        self._earned = arrays.rewards[self.at].data

    def _copies_of_observed(self, at: slice) -> list[Copy]:
        return [copy_of(kept[at], values[at]) for kept, values in zip(self._kept, self._observed, strict=True)]

    def keep(self) -> None:
        """Keep the observations, which are right, for the case that the next ones are wrong."""
        for kept, values in self._keeps:
            kept[:] = values

    def put_back(self, row: int) -> None:
        """Put back the observation of a row that was kept."""
        for kept, values in zip(self._kept, self._observed, strict=True):
            values[row] = kept[row]

    def is_right(self, ended: bool) -> bool:
        """Return whether all values are right, and keep them if they are; `ended` says that an episode has."""
        if not ended and self._numbers is not None and are_finite(self._numbers):
            low, high = self._limits
            for reward in self._earned:
                if not low <= reward <= high:
                    return False
            for target, source in self._keeps:
                target[:] = source
            return True
        for target, source in self._copies:
            target[:] = source
        if ended:
            for target, source in self._final_copies:
                target[:] = source
        if not self._all.are_right(self.at):
            return False
        for target, source in self._keeps:
            target[:] = source
        return True

    def row_is_right(self, row: int, ended: bool) -> bool:
        """Return the same of one row."""
        if row not in self._of_row:
            at = slice(row, row + 1)
            between = self._one.copies(self.parts, at), self._one.copies(self.finals, at)
            self._of_row[row] = (*between, self._copies_of_observed(at))
            self._numbers_of_row[row] = numbers_of(self.parts[:-1], at, self.level)
        copies, final_copies, keeps = self._of_row[row]
        numbers = self._numbers_of_row[row]
        if not ended and numbers is not None and are_finite(numbers):
            low, high = self._limits
            if low <= self._rewards[row] <= high:
                for target, source in keeps:
                    target[:] = source
                return True
        for target, source in copies:
            target[:] = source
        if ended:
            for target, source in final_copies:
                target[:] = source
        low, high = self._limits
        if not (low <= self._rewards[row] <= high and self._one.are_right(slice(row, row + 1))):
            return False
        for target, source in keeps:
            target[:] = source
        return True

    def what_is_wrong(self, row: int, ended: bool) -> str:
        """Return what is wrong with the values of a row, whose episode may have ended; "" if nothing is."""
        for part in (*(self.finals if ended else ()), *self.parts):
            values = part.values[row]
            wrong = np.argwhere(~((values >= part.low) & (values <= part.high)))
            if len(wrong):
                return described(part, row, tuple(wrong[0].tolist()))
        return ""


class Between:
    """Memory in which few values lie between their lower and their upper limits.

    Its first two thirds are compared with its last two: one call tells whether none is too small and none too large.
    """

    def __init__(self, parts: list[Part], at: slice) -> None:
        sizes = [part.values[at].size for part in parts]
        self.large = [part for part, size in zip(parts, sizes, strict=True) if size > FEW_VALUES]
        few = [(part, size) for part, size in zip(parts, sizes, strict=True) if 0 < size <= FEW_VALUES]
        self.flags = bytearray(2 * sum(size for _, size in few))  # a 0 for each value that is wrong
        self.compares: list[Callable[[], Any]] = []
        self._middles: list[tuple[Part, NDArray]] = []
        flags = np.frombuffer(self.flags, bool)
        for kind in dict.fromkeys(part.low.dtype for part, _ in few):
            same = [(part, size) for part, size in few if part.low.dtype == kind]
            count, first = sum(size for _, size in same), 0
            memory = np.empty((3, count), kind)
            for part, size in same:
                lows, middle, highs = (third[first : first + size].reshape(part.values[at].shape) for third in memory)
                lows[...], highs[...] = part.low, part.high
                middle[...] = np.clip(part.values[at], part.low, part.high)  # until it is written
                self._middles.append((part, middle))
                first += size
            self.compares.append(
                partial(np.less_equal, *(memory[k : k + 2].reshape(-1) for k in (0, 1)), flags[: 2 * count])
            )
            flags = flags[2 * count :]

    def copies(self, parts: list[Part], at: slice) -> list[Copy]:
        """Return what copies rows of some parts between their limits; of large ones nothing is copied."""
        wanted = [(part, middle) for part, middle in self._middles if any(part is own for own in parts)]
        return [copy_of(middle, part.values[at]) for part, middle in wanted]

    def are_right(self, at: slice) -> bool:
        """Return whether the values that were copied are right, and of those that are not copied these rows."""
        for compare in self.compares:
            compare()
        return 0 not in self.flags and (not self.large or all(part.are_right(at) for part in self.large))


def copy_of(target: NDArray, source: NDArray) -> Copy:
    """Return what to copy where: bare memory if possible, which takes a third of the time."""
    if target.flags.c_contiguous and source.flags.c_contiguous and source.dtype == target.dtype:
        return target.reshape(-1).data, source.reshape(-1).data
    return target, source


def numbers_of(parts: list[Part], at: slice, level: CheckedValues) -> list[Any] | None:
    """Return the memory of a few floats that only have to be finite; None if there are many, or others among them."""
    arrays = [part.values[at] for part in parts]
    few = 0 < sum(values.size for values in arrays) <= FEW_NUMBERS
    plain = all(values.flags.c_contiguous and values.dtype.char in "fd" for values in arrays)
    return [values.reshape(-1).data for values in arrays] if few and plain and level == "finite" else None


def are_finite(numbers: list[Any]) -> bool:
    """Return whether all numbers are finite: a sum that is not finite differs from itself, or from 0 by itself."""
    for some in numbers:
        total = sum(some)
        if total - total != 0.0:
            return False
    return True


def parts_of(space: Space, nested: Any, name: str, level: CheckedValues) -> list[Part]:
    """Return the arrays of a space in which a value can be wrong."""
    found = []
    for (leaf, own), values in zip(leaf_spaces(space, name), flat_leaves(space, nested), strict=True):
        kind = values.dtype.kind
        if kind == "b":
            continue
        lowest, highest = limits_of(values.dtype)
        # A Discrete number may be the index of something; the bounds of a Box are often no more than a guess.
        guessed = isinstance(own, Box) and level == "finite"
        low, high = (lowest, highest) if guessed else bounds_of(own)
        # An infinite bound allows every number, and infinity is none: what is learnt from it is NaN.
        low, high = (np.clip(bound, lowest, highest).astype(values.dtype) for bound in (low, high))
        if kind == "f" or np.any(low > lowest) or np.any(high < highest):
            found.append(Part(leaf, values, low, high))
    return found


def limits_of(dtype: np.dtype) -> tuple[Any, Any]:
    """Return the lowest and the highest number of a type, infinities not counted."""
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return dtype.type(limits.min), dtype.type(limits.max)


def bounds_of(space: Space) -> tuple[Any, Any]:
    """Return what the values of a space lie between."""
    if isinstance(space, Box):
        return space.low, space.high
    if isinstance(space, Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    assert isinstance(space, MultiBinary)
    return np.int8(0), np.int8(1)


def described(part: Part, row: int, place: tuple[int, ...]) -> str:
    """Return what is wrong with one value."""
    value = part.values[(row, *place)]
    where = f"{part.name}{list(place) if place else ''} is {value}"
    low, high = (np.broadcast_to(bound, part.values.shape[1:])[place] for bound in (part.low, part.high))
    if np.isfinite(value) and (low, high) != limits_of(LEARNT):
        return f"{where}; its space says {low} … {high}"
    why = "" if np.isnan(value) else " (infinite, or too large for float32)"
    return f"{where}{why}; expected a finite number"
