"""Generalised advantages and discounted returns, straight from their definitions: slow, in double precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def slow_advantages(
    reward: NDArray, value: NDArray, final_value: NDArray, last_value: NDArray, terminated: NDArray, truncated: NDArray,
    gamma: float, decay: float,
) -> NDArray[np.float64]:  # fmt: skip
    """Return A(t) = Σ (gamma·decay)^k · error(t + k) over the rest of the episode, or of the rollout."""
    steps, count = reward.shape
    found = np.zeros((steps, count))
    for i in range(count):
        for t in range(steps):
            weight = 1.0
            for k in range(t, steps):
                if terminated[k, i]:
                    following = 0.0
                elif truncated[k, i]:
                    following = float(final_value[k, i])
                elif k + 1 < steps:
                    following = float(value[k + 1, i])
                else:
                    following = float(last_value[i])
                found[t, i] += weight * (float(reward[k, i]) + gamma * following - float(value[k, i]))
                weight *= gamma * decay
                if terminated[k, i] or truncated[k, i]:
                    break
    return found


def slow_discounted(
    reward: NDArray, ended: NDArray, gamma: float, carried: NDArray
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what each episode has earned up to each step, older rewards discounted, and what runs on at the end."""
    steps, count = reward.shape
    found = np.zeros((steps, count))
    left = np.zeros(count)
    for i in range(count):
        for t in range(steps):
            first = max([k + 1 for k in range(t) if ended[k, i]], default=0)
            found[t, i] = sum(gamma ** (t - k) * float(reward[k, i]) for k in range(first, t + 1))
            if first == 0:
                found[t, i] += gamma ** (t + 1) * float(carried[i])
        left[i] = 0.0 if ended[-1, i] else found[-1, i]
    return found, left
