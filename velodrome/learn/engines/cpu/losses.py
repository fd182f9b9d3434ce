"""The loss of PPO, its gradient for the network's outputs, and the drawing of actions, for a tile of samples.

`engines/formulas.py` has the formulas, here are the loops around them. Outputs come as [A + 1, rows]: the logits or
means, then the value. Every loop runs over the samples innermost, so that the compiler makes vector code of it; sums
are kept in double precision.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.learn.engines import formulas
from velodrome.learn.engines.cpu.compiled import inner, loop
from velodrome.learn.engines.cpu.elementary import fast_exp
from velodrome.learn.engines.formulas import FLOAT, ZERO

policy_loss, value_loss = inner(formulas.policy_loss), inner(formulas.value_loss)
option_entropy, entropy_slope = inner(formulas.option_entropy), inner(formulas.entropy_slope)
drawn_option, drawn_normal = inner(formulas.drawn_option), inner(formulas.drawn_normal)
normal_deviation, normal_log_density = inner(formulas.normal_deviation), inner(formulas.normal_log_density)
normal_entropy, normal_slopes = inner(formulas.normal_entropy), inner(formulas.normal_slopes)

# Positions in an array of sums over samples.
POLICY, VALUE, ENTROPY, KL, CLIPPED = range(5)
SCRATCH = 4  # lines of scratch after those of the probabilities or deviations
SUMS = 8  # of 8 bytes: one cache line, so that two threads never write to the same


class Samples(NamedTuple):
    """What the loss reads, one row per sample of a tile."""

    actions: NDArray  # [rows, components] int64, or [rows, A] float32
    old_log_prob: NDArray[np.float32]  # [rows]
    advantages: NDArray[np.float32]  # [rows]
    returns: NDArray[np.float32]  # [rows]
    old_values: NDArray[np.float32]  # [rows]


class LossScalars(NamedTuple):
    """The weights of a minibatch's loss."""

    clip: np.float32
    value_clip: np.float32  # 0: values move freely
    entropy_weight: np.float32
    kl_weight: np.float32
    value_weight: np.float32
    advantage_mean: np.float32  # subtracted
    advantage_scale: np.float32  # multiplied after that
    share: np.float32  # of one sample in the mean: 1 / rows of the minibatch


class HeadGradient(NamedTuple):
    """Where the loss of a tile is added up."""

    bias: NDArray[np.float32]  # [A + 1]
    log_std: NDArray[np.float32]  # [A] or [0]
    sums: NDArray[np.float64]  # [SUMS]


@loop
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


@loop
def policy_slopes(log_prob, samples, scalars, slopes, rows, sums):
    """Add the policy's loss to the sums; write its slopes by the log-probabilities, times a sample's share."""
    policy, divergence, outside = 0.0, 0.0, 0
    for i in range(rows):
        change = log_prob[i] - samples.old_log_prob[i]
        advantage = (samples.advantages[i] - scalars.advantage_mean) * scalars.advantage_scale
        ratio = fast_exp(change)
        loss, slope, moved, is_outside = policy_loss(change, ratio, advantage, scalars.clip, scalars.kl_weight)
        policy += np.float64(loss)
        divergence += np.float64(moved)
        outside += 1 if is_outside else 0
        slopes[i] = slope * scalars.share
    sums[POLICY] += policy
    sums[KL] += divergence
    sums[CLIPPED] += outside


@loop
def value_slopes(values, samples, scalars, rows, sums):
    """Add the value's loss to the sums; replace values by its slopes, times the share and the weight."""
    total = 0.0
    weight = scalars.share * scalars.value_weight
    for i in range(rows):
        loss, slope = value_loss(values[i], samples.old_values[i], samples.returns[i], scalars.value_clip)
        total += np.float64(loss)
        values[i] = slope * weight
    sums[VALUE] += total


@loop
def add_bias(outputs, bias, rows):
    """Add the biases to outputs [A + 1, ≥ rows]."""
    for k in range(bias.size):
        line, number = outputs[k], bias[k]
        for i in range(rows):
            line[i] += number


@loop
def sum_for_bias(outputs, bias_gradient, rows, accumulate):
    """Sum the gradients of the outputs over the samples."""
    for k in range(bias_gradient.size):
        line, total = outputs[k], 0.0
        for i in range(rows):
            total += np.float64(line[i])
        bias_gradient[k] = FLOAT(total) + (bias_gradient[k] if accumulate else ZERO)


@loop
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


