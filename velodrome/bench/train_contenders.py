"""Who trains: Velodrome's PPO in some layouts, and the peers of `train_peers.py`, all with the same settings."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.train_options import TRAIN_PEERS, TrainBenchmarkOptions
from velodrome.bench.train_problem import TrainProblem
from velodrome.vector.make import make_vec

PHASES = ("environment", "inference", "learning", "other")
NATIVE = "velodrome"
AUTOGRAD = "velodrome, autograd"


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads meanwhile; none: as many as before."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Trainer(ABC):
    """Something that trains: an iteration is a batch of steps and an update by it."""

    parameters: int  # trainable numbers of actor and critic
    engine = ""  # what Velodrome's PPO learns by
    threads: int | None = None  # of torch, if not as many as everyone's

    @abstractmethod
    def run(self) -> dict[str, float]:
        """Collect one batch and learn from it; return the seconds of each phase but `other`."""

    @abstractmethod
    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the most probable actions, [n], for observations laid out flat, [n, floats]."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""

    def iterate(self) -> dict[str, float]:
        """Run one iteration; return the seconds of every phase, which add up to the time on the clock."""
        began = time.perf_counter()
        with torch_threads(self.threads):
            phases = self.run()
        elapsed = time.perf_counter() - began
        return {**phases, "other": max(0.0, elapsed - sum(phases.values()))}


@dataclass(frozen=True)
class TrainContender:
    """Somebody who can train, and how to get them ready."""

    peer: str  # "native" or a name in TRAIN_PEERS
    label: str
    num_envs: int
    rollout_length: int  # steps of each environment in a batch
    processes: int  # worker processes; 0: none
    threads: int | None  # of torch; none: all cores
    ready: Callable[[int], Trainer]  # by seed


class VelodromeTrainer(Trainer):
    """`velodrome.learn.ppo` over native environments."""

    def __init__(self, problem: TrainProblem, num_envs: int, engine: str, seed: int) -> None:
        from velodrome.learn.config import NetworkConfig, PPOConfig
        from velodrome.learn.ppo import PPO
        from velodrome.rollout.worlds import make_worlds

        settings, training = problem.settings, problem.training
        self.envs = make_vec(
            "trading", num_envs, market=training.market, backend="native", seed=seed, observation="cursor",
            check_actions=False, threads=1, **training.parameters,
        )  # fmt: skip
        config = PPOConfig(
            rollout_length=settings.batch // num_envs, epochs=settings.epochs, minibatches=settings.minibatches,
            learning_rate=settings.learning_rate, clip=settings.clip, gamma=settings.gamma,
            gae_lambda=settings.gae_lambda, max_gradient_norm=settings.max_gradient_norm,
            # PPO's own value loss is half the mean squared error.
            value_weight=2.0 * settings.value_weight,
            engine=engine,
            # Otherwise a small market would be learned with fewer operations than the bound counts.
            per_bar="never",
        )  # fmt: skip
        network = NetworkConfig(hidden=settings.hidden, activation="tanh", shared=False)
        self.window_floats = int(problem.market.window_floats)
        self.learner = PPO(make_worlds(self.envs), network, config, total_steps=10**12, seed=seed)
        self.parameters = sum(parameter.numel() for parameter in self.learner.policy.parameters())
        self.engine = self.learner.engine.name

    def run(self) -> dict[str, float]:
        """Collect one batch and learn from it."""
        metrics = self.learner.iterate()
        return {phase: metrics[f"time/{phase}"] for phase in PHASES[:-1]}

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the most probable actions."""
        import torch

        from velodrome.rollout.observation import Observation

        rows = torch.from_numpy(observations)
        seen = Observation(rows[:, self.window_floats :], None, rows[:, : self.window_floats])
        with torch.no_grad():
            return self.learner.policy(seen).parameters.argmax(1).numpy()

    def close(self) -> None:
        """Give the environments back."""
        self.envs.close()


def native_contenders(options: TrainBenchmarkOptions, problem: TrainProblem) -> list[TrainContender]:
    """Return Velodrome in every layout that is asked for, and by plain autograd in the first of them."""

    def contender(label: str, num_envs: int, engine: str) -> TrainContender:
        def ready(seed: int) -> Trainer:
            return VelodromeTrainer(problem, num_envs, engine, seed)

        return TrainContender("native", label, num_envs, options.batch // num_envs, 0, None, ready)

    first = options.sizes[0]
    return [
        *(contender(NATIVE, size, "auto") for size in dict.fromkeys(options.sizes)),
        contender(AUTOGRAD, first, "autograd"),
    ]


def peer_contender(peer: str, options: TrainBenchmarkOptions, problem: TrainProblem) -> TrainContender:
    """Return one of TRAIN_PEERS."""
    from velodrome.bench import train_peers

    chosen = TRAIN_PEERS[peer]
    openers: dict[str, Any] = {
        "dummy": train_peers.sb3_dummy, "dummy_1_thread": train_peers.sb3_dummy, "dummy64": train_peers.sb3_dummy,
        "subproc": train_peers.sb3_subproc, "torchrl": train_peers.TorchRLTrainer,
    }  # fmt: skip

    def ready(seed: int) -> Trainer:
        trainer = openers[peer](problem, chosen.num_envs, seed)
        trainer.threads = chosen.threads
        return trainer

    return TrainContender(
        peer, chosen.label, chosen.num_envs, options.batch // chosen.num_envs, chosen.processes, chosen.threads, ready
    )
