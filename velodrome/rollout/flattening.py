"""Observations of any space as rows of float32, for all environments at once, in the order of gymnasium's flatten.

Bytes from 0 to 255, such as those of images, are divided by 255: a network learns from numbers of about one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, flatdim, flatten
from numpy.typing import NDArray

from velodrome.errors import BackendError
from velodrome.rollout.observation import LARGEST_BYTE, Ranges
from velodrome.vector.space_arrays import parts_of, rebuilt

# Takes a batch of values of a space, [n, …], and rows to write them into, [n, floats].
WriteRows = Callable[[Any, NDArray[np.float32]], None]


def flat_size(space: Space) -> int:
    """Return the floats of a flattened observation, or say that their number is not fixed."""
    try:
        return flatdim(space)
    except (NotImplementedError, ValueError) as error:
        raise BackendError(
            f"observations of {space} have no fixed size, so none of our networks can read them; wrap the "
            f"environment so that it gives Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these"
        ) from error


def are_bytes(space: Space) -> bool:
    """Return whether values of a space are bytes from 0 to 255."""
    return (
        isinstance(space, Box) and space.dtype == np.uint8 and bool((space.low == 0).all() & (space.high == 255).all())
    )


def byte_columns(space: Space) -> Ranges:
    """Return the columns (first, end) of a row that are bytes."""
    if are_bytes(space):
        return ((0, flatdim(space)),)
    found, at = [], 0
    for _, part in parts_of(space) or ():
        found += [(at + first, at + end) for first, end in byte_columns(part)]
        at += flatdim(part)
    return tuple(found)


def row_writer(space: Space) -> WriteRows:
    """Return a function that writes a batch of observations as rows; the parts of a space follow each other."""
    if are_bytes(space):
        return lambda batch, rows: np.divide(np.reshape(batch, rows.shape), np.float32(LARGEST_BYTE), out=rows)
    if isinstance(space, Box | MultiBinary):
        return lambda batch, rows: np.copyto(rows, np.reshape(batch, rows.shape), casting="unsafe")
    if isinstance(space, Discrete):
        return _one_hot(np.array([space.n]), np.array([space.start]))
    if isinstance(space, MultiDiscrete):
        return _one_hot(space.nvec.reshape(-1), space.start.reshape(-1))
    parts = parts_of(space)
    if parts is not None:
        return _parts(parts)

    def write_each(batch: Any, rows: NDArray[np.float32]) -> None:
        for row, value in zip(rows, batch, strict=True):
            row[:] = flatten(space, value)

    return write_each


def _one_hot(counts: NDArray, starts: NDArray) -> WriteRows:
    first = np.cumsum(counts) - counts - starts  # column of the value 0 of each number

    def write_one_hot(batch: Any, rows: NDArray[np.float32]) -> None:
        rows[...] = 0.0
        columns = np.reshape(batch, (len(rows), len(first))) + first
        np.put_along_axis(rows, columns, 1.0, axis=1)

    return write_one_hot


def _parts(spaces: list[tuple[Any, Space]]) -> WriteRows:
    ends = np.cumsum([flatdim(space) for _, space in spaces]).tolist()
    parts = [
        (key, row_writer(space), slice(begin, end))
        for (key, space), begin, end in zip(spaces, [0, *ends[:-1]], ends, strict=True)
    ]

    def write_parts(batch: Any, rows: NDArray[np.float32]) -> None:
        for key, write, columns in parts:
            write(batch[key], rows[:, columns])

    return write_parts


def stacked(space: Space, values: list[Any]) -> Any:
    """Return the values of some environments as a batch."""
    parts = parts_of(space)
    if parts is not None:
        return rebuilt(space, [stacked(part, [value[key] for value in values]) for key, part in parts])
    if isinstance(space, Box | Discrete | MultiDiscrete | MultiBinary):
        return np.array(values)
    return values
