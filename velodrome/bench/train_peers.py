"""The same PPO as others run it: Stable-Baselines3 and TorchRL over the plain environment of `peers.py`.

Each gets its public interface and nothing else: no episode statistics, no logging, the leanest loop that its own
examples allow.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.peers import PlainTradingEnv
from velodrome.bench.train_contenders import PHASES, Trainer
from velodrome.bench.train_problem import TrainProblem

NEVER = 10**9  # iterations between two logs


def timed(function: Callable[..., Any], clock: Any, phase: str) -> Callable[..., Any]:
    """Return a function whose time counts for a phase."""

    def call(*arguments: Any, **named: Any) -> Any:
        with clock(phase):
            return function(*arguments, **named)

    return call


@contextmanager
def unheard_warnings() -> Iterator[None]:
    """Drop warnings, which TorchRL gives about its own next versions; recorded, because it sets filters of its own."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("ignore")
        yield


def plain_maker(problem: TrainProblem) -> Callable[[], PlainTradingEnv]:
    """Return what makes an environment; only what it needs travels to a worker process."""
    tables = problem.training.peer_tables
    return lambda: PlainTradingEnv(tables)


def sb3_dummy(problem: TrainProblem, num_envs: int, seed: int) -> Trainer:
    """Return SB3's PPO with environments in a loop."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    return StableBaselinesTrainer(problem, DummyVecEnv([plain_maker(problem)] * num_envs), seed)


def sb3_subproc(problem: TrainProblem, num_envs: int, seed: int) -> Trainer:
    """Return SB3's PPO with a process for each environment, started in SB3's own way."""
    from stable_baselines3.common.vec_env import SubprocVecEnv

    # Workers are forked from a server process: what it has imported they need not import one by one.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["velodrome.bench.peers"])
    return StableBaselinesTrainer(problem, SubprocVecEnv([plain_maker(problem)] * num_envs), seed)


class StableBaselinesTrainer(Trainer):
    """Stable-Baselines3's PPO, by its `learn`."""

    def __init__(self, problem: TrainProblem, envs: Any, seed: int) -> None:
        import torch
        from stable_baselines3 import PPO

        from velodrome.rollout.phases import PhaseClock

        settings = problem.settings
        self.batch = settings.batch
        self.envs = envs
        self.clock = PhaseClock()
        widths = list(settings.hidden)
        self.model = PPO(
            "MlpPolicy", envs, learning_rate=settings.learning_rate, n_steps=settings.batch // envs.num_envs,
            batch_size=settings.minibatch, n_epochs=settings.epochs, gamma=settings.gamma,
            gae_lambda=settings.gae_lambda, clip_range=settings.clip, ent_coef=0.0, vf_coef=settings.value_weight,
            max_grad_norm=settings.max_gradient_norm, seed=seed, device="cpu",
            policy_kwargs={
                "net_arch": {"pi": widths, "vf": widths}, "activation_fn": torch.nn.Tanh,
                "optimizer_kwargs": {"eps": settings.adam_epsilon},
            },
        )  # fmt: skip
        self.parameters = sum(parameter.numel() for parameter in self.model.policy.parameters())
        # What is not the environments' in collecting is inference: the inner phase pauses the outer one.
        for owner, name, phase in (
            (self.model, "collect_rollouts", "inference"), (self.model, "train", "learning"),
            (envs, "step_async", "environment"), (envs, "step_wait", "environment"),
        ):  # fmt: skip
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


class TorchRLTrainer(Trainer):
    """TorchRL's collector, advantage estimator and clipped loss, put together as in its examples."""

    def __init__(self, problem: TrainProblem, num_envs: int, seed: int) -> None:
        with unheard_warnings():
            self._build(problem, num_envs, seed)

    def _build(self, problem: TrainProblem, num_envs: int, seed: int) -> None:
        import torch
        from tensordict.nn import TensorDictModule
        from torchrl import collectors
        from torchrl.envs import GymWrapper, SerialEnv
        from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
        from torchrl.objectives import ClipPPOLoss
        from torchrl.objectives.value import GAE

        from velodrome.rollout.phases import PhaseClock

        settings = problem.settings
        self.settings = settings
        torch.manual_seed(seed)
        make = plain_maker(problem)
        envs = SerialEnv(num_envs, lambda: GymWrapper(make(), categorical_action_encoding=True))
        envs.set_seed(seed)

        def network(outputs: int) -> Any:
            return MLP(
                in_features=problem.floats, out_features=outputs, num_cells=list(settings.hidden),
                activation_class=torch.nn.Tanh,
            )  # fmt: skip

        self.policy = network(int(envs.action_spec.space.n))
        actor = ProbabilisticActor(
            TensorDictModule(self.policy, ["observation"], ["logits"]), in_keys=["logits"], spec=envs.action_spec,
            distribution_class=torch.distributions.Categorical, return_log_prob=True,
        )  # fmt: skip
        critic = ValueOperator(network(1), in_keys=["observation"])
        # Named SyncDataCollector until 0.11.
        collector_type = getattr(collectors, "Collector", None) or collectors.SyncDataCollector
        self.collector = collector_type(envs, actor, frames_per_batch=settings.batch, total_frames=-1)
        self.batches = iter(self.collector)
        self.advantage = GAE(
            gamma=settings.gamma, lmbda=settings.gae_lambda, value_network=critic, average_gae=False
        )  # fmt: skip
        self.loss = ClipPPOLoss(
            actor, critic, clip_epsilon=settings.clip, entropy_bonus=False, critic_coeff=settings.value_weight,
            loss_critic_type="l2", normalize_advantage=True,
        )  # fmt: skip
        self.weights = list(self.loss.parameters())
        self.optimiser = torch.optim.Adam(self.weights, settings.learning_rate, eps=settings.adam_epsilon)
        self.parameters = sum(weight.numel() for weight in self.weights)
        self.clock = PhaseClock()
        envs.step_and_maybe_reset = timed(envs.step_and_maybe_reset, self.clock, "environment")

    def run(self) -> dict[str, float]:
        """Collect one batch and learn from it."""
        with unheard_warnings():
            self.clock.take()
            with self.clock("inference"):
                data = next(self.batches)
            with self.clock("learning"):
                self._learn(data)
            seconds = self.clock.take()
        return {phase: seconds[phase] for phase in PHASES[:-1]}

    def _learn(self, data: Any) -> None:
        import torch

        with torch.no_grad():
            self.advantage(data)
        samples = data.reshape(-1)
        for _ in range(self.settings.epochs):
            for rows in torch.randperm(self.settings.batch).split(self.settings.minibatch):
                losses = self.loss(samples[rows])
                self.optimiser.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"]).backward()
                torch.nn.utils.clip_grad_norm_(self.weights, self.settings.max_gradient_norm)
                self.optimiser.step()

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the most probable actions."""
        import torch

        with torch.no_grad():
            return self.policy(torch.from_numpy(observations)).argmax(1).numpy()

    def close(self) -> None:
        """Give the collector and its environments back."""
        self.collector.shutdown()
