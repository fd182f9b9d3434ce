"""CUDA kernels of the learner for perceptrons: what torch would do in dozens of small launches, in one each.

Each is scalar code about one row, as in a rule; matrix products stay with cuBLAS. Arithmetic is float32.
"""

from __future__ import annotations

import math

import numpy as np

from velodrome.vector.compile.numba_cuda import SIMULATED, cuda

STRIDE = 4  # samples per thread of the gradient kernels: their sums meet less often
REPORTED = 5  # policy loss, value loss, entropy, KL divergence, clipped: sums over samples
CLIP, VALUE_CLIP, ENTROPY, VALUE_WEIGHT = range(4)  # positions in `weights`
# Columns of `samples`: rows are read in random order, and a row of these lies in one place.
LOG_PROB, ADVANTAGE, RETURN, VALUE, ACTIONS = range(5)
# A Python float would make the arithmetic double.
ZERO, HALF, ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)
LOWEST = np.float32(-np.inf)
LOG_ROOT_2_PI = np.float32(0.5 * math.log(2.0 * math.pi))


def input_word(k, row, window_words, cursor, first_word, table, tail, count):
    """Return word k of an input row: of a window, or of the tail behind the windows."""
    if k >= window_words:
        return tail[row, k - window_words]
    w = 0
    while k >= count[w]:
        k -= count[w]
        w += 1
    return table[first_word[w, cursor[row]] + k]


def log_mass(outputs, i, first, count):
    """Return the logarithm of the sum of the exponentials of some logits."""
    highest = LOWEST
    for k in range(count):
        highest = max(highest, outputs[i, first + k])
    mass = ZERO
    for k in range(count):
        mass += math.exp(outputs[i, first + k] - highest)
    return highest + math.log(mass)


def policy_loss(change, advantage, clip):
    """Return a sample's policy loss and its derivative by the log-probability, given the change of the latter."""
    ratio = math.exp(change)
    kept = min(max(ratio, ONE - clip), ONE + clip)
    free, clipped = -advantage * ratio, -advantage * kept
    return max(free, clipped), ZERO if clipped > free else free


def value_loss(value, old, target, limit):
    """Return a sample's value loss and its derivative by the value."""
    error = value - target
    loss, slope = HALF * error * error, error
    if limit > ZERO:
        moved = value - old
        limited = min(max(moved, -limit), limit)
        other = old + limited - target
        if HALF * other * other > loss:
            loss = HALF * other * other
            slope = other if limited == moved else ZERO
    return loss, slope


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


if not SIMULATED:
    input_word, log_mass, policy_loss, value_loss, add_report = (
        cuda.jit(function, device=True) for function in (input_word, log_mass, policy_loss, value_loss, add_report)
    )


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


def sample_discrete(outputs, values, value_column, counts, noise, actions, log_prob, value):
    """Draw the choices of one environment by the Gumbel-max trick; `noise` is exponential, [n, logits]."""
    i = cuda.grid(1)
    if i < actions.shape[0]:
        total = ZERO
        first = 0
        for choice in range(counts.shape[0]):
            best, chosen = LOWEST, 0
            for k in range(counts[choice]):
                score = outputs[i, first + k] - math.log(noise[i, first + k])
                if score > best:
                    best, chosen = score, k
            actions[i, choice] = chosen
            total += outputs[i, first + chosen] - log_mass(outputs, i, first, counts[choice])
            first += counts[choice]
        log_prob[i] = total
        value[i] = values[i, value_column]


def sample_gaussian(outputs, values, value_column, log_std, noise, actions, log_prob, value):
    """Draw the actions of one environment; `noise` is normal, [n, actions]."""
    i = cuda.grid(1)
    if i < actions.shape[0]:
        total = ZERO
        for k in range(log_std.shape[0]):
            actions[i, k] = outputs[i, k] + noise[i, k] * math.exp(log_std[k])
            total -= HALF * noise[i, k] * noise[i, k] + log_std[k] + LOG_ROOT_2_PI
        log_prob[i] = total
        value[i] = values[i, value_column]


