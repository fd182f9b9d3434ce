"""The layers that the CPU's loops work on, and why they cannot work on others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from velodrome.errors import did_you_mean
from velodrome.learn.engines.cpu.activations import ACTIVATIONS


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
        reasons = (reason for check in CHECKS for reason in check(self))
        return next(reasons, None)


def _layers(parts: Perceptrons) -> Iterator[str]:
    for name, layers in (("actor", parts.actor), ("critic", parts.critic)):
        if len(layers) < 2:
            yield f"the {name} needs a hidden layer, received {len(layers)} layers"
        for position, layer in enumerate(layers):
            yield from _layer(f"layer {position} of the {name}", layer)
            before = layers[position - 1] if position else None
            if before is not None and layer.in_features != before.out_features:
                taken, given = layer.in_features, before.out_features
                yield f"layer {position} of the {name} takes {taken} inputs, but the layer before gives {given}"


def _layer(where: str, layer: Any) -> Iterator[str]:
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


def _trunks(parts: Perceptrons) -> Iterator[str]:
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


def _activation(parts: Perceptrons) -> Iterator[str]:
    name = parts.activation
    if name not in ACTIVATIONS:
        yield f"activation {name!r} is not fused; there are {', '.join(ACTIVATIONS)}.{did_you_mean(name, ACTIVATIONS)}"


def _actions(parts: Perceptrons) -> Iterator[str]:
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


# In this order: a later check relies on what the earlier ones have found.
CHECKS: tuple[Callable[[Perceptrons], Iterator[str]], ...] = (_layers, _trunks, _activation, _actions)
