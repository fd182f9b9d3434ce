"""Spaces as arrays: where a value of each kind of space is stored, and how it is written and read.

A Dict or Tuple space is the list of its leaves, in the order of the space. Each leaf is one array over all
environments, so that a batch needs no concatenation and fits into shared memory.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from numpy.typing import NDArray

from velodrome.errors import BackendError, SpaceError

Write = Callable[[int, Any], None]
Doubt = Callable[[int], None]
Read = Callable[[int], Any]
FEW_FLOATS = 64  # of a row, which are written as bytes


class Leaf(NamedTuple):
    """One array: its name, its type and its shape, which in a space is that of one environment's part."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


class WrongValueError(Exception):
    """An observation that does not fit its space."""


def parts_of(space: Space) -> list[tuple[Any, Space]] | None:
    """Return the parts of a Dict or Tuple space by key or index; None for any other space."""
    if isinstance(space, Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, Tuple) else None


def rebuilt(space: Space, values: list[Any]) -> Any:
    """Return the values of the parts of a Dict or Tuple space as a value of that space."""
    return dict(zip(space.spaces, values, strict=True)) if isinstance(space, Dict) else tuple(values)


def leaf_spaces(space: Space, name: str) -> list[tuple[str, Space]]:
    """Return the spaces without parts that a space is made of, with their names."""
    parts = parts_of(space)
    if parts is not None:
        return [leaf for key, part in parts for leaf in leaf_spaces(part, f"{name}[{key!r}]")]
    if isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary):
        return [(name, space)]
    raise SpaceError(
        f"{name} has the space {space}, which is no array of fixed size. Velodrome takes Box, Discrete, "
        f"MultiDiscrete, MultiBinary, Dict and Tuple; wrap the environment, or use gymnasium.vector.SyncVectorEnv."
    )


def leaves(space: Space, name: str) -> list[Leaf]:
    """Return the arrays that hold values of a space."""
    return [Leaf(leaf, np.dtype(own.dtype), tuple(own.shape or ())) for leaf, own in leaf_spaces(space, name)]


def nest(space: Space, arrays: Iterable[Any]) -> Any:
    """Return the arrays of a space's leaves in the structure that a batched space has."""
    remaining = iter(arrays)
    parts = parts_of(space)
    return next(remaining) if parts is None else rebuilt(space, [nest(part, remaining) for _, part in parts])


def map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a nested structure with a function applied to each of its arrays."""
    if isinstance(value, dict):
        return {key: map_nested(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map_nested(function, part) for part in value)
    return function(value)


def nested_arrays(value: Any) -> list[NDArray]:
    """Return the arrays of a nested structure, in order."""
    found: list[NDArray] = []
    map_nested(found.append, value)
    return found


def flat_leaves(space: Space, value: Any) -> list[Any]:
    """Return the parts of a batched value in the order of the space's leaves."""
    parts = parts_of(space)
    return [value] if parts is None else [leaf for key, part in parts for leaf in flat_leaves(part, value[key])]


def writer(space: Space, batched: Any, name: str = "the observation", doubt: Doubt | None = None) -> Write:
    """Return a function that writes one environment's value into the arrays of all, or refuses what does not fit.

    doubt: is called with the row before a value replaces another that is not, or hardly, within the space. Of spaces
    for which `is_doubtable`.
    """
    if isinstance(space, Dict):
        parts = {key: writer(part, batched[key], f"{name}[{key!r}]") for key, part in space.spaces.items()}

        def write_dict(row: int, value: Any) -> None:
            try:
                for key, write in parts.items():
                    write(row, value[key])
            except (KeyError, TypeError) as error:
                raise WrongValueError(f"{name} is {value!r:.200}; expected a dict with {list(parts)}") from error

        return write_dict
    if isinstance(space, Tuple):
        writes = [writer(part, batched[index], f"{name}[{index}]") for index, part in enumerate(space.spaces)]

        def write_tuple(row: int, value: Any) -> None:
            if not hasattr(value, "__len__") or len(value) != len(writes):
                raise WrongValueError(f"{name} is {value!r:.200}; expected a tuple of {len(writes)}")
            for write, part in zip(writes, value, strict=True):
                write(row, part)

        return write_tuple
    if isinstance(space, Discrete):
        lowest, highest = int(space.start), int(space.start + space.n - 1)

        def write_number(row: int, value: Any) -> None:
            try:
                number = operator.index(value)
                if doubt is not None and not lowest <= number <= highest:
                    doubt(row)
                batched[row] = number
            except (TypeError, OverflowError) as error:
                raise WrongValueError(f"{name} is {value!r:.200}; expected a whole number of {space}") from error

        return write_number
    return _array_writer(batched, name, tuple(space.shape or ()), np.dtype(space.dtype), doubt)


