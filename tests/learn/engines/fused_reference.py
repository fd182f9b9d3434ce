"""The slow obvious PPO update, by autograd in double precision, that the fused one is compared with."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from velodrome.learn.config import PPOConfig
from velodrome.learn.engines.cpu.network import FusedActorCritic
from velodrome.learn.engines.cpu.perceptrons import Perceptrons
from velodrome.learn.engines.cpu.reading import FlatRollout, WindowedObservations
from velodrome.tables.windows import window_at

FUNCTIONS = {"tanh": torch.tanh, "relu": torch.relu, "silu": nn.functional.silu, "gelu": nn.functional.gelu}


class Parts(NamedTuple):
    """The modules of an actor-critic and how its actions are distributed."""

    actor: list[nn.Linear]
    critic: list[nn.Linear]
    activation: str
    sizes: list[int] | None
    log_std: nn.Parameter | None

    def fused(self, **options: Any) -> FusedActorCritic:
        return FusedActorCritic(Perceptrons(*self), **options)

    def parameters(self) -> list[nn.Parameter]:
        modules = {id(module): module for module in (*self.actor, *self.critic)}.values()
        found = [parameter for module in modules for parameter in (module.weight, module.bias)]
        return found if self.log_std is None else [*found, self.log_std]

    def double(self) -> Parts:
        """A copy in double precision; what was shared is shared there too."""
        modules, log_std = copy.deepcopy((nn.ModuleList([*self.actor, *self.critic]), self.log_std))
        modules.double()
        depth = len(self.actor)
        log_std = None if log_std is None else nn.Parameter(log_std.detach().double())
        return Parts(list(modules[:depth]), list(modules[depth:]), self.activation, self.sizes, log_std)


def make_parts(
    features: int, hidden: Sequence[int], *, sizes: list[int] | None = None, actions: int = 0, shared: bool = False,
    activation: str = "tanh", seed: int = 0, critic_hidden: Sequence[int] | None = None,
) -> Parts:  # fmt: skip
    torch.manual_seed(seed)
    outputs = sum(sizes) if sizes else actions
    actor = _layers([features, *hidden, outputs])
    critic = [*actor[:-1], nn.Linear(hidden[-1], 1)] if shared else _layers([features, *(critic_hidden or hidden), 1])
    log_std = None if sizes else nn.Parameter(torch.randn(actions) * 0.3 - 0.5)
    return Parts(actor, critic, activation, sizes, log_std)


def _layers(widths: list[int]) -> list[nn.Linear]:
    return [nn.Linear(before, after) for before, after in itertools.pairwise(widths)]


def make_rollout(parts: Parts, count: int, seed: int = 0, observations: Any = None) -> FlatRollout:
    """Random samples whose probability ratios lie on both sides of the clipping."""
    generator = torch.Generator().manual_seed(seed)
    if observations is None:
        observations = torch.randn(count, parts.actor[0].in_features, generator=generator)
    if parts.sizes:
        actions = torch.stack([torch.randint(0, n, (count,), generator=generator) for n in parts.sizes], 1)
    else:
        actions = torch.randn(count, parts.actor[-1].out_features, generator=generator)
    reference = parts.double()
    with torch.no_grad():
        policy, values = outputs_of(reference, flat_observations(observations).double())
        log_prob, _ = log_prob_and_entropy(reference, policy, actions)
    noise = torch.randn(4, count, generator=generator)
    return FlatRollout(
        observations=observations,
        actions=actions[:, 0].contiguous() if parts.sizes and len(parts.sizes) == 1 else actions,
        old_log_prob=log_prob.float() + 0.3 * noise[0],
        advantages=2.0 * noise[1] + 0.5,
        returns=values.float() + noise[2],
        old_values=values.float() + 0.3 * noise[3],
    )


def flat_observations(observations: Any) -> torch.Tensor:
    if not isinstance(observations, WindowedObservations):
        return observations
    rows = []
    for cursor, values in zip(observations.cursors.tolist(), observations.values, strict=True):
        windows = range(len(observations.windows.length))
        found = [torch.tensor(window_at(observations.windows, w, cursor)).reshape(-1) for w in windows]
        rows.append(torch.cat([*found, values]))
    return torch.stack(rows)


def outputs_of(parts: Parts, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    function = FUNCTIONS[parts.activation]
    found = []
    for layers in (parts.actor, parts.critic):
        hidden = observations
        for layer in layers[:-1]:
            hidden = function(layer(hidden))
        found.append(layers[-1](hidden))
    return found[0], found[1][:, 0]


def log_prob_and_entropy(parts: Parts, policy: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if parts.sizes:
        choices = [torch.distributions.Categorical(logits=logits) for logits in policy.split(parts.sizes, 1)]
        columns = actions.reshape(len(policy), -1).T
        log_prob = sum(choice.log_prob(column) for choice, column in zip(choices, columns, strict=True))
        return log_prob, sum(choice.entropy() for choice in choices)
    assert parts.log_std is not None
    normal = torch.distributions.Normal(policy, parts.log_std.exp().expand_as(policy))
    return normal.log_prob(actions.to(policy.dtype)).sum(1), normal.entropy().sum(1)


def reference_losses(
    parts: Parts, rows: torch.Tensor, rollout: FlatRollout, config: PPOConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss of PPO as in CleanRL, whose gradient is what the fused update must write, and its parts."""
    observations = flat_observations(rollout.observations)[rows].double()
    policy, values = outputs_of(parts, observations)
    log_prob, entropy = log_prob_and_entropy(parts, policy, rollout.actions[rows])
    log_ratio = log_prob - rollout.old_log_prob[rows].double()
    ratio = log_ratio.exp()
    advantages = rollout.advantages[rows].double()
    if config.normalise_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std(correction=0) + 1e-8)
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - config.clip, 1 + config.clip)).mean()
    returns, old_values = rollout.returns[rows].double(), rollout.old_values[rows].double()
    squares = (values - returns) ** 2
    if config.value_clip is not None:
        clipped = old_values + (values - old_values).clamp(-config.value_clip, config.value_clip)
        squares = torch.max(squares, (clipped - returns) ** 2)
    value_loss = 0.5 * squares.mean()
    total = policy_loss + config.value_weight * value_loss - config.entropy * entropy.mean()
    total = total + config.kl_penalty * (ratio - 1 - log_ratio).mean()
    return total, {
        "policy": policy_loss,
        "value": value_loss,
        "entropy": entropy.mean(),
        "approximate_kl": ((ratio - 1) - log_ratio).mean(),
        "clip_fraction": ((ratio - 1).abs() > config.clip).double().mean(),
    }
