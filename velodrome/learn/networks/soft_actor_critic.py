"""What soft actor-critic acts and learns by: squashed actions, an actor, and two critics that value actions."""

from __future__ import annotations

import math
from dataclasses import replace

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from velodrome.errors import ConfigError
from velodrome.learn.actions import LOG_ROOT_2_PI
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.instruments import ContextHead, InstrumentHead, InstrumentTrunk
from velodrome.learn.networks.q_network import spread_out
from velodrome.learn.networks.trunks import RecurrentTrunk, Trunk, UserTrunk, make_trunk
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank

CRITICS = 2  # the lower of two values counts: the larger of noisy ones is too large
REFUSED = {
    "gru": "SAC replays single steps and cannot carry memory between them",
    "mlp_batch_norm": "batches of SAC's critics hold actions of different policies, whose statistics differ",
}
LOG_2 = math.log(2.0)
LOG_STD_RANGE = (-20.0, 2.0)  # of deviations that a network gives
SingleStepTrunk = Trunk | UserTrunk | InstrumentTrunk


class SquashedGaussian(nn.Module):
    """Independent normal values, squashed by tanh into the range of actions; parameters are means and the logarithms of
    deviations side by side, [n, 2 · size], so that deviations depend on what is seen.

    Densities are those of actions from -1 to 1, whatever the range, as in the papers on soft actor-critic.
    """

    kind = "squashed"
    dtype = torch.float32
    middle: Tensor
    reach: Tensor

    def __init__(self, low: Tensor, high: Tensor) -> None:
        super().__init__()
        size = len(low)
        self.width = 2 * size
        self.counts: tuple[int, ...] = ()
        self.shape: tuple[int, ...] = (size,)
        # Not saved with the weights: the action space says them.
        self.register_buffer("middle", 0.5 * (low + high), persistent=False)
        self.register_buffer("reach", 0.5 * (high - low), persistent=False)

    def draw(self, parameters: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Return actions, [n, size], and the logarithm of their density, [n]; both have gradients."""
        mean, log_std = self.parts(parameters)
        noise = torch.empty_like(mean).normal_(generator=generator)
        value = mean + noise * log_std.exp()
        # The slope of tanh is 1 − tanh²; written so that it does not vanish where that rounds to 0.
        log_slope = 2.0 * (LOG_2 - value - functional.softplus(-2.0 * value))
        log_prob = -(0.5 * noise.square() + log_std + LOG_ROOT_2_PI + log_slope).sum(1)
        return self.placed(torch.tanh(value)), log_prob

    def sample(self, parameters: Tensor, log_std: Tensor | None, generator: torch.Generator | None) -> Tensor:
        """Draw actions."""
        return self.draw(parameters, generator)[0]

    def mode(self, parameters: Tensor) -> Tensor:
        """Return the actions to play if none are drawn."""
        return self.placed(torch.tanh(self.parts(parameters)[0]))

    def parts(self, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and the logarithms of deviations, [n, size] each."""
        mean, log_std = parameters.float().chunk(2, 1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def placed(self, actions: Tensor) -> Tensor:
        """Return actions from -1 to 1 where they lie in their range."""
        return self.middle + self.reach * actions

    def spread(self, actions: Tensor) -> Tensor:
        """Return actions as numbers from -1 to 1; those whose range is one point are 0."""
        return (actions - self.middle) / torch.where(self.reach > 0.0, self.reach, torch.ones_like(self.reach))

    def uniform(self, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw actions from all of the range alike."""
        drawn = torch.empty((count, *self.shape), device=self.reach.device).uniform_(-1.0, 1.0, generator=generator)
        return self.placed(drawn)


def squashed_for(space: gymnasium.Space) -> SquashedGaussian:
    """Return the squashed distribution over an action space, which must have ends."""
    is_box = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1
    if not is_box or not np.issubdtype(space.dtype, np.floating) or not space.is_bounded():  # type: ignore[attr-defined]
        raise ConfigError(
            f"SAC squashes actions into their range and the action space is {space}; it takes a Box of one dimension, "
            "of floats, whose ends are finite. Wrap the environment so that it has one "
            "(gymnasium.wrappers.TransformAction), or use algorithm = 'ppo'."
        )
    low, high = (torch.from_numpy(end.astype(np.float32)) for end in (space.low, space.high))  # type: ignore[attr-defined]
    return SquashedGaussian(low, high)


class SquashedActor(nn.Module):
    """A policy over bounded continuous actions: a trunk, and the mean and deviation of every number of an action."""

    log_std: None = None  # deviations depend on what is seen, and are among the parameters

    def __init__(self, shape: ObservationShape, space: gymnasium.Space, config: NetworkConfig) -> None:
        super().__init__()
        self.distribution: SquashedGaussian = squashed_for(space)
        self.actor = single_step_trunk(shape, config)
        self.acts_otherwise = isinstance(self.actor, UserTrunk)  # than it learns: a user's own network may do anything
        size = len(self.distribution.middle)
        self.policy_head, self.deviation_head = (_head(self.actor, size) for _ in range(2))

    def forward(self, observation: Observation, bank: WindowBank | None = None, encoding: None = None) -> Tensor:
        """Return the parameters of the distribution over actions, [n, 2 · size] float32."""
        features = self.actor(observation, bank, encoding)
        return torch.cat([self.policy_head(features), self.deviation_head(features)], 1).float()


class SoftCritics(nn.Module):
    """Values of actions, by two networks that begin with other weights."""

    def __init__(self, shape: ObservationShape, distribution: SquashedGaussian, config: NetworkConfig) -> None:
        super().__init__()
        self.distribution = distribution
        layout = shape.instruments
        if layout is not None:  # the first numbers of an action are the instruments' own
            layout = replace(layout, own=(*layout.own, shape.values))
        joined = replace(shape, values=shape.values + len(distribution.middle), instruments=layout)
        trunks = [single_step_trunk(joined, config) for _ in range(CRITICS)]
        self.trunks, self.heads = nn.ModuleList(trunks), nn.ModuleList(_value_head(trunk) for trunk in trunks)

    def forward(self, observation: Observation, actions: Tensor, bank: WindowBank | None = None) -> Tensor:
        """Return the values of actions, [critics, n] float32."""
        values = torch.cat([observation.values, self.distribution.spread(actions)], 1)
        seen = observation._replace(values=values)
        found = [head(trunk(seen, bank, None)) for trunk, head in zip(self.trunks, self.heads, strict=True)]
        return torch.cat(found, 1).float().T


def single_step_trunk(shape: ObservationShape, config: NetworkConfig) -> SingleStepTrunk:
    """Return a trunk that remembers nothing, whose layers begin as torch begins them."""
    if config.kind in REFUSED:
        raise ConfigError(
            f"network.kind = {config.kind!r}: {REFUSED[config.kind]}; use 'mlp', 'conv', 'instruments' or a network of "
            "your own, or algorithm = 'ppo'."
        )
    trunk = make_trunk(shape, config)
    assert not isinstance(trunk, RecurrentTrunk)
    if not isinstance(trunk, UserTrunk):
        spread_out(trunk)
    return trunk


def _head(trunk: SingleStepTrunk, size: int) -> nn.Module:
    """Return the last layer of a policy, for so many numbers."""
    if isinstance(trunk, InstrumentTrunk):
        return InstrumentHead(trunk, (1,) * size, 1.0)
    return nn.Linear(trunk.out_features, size)


def _value_head(trunk: SingleStepTrunk) -> nn.Module:
    return ContextHead(trunk, 1, 1.0) if isinstance(trunk, InstrumentTrunk) else nn.Linear(trunk.out_features, 1)
