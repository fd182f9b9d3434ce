"""A policy as a list of operations on a row of numbers, for a compiled loop that acts bar after bar without torch.

torch takes a third of a millisecond for the few products that one account's next action needs, this a thousandth. The
numbers are the network's own, rounded in another order: where two actions are equally good to the last bits, the two
ways may differ. An ensemble is its members' operations one after the other, and what they do together. Networks of a
user's own have no program, and act through torch.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from velodrome.learn.acting import TrainedPolicy, evaluating
from velodrome.learn.actions import LINEAR as GROWS_LINEARLY
from velodrome.learn.actions import OFFSET, Dirichlet
from velodrome.learn.engines.cpu.compiled import loop
from velodrome.learn.engines.cpu.elementary import fast_exp, fast_normal, fast_sigmoid, fast_tanh
from velodrome.learn.engines.formulas import FLOAT, ONE, ZERO
from velodrome.learn.ensembles import (
    EnsembleNetwork,
    EnsemblePolicy,
    MeanChances,
    MeanNumbers,
    MeanValues,
    MeanWeights,
    StackedLinear,
    StackedPerceptrons,
)
from velodrome.learn.networks.instruments import ContextLinear, InstrumentHead, InstrumentTrunk
from velodrome.learn.networks.layers import ACTIVATIONS, PIECE, Dropout
from velodrome.learn.networks.q_network import QNetwork
from velodrome.learn.networks.trunks import ConvolutionFirst, LinearFirst, RecurrentTrunk, Trunk
from velodrome.learn.policy import ActorCritic
from velodrome.rollout.moments import LIMIT

# Operations; each is a row of numbers: its kind, then what its function below says.
VALUES, WINDOWS, PRODUCT, ACTIVATE, NORMALISE, STRETCH, POOL, COPY, SPREAD, REMEMBER, RECALL, DUEL = range(12)
WIDTH = 11  # numbers of an operation
LINE = 16  # floats in a line of the cache
KINDS = tuple(ACTIVATIONS)  # of activations, by their number
CHOICES, NUMBERS, WEIGHTS = range(3)  # what an action is
TOGETHER = {MeanChances: True, MeanValues: False, MeanNumbers: False, MeanWeights: False}  # whether by chances
BOUND = FLOAT(LIMIT)
EPSILON = 1e-5  # of layer norms
NORM_EPSILON, GROWTH_OFFSET, GROWTH_LINEAR = FLOAT(EPSILON), FLOAT(OFFSET), FLOAT(GROWS_LINEARLY)


class Program(NamedTuple):
    """What `decide` runs for every environment; addresses are places in `weights` and `work`."""

    operations: NDArray[np.int64]  # [O, WIDTH]
    weights: NDArray[np.float32]
    encodings: NDArray[np.float32]  # [B, floats] what first layers see of the windows of each bar
    position: NDArray[np.int64]  # [bars of the market] row of a bar in `encodings`
    work: NDArray[np.float32]
    memory: NDArray[np.float32]  # [n, floats] that the network remembers of each environment
    head: NDArray[np.int64]  # [4] what an action is, where its parameters begin, how many there are, room for as many
    members: NDArray[np.int64]  # [2] of an ensemble, how many, and whether they decide by chances; 1: no ensemble
    options: NDArray[np.int64]  # [choices] of each, how many
    low: NDArray[np.float32]  # [numbers] ends of the range of actions
    high: NDArray[np.float32]
    apart: NDArray[np.float64]  # [bars, n] how far the members of an ensemble disagree; [0, 0]: it is none


# Running one


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
    """Replace values by their activation."""
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
def run(program, values, cursor, memory):
    """Run all operations for one environment."""
    work, weights = program.work, program.weights
    for k in range(program.operations.shape[0]):
        operation = program.operations[k]
        kind, a, b, c, d = operation[0], operation[1], operation[2], operation[3], operation[4]
        if kind == PRODUCT:
            product(operation, weights, work)
        elif kind == ACTIVATE:  # from a, of so many b, by the kind c
            activate(work[a : a + b], c)
        elif kind == VALUES:  # to a, of so many b, less the mean at c, times the scale at d
            for j in range(b):
                x = values[j]
                if c >= 0:
                    x = min(max((x - weights[c + j]) * weights[d + j], -BOUND), BOUND)
                work[a + j] = x
        elif kind == WINDOWS:  # to a, of so many b, from the column c; with d added to what is there
            encoded = program.encodings[program.position[cursor]]
            for j in range(b):
                work[a + j] = encoded[c + j] + (work[a + j] if d else ZERO)
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
                work[b + row * c : b + (row + 1) * c] = work[a : a + c]
        elif kind == REMEMBER:  # to a, so many b, from the place c of the memory
            work[a : a + b] = memory[c : c + b]
        elif kind == RECALL:  # the input's part at a, the memory's at b, of so many c; from the place d of the memory
            recall(work[a : a + 3 * c], work[b : b + 3 * c], memory[d : d + c])
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
    found, shared = program.work[at : at + members * width], program.work[room : room + width]
    for n in range(actions.shape[0]):
        run(program, seen.observations[n], seen.cursors[n], program.memory[n])
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


# Writing one


class Unwritten(Exception):
    """A network has a part that programs know nothing of."""


class Writer:
    """Collects the operations and weights of a program."""

    def __init__(self, policy: TrainedPolicy, bars: NDArray[np.int64]) -> None:
        """bars: those that the policy will act at."""
        self.policy, self.bars = policy, bars
        self.operations: list[tuple[int, ...]] = []
        self.parts: list[NDArray[np.float32]] = []  # of the weights
        self.encodings: list[NDArray[np.float32]] = []
        self.floats = self.room = self.columns = 0
        self.memory = 0  # floats of the memory that earlier members have

    def add(self, kind: int, *numbers: int) -> None:
        """Add an operation."""
        self.operations.append((kind, *numbers, *[0] * (WIDTH - 1 - len(numbers))))

    def keep(self, *tensors: Tensor) -> int:
        """Keep numbers one after another, and return the place of the first."""
        first = self.floats
        for tensor in tensors:
            part = tensor.detach().float().cpu().numpy().reshape(-1)
            self.parts.append(part)
            self.floats += part.size
        return first

    def place(self, count: int) -> int:
        """Return a place for this many numbers to work on."""
        self.room += count
        return self.room - count

    def align(self) -> None:
        """Let what comes next begin at a line of the cache: a row that lies across two is read twice."""
        ahead = -self.floats % LINE
        self.parts += [np.zeros(ahead, np.float32)] if ahead else []
        self.floats += ahead
        self.room += -self.room % LINE

    def product(
        self, source: int, weight: Tensor, bias: Tensor | None, target: int | None = None, rows: int = 1, step: int = 0
    ) -> int:
        """Multiply rows, `step` apart (their width, if it is 0), and return where the results are.

        target: where to add them to what is there, row after row; None: nowhere, they get a place of their own.
        """
        outputs, inputs = weight.shape
        added = target is not None
        self.align()
        place = self.place(rows * outputs) if target is None else target
        kept = self.keep(weight.T.contiguous()), -1 if bias is None else self.keep(bias)
        self.add(PRODUCT, source, place, inputs, outputs, *kept, rows, step or inputs, outputs, int(added))
        return place

    def windows(self, first: Any, target: int | None = None) -> int:
        """Let a first layer see the windows of all bars; return where those of one are, or were added to."""
        bank = self.policy.bank
        if bank is None:
            raise Unwritten
        rows = torch.as_tensor(self.bars, device=self.policy.device)
        seen = [first.encode(bank.gather(some).float()) for some in rows.split(max(1, PIECE // max(1, bank.floats)))]
        self.encodings.append(torch.cat(seen).float().cpu().numpy())
        width = self.encodings[-1].shape[1]
        place = self.place(width) if target is None else target
        self.add(WINDOWS, place, width, self.columns, int(target is not None))
        self.columns += width
        return place

    def after_sums(self, layers: nn.Sequential | list[nn.Module], place: int, width: int, rows: int = 1) -> None:
        """Do what follows the sums of a layer, in place."""
        for layer in layers:
            if type(layer) in ACTIVATIONS.values() and getattr(layer, "approximate", "none") == "none":
                self.add(ACTIVATE, place, rows * width, list(ACTIVATIONS.values()).index(type(layer)))
            elif type(layer) is nn.LayerNorm and layer.elementwise_affine and layer.eps == EPSILON:
                self.add(NORMALISE, place, width, rows)
                self.add(STRETCH, place, width, rows, self.keep(layer.weight, layer.bias))
            elif type(layer) is nn.BatchNorm1d and layer.running_mean is not None and layer.running_var is not None:
                factor = layer.weight * (layer.running_var + layer.eps).rsqrt()
                terms = layer.bias - layer.running_mean * factor
                self.add(STRETCH, place, width, rows, self.keep(factor, terms))
            elif type(layer) is not Dropout:  # which leaves nothing out while nothing is learnt
                raise Unwritten

    # Trunks: each returns where its features are

    def trunk(self, trunk: Trunk, values: int) -> int:
        """Write a plain trunk; `values` is where the values are."""
        first = trunk.first
        joined = self.windows(first) if self.policy.shape.windows else None
        if type(first) is LinearFirst:
            weight, bias = first.layer.weight[:, first.window_floats :], first.layer.bias
        elif type(first) is ConvolutionFirst:
            weight, bias = first.values.weight, None
        else:
            raise Unwritten
        place, width = self.product(values, weight, bias, joined), len(weight)
        for layer in trunk.body:
            if type(layer) is nn.Linear:
                place, width = self.product(place, layer.weight, layer.bias), layer.out_features
            else:
                self.after_sums([layer], place, width)
        return place

    def recurrent(self, trunk: RecurrentTrunk, values: int) -> int:
        """Write a trunk with a memory, which is the first of the policy's."""
        cell, below = trunk.cell, self.trunk(trunk.below, values)
        before, after = self.place(trunk.memory_size), self.place(trunk.memory_size)
        self.add(REMEMBER, before, trunk.memory_size, self.memory)
        own = self.product(below, cell.weight_ih, cell.bias_ih)
        carried = self.product(before, cell.weight_hh, cell.bias_hh)
        self.add(RECALL, own, carried, trunk.memory_size, self.memory)
        self.add(REMEMBER, after, trunk.memory_size, self.memory)
        self.memory += trunk.memory_size
        return after

    def instruments(self, trunk: InstrumentTrunk, values: int) -> tuple[int, int]:
        """Write a trunk that looks at each instrument; return where the features of each and the context are."""
        first, rows = trunk.first, trunk.count
        shared, at = self.place(first.shared_floats), 0
        for begin, end in first.shared:
            self.add(COPY, values + begin, shared + at, end - begin, 1)
            at += end - begin
        weight, inputs = first.layer.weight, first.window_floats + len(first.own)
        width = len(weight)
        common = self.product(shared, weight[:, inputs:], first.layer.bias)
        each = self.place(rows * width)
        self.add(SPREAD, common, each, width, rows)
        if first.own:
            own = self.place(rows * len(first.own))
            for column, begin in enumerate(first.own):
                self.add(COPY, values + begin, own + column, rows, len(first.own))
            self.product(own, weight[:, first.window_floats : inputs], None, each, rows)
        if self.policy.shape.windows:
            self.windows(first, each)
        self.after_sums(trunk.first_after, each, width, rows)
        context = self._context(each, width, rows, shared, first.shared_floats)
        layers: Any = zip(trunk.layers, trunk.after, strict=True)
        for layer, after in layers:
            each, width = self._with_context(layer, each, context, rows)
            self.after_sums(after, each, width, rows)
            context = self._context(each, width, rows, shared, first.shared_floats)
        return each, context

    def _context(self, each: int, width: int, rows: int, shared: int, floats: int) -> int:
        context = self.place(2 * width + floats)
        self.add(POOL, each, width, rows, context)
        self.add(COPY, shared, context + 2 * width, floats, 1)
        return context

    def _with_context(self, layer: ContextLinear, each: int, context: int, rows: int) -> tuple[int, int]:
        weight = layer.layer.weight
        common, place = self.product(context, weight[:, layer.own :], layer.layer.bias), self.place(rows * len(weight))
        self.add(SPREAD, common, place, len(weight), rows)
        self.product(each, weight[:, : layer.own], None, place, rows)
        return place, len(weight)

    def heads(self, network: ActorCritic | QNetwork, values: int) -> int:
        """Write a network; return where the parameters of its actions are."""
        trunk = network.actor if isinstance(network, ActorCritic) else network.trunk
        if type(trunk) is InstrumentTrunk:
            head = network.policy_head
            if type(head) is not InstrumentHead:
                raise Unwritten
            each, context = self.instruments(trunk, values)
            place, width = self._with_context(head.each, each, context, trunk.count)
            if head.rest is None:
                return place
            rest = self.product(context, head.rest.weight, head.rest.bias)
            both = self.place(trunk.count * width + head.rest.out_features)
            self.add(COPY, place, both, trunk.count * width, 1)
            self.add(COPY, rest, both + trunk.count * width, head.rest.out_features, 1)
            return both
        if type(trunk) is RecurrentTrunk:
            features = self.recurrent(trunk, values)
        elif type(trunk) is Trunk:
            features = self.trunk(trunk, values)
        else:
            raise Unwritten
        last: Any = network.policy_head if isinstance(network, ActorCritic) else network.action_head
        if type(last) is not nn.Linear:
            raise Unwritten
        place = self.product(features, last.weight, last.bias)
        if isinstance(network, QNetwork) and network.state_head is not None:
            state = self.product(features, network.state_head.weight, network.state_head.bias)
            self.add(DUEL, place, last.out_features, state)
        return place

    # Ensembles

    def values(self, normalisation: Any) -> int:
        """Let the values be seen, less a mean and times a scale if there are any; return where they are."""
        place = self.place(self.policy.shape.values)
        known = (-1, -1) if normalisation is None else [self.keep(part) for part in normalisation]
        self.add(VALUES, place, self.policy.shape.values, *known)
        return place

    def ensemble(self, network: EnsembleNetwork, width: int) -> int:
        """Write all members; return where the parameters of their actions are, side by side."""
        shown = [
            self.values((network.means[m], network.scales[m]) if network.normalises[m] else None)
            for m in range(network.count)
        ]
        first: Any = network.members[0]
        if isinstance(first, StackedPerceptrons):
            found = self.stacked(first, shown)
        else:
            found = [self.heads(member, own) for member, own in zip(network.members, shown, strict=True)]  # type: ignore[arg-type]
        together = self.place(network.count * width)
        for m, place in enumerate(found):
            self.add(COPY, place, together + m * width, width, 1)
            if network.units[m] != 1.0:
                factors = torch.full((width,), network.units[m])
                self.add(STRETCH, together + m * width, width, 1, self.keep(factors, torch.zeros(width)))
        return together

    def stacked(self, network: StackedPerceptrons, shown: list[int]) -> list[int]:
        """Write perceptrons whose weights lie side by side; return where the results of each are."""
        wide = network.values.weight.shape[2]
        windows = SimpleNamespace(encode=lambda seen: seen @ network.windows)
        joined = self.windows(windows) if self.policy.shape.windows else None
        found = []
        for m, values in enumerate(shown):
            layer: Any = network.values
            place, width = values, 0
            for layer in (network.values, *network.body):
                if isinstance(layer, StackedLinear):
                    target = joined + m * wide if joined is not None and layer is network.values else None
                    place = self.product(place, layer.weight[m].mT, layer.bias[m, 0], target)
                    width = layer.weight.shape[2]
                else:
                    self.after_sums([layer], place, width)
            found.append(place)
        return found


