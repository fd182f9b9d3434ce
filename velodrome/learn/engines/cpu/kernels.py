"""What lies around the matrix products, compiled: gathering rows, adding up lanes, Adam.

None of the functions allocates, and the compiler turns their inner loops into vector code.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from velodrome.learn.engines.cpu.compiled import EXACT, loop
from velodrome.vector.compile.memcpy import copy_floats, prefetch_floats

AHEAD = 2  # rows to prefetch: they lie anywhere in memory
SUM_BLOCK = 2048  # floats that stay in the first-level cache while all lanes are added


@loop
def gather_windows(values, base, width, length, last_rows, cursors, account, rows, target):
    """Write the observations of some rows of a rollout, windows then account vector, into the front of target's rows.

    `last_rows` is [windows, bars]; see `velodrome.tables.windows` for the layout. Returns −1, or the position of the
    first row that does not exist, or whose cursor is outside the bars.
    """
    bars = last_rows.shape[1]
    for i in range(rows.size):
        if rows[i] < 0 or rows[i] >= cursors.size or cursors[rows[i]] < 0 or cursors[rows[i]] >= bars:
            return i
    for i in range(-AHEAD, rows.size):
        if i + AHEAD < rows.size:
            row = rows[i + AHEAD]
            for w in range(length.size):
                first = base[w] + (last_rows[w, cursors[row]] - length[w] + 1) * width[w]
                prefetch_floats(values, first, length[w] * width[w])
            prefetch_floats(account[row], 0, account.shape[1])
        if i >= 0:
            cursor = cursors[rows[i]]
            at = 0
            for w in range(length.size):
                count = length[w] * width[w]
                copy_floats(values, base[w] + (last_rows[w, cursor] - length[w] + 1) * width[w], count, target[i], at)
                at += count
            copy_floats(account[rows[i]], 0, account.shape[1], target[i], at)
    return -1


@loop
def gather_rows(observations, rows, target):
    """Write some rows of an array into the front of target's rows; return −1, or the first position without a row."""
    for i in range(rows.size):
        if rows[i] < 0 or rows[i] >= observations.shape[0]:
            return i
    for i in range(-AHEAD, rows.size):
        if i + AHEAD < rows.size:
            prefetch_floats(observations[rows[i + AHEAD]], 0, observations.shape[1])
        if i >= 0:
            copy_floats(observations[rows[i]], 0, observations.shape[1], target[i], 0)
    return -1


@partial(loop, fastmath=())
def mean_and_deviation(numbers, rows):
    """Return the mean and the deviation of the numbers in some rows; not a number if one of the rows does not exist."""
    for i in range(rows.size):
        if rows[i] < 0 or rows[i] >= numbers.size:
            return np.nan, np.nan
    total = 0.0
    for i in range(rows.size):
        total += numbers[rows[i]]
    mean = total / rows.size
    squares = 0.0
    for i in range(rows.size):
        difference = numbers[rows[i]] - mean
        squares += difference * difference
    return mean, math.sqrt(squares / rows.size)


@loop
def sum_lanes(lane_gradients, lanes, gradient):
    """Add the flat gradients [lanes, size] of the first lanes, in their order."""
    for first in range(0, gradient.size, SUM_BLOCK):
        total = gradient[first : first + SUM_BLOCK]
        total[:] = lane_gradients[0, first : first + SUM_BLOCK]
        for lane in range(1, lanes):
            part = lane_gradients[lane, first : first + SUM_BLOCK]
            for j in range(total.size):
                total[j] += part[j]


@loop
def squared_norm(gradient):
    """Return the sum of squares, added up in double precision."""
    total = 0.0
    for j in range(gradient.size):
        number = np.float64(gradient[j])
        total += number * number
    return total


@partial(loop, fastmath=EXACT)
def adam(values, gradient, first_moment, second_moment, scalars):
    """Take one step of Adam.

    `scalars`: gradient scale, β₁, 1 − β₁, β₂, 1 − β₂, step size / (1 − β₁ⁿ), 1 / √(1 − β₂ⁿ), ε. The differences are
    given because 1 − β₂ in float32 has lost half of its digits.
    """
    scale, beta1, rest1, beta2, rest2, step, correction, epsilon = scalars
    for j in range(values.size):
        slope = gradient[j] * scale
        first = beta1 * first_moment[j] + rest1 * slope
        second = beta2 * second_moment[j] + rest2 * slope * slope
        first_moment[j] = first
        second_moment[j] = second
        values[j] -= step * first / (math.sqrt(second) * correction + epsilon)
