"""Advantages and discounted returns of a rollout, on the CPU or a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from velodrome.outside.kernels import cached_njit
from velodrome.rollout.both_targets import advantages_of, discounted_of
from velodrome.rollout.launch import on_device

_advantages = cached_njit(advantages_of, nogil=True)
_discounted = cached_njit(discounted_of, nogil=True)


@cached_njit(nogil=True)
def _all_advantages(reward, value, final_value, last_value, terminated, truncated, gamma, decay, advantage):
    for i in range(reward.shape[1]):
        _advantages(i, reward, value, final_value, last_value, terminated, truncated, gamma, decay, advantage)


@cached_njit(nogil=True)
def _all_discounted(reward, terminated, truncated, gamma, carried, returns):
    for i in range(reward.shape[1]):
        _discounted(i, reward, terminated, truncated, gamma, carried, returns)


def _write(loop: Any, kernel: str, *arguments: Any) -> None:
    """Run a loop over the environments on the CPU, or launch the kernel of that name."""
    if on_device(arguments[0]):
        from velodrome.rollout import cuda_rows

        getattr(cuda_rows, kernel)(arguments[0].shape[1], *arguments)
    else:
        loop(*(value.detach().numpy() if isinstance(value, Tensor) else value for value in arguments))


def write_advantages(
    reward: Tensor, value: Tensor, final_value: Tensor, last_value: Tensor, terminated: Tensor, truncated: Tensor,
    gamma: float, decay: float, advantage: Tensor,
) -> None:  # fmt: skip
    """Write the advantages of a rollout, [steps, environments]; on a GPU this is one kernel launch."""
    tensors = (reward, value, final_value, last_value, terminated, truncated)
    _write(_all_advantages, "write_advantages", *tensors, np.float32(gamma), np.float32(decay), advantage)


def write_discounted(
    reward: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, carried: Tensor, returns: Tensor
) -> None:
    """Write the running discounted returns of a rollout, [steps, environments]; `carried` [environments] goes on."""
    tensors = (reward, terminated, truncated)
    _write(_all_discounted, "write_discounted", *tensors, np.float32(gamma), carried, returns)
