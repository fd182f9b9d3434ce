"""The layers that the CPU's loops work on, why they cannot work on others, and where their parameters lie.

All parameters lie in one aligned buffer, with their gradients and Adam's moments in others like it. One pass over a
buffer then serves every parameter, and parameters that are used together (the first layers of an actor and a critic)
are one matrix. The modules keep working: their parameters become views of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from velodrome.errors import BackendError, did_you_mean
from velodrome.learn.engines.cpu.kernels import ACTIVATIONS

# 64 bytes: MKL chooses its code by the alignment of a matrix, so equal bits need equal alignment.
ALIGNMENT = 16  # floats


def round_up(count: int) -> int:
    """Return the smallest multiple of ALIGNMENT that is not below a count."""
    return -(-count // ALIGNMENT) * ALIGNMENT


class Perceptrons(NamedTuple):
    """An actor and a critic made of `nn.Linear` layers, from the observation to the logits (or means) and the value.

    Trunks are separate, or shared if the critic's hidden layers are the actor's very modules.
    """

    actor: Sequence[nn.Linear]
    critic: Sequence[nn.Linear]
    activation: str = "tanh"
    sizes: Sequence[int] | None = None  # options of each discrete choice
    log_std: nn.Parameter | None = None  # without sizes, actions are normal with the standard deviation exp(log_std)

    def cannot_be_served(self) -> str | None:
        """Return why the loops cannot work on these layers, or None if they can."""
        # In this order: a later check relies on what the earlier ones have found.
        checks = (_check_layers, _check_trunks, _check_activation, _check_actions)
        return next((reason for check in checks for reason in check(self)), None)


def _check_layers(parts: Perceptrons) -> Iterator[str]:
    for name, layers in (("actor", parts.actor), ("critic", parts.critic)):
        if len(layers) < 2:
            yield f"the {name} needs a hidden layer, received {len(layers)} layers"
        for position, layer in enumerate(layers):
            yield from _check_layer(f"layer {position} of the {name}", layer)
            before = layers[position - 1] if position else None
            if before is not None and layer.in_features != before.out_features:
                taken, given = layer.in_features, before.out_features
                yield f"layer {position} of the {name} takes {taken} inputs, but the layer before gives {given}"


def _check_layer(where: str, layer: Any) -> Iterator[str]:
    if type(layer) is not nn.Linear:  # a subclass may compute something else
        yield f"{where} is {type(layer).__name__}, and only nn.Linear is fused"
    if layer.bias is None:
        yield f"{where} has no bias"
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks:
        yield f"{where} has hooks, which would not be called"
    for parameter in (layer.weight, layer.bias):
        if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            yield f"{where} is {parameter.dtype} on {parameter.device}; fused is float32 on the CPU"
        if not parameter.requires_grad:
            yield f"{where} is frozen (requires_grad is false)"


def _check_trunks(parts: Perceptrons) -> Iterator[str]:
    actor, critic = parts.actor, parts.critic
    if actor[0].in_features != critic[0].in_features:
        yield f"the actor observes {actor[0].in_features} floats and the critic {critic[0].in_features}"
    if len(actor) != len(critic):
        yield f"the actor has {len(actor)} layers and the critic {len(critic)}"
    if critic[-1].out_features != 1:
        yield f"the critic's last layer has {critic[-1].out_features} outputs instead of 1"
    same = [left is right for left, right in zip(actor, critic, strict=True)]
    if same[-1]:
        yield "the actor and the critic share their last layer"
    if any(same) and not all(same[:-1]):
        yield "the actor and the critic share some hidden layers but not all"
    layers = [*actor, *(layer for layer in critic if not any(layer is other for other in actor))]
    if len(set(map(id, layers))) != len(layers):
        yield "a layer appears twice"
    tensors = [id(tensor) for layer in layers for tensor in (layer.weight, layer.bias)]
    if len(set(tensors)) != len(tensors):
        yield "two layers share a parameter"


def _check_activation(parts: Perceptrons) -> Iterator[str]:
    name = parts.activation
    if name not in ACTIVATIONS:
        yield f"activation {name!r} is not fused; there are {', '.join(ACTIVATIONS)}.{did_you_mean(name, ACTIVATIONS)}"


def _check_actions(parts: Perceptrons) -> Iterator[str]:
    outputs, sizes, log_std = parts.actor[-1].out_features, parts.sizes, parts.log_std
    if (sizes is None) == (log_std is None):
        yield "give sizes for discrete actions or log_std for continuous ones, one of the two"
    if sizes is not None and (not len(sizes) or min(sizes) < 1 or sum(sizes) != outputs):
        yield f"sizes {list(sizes)} must be positive and add up to the actor's {outputs} outputs"
    if log_std is None:
        return
    if not isinstance(log_std, nn.Parameter) or log_std.dtype != torch.float32 or log_std.numel() != outputs:
        yield f"log_std must be a parameter of {outputs} float32 numbers, one per action"
    if not log_std.requires_grad or log_std.device.type != "cpu":
        yield "log_std must be trainable and on the CPU"


class Block(NamedTuple):
    """One matrix product of a layer: columns `inputs` of the layer before to columns `outputs` of this one."""

    weight: torch.Tensor  # [outputs, inputs] view of the flat parameters
    inputs: slice
    outputs: slice
    offset: int  # of the weight in the flat buffer


class Layer(NamedTuple):
    """A layer of both trunks: its products and the biases of all its columns."""

    blocks: tuple[Block, ...]
    bias: NDArray[np.float32]  # [columns]
    bias_offset: int
    width: int


class Network(NamedTuple):
    """The layers of the network, as a tile uses them."""

    features: int  # floats of an observation
    hidden: tuple[Layer, ...]
    last: Layer  # to the outputs of the policy, then the value
    sizes: NDArray[np.int64]  # [components] options of each discrete choice; [0] for continuous actions
    log_std: NDArray[np.float32]  # [A], or [0] where actions are discrete
    log_std_offset: int
    activation: str

    @property
    def head(self) -> NDArray:
        """What the actions' distribution needs beside the outputs: the sizes of choices, or log_std."""
        return self.sizes if self.sizes.size else self.log_std


