"""What the fused network reads: observations as rows or as cursors into windows, and the samples of a rollout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.learn.engines.cpu import kernels, losses
from velodrome.tables.windows import WindowTables

# Writes the observations at some rows [m] int64 into the front of a tile's rows.
Gather = Callable[[NDArray[np.int64], NDArray[np.float32]], None]


GatherSamples = Callable[[NDArray[np.int64], losses.Samples], None]


class WindowedObservations(NamedTuple):
    """Observations by cursor: the windows at the cursor, then a few values, as in a flat observation."""

    windows: WindowTables
    cursors: torch.Tensor  # [n] int32 or int64
    values: torch.Tensor  # [n, V] float32; V may be 0


Observations = torch.Tensor | WindowedObservations  # [n, D] float32, or the same by cursor


class FlatRollout(NamedTuple):
    """A rollout, all its steps and environments in one row of samples of length n."""

    observations: Observations
    actions: torch.Tensor  # [n] int64, [n, components] int64, or [n, A] float32
    old_log_prob: torch.Tensor  # [n] float32, as are those below
    advantages: torch.Tensor
    returns: torch.Tensor
    old_values: torch.Tensor


def expect(name: str, tensor: Any, shape: tuple[int, ...], *dtypes: torch.dtype) -> NDArray:
    """Return a tensor as an array over the same memory, or say what is wrong with it."""
    is_tensor = isinstance(tensor, torch.Tensor)
    if not is_tensor or tensor.shape != shape or tensor.dtype not in dtypes or tensor.device.type != "cpu":
        wanted = f"a tensor {list(shape)} of {' or '.join(map(_name, dtypes))} on the CPU"
        received = (
            f"{list(tensor.shape)} of {_name(tensor.dtype)} on {tensor.device}" if is_tensor else type(tensor).__name__
        )
        raise ConfigError(f"{name} must be {wanted}, received {received}")
    if not tensor.is_contiguous():
        raise ConfigError(f"{name} must be contiguous, received strides {tensor.stride()}; call .contiguous() on it")
    return tensor.detach().numpy()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def observation_reader(observations: Observations, features: int) -> tuple[Gather, int]:
    """Return a function that gathers observations, and how many there are."""
    if not isinstance(observations, WindowedObservations):
        flat = expect("observations", observations, (len(observations), features), torch.float32)

        def gather_flat(rows: NDArray[np.int64], target: NDArray[np.float32]) -> None:
            position = kernels.gather_rows(flat, rows, target)
            if position >= 0:
                raise _no_such_row(rows[position], len(flat))

        return gather_flat, len(flat)
    windows, count = observations.windows, len(observations.cursors)
    window_floats = int(np.dot(windows.width, windows.length))
    cursors = expect("cursors", observations.cursors, (count,), torch.int32, torch.int64)
    values = expect("values", observations.values, (count, features - window_floats), torch.float32)

    def gather_windowed(rows: NDArray[np.int64], target: NDArray[np.float32]) -> None:
        position = kernels.gather_windows(*windows, cursors, values, rows, target)
        if position >= 0:
            row, bars = rows[position], windows.rows.shape[1]
            if not 0 <= row < count:
                raise _no_such_row(row, count)
            raise ConfigError(
                f"the cursor of observation {row} is {cursors[row]}; the windows have bars 0 … {bars - 1}"
            )

    return gather_windowed, count


def _no_such_row(row: int, count: int) -> ConfigError:
    return ConfigError(f"row {row} was asked for, but there are rows 0 … {count - 1}")


def sample_reader(
    rollout: FlatRollout, count: int, sizes: NDArray[np.int64], outputs: int
) -> tuple[GatherSamples, NDArray[np.float32]]:
    """Return a function that gathers the rest of a rollout's samples, and their advantages."""
    if sizes.size:
        # One choice may come as [n] or as [n, 1].
        shape = (count,) if sizes.size == 1 and rollout.actions.ndim == 1 else (count, sizes.size)
        actions = expect("actions", rollout.actions, shape, torch.int64).reshape(count, sizes.size)
    else:
        actions = expect("actions", rollout.actions, (count, outputs), torch.float32)
    names = losses.Samples._fields[1:]
    numbers = (expect(name, getattr(rollout, name), (count,), torch.float32) for name in names)
    source = losses.Samples(actions, *numbers)

    def gather(rows: NDArray[np.int64], target: losses.Samples) -> None:
        position = losses.gather_samples(source, rows, sizes, target)
        if position >= 0:
            row = rows[position]
            raise ConfigError(f"the action of sample {row} is {actions[row]}, but the options are {sizes}, from 0")

    return gather, source.advantages