def at_a_line(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a copy that begins at a line of the cache; NumPy promises a quarter of one."""
    room = np.empty(values.size + LINE, np.float32)
    first = -room.ctypes.data % (4 * LINE) // 4
    found = room[first : first + values.size]
    found[:] = values
    return found


@torch.no_grad()
def program_of(policy: TrainedPolicy, bars: NDArray[np.int64], num_envs: int, steps: int = 1) -> Program | None:
    """Return what a policy does at some bars of its market, in this number of environments that all begin.

    steps: how often it will decide, at most. None: the network is not of a kind that this page knows.
    """
    network, own, members = policy.network, policy.distribution, 1
    if type(policy) not in (TrainedPolicy, EnsemblePolicy):
        return None
    writer = Writer(policy, bars)
    try:
        with evaluating(network):
            if isinstance(network, EnsembleNetwork) and type(own) in TOGETHER:
                mixture: Any = own
                own, members = mixture.own, mixture.members
                at = writer.ensemble(network, own.width)
            elif type(network) in (ActorCritic, QNetwork):
                at = writer.heads(network, writer.values(policy.normalisation))  # type: ignore[arg-type]
            else:
                return None
    except Unwritten:
        return None
    position = np.zeros(len(policy.bank.position) if policy.bank is not None else int(bars.max()) + 1, np.int64)
    position[bars] = np.arange(len(bars))
    shown = writer.encodings or [np.zeros((len(bars), 0), np.float32)]
    kind = CHOICES if own.counts else WEIGHTS if isinstance(own, Dirichlet) else NUMBERS
    low, high = [np.zeros(0, np.float32) if end is None else end.cpu().numpy() for end in (policy.low, policy.high)]
    room = writer.place(own.width)
    return Program(
        np.array(writer.operations, np.int64),
        at_a_line(np.concatenate(writer.parts)),
        np.ascontiguousarray(np.concatenate(shown, 1)),
        position,
        at_a_line(np.zeros(writer.room, np.float32)),
        np.zeros((num_envs, policy.memory_size), np.float32),
        np.array([kind, at, own.width, room], np.int64),
        np.array([members, TOGETHER.get(type(policy.distribution), False)], np.int64),
        np.array(own.counts, np.int64),
        low,
        high,
        np.zeros((steps, num_envs) if members > 1 else (0, 0)),
    )
