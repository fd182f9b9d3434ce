"""The loss of PPO, its gradient for the network's outputs, and the sampling of actions, compiled.

Outputs come as [A + 1, rows]: the logits or means, then the value. The loss kernels replace them by the gradient of

    policy + value_weight · value − entropy_weight · entropy,

where policy is the mean of max(−a·r, −a·clip(r)), value that of ½ (v − R)², or of the larger of it and the one with a
clipped v, and r the probability ratio of the new to the old policy. Sums are kept in double precision. Every loop runs
over the samples innermost, so that the compiler makes vector code of it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from velodrome.learn.engines.cpu.elementary import FLOAT, HALF, ONE, OPTIONS, ZERO, fast_exp

HALF_LOG_TWO_PI = FLOAT(0.5 * math.log(2.0 * math.pi))

# Positions in an array of sums over samples.
POLICY, VALUE, ENTROPY, KL, CLIPPED = range(5)
SCRATCH = 4  # lines of scratch beside those of the probabilities or deviations
SUMS = 8  # of 8 bytes: one cache line, so that two threads never write to the same


class Samples(NamedTuple):
    """What the loss reads, one row per sample of a tile."""

    actions: NDArray  # [rows, components] int64, or [rows, A] float32
    old_log_prob: NDArray[np.float32]  # [rows]
    advantages: NDArray[np.float32]  # [rows]
    returns: NDArray[np.float32]  # [rows]
    old_values: NDArray[np.float32]  # [rows]


class LossScalars(NamedTuple):
    """The weights of a minibatch's loss, as the kernels take them."""

    clip: np.float32
    value_clip: np.float32  # 0: values move freely
    entropy_weight: np.float32
    value_weight: np.float32
    advantage_mean: np.float32  # subtracted
    advantage_scale: np.float32  # multiplied after that
    share: np.float32  # of one sample in the mean: 1 / rows of the minibatch


@njit(**OPTIONS)
def gather_samples(source, rows, sizes, target):
    """Copy what the loss reads of some rows of a rollout into a tile.

    Returns −1, or the position of the first row with a choice outside `sizes` [components]. The rows must exist.
    """
    for i in range(rows.size):
        row = rows[i]
        for component in range(sizes.size):
            if source.actions[row, component] < 0 or source.actions[row, component] >= sizes[component]:
                return i
        for k in range(source.actions.shape[1]):
            target.actions[i, k] = source.actions[row, k]
        target.old_log_prob[i] = source.old_log_prob[row]
        target.advantages[i] = source.advantages[row]
        target.returns[i] = source.returns[row]
        target.old_values[i] = source.old_values[row]
    return -1


@njit(**OPTIONS)
def policy_slopes(log_prob, samples, scalars, slopes, rows, sums):
    """Add the policy's loss to the sums; write its derivatives by the log-probabilities, times a sample's share."""
    policy, divergence, outside = 0.0, 0.0, 0
    low, high = ONE - scalars.clip, ONE + scalars.clip
    for i in range(rows):
        log_ratio = log_prob[i] - samples.old_log_prob[i]
        ratio = fast_exp(log_ratio)
        advantage = (samples.advantages[i] - scalars.advantage_mean) * scalars.advantage_scale
        kept = low if ratio < low else ratio
        kept = high if kept > high else kept
        free, clipped = -advantage * ratio, -advantage * kept
        is_clipped = clipped > free
        policy += np.float64(clipped if is_clipped else free)
        divergence += np.float64((ratio - ONE) - log_ratio)
        outside += 1 if abs(ratio - ONE) > scalars.clip else 0
        slopes[i] = ZERO if is_clipped else free * scalars.share
    sums[POLICY] += policy
    sums[KL] += divergence
    sums[CLIPPED] += outside


