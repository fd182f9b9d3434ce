"""Rolling and recursive kernels, prefix-stable to the bit: row t is computed from rows up to t in one fixed order.

A running sum that adds the newest and subtracts the oldest value drifts over a million rows. The rolling kernels here
cut the rows into blocks as long as the window instead: a window is the tail of one block and the head of the next, so
each is the sum (or moment, or maximum) of two short pieces, in constant time a row and without any subtraction.
"""

from __future__ import annotations

import math

import numpy as np

from velodrome.outside.kernels import cached_njit
from velodrome.tables.logarithm import logarithm

_logarithm = cached_njit(logarithm)


@cached_njit
def natural_log(values):
    """Logarithm of each value, NaN where it is not positive."""
    out = np.empty(len(values))
    for t in range(len(values)):
        x = values[t]
        if x > 0.0 and not math.isinf(x):
            out[t] = _logarithm(x)
        else:
            out[t] = x if x > 0.0 else np.nan
    return out


@cached_njit
def rolling_total(values, period, largest):
    """Sum of the last `period` rows, or the largest of them; NaN before there are that many."""
    rows = len(values)
    out = np.full(rows, np.nan)
    nothing = -np.inf if largest else 0.0
    tail = np.full(period + 1, nothing)  # tail[j]: total of the previous block from its row j to its end
    for begin in range(0, rows, period):
        end = min(begin + period, rows)
        head = nothing
        for t in range(begin, end):
            head = max(head, values[t]) if largest else head + values[t]
            if t >= period - 1:
                before = tail[t - begin + 1]
                out[t] = max(before, head) if largest else before + head
        if end - begin == period:
            total = nothing
            for j in range(period - 1, -1, -1):
                total = max(total, values[begin + j]) if largest else total + values[begin + j]
                tail[j] = total
    return out


@cached_njit
def rolling_moments(values, period):
    """Mean and population standard deviation of the last `period` rows; NaN before there are that many.

    Means and sums of squared deviations are merged (Chan), never taken as a difference of large squares.
    """
    rows = len(values)
    mean_out = np.full(rows, np.nan)
    deviation_out = np.full(rows, np.nan)
    tail_mean = np.zeros(period + 1)
    tail_square = np.zeros(period + 1)
    for begin in range(0, rows, period):
        end = min(begin + period, rows)
        mean = 0.0
        square = 0.0
        for t in range(begin, end):
            count = t - begin + 1
            delta = values[t] - mean
            mean += delta / count
            square += delta * (values[t] - mean)
            if t >= period - 1:
                before = period - count
                gap = mean - tail_mean[count]
                if before == 0:
                    mean_out[t] = mean
                    deviation_out[t] = math.sqrt(square / period)
                else:
                    mean_out[t] = tail_mean[count] + gap * count / period
                    total = tail_square[count] + square + gap * gap * before * count / period
                    deviation_out[t] = math.sqrt(total / period)
        if end - begin == period:
            mean = 0.0
            square = 0.0
            for j in range(period - 1, -1, -1):
                delta = values[begin + j] - mean
                mean += delta / (period - j)
                square += delta * (values[begin + j] - mean)
                tail_mean[j] = mean
                tail_square[j] = square
    return mean_out, deviation_out


@cached_njit
def rolling_mean_deviation(values, mean, period):
    """Mean absolute distance of the last `period` rows from the mean of that window."""
    out = np.full(len(values), np.nan)
    for t in range(period - 1, len(values)):
        total = 0.0
        for row in range(t - period + 1, t + 1):
            total += abs(values[row] - mean[t])
        out[t] = total / period
    return out


@cached_njit
def recursive_mean(values, period, seed_row, wilder):
    """Exponential mean of weight 2/(period + 1), or Wilder's of weight 1/period.

    It begins at `seed_row` with the plain mean of the `period` rows up to it.
    """
    out = np.full(len(values), np.nan)
    if seed_row >= len(values):
        return out
    total = 0.0
    for row in range(seed_row - period + 1, seed_row + 1):
        total += values[row]
    state = total / period
    out[seed_row] = state
    weight = 2.0 / (period + 1)
    for t in range(seed_row + 1, len(values)):
        if wilder:
            state = (state * (period - 1) + values[t]) / period
        else:
            state += (values[t] - state) * weight
        out[t] = state
    return out


@cached_njit
def directional_index(high, low, true_range, period):
    """Wilder's average directional index, 0 … 100; its first value is on row 2·period − 1."""
    rows = len(high)
    out = np.full(rows, np.nan)
    plus = 0.0
    minus = 0.0
    movement = 0.0  # Wilder sum of the true range
    state = 0.0
    for t in range(1, rows):
        up = high[t] - high[t - 1]
        down = low[t - 1] - low[t]
        if t >= period:
            plus -= plus / period
            minus -= minus / period
            movement -= movement / period
        if down > 0.0 and up < down:
            minus += down
        elif up > 0.0 and up > down:
            plus += up
        movement += true_range[t]
        if t < period:
            continue
        known = movement > 0.0 and plus + minus > 0.0
        index = 100.0 * abs(minus - plus) / (minus + plus) if known else 0.0
        if t < 2 * period:
            state += index
            if t == 2 * period - 1:
                state /= period
                out[t] = state
        else:
            if known:
                state = (state * (period - 1) + index) / period
            out[t] = state
    return out
