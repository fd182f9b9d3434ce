"""Soft actor-critic (Haarnoja et al., 2018; the entropy's weight is learnt, as in their second paper), on one page.

Act by drawing from the policy; draw transitions from a replay buffer, move the values of their actions towards what
followed, and the policy towards actions of higher value, as far as its entropy allows. The rounds of it, and what else
surrounds the algorithm, are in `replaying.py`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from velodrome.learn.config import NetworkConfig, SACConfig
from velodrome.learn.engines.optimiser import Optimiser
from velodrome.learn.learner import only
from velodrome.learn.networks.soft_actor_critic import SoftCritics, SquashedActor, SquashedGaussian, squashed_for
from velodrome.learn.replaying import ReplayLearner
from velodrome.rollout.observation import Observation
from velodrome.rollout.replay import Transitions
from velodrome.rollout.worlds import Worlds

ADAM_EPSILON = 1e-8


class SAC(ReplayLearner):
    """One policy, two critics and their targets, the weight of its entropy, its environments and its memory."""

    reported = ("loss/value", "loss/policy", "value/mean_q", "policy/entropy", "optimiser/gradient_norm")
    config: SACConfig
    policy: SquashedActor
    acts_by: SquashedGaussian

    def __init__(
        self, worlds: Worlds, network: NetworkConfig, config: SACConfig, *, total_steps: int, seed: int
    ) -> None:
        device = worlds.device
        acts_by = squashed_for(worlds.action_space).to(device)
        super().__init__(worlds, config, total_steps, seed, acts_by, section="sac")
        self.policy = SquashedActor(worlds.shape, worlds.action_space, network).to(device)
        self.critics = SoftCritics(worlds.shape, acts_by, network).to(device)
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.entropy = EntropyWeight(config, acts_by.shape[0]).to(device)
        self.optimisers = {
            name: Optimiser(part, config, epsilon=ADAM_EPSILON)
            for name, part in (("policy", self.policy), ("critics", self.critics), ("entropy", self.entropy))
        }
        self.explores = torch.ones((), dtype=torch.bool, device=device)  # at random, whatever the policy says
        self._prepare()
        worlds.reset(seed)

    # Collect

    def _begin_round(self, scheduled: Mapping[str, float]) -> None:
        for optimiser in self.optimisers.values():
            optimiser.set_rate(scheduled["learning_rate"])
        self.explores.fill_(self.steps < self.config.learning_starts)

    def _begin_rollout(self) -> None:
        self._train(False)

    def _act(self, observation: Observation, prepared: None) -> Tensor:
        """Draw actions from the policy; before learning starts, from all of their range."""
        with self._precision():
            parameters = self.policy(observation, self.worlds.bank)
        drawn, _ = self.acts_by.draw(parameters, self.generator)
        return torch.where(self.explores, self.acts_by.uniform(len(drawn), self.generator), drawn)

    def _told(self) -> dict[str, Tensor]:
        return {"policy/entropy_weight": self.entropy.weight()}

    # Learn

    def _learn(self) -> None:
        """Take one gradient step each of the entropy's weight, the critics and the policy, on drawn transitions."""
        batch = self.replay.sample(self.config.batch_size, self.generator)
        batch = batch._replace(observation=self._shown(batch.observation), following=self._shown(batch.following))
        weight = self.entropy.weight()
        self._train(True)
        with self._precision():
            parameters = self.policy(batch.observation)
        actions, log_prob = self.acts_by.draw(parameters, self.generator)
        if self.entropy.learns:
            self.optimisers["entropy"].descend(self.entropy.loss(log_prob.detach()))
        value_loss, mean_value = self._value_loss(batch, self._wanted(batch, weight))
        norm = self.optimisers["critics"].descend(value_loss)
        with frozen(self.critics), self._precision():
            worth = self.critics(batch.observation, actions).amin(0)
        policy_loss = (weight * log_prob - worth).mean()
        self.optimisers["policy"].descend(policy_loss)
        with torch.no_grad():
            followers: list[Tensor] = list(self.targets.parameters())
            followed: list[Tensor] = list(self.critics.parameters())
            torch._foreach_lerp_(followers, followed, self.config.target_share)
            if self.policy.acts_otherwise:  # as batch norms of a user's own network do, by what they count
                for follower, own in zip(self.targets.buffers(), self.critics.buffers(), strict=True):
                    follower.copy_(own)
            told = value_loss, policy_loss, mean_value, -log_prob.mean(), norm
            self.report += torch.stack([number.detach() for number in told])

    def _shown(self, observation: Observation) -> Observation:
        """Return an observation as all networks see it, with its windows gathered once for all of them."""
        seen, bank = self.seen(observation), self.worlds.bank
        if bank is None or seen.cursor is None:
            return seen
        return seen._replace(cursor=None, windows=bank.gather(seen.cursor))

    @torch.no_grad()
    def _wanted(self, batch: Transitions, weight: Tensor) -> Tensor:
        """Return what the actions turned out to be worth: rewards, the value of what comes next, and its entropy."""
        with self._precision():
            actions, log_prob = self.acts_by.draw(self.policy(batch.following), self.generator)
            values = self.targets(batch.following, actions).amin(0)
        return self.rewards_of(batch.rewards) + batch.discount * (values - weight * log_prob)

    def _value_loss(self, batch: Transitions, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of both critics, and the mean of their values."""
        with self._precision():
            values = self.critics(batch.observation, batch.actions)
        return 0.5 * (values - wanted).square().mean(1).sum(), values.mean()

    # Around it

    def own_state(self) -> tuple[dict[str, Mapping[str, Tensor]], dict[str, Any]]:
        """Return critics, targets, the entropy's weight, the optimisers' states and the transitions to replay."""
        tensors, plain = super().own_state()
        parts = {name: part.state_dict() for name, part in self._modules().items()}
        states = {f"optimiser_{name}": optimiser.state() for name, optimiser in self.optimisers.items()}
        return {**parts, **states, **tensors}, plain

    def load_own_state(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Take over what `own_state` returned."""
        super().load_own_state(tensors, plain)
        for name, part in self._modules().items():
            part.load_state_dict(only(tensors, name))
        for name, optimiser in self.optimisers.items():
            optimiser.load_state(only(tensors, f"optimiser_{name}"))

    def _modules(self) -> dict[str, nn.Module]:
        return {"critics": self.critics, "targets": self.targets, "entropy": self.entropy}


class EntropyWeight(nn.Module):
    """How much a nat of entropy is worth in rewards: as given, or learnt so that the entropy stays at a target."""

    given: Tensor

    def __init__(self, config: SACConfig, numbers: int) -> None:
        super().__init__()
        self.learns = config.entropy is None
        self.target = -float(numbers) if config.entropy_target is None else config.entropy_target
        # The logarithm is learnt, so that the weight stays above 0.
        self.logarithm = nn.Parameter(torch.tensor(math.log(config.entropy_start)))
        self.register_buffer("given", torch.tensor(config.entropy or 0.0), persistent=False)

    @torch.no_grad()
    def weight(self) -> Tensor:
        """Return the weight."""
        return self.logarithm.exp() if self.learns else self.given

    def loss(self, log_prob: Tensor) -> Tensor:
        """Return what is small where the entropy is at its target. log_prob: of actions that were drawn, [n]."""
        return -(self.logarithm * (log_prob + self.target)).mean()


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Let gradients pass through a network to what it is given, and leave its own weights without."""
    network.requires_grad_(False)
    try:
        yield
    finally:
        network.requires_grad_(True)
