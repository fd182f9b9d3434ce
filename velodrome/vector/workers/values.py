"""Whether what environments return lies in their spaces: one look at all of them after each step.

To look at each value as it comes would cost a good part of a cheap step. All values of a step are looked at together
instead: a few floats by the bytes that hold their exponents, in a tenth of a microsecond, more of them by the sum of
their squares, and what is bounded by comparing all with their limits, in a microsecond or two. Only if one of them is
wrong is it looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property, partial
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
FEW_NUMBERS = 1024  # of all observations: so many bytes are looked at in less time than NumPy takes to compare numbers
SUMMED = 8192  # floats whose squares BLAS adds up on the thread that asks
# By the first byte of a float64: 1 for 2**113, which is not much less than fits into a float32, and for all above it.
LARGE_REWARD = bytes(byte & 0x7F >= 0x47 for byte in range(256))

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
        self.rows = rows
        steps = set(np.diff(rows).tolist()) or {1}
        # Rows at equal distances, as they mostly are; else all between them, of which those of others are passed over.
        self.at = slice(rows[0], rows[-1] + 1, min(steps) if len(steps) == 1 else 1)
        self.finals = parts_of(space, arrays.final_observations, "the last observation", level)
        for part in self.finals:
            # Memory that was never written lies within the limits too.
            part.values[rows] = np.clip(part.values[rows], part.low, part.high)
        observed = parts_of(space, arrays.observations, "the observation", level)
        self.parts = [*observed, Part("the reward", arrays.rewards, *limits_of(LEARNT))]
        self._take_rewards: Any
        self._take_finals: Any
        self._take_rewards, self._reward_bytes = taker([arrays.rewards[self.at]])
        # Of few floats the bytes are taken, looked at and kept; of others there are copies.
        floats = [part.values for part in observed] if level == "finite" else []
        self._take, self._first_bytes = taker([values[self.at] for values in floats])
        self._take_finals, _ = taker([part.values[self.at] for part in self.finals])
        if self._take_rewards is None:  # many rows, or such as do not lie in one piece
            self._take = None
        if self._take is None:
            floats = []
        # Where no observation can be wrong, a new one is as good as the one before.
        leaves = flat_leaves(space, arrays.observations) if observed else []
        copied = [values for values in leaves if all(values is not own for own in floats)]
        self._floats, self._copied = ([values[self.at] for values in some] for some in (floats, copied))
        self._copies = [values.copy() for values in self._copied]
        self._keeps = [copy_of(kept, values) for kept, values in zip(self._copies, self._copied, strict=True)]
        self.keep()

    def keep(self) -> None:
        """Keep the observations, which are right, for the case that the next ones are wrong."""
        if self._take is not None:
            self._taken = self._take()
        for kept, values in self._keeps:
            kept[:] = values

    def put_back(self, row: int) -> None:
        """Put back the observation of a row that was kept."""
        place = (row - self.at.start) // self.at.step
        for kept, values in zip(self._copies, self._copied, strict=True):
            values[place] = kept[place]
        first = 0
        for values in self._floats:
            kept = np.frombuffer(self._taken, values.dtype, values.size, first).reshape(values.shape)
            values[place], first = kept[place], first + values.nbytes

    def is_right(self, ended: Any) -> bool:
        """Return whether all values are right, and keep them if they are; `ended` says that an episode has."""
        take = self._take
        if take is None:
            return self._lies_between(ended)
        taken = take()
        firsts = taken[self._first_bytes]
        if 0x7F in firsts or 0xFF in firsts:
            return self._lies_between(ended)
        if ended:
            firsts = self._take_finals()[self._first_bytes]
            if 0x7F in firsts or 0xFF in firsts:
                return self._lies_between(ended)
        if 1 in self._take_rewards()[self._reward_bytes].translate(LARGE_REWARD):
            return self._lies_between(ended)
        self._taken = taken
        for target, source in self._keeps:
            target[:] = source
        return True

    def _lies_between(self, ended: Any) -> bool:
        """Return the same, by the sum of squares or by comparing all values with their limits."""
        glance = self._glance
        if glance is not None and glance[0].are_small() and (not ended or glance[1].are_small()):
            self.keep()
            return True
        between, copies, final_copies = self._between
        for target, source in copies:
            target[:] = source
        if ended:
            for target, source in final_copies:
                target[:] = source
        if not between.are_right(self.at, () if ended else self.finals):
            return False
        self.keep()
        return True

    @cached_property
    def _glance(self) -> tuple[Squares, Squares] | None:
        """What is looked at first: the values of a step, and those of the episodes that it ended."""
        if not all(map(Squares.suit, (*self.parts, *self.finals))):
            return None
        return Squares(self.parts, self.at), Squares(self.finals, self.at)

    @cached_property
    def _between(self) -> tuple[Between, list[Copy], list[Copy]]:
        between = Between([*self.parts, *self.finals], self.at)
        return between, between.copies(self.parts, self.at), between.copies(self.finals, self.at)

    def what_is_wrong(self, row: int, ended: bool) -> str:
        """Return what is wrong with the values of a row, whose episode may have ended; "" if nothing is."""
        for part in (*(self.finals if ended else ()), *self.parts):
            values = part.values[row]
            wrong = np.argwhere(~((values >= part.low) & (values <= part.high)))
            if len(wrong):
                return described(part, row, tuple(wrong[0].tolist()))
        return ""


class Squares:
    """The sums of squares of rows of floats: small only if none of them is NaN, infinite or too large."""

    def __init__(self, parts: list[Part], at: slice) -> None:
        self.copies: list[Copy] = []  # of rows that do not lie in one piece
        self.chunks: list[tuple[NDArray, float]] = []  # and what their sums must be smaller than
        for part in parts:
            values = part.values[at]
            if not values.flags.c_contiguous:
                values = np.zeros(values.shape, values.dtype)
                self.copies.append(copy_of(values, part.values[at]))
            # Python's floats do not become infinite, they raise.
            most = min(float(np.square(np.longdouble(part.high))), float(limits_of(values.dtype)[1]))
            flat = values.reshape(-1)
            self.chunks += [(chunk, most) for chunk in np.split(flat, range(SUMMED, flat.size, SUMMED))]

    @staticmethod
    def suit(part: Part) -> bool:
        """Return whether values are floats that may be as far from 0 on one side as on the other."""
        kind = part.values.dtype
        return kind.char in "fd" and kind.isnative and np.ndim(part.high) == 0 and part.low == -part.high

    def are_small(self) -> bool:
        """Return whether no sum is larger than one of the squares may be; if one is, all values may still be right."""
        for target, source in self.copies:
            target[:] = source
        for chunk, most in self.chunks:
            total = np.vdot(chunk, chunk)  # `dot` would warn of one that is infinite
            if not total < most:
                return False
        return True


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

    def are_right(self, at: slice, but: Sequence[Part]) -> bool:
        """Return whether the values that were copied are right, and these rows of what is not copied, but for some."""
        for compare in self.compares:
            compare()
        if 0 in self.flags:
            return False
        return not self.large or all(part.are_right(at) for part in self.large if all(part is not own for own in but))


def copy_of(target: NDArray, source: NDArray) -> Copy:
    """Return what to copy where: bare memory if possible, which takes a third of the time."""
    if target.flags.c_contiguous and source.flags.c_contiguous and source.dtype == target.dtype:
        return target.reshape(-1).data, source.reshape(-1).data
    return target, source


def taker(arrays: list[NDArray]) -> tuple[Callable[[], bytes] | None, slice]:
    """Return what takes the bytes of a few floats of one type, and where each has its sign and most of its exponent.

    None: there are others among them, or many.
    """
    kinds = {values.dtype for values in arrays}
    few = 0 < sum(values.size for values in arrays) <= FEW_NUMBERS
    if not few or len(kinds) != 1 or not all(values.flags.c_contiguous for values in arrays):
        return None, slice(None)
    kind = kinds.pop()
    if kind.char not in "fd" or not kind.isnative:
        return None, slice(None)
    memory = [values.reshape(-1).data for values in arrays]
    first = kind.itemsize - 1 if sys.byteorder == "little" else 0
    return memory[0].tobytes if len(memory) == 1 else partial(b"".join, memory), slice(first, None, kind.itemsize)


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
