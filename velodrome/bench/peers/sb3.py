"""Stable-Baselines3: its vectorisers, and its PPO over a plain environment.

It gets its public interface and nothing else: no episode statistics and no logging.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.options import Peer
from velodrome.bench.report import PHASES
from velodrome.bench.timing import Batch, Source
from velodrome.bench.trainer import Trainer

if TYPE_CHECKING:
    from velodrome.bench.problems.ar1 import TrainProblem

NEEDS: dict[str, Any] = {"modules": ("stable_baselines3",), "install": "pip install 'velodrome[sb3]'"}
NEVER = 10**9  # iterations between two logs


def open_dummy(source: Source) -> Batch:
    """Return the environments in a loop."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    return _batch(DummyVecEnv(source.makers))


def open_subproc(source: Source) -> Batch:
    """Return the environments in a process each, forked from this one: their best case."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    return _batch(SubprocVecEnv(source.makers, start_method="fork"))


def _batch(envs: Any) -> Batch:
    def reset(seed: int) -> Any:
        envs.seed(seed)  # of the next reset; environment i has seed + i, as in Gymnasium
        return envs.reset()

    return Batch(reset, lambda actions: envs.step(actions)[:3], envs.close, envs, envs.action_space)


DUMMY = Peer("SB3 DummyVecEnv", open_dummy, **NEEDS)
SUBPROC = Peer("SB3 SubprocVecEnv", open_subproc, **NEEDS, processes=True)


# PPO


def timed(function: Callable[..., Any], clock: Any, phase: str) -> Callable[..., Any]:
    """Return a function whose time counts for a phase."""

    def call(*arguments: Any, **named: Any) -> Any:
        with clock(phase):
            return function(*arguments, **named)

    return call


def train_with_dummy(problem: TrainProblem, num_envs: int, seed: int) -> Trainer:
    """Return SB3's PPO with environments in a loop."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    return StableBaselinesTrainer(problem, DummyVecEnv([problem.plain] * num_envs), seed)


def train_with_subproc(problem: TrainProblem, num_envs: int, seed: int) -> Trainer:
    """Return SB3's PPO with a process for each environment, started in SB3's own way."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # Workers are forked from a server process: what it has imported they need not import one by one.
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["velodrome.bench.peers.plain_trading"])
    return StableBaselinesTrainer(problem, SubprocVecEnv([problem.plain] * num_envs), seed)


class StableBaselinesTrainer(Trainer):
    """Stable-Baselines3's PPO, by its `learn`."""

    def __init__(self, problem: TrainProblem, envs: Any, seed: int) -> None:
        import torch
        from stable_baselines3 import PPO

        from velodrome.rollout.phases import PhaseClock

        settings = problem.settings
        self.batch, self.envs, self.clock = settings.batch, envs, PhaseClock()
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
            n_steps=settings.batch // envs.num_envs,
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
        self.parameters = sum(parameter.numel() for parameter in self.model.policy.parameters())
        # What is not the environments' in collecting is inference: the inner phase pauses the outer one.
        for owner, name, phase in (
            (self.model, "collect_rollouts", "inference"),
            (self.model, "train", "learning"),
            (envs, "step_async", "environment"),
            (envs, "step_wait", "environment"),
        ):
            setattr(owner, name, timed(getattr(owner, name), self.clock, phase))

    def run(self) -> dict[str, float]:
        """Collect one batch and learn from it."""
        self.clock.take()
        self.model.learn(self.batch, log_interval=NEVER, reset_num_timesteps=False)
        seconds = self.clock.take()
        return {phase: seconds[phase] for phase in PHASES[:-1]}

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the most probable actions."""
        return self.model.predict(observations, deterministic=True)[0]

    def close(self) -> None:
        """Give the environments back; worker processes end."""
        self.envs.close()
