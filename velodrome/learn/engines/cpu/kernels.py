"""What lies around the matrix products, compiled: gathering rows, activations, adding up lanes, Adam.

None of the functions allocates, and the compiler turns their inner loops into vector code.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from velodrome.learn.engines.cpu.compiled import EXACT, loop
from velodrome.learn.engines.cpu.elementary import fast_normal, fast_sigmoid, fast_tanh
from velodrome.learn.engines.formulas import FLOAT, ONE, ZERO
from velodrome.vector.compile.memcpy import copy_floats, prefetch_floats

INVERSE_ROOT_TWO_PI = FLOAT(1.0 / math.sqrt(2.0 * math.pi))
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


# Forward kernels turn products [rows, ≥ width] into activations of product + bias in place; the width is the bias's.
# Where the derivative cannot be had from the activation, they leave it in `slopes`, which is empty for the others.
# Backward kernels turn gradients of activations into gradients of their arguments, and sum those for the bias.


@loop
def tanh_forward(hidden, slopes, bias, rows):
    """Write tanh(x)."""
    for i in range(rows):
        row = hidden[i]
        for j in range(bias.size):
            row[j] = fast_tanh(row[j] + bias[j])


@loop
def relu_forward(hidden, slopes, bias, rows):
    """Write max(0, x)."""
    for i in range(rows):
        row = hidden[i]
        for j in range(bias.size):
            x = row[j] + bias[j]
            row[j] = ZERO if x < ZERO else x


@loop
def silu_forward(hidden, slopes, bias, rows):
    """Write x · sigmoid(x)."""
    for i in range(rows):
        row, slope = hidden[i], slopes[i]
        for j in range(bias.size):
            x = row[j] + bias[j]
            gate = fast_sigmoid(x)
            row[j] = x * gate
            slope[j] = gate * (ONE + x * (ONE - gate))


@loop
def gelu_forward(hidden, slopes, bias, rows):
    """Write x · Φ(x) with the normal distribution function Φ."""
    for i in range(rows):
        row, slope = hidden[i], slopes[i]
        for j in range(bias.size):
            x = row[j] + bias[j]
            normal, bell = fast_normal(x)
            row[j] = x * normal
            slope[j] = normal + x * bell * INVERSE_ROOT_TWO_PI


@loop
def tanh_backward(gradient, hidden, slopes, bias_gradient, rows, accumulate):
    """Multiply by 1 − tanh²."""
    if not accumulate:
        bias_gradient[:] = ZERO
    for i in range(rows):
        row, activation = gradient[i], hidden[i]
        for j in range(bias_gradient.size):
            slope = row[j] * (ONE - activation[j] * activation[j])
            row[j] = slope
            bias_gradient[j] += slope


@loop
def relu_backward(gradient, hidden, slopes, bias_gradient, rows, accumulate):
    """Multiply by 1 where the activation is positive, by 0 elsewhere."""
    if not accumulate:
        bias_gradient[:] = ZERO
    for i in range(rows):
        row, activation = gradient[i], hidden[i]
        for j in range(bias_gradient.size):
            slope = row[j] if activation[j] > ZERO else ZERO
            row[j] = slope
            bias_gradient[j] += slope


@loop
def stored_backward(gradient, hidden, slopes, bias_gradient, rows, accumulate):
    """Multiply by the derivatives that the forward kernel left."""
    if not accumulate:
        bias_gradient[:] = ZERO
    for i in range(rows):
        row, slope = gradient[i], slopes[i]
        for j in range(bias_gradient.size):
            product = row[j] * slope[j]
            row[j] = product
            bias_gradient[j] += product


class Activation(NamedTuple):
    """The kernels of an activation."""

    forward: Any
    backward: Any
    stores_slopes: bool


ACTIVATIONS = {
    "tanh": Activation(tanh_forward, tanh_backward, False),
    "relu": Activation(relu_forward, relu_backward, False),
    "silu": Activation(silu_forward, stored_backward, True),
    "gelu": Activation(gelu_forward, stored_backward, True),
}


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
