"""Sums along a rollout, written once for one environment and compiled for the CPU or a GPU: advantages and returns."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from torch import Tensor

from velodrome.rollout.launch import on_device

ZERO = np.float32(0.0)  # a Python float would make the arithmetic double


def advantages_of(
    i: int, reward: Any, value: Any, final_value: Any, last_value: Any, terminated: Any, truncated: Any, gamma: Any,
    decay: Any, advantage: Any,
) -> None:  # fmt: skip
    """Write the generalised advantages of environment i; arrays are [steps, environments], `last_value` [environments].

    A truncated episode goes on after its last step: `final_value`, the value of the state it was cut off in, stands
    for what would have come. Nothing comes after a terminated one. Neither passes anything on to the episode before.
    """
    carried = ZERO
    following = last_value[i]
    for back in range(reward.shape[0]):
        t = reward.shape[0] - 1 - back
        if terminated[t, i]:
            following = ZERO
            carried = ZERO
        elif truncated[t, i]:
            following = final_value[t, i]
            carried = ZERO
        carried = reward[t, i] + gamma * following - value[t, i] + gamma * decay * carried
        advantage[t, i] = carried
        following = value[t, i]


def discounted_of(i: int, reward: Any, terminated: Any, truncated: Any, gamma: Any, carried: Any, returns: Any) -> None:
    """Write what environment i has earned so far in its episode, older rewards discounted; `carried` runs on."""
    total = carried[i]
    for t in range(reward.shape[0]):
        total = reward[t, i] + gamma * total
        returns[t, i] = total
        if terminated[t, i] or truncated[t, i]:
            total = ZERO
    carried[i] = total


_advantages = numba.njit(advantages_of, nogil=True, cache=True)
_discounted = numba.njit(discounted_of, nogil=True, cache=True)


@numba.njit(nogil=True, cache=True)
def _all_advantages(reward, value, final_value, last_value, terminated, truncated, gamma, decay, advantage):
    for i in range(reward.shape[1]):
        _advantages(i, reward, value, final_value, last_value, terminated, truncated, gamma, decay, advantage)


@numba.njit(nogil=True, cache=True)
def _all_discounted(reward, terminated, truncated, gamma, carried, returns):
    for i in range(reward.shape[1]):
        _discounted(i, reward, terminated, truncated, gamma, carried, returns)


def _on_cpu(loop: Any, *arguments: Any) -> None:
    loop(*(value.detach().numpy() if isinstance(value, Tensor) else value for value in arguments))


def write_advantages(
    reward: Tensor, value: Tensor, final_value: Tensor, last_value: Tensor, terminated: Tensor, truncated: Tensor,
    gamma: float, decay: float, advantage: Tensor,
) -> None:  # fmt: skip
    """Write the advantages of a rollout, [steps, environments]; on a GPU one kernel launch."""
    arguments = (reward, value, final_value, last_value, terminated, truncated, np.float32(gamma), np.float32(decay),
                 advantage)  # fmt: skip
    if on_device(reward):
        from velodrome.rollout import cuda_rows

        cuda_rows.write_advantages(reward.shape[1], *arguments)
    else:
        _on_cpu(_all_advantages, *arguments)


def write_discounted(
    reward: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, carried: Tensor, returns: Tensor
) -> None:
    """Write the running discounted returns of a rollout, [steps, environments]; `carried` [environments] goes on."""
    arguments = (reward, terminated, truncated, np.float32(gamma), carried, returns)
    if on_device(reward):
        from velodrome.rollout import cuda_rows

        cuda_rows.write_discounted(reward.shape[1], *arguments)
    else:
        _on_cpu(_all_discounted, *arguments)
