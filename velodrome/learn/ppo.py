"""Proximal policy optimisation (Schulman et al., 2017): collect, estimate advantages, improve; on one page.

`engine.py` carries out what is here called act, value and learn: by autograd, or on CPUs by compiled loops.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from velodrome.errors import LearningError
from velodrome.learn.actions import Distribution
from velodrome.learn.config import NetworkConfig, PPOConfig
from velodrome.learn.engines.autograd import Batch, check_minibatches, make_engine
from velodrome.learn.engines.graphs import Captured
from velodrome.learn.policy import ActorCritic, Outputs
from velodrome.learn.schedule import learning_rate
from velodrome.learn.state import load_generator, nested, only
from velodrome.rollout.advantages import write_advantages
from velodrome.rollout.moments import RewardScale, RunningMoments
from velodrome.rollout.observation import Observation
from velodrome.rollout.phases import PhaseClock
from velodrome.rollout.storage import Rollout, resized
from velodrome.rollout.worlds import CudaWorlds, Worlds
from velodrome.vector.argument_checks import check_num_envs

LOSSES = ("loss/policy", "loss/value", "policy/entropy", "policy/kl", "policy/clip_fraction", "optimiser/gradient_norm")
KL = LOSSES.index("policy/kl")
MOST_ACTIONS_SHOWN = 32  # shares of more actions than this are not counted


class PPO:
    """One policy, its environments and its optimiser. `iterate` is one rollout and one update."""

    def __init__(
        self, worlds: Worlds, network: NetworkConfig, config: PPOConfig, *, total_steps: int, seed: int
    ) -> None:
        self.worlds, self.config, self.total_steps, self.seed = worlds, config, total_steps, seed
        device = worlds.device
        torch.manual_seed(seed)  # of the first weights
        self.generator = torch.Generator(device).manual_seed(seed)  # of actions and shuffles
        self.policy = ActorCritic(worlds.shape, worlds.action_space, network).to(device)
        self.rollout = self._make_rollout()
        self.engine = make_engine(self.policy, worlds.bank, self.rollout, network, config, ppo_loss)
        layout = worlds.shape.instruments if network.kind == "instruments" else None
        alike = [range(first, first + layout.count) for first in layout.own] if layout else ()
        self.moments = RunningMoments(worlds.shape.values, device, alike) if config.normalise_observations else None
        self.scale = RewardScale(worlds.num_envs, config.gamma, device) if config.normalise_rewards else None
        self.memory = torch.zeros((worlds.num_envs, self.policy.memory_size), device=device)
        self.starts = torch.ones(worlds.num_envs, dtype=torch.bool, device=device)
        self.losses = torch.zeros(len(LOSSES), device=device)  # summed over the minibatches of an epoch
        self.loss_sums = torch.zeros(len(LOSSES), device=device)  # and of an update
        self.mean_reward = torch.zeros((), device=device)  # per step, as the environments gave it
        self.clock = PhaseClock(device)
        self.steps = self.epochs_done = 0
        self.cuts_twice = torch.zeros((), dtype=torch.bool, device=device)
        self._prepare()
        worlds.reset(seed)

    def _make_rollout(self) -> Rollout:
        distribution = self.policy.distribution
        return Rollout(
            self.config.rollout_length, self.worlds, distribution.shape, distribution.dtype, self.policy.memory_size
        )

    def _prepare(self) -> None:
        """Say what of an iteration is a CUDA graph; it is captured anew."""
        config, worlds = self.config, self.worlds
        self.seconds_of_steps: float | None = None  # of a rollout's environments in a graph, once measured
        self.collect, self.update, self.epoch = self._collect, self._update, self._epoch
        graphs = worlds.device.type == "cuda" and config.cuda_graphs
        # Environments that step on the host cannot be part of a graph.
        on_device = isinstance(worlds, CudaWorlds)
        # Where an environment cuts off one episode in a rollout at most, the rows to value are as many as environments.
        self.at_most_one_cut = graphs and on_device and worlds.shortest_truncation >= config.rollout_length
        if graphs:
            if on_device:
                self.collect = Captured(self._collect, self.generator)
            # Whether to stop early is decided on the host, so the graph then ends with the epoch.
            if config.target_kl is None:
                self.update = Captured(self._update, self.generator)
            else:
                self.epoch = Captured(self._epoch, self.generator)

    def iterate(self) -> dict[str, float]:
        """Collect a rollout, estimate advantages, improve the policy; return what happened."""
        self.engine.set_learning_rate(learning_rate(self.config, self.steps / self.total_steps))
        with self.clock("inference"):
            self.collect()
            if not self.at_most_one_cut:
                self._bootstrap(self._cut_off().flatten().nonzero().squeeze(1))
        with self.clock("learning"):
            self.update()
        self.steps += self.rollout.samples
        return self._metrics()

    # Collect

    @torch.no_grad()
    def _collect(self) -> None:
        """Let the policy act for `rollout_length` steps in every environment, and store what it saw, did and got."""
        worlds, rollout = self.worlds, self.rollout
        phase = self._phase()
        self.engine.begin_rollout()
        rollout.first_memory.copy_(self.memory)
        for t in range(rollout.steps):
            if self.moments is not None:
                self.moments.update(worlds.observation.values)
            observation = self._seen(worlds.observation)
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
        rollout.last_value.copy_(self.engine.value(self._seen(self.worlds.observation), self.memory))
        if len(rows):
            last = self._seen(rollout.final_observations().select(rows))
            rollout.final_value.view(-1)[rows] = self.engine.value(last, rollout.final_memory.flatten(0, 1)[rows])

    # Learn

    def _update(self) -> None:
        """Improve the policy on what was collected."""
        rollout, config = self.rollout, self.config
        torch.mean(rollout.reward, (0, 1), out=self.mean_reward)
        if self.scale is not None:
            self.scale.scale(rollout.reward, rollout.terminated, rollout.truncated)
        write_advantages(
            rollout.reward, rollout.value, rollout.final_value, rollout.last_value, rollout.terminated,
            rollout.truncated, config.gamma, config.gae_lambda, rollout.advantage,
        )  # fmt: skip
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
        for rows in shuffled(count, self.generator).tensor_split(self.config.minibatches):
            self.losses += self.engine.learn(rows)

    # Around it

    def _seen(self, observation: Observation) -> Observation:
        """Return an observation as the network sees it."""
        if self.moments is None:
            return observation
        return observation._replace(values=self.moments.normalise(observation.values))

    def _phase(self) -> Any:
        """Return what times a phase; inside a CUDA graph nothing can be timed."""
        capturing = self.worlds.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        return (lambda name: nullcontext()) if capturing else self.clock

    def _seconds(self) -> dict[str, float]:
        """Return the time of each phase. A graph cannot be timed inside: its steps are timed once, by themselves."""
        seconds = self.clock.take()
        if (
            isinstance(self.collect, Captured)
            and self.collect.graph is not None
            and isinstance(self.worlds, CudaWorlds)
        ):
            if self.seconds_of_steps is None:
                self.seconds_of_steps = self.worlds.seconds_of_steps(self.rollout.actions)
                self.clock.take()
            seconds["environment"] = min(self.seconds_of_steps, seconds["inference"])
            seconds["inference"] -= seconds["environment"]
        return seconds

    def _metrics(self) -> dict[str, float]:
        rollout = self.rollout
        means = self.loss_sums / (self.epochs_done * self.config.minibatches)
        unexplained = (rollout.returns - rollout.value).var(correction=0) / rollout.returns.var(correction=0)
        # One copy from the device for all numbers.
        last = torch.stack([unexplained, self.mean_reward, self.cuts_twice.float()])
        *losses, left, mean_reward, cuts_twice = torch.cat([means, last]).tolist()
        if cuts_twice:
            raise LearningError(
                f"An environment cut off two episodes within {rollout.steps} steps, although it declares that none is "
                f"shorter than {self.worlds.shortest_truncation} steps (World.shortest_truncation). Correct that."
            )
        found = dict(zip(LOSSES, losses, strict=True))
        found["optimiser/learning_rate"] = learning_rate(self.config, (self.steps - rollout.samples) / self.total_steps)
        found["value/explained_variance"] = 1.0 - left
        found["episode/mean_reward"] = mean_reward
        found |= self.worlds.take_episodes()
        found |= action_mix(rollout.actions, self.policy.distribution)
        seconds = self._seconds()
        total = seconds.pop("total")
        return found | {f"time/{name}": value for name, value in seconds.items()} | {
            "time/steps_per_second": rollout.samples / total
        }  # fmt: skip

    def resize(self, num_envs: int) -> None:
        """Go on with so many environments, between two iterations: the first keep their episodes, new ones begin.

        What was learnt, the optimiser, the moments and the count of steps stay; a rollout is longer or shorter, in as
        many minibatches as before.
        """
        if check_num_envs(num_envs) == self.worlds.num_envs:
            return
        check_minibatches(self.policy, num_envs, self.config)
        self.worlds.resize(num_envs)
        self.rollout = self._make_rollout()
        self.engine.attach(self.rollout)
        if self.scale is not None:
            self.scale.resize(num_envs)
        self.memory, self.starts = resized(self.memory, num_envs), resized(self.starts, num_envs, True)
        self._prepare()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that a bit-identical continuation needs: tensors, and what JSON can hold."""
        parts = {
            "policy": self.policy.state_dict(), "engine": self.engine.state(), "worlds": self.worlds.state(),
            "moments": {} if self.moments is None else self.moments.state(),
            "scale": {} if self.scale is None else self.scale.state(),
            "learner": {"memory": self.memory, "starts": self.starts, "generator": self.generator.get_state()},
        }  # fmt: skip
        return nested(parts), {"steps": self.steps, "num_envs": self.worlds.num_envs}

    def load_state(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Continue from what `state` returned, with as many environments as there were."""
        self.resize(int(plain.get("num_envs", self.worlds.num_envs)))
        self.policy.load_state_dict(only(tensors, "policy"))
        self.engine.load_state(only(tensors, "engine"))
        if self.moments is not None:
            self.moments.load_state(only(tensors, "moments"))
        if self.scale is not None:
            self.scale.load_state(only(tensors, "scale"))
        own = only(tensors, "learner")
        self.memory.copy_(own["memory"])
        self.starts.copy_(own["starts"])
        load_generator(self.generator, own["generator"])
        self.steps = int(plain["steps"])
        worlds = only(tensors, "worlds")
        if worlds:
            self.worlds.load_state(worlds)
        else:  # environments that cannot be saved begin new episodes, from seeds not used before
            self.worlds.reset(self.seed + self.steps)
            self.memory.zero_()
            self.starts.fill_(True)
            if self.scale is not None:
                self.scale.returns.zero_()


def ppo_loss(
    outputs: Outputs, log_std: Tensor | None, distribution: Distribution, batch: Batch, config: PPOConfig
) -> tuple[Tensor, Tensor]:
    """Return the loss of a minibatch, and [5] numbers to report: the first five of LOSSES."""
    log_prob, entropy = distribution.evaluate(outputs.parameters, log_std, batch.actions)
    change = log_prob - batch.log_prob
    ratio = change.exp()
    advantage = batch.advantage
    if config.normalise_advantages:
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    policy_loss = -torch.minimum(
        advantage * ratio, advantage * ratio.clamp(1.0 - config.clip, 1.0 + config.clip)
    ).mean()
    error = (outputs.value - batch.returns).square()
    if config.value_clip is not None:
        near = batch.value + (outputs.value - batch.value).clamp(-config.value_clip, config.value_clip)
        error = torch.maximum(error, (near - batch.returns).square())
    value_loss = 0.5 * error.mean()
    entropy = entropy.mean()
    loss = policy_loss + config.value_weight * value_loss
    if config.entropy:  # the gradient of some entropies takes longer than all the rest
        loss = loss - config.entropy * entropy
    with torch.no_grad():
        kl = (ratio - 1.0 - change).mean()
        clipped = ((ratio - 1.0).abs() > config.clip).float().mean()
        report = torch.stack([policy_loss, value_loss, entropy, kl, clipped])
    return loss, report


def shuffled(count: int, generator: torch.Generator) -> Tensor:
    """Return the numbers below `count` in random order."""
    if generator.device.type == "cpu":
        return torch.randperm(count, generator=generator)
    # Sorting random keys is legal inside a CUDA graph.
    return torch.rand(count, generator=generator, device=generator.device).argsort()


def action_mix(actions: Tensor, distribution: Distribution) -> dict[str, float]:
    """Return the share of every discrete action, or mean and deviation of continuous ones."""
    if distribution.kind in ("gaussian", "dirichlet"):
        return {"action/mean": float(actions.mean()), "action/std": float(actions.std(correction=0))}
    if distribution.kind == "multi_categorical" or distribution.width > MOST_ACTIONS_SHOWN:
        return {}
    counts = torch.stack([(actions == action).sum() for action in range(distribution.width)]).tolist()
    return {f"action/{action}": count / actions.numel() for action, count in enumerate(counts)}
