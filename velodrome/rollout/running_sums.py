"""Sums along a rollout, written once for one environment: advantages and returns. CPU and GPU compile the same code."""

from __future__ import annotations

import numpy as np

ZERO = np.float32(0.0)  # a Python float would make the arithmetic double


def advantages_of(i, reward, value, final_value, last_value, terminated, truncated, gamma, decay, advantage):
    """Write the generalised advantages of environment i; arrays are [steps, environments], `last_value` [environments].

    A truncated episode would have gone on: `final_value`, the value of the state it was cut off in, stands for what
    would have come. Nothing comes after a terminated one. Neither passes anything on to the episode before.
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


def discounted_of(i, reward, terminated, truncated, gamma, carried, returns):
    """Write what environment i has earned so far in its episode, older rewards discounted; `carried` runs on."""
    total = carried[i]
    for t in range(reward.shape[0]):
        total = reward[t, i] + gamma * total
        returns[t, i] = total
        if terminated[t, i] or truncated[t, i]:
            total = ZERO
    carried[i] = total
