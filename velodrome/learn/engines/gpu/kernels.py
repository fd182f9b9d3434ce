"""CUDA kernels of the learner for perceptrons: what torch would do in dozens of small launches, in one each.

Each is scalar code about one row, as in a rule, around the formulas of `engines/formulas.py`; matrix products stay with
cuBLAS. Arithmetic is float32.
"""

from __future__ import annotations

import math

import numpy as np

from velodrome.learn.engines import formulas
from velodrome.learn.engines.formulas import ONE, ZERO
from velodrome.vector.compile.numba_cuda import SIMULATED, cuda

STRIDE = 4  # samples per thread of the gradient kernels: their sums meet less often
REPORTED = 5  # policy loss, value loss, entropy, KL divergence, clipped: sums over samples
# Positions in `scalars`: the weights of the loss, the mean of a minibatch's advantages and 1 over their deviation.
CLIP, VALUE_CLIP, ENTROPY, KL_WEIGHT, VALUE_WEIGHT, MEAN, SCALE = range(7)
# Columns of `samples`: rows are read in random order, and a row of these lies in one place.
LOG_PROB, ADVANTAGE, RETURN, VALUE, ACTIONS = range(5)
LOWEST = np.float32(-np.inf)


def device_function(function):
    """Compile a function for use inside kernels; the simulator runs it as it is."""
    return function if SIMULATED else cuda.jit(function, device=True)


policy_loss, value_loss = device_function(formulas.policy_loss), device_function(formulas.value_loss)
option_entropy, entropy_slope = device_function(formulas.option_entropy), device_function(formulas.entropy_slope)
drawn_option, drawn_normal = device_function(formulas.drawn_option), device_function(formulas.drawn_normal)
normal_deviation = device_function(formulas.normal_deviation)
normal_log_density, normal_entropy = map(device_function, (formulas.normal_log_density, formulas.normal_entropy))
normal_slopes = device_function(formulas.normal_slopes)


@device_function
def input_word(k, row, window_words, cursor, first_word, table, tail, count):
    """Return word k of an input row: of a window, or of the tail behind the windows."""
    if k >= window_words:
        return tail[row, k - window_words]
    w = 0
    while k >= count[w]:
        k -= count[w]
        w += 1
    return table[first_word[w, cursor[row]] + k]


@device_function
def log_mass(outputs, i, first, count):
    """Return the logarithm of the sum of the exponentials of some logits."""
    highest = LOWEST
    for k in range(count):
        highest = max(highest, outputs[i, first + k])
    mass = ZERO
    for k in range(count):
        mass += math.exp(outputs[i, first + k] - highest)
    return highest + math.log(mass)


@device_function
def policy_slope(now, row, samples, scalars):
    """Return a sample's policy loss, its slope, its KL divergence and 1 if it was clipped. now: the log-probability."""
    change = now - samples[row, LOG_PROB]
    advantage = (samples[row, ADVANTAGE] - scalars[MEAN]) * scalars[SCALE]
    ratio = math.exp(change)
    loss, slope, moved, is_outside = policy_loss(change, ratio, advantage, scalars[CLIP], scalars[KL_WEIGHT])
    return loss, slope, moved, ONE if is_outside else ZERO


@device_function
def write_value_slope(i, row, values, column, samples, scalars, share, d_values):
    """Write the slope of a sample's value loss and return the loss."""
    loss, slope = value_loss(values[i, column], samples[row, VALUE], samples[row, RETURN], scalars[VALUE_CLIP])
    d_values[i, column] = slope * share * scalars[VALUE_WEIGHT]
    return loss


@device_function
def add_report(policy, value, entropy, kl, clipped, sums):
    """Add what a thread has to report to the sums, by block first: a device's threads would queue for one address."""
    report = cuda.shared.array(REPORTED, dtype=np.float32)
    if cuda.threadIdx.x < REPORTED:
        report[cuda.threadIdx.x] = ZERO
    cuda.syncthreads()
    cuda.atomic.add(report, 0, policy)
    cuda.atomic.add(report, 1, value)
    cuda.atomic.add(report, 2, entropy)
    cuda.atomic.add(report, 3, kl)
    cuda.atomic.add(report, 4, clipped)
    cuda.syncthreads()
    if cuda.threadIdx.x < REPORTED:
        cuda.atomic.add(sums, cuda.threadIdx.x, report[cuda.threadIdx.x])


