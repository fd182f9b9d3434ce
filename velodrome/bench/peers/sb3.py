"""Stable-Baselines3's PPO over a plain environment: its public interface, without episode statistics and logging."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.peers.vectorisers import sb3_envs
from velodrome.bench.trainer import Trainer

if TYPE_CHECKING:
    from velodrome.bench.problems.ar1 import TrainProblem

NEVER = 10**9  # iterations between two logs


def timed(function: Callable[..., Any], clock: Any, phase: str) -> Callable[..., Any]:
    """Return a function whose time counts for a phase."""

    def call(*arguments: Any, **named: Any) -> Any:
        with clock(phase):
            return function(*arguments, **named)

    return call


class StableBaselinesTrainer(Trainer):
    """Its `learn`, over one of its vectorisers; processes are started in its own way."""

    def __init__(self, kind: str, problem: TrainProblem, num_envs: int, seed: int) -> None:
        import torch
        from stable_baselines3 import PPO

        from velodrome.rollout.phases import PhaseClock

        # Workers are forked from a server process: what it has imported they need not import one by one.
        multiprocessing.get_context("forkserver").set_forkserver_preload(["velodrome.bench.peers.plain_markets"])
        settings, envs = problem.settings, sb3_envs(kind, [problem.case.plain] * num_envs)
        self.batch, self.close, self.clock = settings.batch, envs.close, PhaseClock()
        widths = list(settings.hidden)
        network = {
            "net_arch": {"pi": widths, "vf": widths},
            "activation_fn": torch.nn.Tanh,
            "optimizer_kwargs": {"eps": settings.adam_epsilon},
        }
        self.model = PPO(
            "MlpPolicy",
            envs,
            learning_rate=settings.learning_rate,
            n_steps=settings.batch // num_envs,
            batch_size=settings.minibatch,
            n_epochs=settings.epochs,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            clip_range=settings.clip,
            ent_coef=0.0,
            vf_coef=settings.value_weight,
            max_grad_norm=settings.max_gradient_norm,
            seed=seed,
            device="cpu",
            policy_kwargs=network,
        )
        self.weights = list(self.model.policy.parameters())
        # What is not the environments' in collecting is inference: the inner phase pauses the outer one.
        for owner, name, phase in (
            (self.model, "collect_rollouts", "inference"),
            (self.model, "train", "learning"),
            (envs, "step_async", "environment"),
            (envs, "step_wait", "environment"),
        ):
            setattr(owner, name, timed(getattr(owner, name), self.clock, phase))

    def run(self) -> dict[str, float]:
        self.clock.take()
        self.model.learn(self.batch, log_interval=NEVER, reset_num_timesteps=False)
        return self.clock.take()

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        return self.model.predict(observations, deterministic=True)[0]