class FlatParameters:
    """Parameters in groups; within a group they lie side by side without a gap, so that they can be one matrix."""

    def __init__(self, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        self._parameters = [parameter for group in groups for parameter in group]
        self._offsets: dict[int, int] = {}  # by identity of the parameter
        end = 0
        for group in groups:
            end = round_up(end)
            for parameter in group:
                self._offsets[id(parameter)] = end
                end += parameter.numel()
        self.size = round_up(end)
        self.values = torch.zeros(self.size)
        self.gradient = torch.zeros(self.size)
        self.moments = torch.zeros(self.size), torch.zeros(self.size)  # Adam's first and second
        for parameter in self._parameters:
            view = self.view(self.values, (parameter,), tuple(parameter.shape))
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.view(self.gradient, (parameter,), tuple(parameter.shape))
        # The same memory for compiled code, in the order in which `kernels.adam` takes it.
        buffers = (self.values, self.gradient, *self.moments)
        self.arrays = tuple(buffer.numpy() for buffer in buffers)
        self.gradient_array = self.arrays[1]
        self._addresses = [parameter.data_ptr() for parameter in self._parameters]

    def offset(self, parameter: torch.Tensor) -> int:
        """Return where a parameter begins in the buffers."""
        return self._offsets[id(parameter)]

    def view(self, buffer: torch.Tensor, parameters: Sequence[torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
        """Return neighbours of one group as one array of a buffer that is laid out like this one."""
        first = self.offset(parameters[0])
        return buffer[first : first + sum(parameter.numel() for parameter in parameters)].view(shape)

    def check(self) -> None:
        """Refuse to go on once a parameter lives elsewhere: it would no longer see the updates."""
        if [parameter.data_ptr() for parameter in self._parameters] != self._addresses:
            raise BackendError(
                "a parameter was moved or replaced after FusedActorCritic was built on it (module.to, a new .data); "
                "copy into it instead (load_state_dict, copy_), or build FusedActorCritic again"
            )


def lay_out(parts: Perceptrons) -> tuple[FlatParameters, Network]:
    """Put all parameters into one buffer and describe the layers by views of it."""
    actor, critic, activation, sizes, log_std = parts
    shared = actor[0] is critic[0]
    # Modules side by side that read the same columns are one product: first layers, and the heads of a shared trunk.
    steps: list[tuple[list[nn.Linear], bool]] = []
    for depth, (left, right) in enumerate(zip(actor, critic, strict=True)):
        steps.append(([left], False) if left is right else ([left, right], shared or depth == 0))
    groups: list[list[torch.Tensor]] = []
    for modules, merged in steps:
        weights = [module.weight for module in modules]
        groups += [weights] if merged else [[weight] for weight in weights]
        groups.append([module.bias for module in modules])
    if log_std is not None:
        groups.append([log_std])
    flat = FlatParameters(groups)
    *hidden, last = (_layer(flat, modules, merged) for modules, merged in steps)
    deviations: NDArray = np.zeros(0, np.float32) if log_std is None else log_std.detach().numpy().reshape(-1)
    options = np.array([] if sizes is None else sizes, np.int64)
    offset = 0 if log_std is None else flat.offset(log_std)
    return flat, Network(actor[0].in_features, tuple(hidden), last, options, deviations, offset, activation)


def _layer(flat: FlatParameters, modules: list[nn.Linear], merged: bool) -> Layer:
    blocks = []
    read = wrote = 0
    for members in [modules] if merged else [[module] for module in modules]:
        inputs, outputs = members[0].in_features, sum(member.out_features for member in members)
        weight = flat.view(flat.values, [member.weight for member in members], (outputs, inputs))
        columns = slice(read, read + inputs), slice(wrote, wrote + outputs)
        blocks.append(Block(weight, *columns, flat.offset(members[0].weight)))
        read += inputs
        wrote += outputs
    biases = [module.bias for module in modules]
    width = sum(module.out_features for module in modules)
    return Layer(tuple(blocks), flat.view(flat.values, biases, (width,)).numpy(), flat.offset(biases[0]), width)
