"""Random numbers about one place of a table, as scalar code that CPU and GPU compile alike."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from velodrome.envs.rng import philox

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