def gather_rows(rows, cursor, first_word, table, tail, count, window_words, out):
    """Copy four words of an input row [m, words], a quarter of the row apart, so that neighbours copy neighbours.

    first_word: [w, bars] word of the table at which a window begins. count: [w] words of each window.
    """
    words = out.shape[1]
    quarter = np.uint32((words + 3) // 4)
    position = np.uint32(cuda.grid(1))  # short and unsigned: it is divided
    i = np.int64(position // quarter)
    if i < rows.shape[0]:
        row = rows[i]
        k_0 = np.int64(position % quarter)
        k_1, k_2, k_3 = k_0 + quarter, k_0 + 2 * quarter, min(k_0 + 3 * quarter, words - 1)
        # All loads before the first store: they are then in flight together.
        word_0 = input_word(k_0, row, window_words, cursor, first_word, table, tail, count)
        word_1 = input_word(min(k_1, words - 1), row, window_words, cursor, first_word, table, tail, count)
        word_2 = input_word(min(k_2, words - 1), row, window_words, cursor, first_word, table, tail, count)
        word_3 = input_word(k_3, row, window_words, cursor, first_word, table, tail, count)
        out[i, k_0] = word_0
        out[i, min(k_1, words - 1)] = word_1
        out[i, min(k_2, words - 1)] = word_2
        out[i, k_3] = word_3


def sample_discrete(outputs, values, value_column, counts, noise, chances, actions, log_prob, value):
    """Draw the choices of one environment by `noise`, uniform, [n, choices]; `chances` is scratch, [n, logits]."""
    i = cuda.grid(1)
    if i < actions.shape[0]:
        total = ZERO
        first = 0
        for choice in range(counts.shape[0]):
            end = first + counts[choice]
            level = log_mass(outputs, i, first, counts[choice])
            for k in range(first, end):
                chances[i, k] = math.exp(outputs[i, k] - level)
            chosen = drawn_option(chances[i, first:end], noise[i, choice])
            actions[i, choice] = chosen
            total += outputs[i, first + chosen] - level
            first = end
        log_prob[i] = total
        value[i] = values[i, value_column]


def sample_gaussian(outputs, values, value_column, log_std, noise, chances, actions, log_prob, value):
    """Draw the actions of one environment; `noise` is normal, [n, actions]."""
    i = cuda.grid(1)
    if i < actions.shape[0]:
        total = ZERO
        for k in range(log_std.shape[0]):
            actions[i, k] = drawn_normal(outputs[i, k], math.exp(log_std[k]), noise[i, k])
            total += normal_log_density(noise[i, k], log_std[k])
        log_prob[i] = total
        value[i] = values[i, value_column]


# The gradient kernels write the gradient of PPO's loss, the mean over the rows, by the network's outputs.


def discrete_gradient(rows, outputs, values, value_column, counts, samples, scalars, d_outputs, d_values, sums):
    """Write the gradient for one or several discrete choices."""
    policy_sum, value_sum, entropy_sum, kl_sum, clipped_sum = ZERO, ZERO, ZERO, ZERO, ZERO
    share = ONE / np.float32(rows.shape[0])
    i = cuda.grid(1)
    while i < rows.shape[0]:
        row = rows[i]
        now = ZERO
        first = 0
        for choice in range(counts.shape[0]):
            level = log_mass(outputs, i, first, counts[choice])
            now += outputs[i, first + np.int64(samples[row, ACTIONS + choice])] - level
            first += counts[choice]
        loss, slope, moved, clipped = policy_slope(now, row, samples, scalars)
        policy_sum += loss
        kl_sum += moved
        clipped_sum += clipped
        slope *= share
        bonus = scalars[ENTROPY] * share
        first = 0
        for choice in range(counts.shape[0]):
            end = first + counts[choice]
            level = log_mass(outputs, i, first, counts[choice])
            entropy = ZERO
            for k in range(first, end):
                log_chance = outputs[i, k] - level
                entropy += option_entropy(math.exp(log_chance), log_chance)
            entropy_sum += entropy
            for k in range(first, end):
                log_chance = outputs[i, k] - level
                chance = math.exp(log_chance)
                d_outputs[i, k] = bonus * entropy_slope(chance, log_chance, entropy) - slope * chance
            d_outputs[i, first + np.int64(samples[row, ACTIONS + choice])] += slope
            first = end
        value_sum += write_value_slope(i, row, values, value_column, samples, scalars, share, d_values)
        i += cuda.gridsize(1)
    add_report(policy_sum, value_sum, entropy_sum, kl_sum, clipped_sum, sums)


def gaussian_gradient(
    rows, outputs, values, value_column, log_std, samples, scalars, d_outputs, d_values, d_log_std, sums
):
    """Write the gradient for independent normal actions, and by sample that of log_std."""
    policy_sum, value_sum, entropy_sum, kl_sum, clipped_sum = ZERO, ZERO, ZERO, ZERO, ZERO
    share = ONE / np.float32(rows.shape[0])
    i = cuda.grid(1)
    while i < rows.shape[0]:
        row = rows[i]
        now = ZERO
        for k in range(log_std.shape[0]):
            off = normal_deviation(samples[row, ACTIONS + k], outputs[i, k], math.exp(-log_std[k]))
            now += normal_log_density(off, log_std[k])
            entropy_sum += normal_entropy(log_std[k])
        loss, slope, moved, clipped = policy_slope(now, row, samples, scalars)
        policy_sum += loss
        kl_sum += moved
        clipped_sum += clipped
        slope *= share
        for k in range(log_std.shape[0]):
            precision = math.exp(-log_std[k])
            off = normal_deviation(samples[row, ACTIONS + k], outputs[i, k], precision)
            by_mean, by_log_std = normal_slopes(off, precision)
            d_outputs[i, k] = slope * by_mean
            d_log_std[i, k] = slope * by_log_std - scalars[ENTROPY] * share
        value_sum += write_value_slope(i, row, values, value_column, samples, scalars, share, d_values)
        i += cuda.gridsize(1)
    add_report(policy_sum, value_sum, entropy_sum, kl_sum, clipped_sum, sums)