@njit(**OPTIONS)
def value_slopes(values, samples, scalars, rows, sums):
    """Add the value's loss to the sums; replace values by its derivatives, times the share and the weight."""
    total = 0.0
    weight = scalars.share * scalars.value_weight
    limit = scalars.value_clip
    for i in range(rows):
        error = values[i] - samples.returns[i]
        loss, slope = HALF * error * error, error
        if limit > ZERO:
            moved = values[i] - samples.old_values[i]
            limited = -limit if moved < -limit else moved
            limited = limit if limited > limit else limited
            error = samples.old_values[i] + limited - samples.returns[i]
            other = HALF * error * error
            is_worse = other > loss
            loss = other if is_worse else loss
            # Beyond the limit the clipped value does not move.
            slope = (error if limited == moved else ZERO) if is_worse else slope
        total += np.float64(loss)
        values[i] = slope * weight
    sums[VALUE] += total


@njit(**OPTIONS)
def add_bias(outputs, bias, rows):
    """Add the biases to outputs [A + 1, ≥ rows]."""
    for k in range(bias.size):
        line, number = outputs[k], bias[k]
        for i in range(rows):
            line[i] += number


@njit(**OPTIONS)
def sum_for_bias(outputs, bias_gradient, rows, accumulate):
    """Sum the gradients of the outputs over the samples."""
    for k in range(bias_gradient.size):
        line, total = outputs[k], 0.0
        for i in range(rows):
            total += np.float64(line[i])
        bias_gradient[k] = FLOAT(total) + (bias_gradient[k] if accumulate else ZERO)


@njit(**OPTIONS)
def softmax(logits, first, end, probabilities, highest, totals, rows):
    """Turn logits [first … end, rows] into logarithms of probabilities in place, and write the probabilities too."""
    highest[:rows] = logits[first, :rows]
    for k in range(first + 1, end):
        line = logits[k]
        for i in range(rows):
            highest[i] = line[i] if line[i] > highest[i] else highest[i]
    totals[:rows] = ZERO
    for k in range(first, end):
        line, chances = logits[k], probabilities[k]
        for i in range(rows):
            line[i] -= highest[i]
            chances[i] = fast_exp(line[i])
            totals[i] += chances[i]
    for i in range(rows):
        highest[i] = math.log(totals[i])
    for k in range(first, end):
        line, chances = logits[k], probabilities[k]
        for i in range(rows):
            line[i] -= highest[i]
            chances[i] /= totals[i]


@njit(**OPTIONS)
def discrete_loss(outputs, bias, log_std, samples, scalars, sizes, scratch, bias_gradient, log_std_gradient, rows,
                  accumulate, sums):  # fmt: skip
    """Replace outputs by their gradient for one categorical choice or several; `sizes` [components] are their options.

    `scratch` is [A + SCRATCH, ≥ rows]. `log_std` and its gradient are those of `gaussian_loss` and are not read.
    """
    add_bias(outputs, bias, rows)
    actions = bias.size - 1
    log_prob, slopes, first_spare, second_spare = (
        scratch[actions], scratch[actions + 1], scratch[actions + 2], scratch[actions + 3],
    )  # fmt: skip
    log_prob[:rows] = ZERO
    bonus = scalars.entropy_weight * scalars.share
    end = 0
    for component in range(sizes.size):
        first, end = end, end + sizes[component]
        softmax(outputs, first, end, scratch, first_spare, second_spare, rows)
        for i in range(rows):
            log_prob[i] += outputs[first + samples.actions[i, component], i]
        entropy = first_spare
        entropy[:rows] = ZERO
        for k in range(first, end):
            line, chances = outputs[k], scratch[k]
            for i in range(rows):
                entropy[i] -= chances[i] * line[i]
        for k in range(first, end):
            line, chances = outputs[k], scratch[k]
            for i in range(rows):
                line[i] = bonus * chances[i] * (line[i] + entropy[i])
        total = 0.0
        for i in range(rows):
            total += np.float64(entropy[i])
        sums[ENTROPY] += total
    policy_slopes(log_prob, samples, scalars, slopes, rows, sums)
    for k in range(actions):
        line, chances = outputs[k], scratch[k]
        for i in range(rows):
            line[i] -= slopes[i] * chances[i]
    end = 0
    for component in range(sizes.size):
        for i in range(rows):
            outputs[end + samples.actions[i, component], i] += slopes[i]
        end += sizes[component]
    value_slopes(outputs[actions], samples, scalars, rows, sums)
    sum_for_bias(outputs, bias_gradient, rows, accumulate)


