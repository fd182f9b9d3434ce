"""The memory of a batch: state columns and outputs, allocated once and written in place.

On the CPU these are NumPy arrays, which torch sees through `torch.from_numpy`; on CUDA they are torch tensors, which
Numba sees through `cuda.as_cuda_array`. Neither makes a copy, and the CPU does not need torch to be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import LANES, World, state_dtype
from velodrome.vector.batch import Outputs

CACHE_LINE = 64  # bytes
STREAMED_BYTES = 16 << 20  # of windows: more than a cache would keep until they are read

Allocate = Callable[[Any, tuple[int, ...]], Any]


def aligned_zeros(dtype: Any, shape: tuple[int, ...]) -> NDArray:
    """Return a zeroed array that begins on a cache line."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + CACHE_LINE, np.uint8)
    offset = -raw.ctypes.data % CACHE_LINE
    return raw[offset : offset + size].view(dtype).reshape(shape)


@dataclass(frozen=True)
class Buffers:
    """State and outputs of n environments."""

    blocks: Any  # [blocks] records of the world's state, LANES environments each
    out: Outputs
    bytes_per_environment: float  # state and bookkeeping, windows not counted


def block_count(num_envs: int) -> int:
    """Return the number of blocks that hold this many environments."""
    return -(-num_envs // LANES)


def allocate_outputs(world: World, num_envs: int, with_windows: bool, allocate: Allocate) -> Outputs:
    """Allocate what a step leaves behind."""
    window_floats = sum(rows * width for rows, width in world.window_shapes) if with_windows else 0
    width = window_floats + len(world.observed)
    return Outputs(
        rewards=allocate(np.float32, (num_envs,)),
        terminated=allocate(np.bool_, (num_envs,)),
        truncated=allocate(np.bool_, (num_envs,)),
        observations=allocate(np.float32, (num_envs, width)),
        cursors=allocate(np.int32, (num_envs,)),
        final_observations=allocate(np.float32, (num_envs, width)),
        final_cursors=allocate(np.int32, (num_envs,)),
        statistics=allocate(np.float64, (num_envs, len(world.statistics))),
        window_floats=window_floats,
        streamed=int(4 * num_envs * window_floats > STREAMED_BYTES),
    )


def bytes_per_environment(world: World, num_envs: int) -> float:
    """Return the bytes of state, outputs and account vectors per environment, windows not counted."""
    outputs = 4 + 1 + 1 + 2 * 4 + 2 * 4 * len(world.observed) + 8 * len(world.statistics)
    return state_dtype(world.state_type).itemsize * block_count(num_envs) / num_envs + outputs


def bytes_of_buffers(world: World, num_envs: int, with_windows: bool) -> float:
    """Return the bytes per environment of everything that a batch of this size allocates."""
    windows = sum(rows * width for rows, width in world.window_shapes) if with_windows else 0
    return bytes_per_environment(world, num_envs) + 2 * 4 * windows


def allocate_blocks(world: World, num_envs: int) -> NDArray:
    """Allocate the state of n environments on the CPU, as before the first episode."""
    dtype = state_dtype(world.state_type)
    blocks = aligned_zeros(np.uint8, (block_count(num_envs) * dtype.itemsize,)).view(dtype).view(np.recarray)
    for column in world.reset_options.values():
        blocks[column] = -1
    return blocks


def allocate_buffers(world: World, num_envs: int, with_windows: bool) -> Buffers:
    """Allocate everything that n environments need on the CPU."""
    out = allocate_outputs(world, num_envs, with_windows, aligned_zeros)
    return Buffers(allocate_blocks(world, num_envs), out, bytes_per_environment(world, num_envs))


def copy_states(source: NDArray, target: NDArray, count: int) -> None:
    """Copy the state of the first `count` environments from blocks to blocks; other lanes stay as they are."""
    whole, lanes = divmod(count, LANES)
    target[:whole] = source[:whole]
    if lanes:
        for column in source.dtype.names or ():
            target[column][whole, ..., :lanes] = source[column][whole, ..., :lanes]


def copy_outputs(source: Outputs, target: Outputs, count: int) -> None:
    """Copy the outputs of the first `count` environments: arrays, or tensors of one device."""
    old: Any
    new: Any
    for old, new in zip(source, target, strict=True):
        if not isinstance(old, int):
            new[:count] = old[:count]


def column_rows(column: NDArray, num_envs: int) -> NDArray:
    """Return a state column of all blocks, [blocks, (rows,) lanes], as [(rows,) n]: a copy."""
    return np.moveaxis(column, 0, -2).reshape(*column.shape[1:-1], -1)[..., :num_envs].copy()
