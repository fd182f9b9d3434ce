"""Which networks the fused update can serve, and why not the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from velodrome.errors import did_you_mean
from velodrome.learn.engines.cpu.kernels import ACTIVATIONS


def cannot_serve(
    actor: Sequence[Any], critic: Sequence[Any], *, activation: str, sizes: Sequence[int] | None = None,
    log_std: Any = None,
) -> str | None:  # fmt: skip
    """Return the reason why `FusedActorCritic` cannot be built on these, or None if it can."""
    return (
        _layers("actor", actor)
        or _layers("critic", critic)
        or _trunks(actor, critic)
        or _activation(activation)
        or _actions(actor, sizes, log_std)
    )


def _layers(name: str, layers: Sequence[Any]) -> str | None:
    if len(layers) < 2:
        return f"the {name} needs a hidden layer, received {len(layers)} layers"
    for position, layer in enumerate(layers):
        where = f"layer {position} of the {name}"
        # A subclass may compute something else.
        if type(layer) is not nn.Linear:
            return f"{where} is {type(layer).__name__}, and only nn.Linear is fused"
        if layer.bias is None:
            return f"{where} has no bias"
        if any(hooks for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks)):
            return f"{where} has hooks, which would not be called"
        for parameter in (layer.weight, layer.bias):
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                return f"{where} is {parameter.dtype} on {parameter.device}; fused is float32 on the CPU"
            if not parameter.requires_grad:
                return f"{where} is frozen (requires_grad is false)"
        if position and layer.in_features != layers[position - 1].out_features:
            return f"{where} takes {layer.in_features} inputs, but the layer before gives " + str(
                layers[position - 1].out_features
            )
    return None


def _trunks(actor: Sequence[nn.Linear], critic: Sequence[nn.Linear]) -> str | None:
    if actor[0].in_features != critic[0].in_features:
        return f"the actor observes {actor[0].in_features} floats and the critic {critic[0].in_features}"
    if len(actor) != len(critic):
        return f"the actor has {len(actor)} layers and the critic {len(critic)}"
    if critic[-1].out_features != 1:
        return f"the critic's last layer has {critic[-1].out_features} outputs instead of 1"
    same = [left is right for left, right in zip(actor, critic, strict=True)]
    if same[-1]:
        return "the actor and the critic share their last layer"
    if any(same) and not all(same[:-1]):
        return "the actor and the critic share some hidden layers but not all"
    modules = [id(layer) for layer in (*actor, *(layer for layer in critic if not any(layer is a for a in actor)))]
    if len(set(modules)) != len(modules):
        return "a layer appears twice"
    tensors = [id(p) for layer in {id(m): m for m in (*actor, *critic)}.values() for p in (layer.weight, layer.bias)]
    if len(set(tensors)) != len(tensors):
        return "two layers share a parameter"
    return None


def _activation(activation: str) -> str | None:
    if activation not in ACTIVATIONS:
        return f"activation {activation!r} is not fused; there are {', '.join(ACTIVATIONS)}." + did_you_mean(
            activation, ACTIVATIONS
        )
    return None


def _actions(actor: Sequence[nn.Linear], sizes: Sequence[int] | None, log_std: Any) -> str | None:
    outputs = actor[-1].out_features
    if (sizes is None) == (log_std is None):
        return "give sizes for discrete actions or log_std for continuous ones, one of the two"
    if sizes is not None:
        if not len(sizes) or min(sizes) < 1 or sum(sizes) != outputs:
            return f"sizes {list(sizes)} must be positive and add up to the actor's {outputs} outputs"
        return None
    if not isinstance(log_std, nn.Parameter) or log_std.dtype != torch.float32 or log_std.numel() != outputs:
        return f"log_std must be a parameter of {outputs} float32 numbers, one per action"
    if not log_std.requires_grad or log_std.device.type != "cpu":
        return "log_std must be trainable and on the CPU"
    return None
