"""The arrays of a batch, one row per environment: in ordinary memory here, in shared memory in `worker/protocol.py`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from velodrome.vector.space_arrays import leaves, nest, nested_arrays


class BatchArrays(NamedTuple):
    """What the last step left behind, one row per environment; observations are nested as their space is."""

    observations: Any
    final_observations: Any  # of the episode that ended in this step; else old
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    step_seconds: NDArray[np.float64]  # of the last call of each environment


def allocate_arrays(observation_space: Space, num_envs: int) -> BatchArrays:
    """Allocate the arrays of a batch in ordinary memory."""

    def observations() -> Any:
        parts = leaves(observation_space, "observation")
        return nest(observation_space, [np.zeros((num_envs, *leaf.shape), leaf.dtype) for leaf in parts])

    terminated, truncated = np.zeros(num_envs, bool), np.zeros(num_envs, bool)
    return BatchArrays(
        observations(), observations(), np.zeros(num_envs), terminated, truncated, step_seconds=np.zeros(num_envs)
    )


def copy_arrays(source: BatchArrays, target: BatchArrays, count: int) -> None:
    """Copy the first rows of one batch's arrays into another's."""
    for before, after in zip(source, target, strict=True):
        for old, new in zip(nested_arrays(before), nested_arrays(after), strict=True):
            new[:count] = old[:count]


def cut_off(arrays: BatchArrays, row: int, truncated: bool = True) -> None:
    """End the episode of a row that broke, with no reward and its last good observation as the final one."""
    arrays.rewards[row], arrays.terminated[row], arrays.truncated[row] = 0.0, False, truncated
    if truncated:
        for last, final in zip(
            nested_arrays(arrays.observations), nested_arrays(arrays.final_observations), strict=True
        ):
            final[row] = last[row]