@loop
def discrete_loss(outputs, bias, sizes, samples, scalars, scratch, gradient, rows, accumulate):
    """Replace outputs by their gradient, for choices with `sizes` options. `scratch` has A + SCRATCH lines."""
    add_bias(outputs, bias, rows)
    actions = bias.size - 1
    log_prob, slopes = scratch[actions], scratch[actions + 1]
    entropy, spare = scratch[actions + 2], scratch[actions + 3]
    log_prob[:rows] = ZERO
    bonus = scalars.entropy_weight * scalars.share
    end = 0
    for component in range(sizes.size):
        first, end = end, end + sizes[component]
        softmax(outputs, first, end, scratch, entropy, spare, rows)
        for i in range(rows):
            log_prob[i] += outputs[first + samples.actions[i, component], i]
        entropy[:rows] = ZERO
        for k in range(first, end):
            line, chances = outputs[k], scratch[k]
            for i in range(rows):
                entropy[i] += option_entropy(chances[i], line[i])
        for k in range(first, end):
            line, chances = outputs[k], scratch[k]
            for i in range(rows):
                line[i] = bonus * entropy_slope(chances[i], line[i], entropy[i])
        total = 0.0
        for i in range(rows):
            total += np.float64(entropy[i])
        gradient.sums[ENTROPY] += total
    policy_slopes(log_prob, samples, scalars, slopes, rows, gradient.sums)
    for k in range(actions):
        line, chances = outputs[k], scratch[k]
        for i in range(rows):
            line[i] -= slopes[i] * chances[i]
    end = 0
    for component in range(sizes.size):
        for i in range(rows):
            outputs[end + samples.actions[i, component], i] += slopes[i]
        end += sizes[component]
    value_slopes(outputs[actions], samples, scalars, rows, gradient.sums)
    sum_for_bias(outputs, gradient.bias, rows, accumulate)


@loop
def gaussian_loss(outputs, bias, log_std, samples, scalars, scratch, gradient, rows, accumulate):
    """Replace outputs by their gradient, for independent normal actions of standard deviation exp(log_std)."""
    add_bias(outputs, bias, rows)
    actions = log_std.size
    log_prob, slopes = scratch[actions], scratch[actions + 1]
    log_prob[:rows] = ZERO
    entropy = 0.0
    for k in range(actions):
        line, deviations = outputs[k], scratch[k]
        precision = math.exp(-log_std[k])
        entropy += np.float64(normal_entropy(log_std[k]))
        for i in range(rows):
            deviations[i] = normal_deviation(samples.actions[i, k], line[i], precision)
            log_prob[i] += normal_log_density(deviations[i], log_std[k])
    gradient.sums[ENTROPY] += entropy * rows
    policy_slopes(log_prob, samples, scalars, slopes, rows, gradient.sums)
    for k in range(actions):
        line, deviations = outputs[k], scratch[k]
        precision = math.exp(-log_std[k])
        total = -np.float64(scalars.entropy_weight * scalars.share) * rows
        for i in range(rows):
            by_mean, by_log_std = normal_slopes(deviations[i], precision)
            line[i] = slopes[i] * by_mean
            total += np.float64(slopes[i] * by_log_std)
        gradient.log_std[k] = FLOAT(total) + (gradient.log_std[k] if accumulate else ZERO)
    value_slopes(outputs[actions], samples, scalars, rows, gradient.sums)
    sum_for_bias(outputs, gradient.bias, rows, accumulate)


@loop
def write_outputs(outputs, bias, first, rows, policy, values):
    """Write a tile's outputs, biases added, into rows [first, first + rows) of policy [n, A] and values [n]."""
    actions = policy.shape[1]
    for i in range(rows):
        for k in range(actions):
            policy[first + i, k] = outputs[k, i] + bias[k]
        values[first + i] = outputs[actions, i] + bias[actions]


@loop
def draw_discrete(outputs, bias, sizes, scratch, noise, actions, log_prob, values, first, rows):
    """Draw actions by `noise` [n, components], uniform in [0, 1), for a tile at rows [first, first + rows) of a batch.

    Outputs are used up.
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
            chosen = drawn_option(scratch[begin:end, i], noise[first + i, component])
            actions[first + i, component] = chosen
            log_prob[first + i] += outputs[begin + chosen, i]
    values[first : first + rows] = outputs[options, :rows]


@loop
def draw_gaussian(outputs, bias, log_std, scratch, noise, actions, log_prob, values, first, rows):
    """Draw actions by `noise` [n, A], standard normal, for a tile at rows [first, first + rows) of the batch."""
    add_bias(outputs, bias, rows)
    log_prob[first : first + rows] = ZERO
    for k in range(log_std.size):
        deviation = math.exp(log_std[k])
        for i in range(rows):
            number = noise[first + i, k]
            actions[first + i, k] = drawn_normal(outputs[k, i], deviation, number)
            log_prob[first + i] += normal_log_density(number, log_std[k])
    values[first : first + rows] = outputs[log_std.size, :rows]
