"""Runs a program: what each of its operations does to a row of numbers, and what action comes of that."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.learn.actions import LINEAR as GROWS_LINEARLY
from velodrome.learn.actions import OFFSET
from velodrome.learn.engines.cpu.compiled import loop as any_loop
from velodrome.learn.engines.cpu.elementary import fast_exp, fast_normal, fast_sigmoid, fast_tanh
from velodrome.learn.engines.formulas import FLOAT, ONE, ZERO
from velodrome.rollout.moments import LIMIT

# Operations; each is a row of numbers: its kind, then what its function below says.
VALUES, WINDOWS, PRODUCT, ACTIVATE, NORMALISE, STRETCH, POOL, COPY, SPREAD, REMEMBER, RECALL, DUEL = range(12)
WIDTH = 11  # numbers of an operation
NARROW = 8  # products with fewer outputs lie in memory output by output, so that the inputs of one are a long row
CHOICES, NUMBERS, WEIGHTS = range(3)  # what an action is
BOUND = FLOAT(LIMIT)
EPSILON = 1e-5  # of layer norms
loop = partial(any_loop, counted=False)
NORM_EPSILON, GROWTH_OFFSET, GROWTH_LINEAR = FLOAT(EPSILON), FLOAT(OFFSET), FLOAT(GROWS_LINEARLY)


class Program(NamedTuple):
    """What `decide` runs for every environment; addresses are places in `weights` and in a row of `work`."""

    operations: NDArray[np.int64]  # [O, WIDTH]
    weights: NDArray[np.float32]
    encodings: NDArray[np.float32]  # [B, floats] what first layers see of the windows of each bar
    position: NDArray[np.int64]  # [bars of the market] row of a bar in `encodings`
    work: NDArray[np.float32]  # [n, floats]
    memory: NDArray[np.float32]  # [n, floats] that the network remembers of each environment
    head: NDArray[np.int64]  # [4] what an action is, where its parameters begin, how many there are, room for as many
    members: NDArray[np.int64]  # [2] of an ensemble, how many, and whether they decide by chances; 1: no ensemble
    options: NDArray[np.int64]  # [choices] of each, how many
    low: NDArray[np.float32]  # [numbers] ends of the range of actions
    high: NDArray[np.float32]
    apart: NDArray[np.float64]  # [bars, n] how far the members of an ensemble disagree; [0, 0]: it is none


@loop
def product(operation, weights, work):
    """Write rows of inputs times a matrix [inputs, outputs] plus a bias; with `added`, add them to what is there."""
    inputs, outputs, weight, bias = operation[3], operation[4], operation[5], operation[6]
    for row in range(operation[7]):
        source, target = operation[1] + row * operation[8], operation[2] + row * operation[9]
        sums = work[target : target + outputs]
        for j in range(outputs):
            before = sums[j] if operation[10] else ZERO
            sums[j] = before + weights[bias + j] if bias >= 0 else before
        if outputs < NARROW:
            x = work[source : source + inputs]
            for j in range(outputs):
                column, total = weights[weight + j * inputs : weight + (j + 1) * inputs], ZERO
                for i in range(inputs):
                    total += x[i] * column[i]
                sums[j] += total
            continue
        fours = inputs - inputs % 4
        for i in range(0, fours, 4):  # four at a time: sums are read and written once for all of them
            x, at = work[source + i : source + i + 4], weight + i * outputs
            first, second = weights[at : at + outputs], weights[at + outputs : at + 2 * outputs]
            third, fourth = weights[at + 2 * outputs : at + 3 * outputs], weights[at + 3 * outputs : at + 4 * outputs]
            a, b, c, d = x[0], x[1], x[2], x[3]
            for j in range(outputs):
                sums[j] += a * first[j] + b * second[j] + c * third[j] + d * fourth[j]
        for i in range(fours, inputs):
            left, row_weights = work[source + i], weights[weight + i * outputs : weight + (i + 1) * outputs]
            for j in range(outputs):
                sums[j] += left * row_weights[j]


@loop
def activate(values, kind):
    """Replace values by their activation; kind: its place in `layers.ACTIVATIONS`."""
    for k in range(values.size):
        x = values[k]
        if kind == 0:
            values[k] = fast_tanh(x)
        elif kind == 1:
            values[k] = x if x > ZERO else ZERO
        elif kind == 2:
            values[k] = x * fast_sigmoid(x)
        else:
            values[k] = x * fast_normal(x)[0]


@loop
def normalise(values):
    """Take the mean off values and divide them by their deviation."""
    mean = ZERO
    for k in range(values.size):
        mean += values[k]
    mean /= FLOAT(values.size)
    square = ZERO
    for k in range(values.size):
        values[k] -= mean
        square += values[k] * values[k]
    scale = ONE / np.sqrt(square / FLOAT(values.size) + NORM_EPSILON)
    for k in range(values.size):
        values[k] *= scale


@loop
def pool(each, context):
    """Write the means of the columns of [rows, width], then the largest of each."""
    rows, width = each.shape
    for j in range(width):
        total, largest = each[0, j], each[0, j]
        for k in range(1, rows):
            total += each[k, j]
            largest = max(largest, each[k, j])
        context[j] = total / FLOAT(rows)
        context[width + j] = largest


@loop
def recall(own, carried, memory):
    """Take one step of a GRU, given the input's and the memory's part of its three gates, [3 · size] each."""
    size = memory.size
    for k in range(size):
        reset = fast_sigmoid(own[k] + carried[k])
        update = fast_sigmoid(own[size + k] + carried[size + k])
        new = fast_tanh(own[2 * size + k] + reset * carried[2 * size + k])
        memory[k] = (ONE - update) * new + update * memory[k]


@loop
def run(program, seen):
    """Run all operations, each for one environment after the other: to begin one takes longer than most take."""
    weights, count = program.weights, program.work.shape[0]
    for k in range(program.operations.shape[0]):
        operation = program.operations[k]
        kind, a, b, c, d = operation[0], operation[1], operation[2], operation[3], operation[4]
        for n in range(count):
            work = program.work[n]
            if kind == PRODUCT:
                product(operation, weights, work)
            elif kind == ACTIVATE:  # from a, of so many b, by the kind c
                activate(work[a : a + b], c)
            elif kind == VALUES:  # to a, of so many b, less the mean at c, times the scale at d
                for j in range(b):
                    x = seen.observations[n, j]
                    if c >= 0:
                        x = min(max((x - weights[c + j]) * weights[d + j], -BOUND), BOUND)
                    work[a + j] = x
            elif kind == WINDOWS:  # to a, of so many b, from the column c; with d added to what is there
                row = program.position[seen.cursors[n]]
                for j in range(b):
                    work[a + j] = program.encodings[row, c + j] + (work[a + j] if d else ZERO)
            elif kind == NORMALISE:  # from a, rows of so many b, as many as c
                for row in range(c):
                    normalise(work[a + row * b : a + (row + 1) * b])
            elif kind == STRETCH:  # from a, rows of so many b, as many as c, by the factors at d, which terms follow
                for row in range(c):
                    for j in range(b):
                        work[a + row * b + j] = work[a + row * b + j] * weights[d + j] + weights[d + b + j]
            elif kind == POOL:  # from a, rows of so many b, as many as c, to d
                pool(work[a : a + b * c].reshape(c, b), work[d : d + 2 * b])
            elif kind == COPY:  # from a to b, so many c, d apart there
                for j in range(c):
                    work[b + j * d] = work[a + j]
            elif kind == SPREAD:  # from a to rows at b of so many c, as many as d
                for row in range(d):
                    for j in range(c):
                        work[b + row * c + j] = work[a + j]
            elif kind == REMEMBER:  # to a, so many b, from the place c of the memory
                for j in range(b):
                    work[a + j] = program.memory[n, c + j]
            elif kind == RECALL:  # the input's part at a, the memory's at b, of so many c; from the memory's place d
                recall(work[a : a + 3 * c], work[b : b + 3 * c], program.memory[n, d : d + c])
            else:  # DUEL: values at a, so many b, and the state's at c
                mean = ZERO
                for j in range(b):
                    mean += work[a + j] / FLOAT(b)
                for j in range(b):
                    work[a + j] += work[c] - mean


@loop
def decide(program, bar, seen, actions):
    """Write the likeliest action of every environment; return −1, or the one whose network gives NaN or infinity."""
    kind, at, width, room = program.head
    members, by_chance = program.members
    flat = actions.reshape(actions.shape[0], -1)
    run(program, seen)
    for n in range(actions.shape[0]):
        found, shared = program.work[n, at : at + members * width], program.work[n, room : room + width]
        for k in range(found.size):
            if not np.isfinite(found[k]):
                return n
        if members == 1:
            write_action(kind, found, program.options, program.low, program.high, flat[n])
        elif kind == CHOICES:
            each = found.reshape(members, width)
            program.apart[bar, n] = choose_together(each, by_chance, shared, program.options, flat[n])
        else:
            each = found.reshape(members, width)
            program.apart[bar, n] = act_together(kind, each, program.options, program.low, program.high, flat[n])
    return -1


@loop
def choose_together(each, by_chance, mean, options, action):
    """Write the choices that are best by the mean of all members; return the share of those who choose otherwise.

    each: [M, width], probabilities' logarithms or values. mean: room for [width].
    """
    members = each.shape[0]
    mean[:] = ZERO
    for m in range(members):
        first = 0
        for choice in range(options.size):
            own, total, largest = each[m, first : first + options[choice]], ZERO, each[m, first]
            for k in range(own.size):
                largest = max(largest, own[k])
            for k in range(own.size):
                total += fast_exp(own[k] - largest)
            for k in range(own.size):
                mean[first + k] += fast_exp(own[k] - largest) / total if by_chance else own[k] / FLOAT(members)
            first += options[choice]
    differ, first = 0, 0
    for choice in range(options.size):
        end = first + options[choice]
        action[choice] = np.argmax(mean[first:end])
        for m in range(members):
            differ += np.argmax(each[m, first:end]) != action[choice]
        first = end
    return differ / (members * options.size)


@loop
def act_together(kind, each, options, low, high, action):
    """Write the mean of what all members do, [M, numbers]; return how far they are from it, as `ensembles` has it."""
    members, numbers = each.shape
    for m in range(members):
        write_action(kind, each[m], options, low, high, action)
        for k in range(numbers):
            each[m, k] = action[k]
    apart = 0.0
    for k in range(numbers):
        mean = square = spread = 0.0  # around the first, so that members that are equal are exactly 0 apart
        for m in range(members):
            mean += (each[m, k] - each[0, k]) / members
        for m in range(members):
            off = each[m, k] - each[0, k] - mean
            square += off * off / members
            spread += abs(off) / members
        half = 0.5 * (high[k] - low[k])
        reach = half if np.isfinite(half) and half > 0.0 else 1.0
        apart += 0.5 * spread if kind == WEIGHTS else np.sqrt(square) / reach / numbers
        action[k] = each[0, k] + mean
    return apart


@loop
def write_action(kind, found, options, low, high, action):
    """Write what the parameters of a distribution ask for if nothing is drawn."""
    if kind == CHOICES:
        first = 0
        for choice in range(options.size):
            best = 0
            for k in range(1, options[choice]):
                if found[first + k] > found[first + best]:
                    best = k
            action[choice] = best
            first += options[choice]
        return
    if kind == WEIGHTS:
        largest, total = -np.inf, ZERO
        for k in range(found.size):
            raised = found[k] - GROWTH_OFFSET
            if raised > GROWTH_LINEAR:
                raised = GROWTH_LINEAR + np.log1p(raised - GROWTH_LINEAR)
            found[k] = raised
            largest = max(largest, raised)
        for k in range(found.size):
            found[k] = fast_exp(found[k] - FLOAT(largest))
            total += found[k]
        for k in range(found.size):
            found[k] /= total
    for k in range(found.size):
        action[k] = min(max(found[k], low[k]), high[k])
