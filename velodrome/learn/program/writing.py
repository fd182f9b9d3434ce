"""Writes a program: the operations that do what a policy's network does, and its weights in one row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from velodrome.learn.acting import TrainedPolicy, evaluating
from velodrome.learn.actions import Dirichlet
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
from velodrome.learn.networks.soft_actor_critic import SquashedActor, SquashedGaussian
from velodrome.learn.networks.trunks import ConvolutionFirst, LinearFirst, RecurrentTrunk, Trunk
from velodrome.learn.policy import ActorCritic
from velodrome.learn.program.running import (
    ACTIVATE,
    CHOICES,
    COPY,
    DUEL,
    EPSILON,
    NARROW,
    NORMALISE,
    NUMBERS,
    POOL,
    PRODUCT,
    RECALL,
    REMEMBER,
    SPREAD,
    STRETCH,
    VALUES,
    WEIGHTS,
    WIDTH,
    WINDOWS,
    Program,
)

LINE = 16  # floats in a line of the cache
TOGETHER = {MeanChances: True, MeanValues: False, MeanNumbers: False, MeanWeights: False}  # whether by chances


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
        kept = self.keep(weight if outputs < NARROW else weight.T.contiguous()), -1 if bias is None else self.keep(bias)
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

    def heads(self, network: ActorCritic | QNetwork | SquashedActor, values: int) -> int:
        """Write a network; return where the parameters of its actions are, or the actions of one that squashes them."""
        place = self._head(network, values)
        if isinstance(network, SquashedActor):
            own = network.distribution
            self.add(ACTIVATE, place, decided(own), list(ACTIVATIONS.values()).index(nn.Tanh))
            self.add(STRETCH, place, decided(own), 1, self.keep(own.reach, own.middle))
        return place

    def _head(self, network: ActorCritic | QNetwork | SquashedActor, values: int) -> int:
        trunk = network.trunk if isinstance(network, QNetwork) else network.actor
        if type(trunk) is InstrumentTrunk and not isinstance(network, QNetwork):
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
        last: Any = network.action_head if isinstance(network, QNetwork) else network.policy_head
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


def decided(distribution: Any) -> int:
    """Return how many numbers of a network an action is made of."""
    return len(distribution.middle) if isinstance(distribution, SquashedGaussian) else distribution.width


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
                at = writer.ensemble(network, decided(own))
            elif type(network) in (ActorCritic, QNetwork, SquashedActor):
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
    room = writer.place(decided(own))
    writer.align()  # the work of each environment begins at a line, too
    return Program(
        np.array(writer.operations, np.int64),
        at_a_line(np.concatenate(writer.parts)),
        np.ascontiguousarray(np.concatenate(shown, 1)),
        position,
        at_a_line(np.zeros(num_envs * writer.room, np.float32)).reshape(num_envs, -1),
        np.zeros((num_envs, policy.memory_size), np.float32),
        np.array([kind, at, decided(own), room], np.int64),
        np.array([members, TOGETHER.get(type(policy.distribution), False)], np.int64),
        np.array(own.counts, np.int64),
        low,
        high,
        np.zeros((steps, num_envs) if members > 1 else (0, 0)),
    )
