"""What algorithms share that learn from a replay buffer: rounds of a rollout and gradient steps, the buffer, its state.

An algorithm's own page says how it acts (`_act`), and what a gradient step is (`_learn`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from velodrome.learn.config import ReplayConfig
from velodrome.learn.learner import Acting, Learner, only
from velodrome.rollout.launch import Captured
from velodrome.rollout.observation import Observation
from velodrome.rollout.replay import ReplayBuffer
from velodrome.rollout.worlds import Worlds

logger = logging.getLogger(__name__)


class ReplayLearner(Learner):
    """One policy, its environments and their last transitions. `iterate` is some rounds: a rollout, gradient steps.

    Observations and rewards are stored as they came and scaled when drawn, by what is known then.
    """

    reported: ClassVar[tuple[str, ...]]  # what a gradient step adds to `report`
    config: ReplayConfig
    acts_by: Acting

    def __init__(
        self, worlds: Worlds, config: ReplayConfig, total_steps: int, seed: int, acts_by: Acting, **how: Any
    ) -> None:
        """acts_by: the kind of actions. how: of the replay buffer, besides what all have."""
        super().__init__(worlds, config, total_steps, seed)
        device = worlds.device
        self.acts_by = acts_by
        self.replay = ReplayBuffer(config.buffer_size, worlds, gamma=config.gamma, numbers=acts_by.shape, **how)
        self.report = torch.zeros(len(self.reported), device=device)  # summed over the gradient steps of an iteration
        self.updates = 0

    # What an algorithm supplies

    def _act(self, observation: Observation, prepared: Any) -> Tensor:
        """Return actions for all environments, given what the network sees and what `_begin_rollout` returned."""
        raise NotImplementedError

    def _learn(self) -> None:
        """Take one gradient step on transitions from the buffer, and add to `report`."""
        raise NotImplementedError

    def _begin_round(self, scheduled: Mapping[str, float]) -> None:
        """Take over what changes over a run, by name; the windows are those of this round."""

    def _begin_rollout(self) -> Any:
        """Return what all steps of a rollout need; part of its CUDA graph."""

    def _end_update(self) -> None:
        """Do what follows a gradient step and is no part of its CUDA graph."""

    def _told(self) -> dict[str, Tensor]:
        """Return what is reported besides, whether or not anything was learnt: scalars by name."""
        return {}

    # Rounds

    def _prepare(self) -> None:
        """Allocate what a rollout needs and decide which parts of an iteration are CUDA graphs."""
        config, worlds, kind = self.config, self.worlds, self.acts_by
        size = (config.rollout_length, worlds.num_envs, *kind.shape)
        self.actions = torch.zeros(size, dtype=kind.dtype, device=worlds.device)
        self.played = torch.zeros((config.rounds, *size), dtype=kind.dtype, device=worlds.device)
        self.collect = self._collect
        self.learn: Callable[[], None] = self._learn
        if self.captures_updates():
            self.learn = Captured(self._learn, self.generator)
            if self.captures_steps():
                self.collect = Captured(self._collect, self.generator)
            else:
                logger.info("the rollout is no CUDA graph: these environments run on the host")

    def iterate(self) -> dict[str, float]:
        """Collect and learn for some rounds; return what happened in them."""
        began, learned = self.done, 0
        self.report.zero_()
        self.mean_reward.zero_()
        for played in self.played:
            learned += self._round()
            played.copy_(self.actions)
        told = self._told()
        numbers = self.report[: len(self.report) if learned else 0] / max(learned, 1)
        own = (*self.reported[: len(numbers)], *told), torch.cat([numbers, *(one.view(1) for one in told.values())])
        return self.metrics(self.played.flatten(0, 1), self.acts_by, began, self.mean_reward, own)

    def _round(self) -> int:
        """Collect a rollout, take gradient steps; return how many. Nothing here waits for a GPU."""
        config, worlds = self.config, self.worlds
        scheduled = config.scheduled(self.done)
        with self.clock("inference"):
            worlds.renew(self.steps)
            self._begin_round(scheduled)
            self.collect()
        self.steps += config.rollout_length * worlds.num_envs
        if self.steps < max(config.learning_starts, config.steps_of_transition * worlds.num_envs):
            return 0
        with self.clock("learning"):
            for _ in range(config.updates):
                self.learn()
                self.updates += 1
                self._end_update()
        return config.updates

    @torch.no_grad()
    def _collect(self) -> None:
        """Act for `rollout_length` steps in every environment, and store what happened."""
        worlds, replay = self.worlds, self.replay
        phase = self.phase()
        prepared = self._begin_rollout()
        for t in range(len(self.actions)):
            if self.moments is not None:
                self.moments.update(worlds.observation.values)
            self.actions[t] = self._act(self.seen(worlds.observation), prepared)
            replay.see(worlds.observation)
            with phase("environment"):
                worlds.step(self.actions[t])
            replay.store(self.actions[t], worlds)
            self.mean_reward += worlds.reward.mean() / (len(self.played) * len(self.actions))
            if self.scale is not None:
                row = worlds.reward.clone().unsqueeze(0)  # scaled in place and thrown away: the buffer keeps them raw
                self.scale.scale(row, worlds.terminated.unsqueeze(0), worlds.truncated.unsqueeze(0))

    def _train(self, training: bool) -> None:
        """Say whether what comes is learning, for policies to which that makes a difference."""
        if self.policy.acts_otherwise:
            self.policy.train(training)

    def rewards_of(self, stored: Tensor) -> Tensor:
        """Return stored rewards as values count them."""
        return stored if self.scale is None else stored * self.scale.moments.scale

    def _precision(self) -> Any:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.worlds.device.type, torch.bfloat16, cache_enabled=False)

    # Around them

    def check_size(self, num_envs: int) -> None:
        """Refuse more environments than the buffer can hold a step of."""
        self.replay.rows_for(num_envs)

    def make_room(self) -> None:
        """Make room for other rollouts; the transitions to replay stay."""
        self.replay.resize(self.worlds.num_envs)
        self._prepare()

    def own_state(self) -> tuple[dict[str, Mapping[str, Tensor]], dict[str, Any]]:
        """Return the transitions to replay, and how many gradient steps there were."""
        return {"replay": self.replay.state()}, {"updates": self.updates}

    def load_own_state(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> None:
        """Take over what `own_state` returned."""
        self.replay.load_state(only(tensors, "replay"))
        self.updates = int(plain["updates"])

    def bytes_to_come(self) -> int:
        """Return what the transitions will take that the buffer still has room for."""
        empty = 1.0 - int(self.replay.filled) / self.replay.rows
        return int(empty * sum(stored.nbytes for stored in self.replay.stored.values()))

    def forget_episodes(self) -> None:
        """Let no transition reach from the episodes that were being played into the new ones."""
        self.replay.cut()