def _array_writer(batched: NDArray, name: str, shape: tuple[int, ...], dtype: np.dtype, doubt: Doubt | None) -> Write:
    fitting = {dtype: True}  # types that may be cast to this one, and whether all of their numbers can be
    # Bytes are written, and looked at, in less time than NumPy takes to begin.
    memory = rows_of_bytes(batched) if are_few_floats(shape, dtype) else None
    # Rows of more numbers are copied from memory to memory, without asking NumPy.
    rows = [row.data for row in batched] if memory is None and len(shape) == 1 and dtype.isnative else None
    # Of each float the byte with its sign and most of its exponent.
    firsts = slice(dtype.itemsize - 1 if sys.byteorder == "little" else 0, None, dtype.itemsize)

    def fitted(array: NDArray, value: Any) -> NDArray:
        if array.shape != shape:
            if array.dtype == object:
                raise WrongValueError(f"{name} is {value!r:.200}; expected an array of shape {shape}")
            raise WrongValueError(f"{name} has shape {array.shape}; its space says {shape}")
        if array.dtype not in fitting:
            if not np.can_cast(array.dtype, dtype, "same_kind"):
                raise WrongValueError(f"{name} has type {array.dtype}; its space says {dtype}")
            # A float that is too large becomes infinite, which can be seen later; a whole number becomes another one.
            fitting[array.dtype] = dtype.kind == "f" or np.can_cast(array.dtype, dtype, "safe")
        cast = array.astype(dtype)
        if not fitting[array.dtype] and (cast != array).any():
            raise WrongValueError(f"{name} is {array!r:.200}, too large for {dtype}, the type of its space")
        return cast

    def write_array(row: int, value: Any) -> None:
        array = value if type(value) is np.ndarray else np.asarray(value)
        if array.shape != shape or array.dtype is not dtype:
            array = fitted(array, value)
        if rows is not None:
            rows[row][:] = array
            return
        if memory is None:
            batched[row] = array
            return
        taken = array.tobytes()
        if doubt is not None:
            found = taken[firsts]
            # Of infinities, of NaN, and of numbers close to infinity.
            if 0x7F in found or 0xFF in found:
                doubt(row)
        memory[row][:] = taken

    return write_array


def rows_of_bytes(batched: NDArray) -> list[memoryview] | None:
    """Return the memory of each row; None if it does not lie in one piece."""
    if not batched.flags.c_contiguous:
        return None
    return [row.data for row in batched.reshape(len(batched), -1).view(np.uint8)]


def are_few_floats(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Return whether a row has some floats of 4 or 8 bytes, and not many."""
    return dtype.char in "fd" and dtype.isnative and 0 < math.prod(shape) <= FEW_FLOATS


def is_doubtable(space: Space) -> bool:
    """Return whether a writer finds whatever may be wrong with a value, if bounds of a Box do not matter."""
    if isinstance(space, Box):
        shape, dtype = tuple(space.shape), np.dtype(space.dtype)
        return dtype.kind != "f" or are_few_floats(shape, dtype)
    return isinstance(space, Discrete)


def reader(space: Space, batched: Any) -> Read:
    """Return a function that reads one environment's value: a copy, since the environment may keep it."""
    if isinstance(space, Dict):
        reads_by_key = {key: reader(part, batched[key]) for key, part in space.spaces.items()}
        return lambda row: {key: read(row) for key, read in reads_by_key.items()}
    if isinstance(space, Tuple):
        reads = [reader(part, batched[index]) for index, part in enumerate(space.spaces)]
        return lambda row: tuple(read(row) for read in reads)
    if not space.shape:
        # Indexing gives a scalar, which is a copy already.
        return batched.__getitem__
    return lambda row: batched[row].copy()


def taker(space: Space) -> Callable[[Any, int], Any]:
    """Return a function that copies one environment's observation, of the type that its space has, out of all."""
    parts = parts_of(space)
    if parts is not None:
        takes = [(key, taker(part)) for key, part in parts]
        return lambda batched, row: rebuilt(space, [take(batched[key], row) for key, take in takes])
    if isinstance(space, Discrete):
        return operator.getitem
    return lambda batched, row: batched[row, ...].copy()


def take_rows(batched: Any, rows: Any) -> Any:
    """Return a copy of some rows of a batched value."""
    return map_nested(lambda array: array[rows], batched)


def on_host(value: Any) -> NDArray:
    """Return an array, or a tensor on any device, as a NumPy array; that of a tensor is a copy."""
    return value.detach().to("cpu", copy=True).numpy() if hasattr(value, "detach") else np.asarray(value)


def about_fractions(actions: Any) -> str:
    """Return what to say about fractions where actions are whole numbers; '' where there are none."""
    given = on_host(actions)
    if given.dtype.kind != "f":
        return ""
    broken = np.flatnonzero(~np.isfinite(given.reshape(len(given), -1)).all(axis=1)) if given.ndim else np.zeros(0)
    if len(broken):
        return f" That of environment {broken[0]} is {given[broken[0]]}: the policy that chose it has diverged."
    return f" They are whole numbers, not {given.dtype}; convert those that are whole with .astype(int)."


def resized(array: NDArray, count: int, fill: Any = 0) -> NDArray:
    """Return a copy with this many rows: the first as they were, new ones filled."""
    new = np.full((count, *array.shape[1:]), fill, array.dtype)
    kept = min(count, len(array))
    new[:kept] = array[:kept]
    return new


def check_spaces(row: int, env: Any, observation_space: Space, action_space: Space) -> None:
    """Refuse an environment whose spaces are not those of the batch."""
    pairs = {"observation": (env.observation_space, observation_space), "action": (env.action_space, action_space)}
    for name, (mine, others) in pairs.items():
        if mine != others:
            raise BackendError(
                f"the {name} space of environment {row} is {mine} and that of environment 0 is {others}; a batch needs "
                "environments of one kind"
            )