def discrete_gradient(
    rows, outputs, values, value_column, counts, samples, moments, weights, d_outputs, d_values, sums
):  # fmt: skip
    """Write the gradient of PPO's loss by the network's outputs, for one or several discrete choices.

    moments: mean of the advantages and 1 over their deviation. Gradients are of the mean over the rows.
    """
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
        change = now - samples[row, LOG_PROB]
        loss, slope = policy_loss(change, (samples[row, ADVANTAGE] - moments[0]) * moments[1], weights[CLIP])
        policy_sum += loss
        off = math.exp(change) - ONE
        kl_sum += off - change
        clipped_sum += ONE if abs(off) > weights[CLIP] else ZERO
        slope *= share
        first = 0
        for choice in range(counts.shape[0]):
            level = log_mass(outputs, i, first, counts[choice])
            entropy = ZERO
            for k in range(counts[choice]):
                chance = outputs[i, first + k] - level
                entropy -= math.exp(chance) * chance
            entropy_sum += entropy
            for k in range(counts[choice]):
                chance = outputs[i, first + k] - level
                probability = math.exp(chance)
                taken = ONE if k == np.int64(samples[row, ACTIONS + choice]) else ZERO
                d_outputs[i, first + k] = (
                    slope * (taken - probability) + weights[ENTROPY] * share * probability * (chance + entropy)
                )  # fmt: skip
            first += counts[choice]
        loss, slope = value_loss(
            values[i, value_column], samples[row, VALUE], samples[row, RETURN], weights[VALUE_CLIP]
        )
        value_sum += loss
        d_values[i, value_column] = slope * share * weights[VALUE_WEIGHT]
        i += cuda.gridsize(1)
    add_report(policy_sum, value_sum, entropy_sum, kl_sum, clipped_sum, sums)


def gaussian_gradient(
    rows, outputs, values, value_column, log_std, samples, moments, weights, d_outputs, d_values, d_log_std, sums
):  # fmt: skip
    """Write the gradient of PPO's loss by the network's outputs and log_std (by sample), for independent normals."""
    policy_sum, value_sum, entropy_sum, kl_sum, clipped_sum = ZERO, ZERO, ZERO, ZERO, ZERO
    share = ONE / np.float32(rows.shape[0])
    i = cuda.grid(1)
    while i < rows.shape[0]:
        row = rows[i]
        now = ZERO
        for k in range(log_std.shape[0]):
            off = (samples[row, ACTIONS + k] - outputs[i, k]) * math.exp(-log_std[k])
            now -= HALF * off * off + log_std[k] + LOG_ROOT_2_PI
            entropy_sum += log_std[k] + HALF + LOG_ROOT_2_PI
        change = now - samples[row, LOG_PROB]
        loss, slope = policy_loss(change, (samples[row, ADVANTAGE] - moments[0]) * moments[1], weights[CLIP])
        policy_sum += loss
        away = math.exp(change) - ONE
        kl_sum += away - change
        clipped_sum += ONE if abs(away) > weights[CLIP] else ZERO
        slope *= share
        for k in range(log_std.shape[0]):
            precision = math.exp(-log_std[k])
            off = (samples[row, ACTIONS + k] - outputs[i, k]) * precision
            d_outputs[i, k] = slope * off * precision
            d_log_std[i, k] = slope * (off * off - ONE) - weights[ENTROPY] * share
        loss, slope = value_loss(
            values[i, value_column], samples[row, VALUE], samples[row, RETURN], weights[VALUE_CLIP]
        )
        value_sum += loss
        d_values[i, value_column] = slope * share * weights[VALUE_WEIGHT]
        i += cuda.gridsize(1)
    add_report(policy_sum, value_sum, entropy_sum, kl_sum, clipped_sum, sums)
