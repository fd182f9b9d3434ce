"""Something that trains: what the benchmark asks of any, and Velodrome's own learners."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.report import PHASES
from velodrome.learn.catalog import AlgorithmEntry
from velodrome.vector.make import make_vec

if TYPE_CHECKING:
    from velodrome.bench.problems.ar1 import TrainProblem

# Of the options, what an algorithm takes as far as it has them.
SHARED = {
    *("batch", "epochs", "minibatches", "learning_rate", "clip"),
    *("gamma", "gae_lambda", "value_weight", "max_gradient_norm"),
}


@contextmanager
def torch_threads(count: int | None) -> Iterator[None]:
    """Let torch use that many threads meanwhile; None changes nothing."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Trainer(ABC):
    """An iteration is a batch of steps and an update by it."""

    weights: Sequence[Any]  # what is trained, of all networks
    threads: int | None = None  # of torch, if not as many as everyone's
    engine = ""  # what it learns by, if it has a choice
    close: Callable[[], object]  # gives everything back

    @abstractmethod
    def run(self) -> dict[str, float]:
        """Collect one batch and learn from it; return the seconds of each phase, and of what else is known."""

    @abstractmethod
    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the best actions, [n], for observations laid out flat, [n, floats]."""

    @property
    def parameters(self) -> int:
        """Trainable numbers."""
        return sum(weight.numel() for weight in self.weights)

    def iterate(self) -> dict[str, float]:
        """Run one iteration; return the seconds of every phase, which add up to the time on the clock."""
        began = time.perf_counter()
        with torch_threads(self.threads):
            found = self.run()
        elapsed = time.perf_counter() - began
        phases = {phase: found.get(phase, 0.0) for phase in PHASES[:-1]}
        return {**phases, "other": max(0.0, elapsed - sum(phases.values()))}

    def warm_up(self, seconds: float) -> float:
        """Train once, which compiles; return the seconds of the next iteration."""
        self.iterate()
        return sum(self.iterate().values())

    def time(self, calls: int) -> dict[str, float]:
        """Return the seconds of some iterations, and the mean of each phase."""
        rounds = [self.iterate() for _ in range(calls)]
        phases = {phase: sum(found.get(phase, 0.0) for found in rounds) for phase in PHASES}
        return {"seconds": sum(phases.values()), **{phase: total / calls for phase, total in phases.items()}}


class VelodromeTrainer(Trainer):
    """An algorithm of the catalogue over native environments."""

    def __init__(self, problem: TrainProblem, algorithm: AlgorithmEntry, num_envs: int, engine: str, seed: int) -> None:
        from velodrome.learn.acting import TrainedPolicy
        from velodrome.learn.config import NetworkConfig
        from velodrome.rollout.worlds import make_worlds

        settings = problem.settings
        values: dict[str, Any] = {**problem.case.values, "observation": "cursor", "check_actions": False}
        envs = make_vec("trading", num_envs, backend="native", seed=seed, threads=1, **values)
        wanted: dict[str, Any] = {
            **settings.model_dump(include=SHARED),
            "rollout_length": settings.batch // num_envs,
            "value_weight": 2.0 * settings.value_weight,  # PPO's own value loss is half the mean squared error
            "engine": engine,
            "per_bar": "never",  # else a small market would be learned with fewer operations than the bound counts
        }
        model = algorithm.config_model()
        config = model(**{name: value for name, value in wanted.items() if name in model.model_fields})
        network = NetworkConfig(hidden=settings.hidden, activation="tanh", shared=False)
        worlds = make_worlds(envs)
        self.learner = algorithm.make_learner(worlds, network, config, total_steps=10**12, seed=seed)
        self.engine = getattr(getattr(self.learner, "engine", None), "name", "")
        self.policy = TrainedPolicy.of(self.learner.policy, worlds, getattr(self.learner, "moments", None))
        self.close = envs.close
        self.weights = list(self.learner.policy.parameters())

    def run(self) -> dict[str, float]:
        return {name.removeprefix("time/"): value for name, value in self.learner.iterate().items()}

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        return self.policy.act(observations)
