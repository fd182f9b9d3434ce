"""Proximal policy optimisation (Schulman et al., 2017): collect, estimate advantages, improve; on one page.

An engine carries out what is here called act, value and learn: by autograd (`engines/autograd.py`), or for perceptrons
by compiled code (`engines/cpu`, `engines/gpu`). What surrounds the algorithm is in `learner.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from velodrome.errors import ConfigError, LearningError
from velodrome.learn.actions import Distribution
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.engines.autograd import Batch, Task
from velodrome.learn.engines.choice import make_engine
from velodrome.learn.learner import Average, Learner, only, unchanged
from velodrome.learn.policy import ActorCritic, Outputs
from velodrome.rollout import ranks
from velodrome.rollout.advantages import write_advantages
from velodrome.rollout.launch import Captured
from velodrome.rollout.storage import Rollout, resized
from velodrome.rollout.worlds import Worlds

LOSSES = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/clip_fraction", "optimiser/gradient_norm")
KL = LOSSES.index("policy/kl")


class PPO(Learner):
    """One policy, its environments and its optimiser. `iterate` is one rollout and one update."""

    config: PPOConfig
    policy: ActorCritic

    def __init__(
        self, worlds: Worlds, network: NetworkConfig, config: PPOConfig, *, total_steps: int, seed: int
    ) -> None:
        layout = worlds.shape.instruments if network.kind == "instruments" else None
        alike = [range(first, first + layout.count) for first in layout.own] if layout else ()
        super().__init__(worlds, config, total_steps, seed, alike)
        device = worlds.device
        self.policy = ActorCritic(worlds.shape, worlds.action_space, network).to(device)
        self.check_size(worlds.all_envs)
        self.rollout = self._make_rollout()
        task = Task(self.policy, worlds.bank, config, network.activation, ppo_loss)
        self.engine = self.splitting = make_engine(task, self.rollout)
        self.same_on_any_threads = self.engine.same_on_any_threads
        self.memory = torch.zeros((worlds.num_envs, self.policy.memory_size), device=device)
        self.starts = torch.ones(worlds.num_envs, dtype=torch.bool, device=device)
        self.losses = torch.zeros(len(LOSSES), device=device)  # summed over the minibatches of an epoch
        self.loss_sums = torch.zeros(len(LOSSES), device=device)  # and of an update
        self.epochs_done = 0
        self.cuts_twice = torch.zeros((), dtype=torch.bool, device=device)
        self.average = Average(self.policy) if config.average_weights else None
        self._prepare()
        worlds.reset(seed)

    def _make_rollout(self) -> Rollout:
        actions, memory = self.policy.distribution, self.policy.memory_size
        return Rollout(self.config.rollout_length, self.worlds, actions.shape, actions.dtype, memory)

    def _prepare(self) -> None:
        """Decide which parts of an iteration are CUDA graphs; they are captured when they first run."""
        config, worlds = self.config, self.worlds
        self.collect, self.update, self.epoch = self._collect, self._update, self._epoch
        # Environments that step on the host cannot be part of a graph.
        on_device = self.captures_steps()
        # If no environment cuts off two episodes in a rollout, there is one row to value for each environment.
        self.at_most_one_cut = on_device and worlds.shortest_truncation >= config.rollout_length
        if on_device:
            self.collect = Captured(self._collect, self.generator)
        if self.captures_updates():
            # Whether to stop early is decided on the host, so the graph then ends with the epoch.
            if config.target_kl is None:
                self.update = Captured(self._update, self.generator)
            else:
                self.epoch = Captured(self._epoch, self.generator)

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, estimate advantages, improve the policy; return what happened."""
        began = self.done
        self.follow_schedules(self.engine, began)
        with self.clock("inference"):
            self.worlds.renew(self.steps)
            self.collect()
            if not self.at_most_one_cut:
                self._bootstrap(self._cut_off().flatten().nonzero().squeeze(1))
        with self.clock("learning"):
            critic_alone = self.steps < self.config.critic_first
            with unchanged(self.policy.acting_parameters() if critic_alone else ()):
                self.update()
            self.hold_and_average()
        self.steps += self.rollout.steps * self.worlds.all_envs
        return self._report(began)

    # Collect

    @torch.no_grad()
    def _collect(self) -> None:
        """Let the policy act for `rollout_length` steps in every environment, and store what it saw, did and got."""
        worlds, rollout = self.worlds, self.rollout
        phase = self.phase()
        self.engine.begin_rollout()
        rollout.first_memory.copy_(self.memory)
        for t in range(rollout.steps):
            if self.moments is not None:
                self.moments.update(worlds.observation.values)
            observation = self.seen(worlds.observation)
            rollout.see(t, observation, self.starts)
            memory = self.engine.act(t, observation, self.memory, self.generator)
            with phase("environment"):
                worlds.step(rollout.actions[t])
            rollout.store(t, worlds, memory, self.starts)
            if self.policy.recurrent:
                self.memory.copy_(memory * ~self.starts.unsqueeze(1))

        if self.at_most_one_cut:
            cut = self._cut_off()
            self.cuts_twice |= (cut.sum(0) > 1).any()
            # Environments that cut off no episode name their first row, whose value is then not read.
            self._bootstrap(cut.int().argmax(0) * rollout.num_envs + torch.arange(rollout.num_envs, device=cut.device))

    def _cut_off(self) -> Tensor:
        """Return where episodes were cut off, [steps, environments]; one that ended in both ways has ended."""
        return self.rollout.truncated & ~self.rollout.terminated

    @torch.no_grad()
    def _bootstrap(self, rows: Tensor) -> None:
        """Value the states after the last step, and those in which episodes were cut off, at `rows` of the rollout."""
        rollout = self.rollout
        rollout.last_value.copy_(self.engine.value(self.seen(self.worlds.observation), self.memory))
        if len(rows):
            last = self.seen(rollout.final_observations().select(rows))
            rollout.final_value.view(-1)[rows] = self.engine.value(last, rollout.final_memory.flatten(0, 1)[rows])

    # Learn

    def _update(self) -> None:
        """Improve the policy on what was collected."""
        rollout, config = self.rollout, self.config
        # One axis after the other: torch adds a whole table up in an order that depends on the number of threads.
        torch.mean(rollout.reward.mean(0), 0, out=self.mean_reward)
        if self.scale is not None:
            self.scale.scale(rollout.reward, rollout.terminated, rollout.truncated)
        values = (rollout.value, rollout.final_value, rollout.last_value)
        ends = (rollout.terminated, rollout.truncated)
        write_advantages(rollout.reward, *values, *ends, config.gamma, config.gae_lambda, rollout.advantage)
        torch.add(rollout.advantage, rollout.value, out=rollout.returns)
        self.engine.begin_update()
        self.loss_sums.zero_()
        self.epochs_done = 0
        for _ in range(config.epochs):
            self.epoch()
            self.loss_sums += self.losses
            self.epochs_done += 1
            if config.target_kl is not None and float(self.losses[KL]) > config.target_kl * config.minibatches:
                break

    def _epoch(self) -> None:
        """Pass over the rollout once, in minibatches of shuffled samples (of environments, if there is memory)."""
        self.losses.zero_()
        count = self.rollout.num_envs if self.policy.recurrent else self.rollout.samples
        advantage = self.rollout.advantage if self.config.normalise_advantages else None
        for rows, share in ranks.minibatches(count, self.config.minibatches, self.generator, advantage):
            self.losses += self.engine.learn(rows, share)

    # Around it

    def _report(self, began: float) -> dict[str, float]:
        rollout = self.rollout
        means = self.loss_sums / (self.epochs_done * self.config.minibatches)
        unexplained = ranks.variance_of(rollout.returns - rollout.value) / ranks.variance_of(rollout.returns)
        last = torch.stack([unexplained, self.cuts_twice.float()])
        own = (*LOSSES, "unexplained", "cuts_twice"), torch.cat([means, last])
        found = self.metrics(rollout.actions, self.policy.distribution, began, self.mean_reward, own)
        if found.pop("cuts_twice"):
            raise LearningError(
                f"An environment cut off two episodes within {rollout.steps} steps, although it declares that none is "
                f"shorter than {self.worlds.shortest_truncation} steps (World.shortest_truncation). Correct that."
            )
        return found | {"value/explained_variance": 1.0 - found.pop("unexplained")}

    def check_size(self, num_envs: int) -> None:
        """Refuse a number of environments with fewer samples than minibatches."""
        count, what = num_envs * self.config.rollout_length, "samples"
        if self.policy.recurrent:
            count, what = num_envs, "environments (a recurrent network is trained on whole ones)"
        if count < self.config.minibatches:
            raise ConfigError(f"ppo.minibatches = {self.config.minibatches}, but a rollout has only {count} {what}.")

    def make_room(self) -> None:
        """Make another rollout; it is cut into as many minibatches as before."""
        num_envs = self.worlds.num_envs
        self.rollout = self._make_rollout()
        self.engine.attach(self.rollout)
        self.memory, self.starts = resized(self.memory, num_envs), resized(self.starts, num_envs, True)

    def own_state(self) -> tuple[dict[str, Mapping[str, Tensor]], dict[str, Any]]:
        """Return the optimiser's state, and what is remembered of the episodes being played."""
        return {"engine": self.engine.state(), "learner": {"memory": self.memory, "starts": self.starts}}, {}

    def load_own_state(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Take over what `own_state` returned."""
        self.engine.load_state(only(tensors, "engine"))
        self.memory.copy_(tensors["learner.memory"])
        self.starts.copy_(tensors["learner.starts"])

    def forget_episodes(self) -> None:
        """Forget what is remembered of the episodes that were being played."""
        self.memory.zero_()
        self.starts.fill_(True)


def ppo_loss(
    outputs: Outputs, log_std: Tensor | None, distribution: Distribution, batch: Batch, config: PPOConfig
) -> tuple[Tensor, Tensor]:
    """Return the loss of a minibatch, and [5] numbers to report: the first five of LOSSES."""
    log_prob, entropy = distribution.evaluate(outputs.parameters, log_std, batch.actions)
    change = log_prob - batch.log_prob
    ratio = change.exp()
    clipped = ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    policy_loss = -torch.minimum(batch.advantage * ratio, batch.advantage * clipped).mean()
    error = (outputs.value - batch.returns).square()
    if config.value_clip is not None:
        near = batch.value + (outputs.value - batch.value).clamp(-config.value_clip, config.value_clip)
        error = torch.maximum(error, (near - batch.returns).square())
    value_loss = 0.5 * error.mean()
    entropy = entropy.mean()
    loss = policy_loss + config.value_weight * value_loss
    if config.entropy:  # the gradient of some entropies takes longer than all the rest
        loss = loss - (config.entropy if batch.entropy_weight is None else batch.entropy_weight) * entropy
    # Its mean over the old policy's actions is KL(old ‖ new), and that of its slope the divergence's.
    kl = (ratio - 1.0 - change).mean()
    if config.kl_penalty:
        loss = loss + config.kl_penalty * kl
    with torch.no_grad():
        outside = ((ratio - 1.0).abs() > config.clip).float().mean()
        report = torch.stack([policy_loss, value_loss, entropy, kl, outside])
    return loss, report
