"""The actor-critic: two trunks (or one), a head for the action distribution and one for the value."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium
import torch
from torch import Tensor, nn

from velodrome.errors import ConfigError
from velodrome.learn.actions import Distribution, Gaussian, distribution_for
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.instruments import ContextHead, InstrumentFeatures, InstrumentHead, InstrumentTrunk
from velodrome.learn.networks.layers import ACTIVATIONS, BarEncoding, encode_bars, linear
from velodrome.learn.networks.trunks import RecurrentTrunk, Trunk, UserTrunk, make_trunk
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank

Encoding = tuple[BarEncoding, BarEncoding]  # of the actor and of the critic
PLAIN = (nn.Linear, *ACTIVATIONS.values())  # layers of a plain perceptron
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
            widths = self.distribution.counts or (1,) * self.distribution.width  # of each component of an action
            self.policy_head = InstrumentHead(self.actor, widths, POLICY_GAIN)
            self.value_head = ContextHead(self.critic, 1, 1.0)
        else:
            assert not isinstance(self.critic, InstrumentTrunk)
            self.policy_head = linear(self.actor.out_features, self.distribution.width, POLICY_GAIN)
            self.value_head = linear(self.critic.out_features, 1, 1.0)
        self.log_std: nn.Parameter | None = None
        if isinstance(self.distribution, Gaussian):
            self.log_std = nn.Parameter(torch.full((self.distribution.deviations,), config.initial_log_std))
        self.shared, self.layer_norm, self.dropout = config.shared, config.layer_norm, config.dropout
        self.trunks = (self.actor,) if config.shared else (self.actor, self.critic)
        self.memory_size = sum(trunk.memory_size for trunk in self.trunks)
        self.recurrent = self.memory_size > 0  # carries memory from step to step
        self.encoded_width = sum(trunk.encoded_width for trunk in self.trunks)  # floats of a bar's encoding
        # A user's own network decides for itself what to do with windows.
        self.can_encode_bars = bool(shape.windows) and not isinstance(self.actor, UserTrunk)

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

    def decide(self, observation: Observation) -> Tensor:
        """Return the distribution's parameters, [n, width], as `forward` does, without a value; not with memory."""
        return self.policy_head(self.actor(observation, None, None)).float()

    def sequence(
        self, observation: Observation, bank: WindowBank | None, encoding: Encoding | None, memory: Tensor,
        starts: Tensor | None,
    ) -> Outputs:  # fmt: skip
        """Run a recurrent policy over T steps of n environments, given flat as [T·n], from the memory before them.

        starts: [T, n], true where a step is the first of an episode, before which the memory is forgotten; None if
        there is one step and the memory is already as it should be.
        """
        steps = 1 if starts is None else starts.shape[0]
        ends: list[Tensor] = []
        outputs: list[Tensor] = []
        for index, (trunk, state) in enumerate(zip(self.trunks, memory.chunk(len(self.trunks), 1), strict=True)):
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
        found = [encode_bars(trunk.first, bank) for trunk in self.trunks if not isinstance(trunk, UserTrunk)]
        return found[0], found[-1]

    def _heads(
        self, actor: Tensor | InstrumentFeatures, critic: Tensor | InstrumentFeatures, memory: Tensor
    ) -> Outputs:
        return Outputs(self.policy_head(actor).float(), self.value_head(critic).float().squeeze(1), memory)

    def acting_parameters(self) -> list[nn.Parameter]:
        """Return what the policy acts by and the critic has no part in."""
        if self.shared:
            raise ConfigError(
                "ppo.critic_first: the critic cannot learn alone while it shares its layers with the policy; set "
                "ppo.critic_first = 0, or network.shared = false."
            )
        own = [*self.actor.parameters(), *self.policy_head.parameters()]
        return own if self.log_std is None else [*own, self.log_std]

    def linear_layers(self) -> tuple[list[nn.Linear], list[nn.Linear]] | None:
        """Return the layers of the actor and of the critic if they are plain perceptrons, else None."""
        found: list[list[nn.Linear]] = []
        for trunk, head in ((self.actor, self.policy_head), (self.critic, self.value_head)):
            if type(trunk) is not Trunk or any(type(layer) not in PLAIN for layer in trunk.body):
                return None
            if not hasattr(trunk.first, "layer"):
                return None
            body = [layer for layer in trunk.body if isinstance(layer, nn.Linear)]
            found.append([trunk.first.layer, *body, head])  # type: ignore[list-item]
        return found[0], found[1]