@njit(**OPTIONS)
def gaussian_loss(outputs, bias, log_std, samples, scalars, sizes, scratch, bias_gradient, log_std_gradient, rows,
                  accumulate, sums):  # fmt: skip
    """Replace outputs by their gradient for independent normal actions of standard deviation exp(log_std)."""
    add_bias(outputs, bias, rows)
    actions = log_std.size
    log_prob, slopes = scratch[actions], scratch[actions + 1]
    log_prob[:rows] = ZERO
    entropy = 0.0
    for k in range(actions):
        line, deviations = outputs[k], scratch[k]
        precision = math.exp(-log_std[k])
        constant = log_std[k] + HALF_LOG_TWO_PI
        entropy += np.float64(HALF + constant)
        for i in range(rows):
            deviations[i] = (samples.actions[i, k] - line[i]) * precision
            log_prob[i] -= HALF * deviations[i] * deviations[i] + constant
    sums[ENTROPY] += entropy * rows
    policy_slopes(log_prob, samples, scalars, slopes, rows, sums)
    for k in range(actions):
        line, deviations = outputs[k], scratch[k]
        precision = math.exp(-log_std[k])
        total = -np.float64(scalars.entropy_weight * scalars.share) * rows
        for i in range(rows):
            line[i] = slopes[i] * deviations[i] * precision
            total += np.float64(slopes[i] * (deviations[i] * deviations[i] - ONE))
        log_std_gradient[k] = FLOAT(total) + (log_std_gradient[k] if accumulate else ZERO)
    value_slopes(outputs[actions], samples, scalars, rows, sums)
    sum_for_bias(outputs, bias_gradient, rows, accumulate)


@njit(**OPTIONS)
def write_outputs(outputs, bias, first, rows, policy, values):
    """Write a tile's outputs, biases added, into rows [first, first + rows) of policy [n, A] and values [n]."""
    actions = policy.shape[1]
    for i in range(rows):
        for k in range(actions):
            policy[first + i, k] = outputs[k, i] + bias[k]
        values[first + i] = outputs[actions, i] + bias[actions]


@njit(**OPTIONS)
def sample_discrete(outputs, bias, log_std, sizes, scratch, noise, first, rows, actions, log_prob, values):
    """Draw actions by `noise` [n, components], uniform in [0, 1), for a tile at rows [first, first + rows) of a batch.

    Outputs are used up. `log_std` is that of `sample_gaussian` and is not read.
    """
    add_bias(outputs, bias, rows)
    options = bias.size - 1
    highest, totals = scratch[options], scratch[options + 1]
    log_prob[first : first + rows] = ZERO
    end = 0
    for component in range(sizes.size):
        begin, end = end, end + sizes[component]
        softmax(outputs, begin, end, scratch, highest, totals, rows)
        for i in range(rows):
            left = noise[first + i, component]
            chosen = begin
            # Rounding may leave something of the noise after the last option.
            while chosen < end - 1 and left >= scratch[chosen, i]:
                left -= scratch[chosen, i]
                chosen += 1
            actions[first + i, component] = chosen - begin
            log_prob[first + i] += outputs[chosen, i]
    values[first : first + rows] = outputs[options, :rows]


@njit(**OPTIONS)
def sample_gaussian(outputs, bias, log_std, sizes, scratch, noise, first, rows, actions, log_prob, values):
    """Draw actions by `noise` [n, A], standard normal, for a tile at rows [first, first + rows) of the batch."""
    add_bias(outputs, bias, rows)
    log_prob[first : first + rows] = ZERO
    for k in range(log_std.size):
        deviation = math.exp(log_std[k])
        constant = log_std[k] + HALF_LOG_TWO_PI
        for i in range(rows):
            number = noise[first + i, k]
            actions[first + i, k] = outputs[k, i] + deviation * number
            log_prob[first + i] -= HALF * number * number + constant
    values[first : first + rows] = outputs[log_std.size, :rows]
