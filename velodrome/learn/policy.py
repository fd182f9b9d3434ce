"""The actor-critic: two trunks (or one), a head for the action distribution and one for the value."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import torch
from torch import Tensor, nn

from velodrome.learn.actions import Distribution, Gaussian, component_widths, distribution_for
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.instruments import ContextHead, InstrumentFeatures, InstrumentHead, InstrumentTrunk
from velodrome.learn.networks.layers import BarEncoding, linear
from velodrome.learn.networks.trunks import RecurrentTrunk, Trunk, UserTrunk, make_trunk
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank

Encoding = tuple[BarEncoding, BarEncoding]  # of the actor and of the critic
Features = Tensor | InstrumentFeatures
POLICY_GAIN = 0.01  # a first policy close to uniform explores; this is the usual choice


class Outputs(NamedTuple):
    """The outputs of a policy for n observations."""

    parameters: Tensor  # [n, width] of the action distribution, float32
    value: Tensor  # [n] float32
    memory: Tensor  # [n, memory]; memory is 0 wide unless the network is recurrent


class ActorCritic(nn.Module):
    """A policy and its value function."""

    def __init__(self, shape: ObservationShape, space: gymnasium.Space, config: NetworkConfig) -> None:
        super().__init__()
        self.actor = make_trunk(shape, config)
        self.critic = self.actor if config.shared else make_trunk(shape, config)
        # As many parameters for any number of instruments: they share a deviation.
        tied = self.actor.count if isinstance(self.actor, InstrumentTrunk) else 1
        self.distribution: Distribution = distribution_for(space, config.head, tied)
        self.policy_head: nn.Module
        self.value_head: nn.Module
        if isinstance(self.actor, InstrumentTrunk):
            assert isinstance(self.critic, InstrumentTrunk)
            self.policy_head = InstrumentHead(self.actor, component_widths(self.distribution), POLICY_GAIN)
            self.value_head = ContextHead(self.critic, 1, 1.0)
        else:
            assert not isinstance(self.critic, InstrumentTrunk)
            self.policy_head = linear(self.actor.out_features, self.distribution.width, POLICY_GAIN)
            self.value_head = linear(self.critic.out_features, 1, 1.0)
        gaussian = self.distribution if isinstance(self.distribution, Gaussian) else None
        self.log_std = (
            None if gaussian is None else nn.Parameter(torch.full((gaussian.deviations,), config.initial_log_std))
        )
        self.shared = config.shared
        self.memory_size = self.actor.memory_size if config.shared else self.actor.memory_size + self.critic.memory_size
        # A user's own network decides for itself what to do with windows.
        self.can_encode_bars = bool(shape.windows) and not isinstance(self.actor, UserTrunk)

    @property
    def encoded_width(self) -> int:
        """Floats of a bar's encoding, of both trunks together."""
        trunks = (self.actor,) if self.shared else (self.actor, self.critic)
        return sum(0 if isinstance(trunk, UserTrunk) else trunk.encoded_width for trunk in trunks)

    @property
    def recurrent(self) -> bool:
        """Whether it carries memory from step to step."""
        return self.memory_size > 0

    def forward(
        self, observation: Observation, bank: WindowBank | None = None, encoding: Encoding | None = None,
        memory: Tensor | None = None,
    ) -> Outputs:  # fmt: skip
        """Return distribution, value and the memory after this step."""
        if self.recurrent:
            assert memory is not None
            return self.sequence(observation, bank, encoding, memory, None)
        actor_bars, critic_bars = encoding or (None, None)
        features = self.actor(observation, bank, actor_bars)
        critic = features if self.shared else self.critic(observation, bank, critic_bars)
        return self._heads(features, critic, observation.values.new_zeros((observation.values.shape[0], 0)))

    def sequence(
        self, observation: Observation, bank: WindowBank | None, encoding: Encoding | None, memory: Tensor,
        starts: Tensor | None,
    ) -> Outputs:  # fmt: skip
        """Run a recurrent policy over T steps of n environments, given flat as [T·n], from the memory before them.

        starts: [T, n], true where a step is the first of an episode, before which the memory is forgotten; None if
        there is one step and the memory is already as it should be.
        """
        steps = 1 if starts is None else starts.shape[0]
        trunks = [self.actor] if self.shared else [self.actor, self.critic]
        ends: list[Tensor] = []
        outputs: list[Tensor] = []
        for index, (trunk, state) in enumerate(zip(trunks, memory.chunk(len(trunks), 1), strict=True)):
            assert isinstance(trunk, RecurrentTrunk)
            bars = None if encoding is None else encoding[index]
            features = trunk.below(observation, bank, bars).unflatten(0, (steps, -1))
            states = []
            for t in range(steps):
                if starts is not None:
                    state = state * ~starts[t].unsqueeze(1)
                state = trunk.step(features[t], state).to(memory.dtype)
                states.append(state)
            outputs.append(torch.cat(states))
            ends.append(state)
        return self._heads(outputs[0], outputs[-1], torch.cat(ends, 1))

    def encode_bars(self, bank: WindowBank) -> Encoding:
        """Compute the market's part of both first layers once per bar."""
        assert not isinstance(self.actor, UserTrunk)
        assert not isinstance(self.critic, UserTrunk)
        actor = self.actor.encode_bars(bank)
        return actor, actor if self.shared else self.critic.encode_bars(bank)

    def _heads(self, actor: Features, critic: Features, memory: Tensor) -> Outputs:
        return Outputs(self.policy_head(actor).float(), self.value_head(critic).float().squeeze(1), memory)

    def linear_layers(self) -> tuple[list[nn.Linear], list[nn.Linear]] | None:
        """Return the layers of the actor and of the critic if they are plain perceptrons, else None."""
        found: list[list[nn.Linear]] = []
        for trunk, head in ((self.actor, self.policy_head), (self.critic, self.value_head)):
            if type(trunk) is not Trunk or any(isinstance(layer, nn.BatchNorm1d) for layer in trunk.body):
                return None
            if not hasattr(trunk.first, "layer"):
                return None
            body = [layer for layer in trunk.body if isinstance(layer, nn.Linear)]
            found.append([trunk.first.layer, *body, head])  # type: ignore[list-item]
        return found[0], found[1]


def network_of_checkpoint(
    shape: ObservationShape, space: gymnasium.Space, settings: NetworkConfig, _saved: dict[str, Any]
) -> ActorCritic:
    """Return a network like the one in a checkpoint."""
    return ActorCritic(shape, space, settings)
