"""Deep Q-learning (Mnih et al., 2015; double, duelling, n-step and prioritised if asked for), on one page.

Act by the largest value, now and then at random; draw transitions from a replay buffer, and move the values of their
actions towards what followed. The rounds of it, and what else surrounds the algorithm, are in `replaying.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from velodrome.learn.actions import Categorical
from velodrome.learn.config import DQNConfig, NetworkConfig
from velodrome.learn.engines.optimiser import FEWEST_SAMPLES, BatchNorm, Optimiser
from velodrome.learn.learner import only
from velodrome.learn.networks.layers import BarEncoding, DropoutMasks, worth_encoding
from velodrome.learn.networks.q_network import QNetwork, action_count
from velodrome.learn.replaying import ReplayLearner
from velodrome.rollout.observation import Observation
from velodrome.rollout.replay import Transitions
from velodrome.rollout.worlds import Worlds

MOST_ENCODED = 1_000_000  # bars; at a width of 64 they are 256 MB
ADAM_EPSILON = 1e-8  # small: rewards are not scaled by default, and gradients of market rewards are tiny


class DQN(ReplayLearner):
    """One Q-network, its target, its environments and its memory."""

    reported = ("loss/value", "value/mean_q", "optimiser/gradient_norm")
    config: DQNConfig
    policy: QNetwork

    def __init__(
        self, worlds: Worlds, network: NetworkConfig, config: DQNConfig, *, total_steps: int, seed: int
    ) -> None:
        exponent = config.priority_exponent if config.prioritised else None
        how: dict[str, Any] = {"n_step": config.n_step, "priority_exponent": exponent, "section": "dqn"}
        choices = Categorical(action_count(worlds.action_space))
        super().__init__(worlds, config, total_steps, seed, choices, **how)
        device = worlds.device
        self.policy = QNetwork(worlds.shape, worlds.action_space, network, duelling=config.duelling).to(device)
        self.target = copy.deepcopy(self.policy).eval().requires_grad_(False)
        self.optimiser = Optimiser(self.policy, config, epsilon=ADAM_EPSILON)
        self.epsilon = torch.zeros((), device=device)  # share of random actions
        self.correction = torch.zeros((), dtype=torch.float64, device=device)  # power of the importance weights
        self.splitting, self.parts = self, 1  # of a batch, whose gradients are added up: the same step in less memory
        self.encode_batch = self._worth_encoding(config.batch_size)
        # The target's weights change rarely: its encodings serve many batches, and are kept unless they are many.
        self.is_disturbed = worlds.bank is not None and worlds.bank.is_disturbed
        batches = config.updates if self.is_disturbed else config.target_every
        served = min(config.batch_size * batches, MOST_ENCODED)
        self.target_bars: BarEncoding | None = None
        if worlds.bank is not None and config.gamma > 0.0 and self._worth_encoding(served):
            table = torch.zeros((len(worlds.bank.bars), self.target.encoded_width), device=device)
            self.target_bars = BarEncoding(table, worlds.bank.position)
            self._encode_target()
        self.dropout = DropoutMasks(self.policy, config.compile)
        self.kept: Tensor | None = None  # units, by transition of a batch
        if self.dropout.width:
            self.kept = torch.ones((config.batch_size, self.dropout.width), dtype=torch.bool, device=device)
        self.values = torch.compile(self.policy) if config.compile else self.policy
        self.target_values = torch.compile(self.target) if config.compile else self.target
        self._prepare()
        worlds.reset(seed)

    # Collect

    def _begin_round(self, scheduled: Mapping[str, float]) -> None:
        self.optimiser.set_rate(scheduled["learning_rate"])
        self.epsilon.fill_(scheduled["epsilon"])
        self.correction.fill_(scheduled.get("importance", 0.0))
        if self.is_disturbed:
            self._encode_target()

    def _begin_rollout(self) -> BarEncoding | None:
        self._train(False)
        return self._encode(self._worth_encoding(self.actions.numel()))

    def _act(self, observation: Observation, prepared: BarEncoding | None) -> Tensor:
        """Choose the actions of the largest values, and now and then others."""
        with self._precision():
            values = self.values(observation, self.worlds.bank, prepared)
        return self._explore(values.argmax(1))

    def _explore(self, greedy: Tensor) -> Tensor:
        """Replace a share epsilon of the actions by random ones."""
        size, device = greedy.shape, greedy.device
        other = torch.randint(self.policy.actions, size, device=device, generator=self.generator)
        explores = torch.rand(size, device=device, generator=self.generator) < self.epsilon
        return torch.where(explores, other, greedy)

    def _told(self) -> dict[str, Tensor]:
        return {"policy/epsilon": self.epsilon}

    # Learn

    def _learn(self) -> None:
        """Take one gradient step on transitions from the buffer."""
        count = self.config.batch_size
        batch = self.replay.sample(count, self.generator, self.correction)
        kept = None if self.kept is None else self.dropout.draw(self.kept, self.generator)
        ends = [count * part // self.parts for part in range(self.parts + 1)]
        self.optimiser.forget()
        errors, reports = [], []
        for first, end in pairwise(ends):
            part = batch if self.parts == 1 else batch.between(first, end)
            loss, error, mean_value = self._loss(part, None if kept is None else kept[first:end])
            share = (end - first) / count
            (loss if share == 1.0 else loss * share).backward()
            errors.append(error)
            reports.append(torch.stack([loss.detach(), mean_value]) * share)
        norm = self.optimiser.step()
        with torch.no_grad():
            self.replay.set_errors(batch.places, torch.cat(errors))
            self.report += torch.cat([sum(reports[1:], reports[0]), norm.reshape(1)])

    def _loss(self, batch: Transitions, kept: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of transitions, how wrong their values are, and the mean of those. kept: units, by row."""
        wanted = self._wanted(batch)
        self._train(True)
        with self._precision(), self.dropout.applied(kept):
            values = self.values(self.seen(batch.observation), self.worlds.bank, self._encode(self.encode_batch))
        taken = values.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        losses = functional.huber_loss(taken, wanted, reduction="none")
        loss = losses.mean() if batch.weights is None else (losses * batch.weights).mean()
        with torch.no_grad():
            return loss, taken - wanted, taken.mean()

    @torch.no_grad()
    def _wanted(self, batch: Transitions) -> Tensor:
        """Return what the actions turned out to be worth: their rewards and the value of the state they led to."""
        rewards = self.rewards_of(batch.rewards)
        if self.config.gamma == 0.0:
            return rewards
        bank, following = self.worlds.bank, self.seen(batch.following)
        with self._precision():
            values = self.target_values(following, bank, self.target_bars)
            if not self.config.double:
                return rewards + batch.discount * values.amax(1)
            # One network chooses and the other one values: the largest of noisy values is too large.
            self._train(False)
            best = self.values(following, bank, self._encode(self.encode_batch)).argmax(1, keepdim=True)
        return rewards + batch.discount * values.gather(1, best).squeeze(1)

    @torch.no_grad()
    def _copy_to_target(self) -> None:
        """Let the target be what the network is now."""
        for old, new in zip(self.target.state_dict().values(), self.policy.state_dict().values(), strict=True):
            old.copy_(new)
        self._encode_target()

    @torch.no_grad()
    def _encode_target(self) -> None:
        if self.target_bars is not None and self.worlds.bank is not None:
            with self._precision():
                self.target.encode_bars(self.worlds.bank, self.target_bars.table)

    def _end_update(self) -> None:
        if self.updates % self.config.target_every == 0:
            self._copy_to_target()

    # Around it

    def _worth_encoding(self, samples: int) -> bool:
        return worth_encoding(self.policy, self.worlds.bank, self.config.per_bar, samples)

    def _encode(self, worth: bool) -> BarEncoding | None:
        if not worth or self.worlds.bank is None:
            return None
        with self._precision():
            return self.policy.encode_bars(self.worlds.bank)

    def can_split(self) -> bool:
        """Return whether batches can be cut into twice as many parts; batch norms see all of a batch at once."""
        enough = self.config.batch_size >= 2 * self.parts * FEWEST_SAMPLES
        return enough and not any(isinstance(module, BatchNorm) for module in self.policy.modules())

    def split(self, parts: int) -> None:
        """Learn from each batch in this many parts."""
        self.parts = parts
        self.encode_batch = self._worth_encoding(self.config.batch_size // parts)

    def own_state(self) -> tuple[dict[str, Mapping[str, Tensor]], dict[str, Any]]:
        """Return the target, the optimiser's state and the transitions to replay."""
        tensors, plain = super().own_state()
        return {"target": self.target.state_dict(), "optimiser": self.optimiser.state(), **tensors}, plain

    def load_own_state(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Take over what `own_state` returned."""
        super().load_own_state(tensors, plain)
        self.policy.load_state_dict(only(tensors, "target"))
        self._copy_to_target()
        self.optimiser.load_state(only(tensors, "optimiser"))
