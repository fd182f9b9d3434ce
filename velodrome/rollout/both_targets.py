"""Scalar code that CPU and GPU compile alike, written once: sums along a rollout for one environment, and random
numbers about one place of a table.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from velodrome.envs.rng import philox

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


# The sum of eight random bytes is nearly normal and the same on every device. Its mean and its deviation:
BYTES_MEAN, BYTES_DEVIATION = np.float32(1020.0), math.sqrt(8 * (256**2 - 1) / 12)
PAIRS, HALF, BYTE_BITS, HALF_BITS = (np.uint64(number) for number in (0x00FF00FF, 0xFFFF, 8, 16))

# None of these is kept on the disk: what is loaded from there is not inlined. They take scalars only: an array among
# the arguments would keep the loops around them from becoming vector code.
_philox = njit(philox, forceinline=True)


@njit(forceinline=True)
def noisy(i, value, scale, key, when):
    """Return float i of the table with noise of a deviation of BYTES_DEVIATION · scale."""
    word, other, _, _ = _philox(key, np.uint64(i), when)
    pairs = (word & PAIRS) + ((word >> BYTE_BITS) & PAIRS) + (other & PAIRS) + ((other >> BYTE_BITS) & PAIRS)
    total = np.int32((pairs & HALF) + (pairs >> HALF_BITS))  # short: longer ones become floats one by one
    return value + scale * (np.float32(total) - BYTES_MEAN)


@njit(forceinline=True)
def is_masked(i, limit, key, when):
    """Return whether run i is set to 0: its word, of 32 bits, is below the limit."""
    return np.int64(_philox(key, np.uint64(i), when)[0]) < limit
