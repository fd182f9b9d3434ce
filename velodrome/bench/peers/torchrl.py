"""TorchRL's PPO over a plain environment: its collector, advantage estimator and clipped loss, as in its examples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bench.peers.sb3 import timed
from velodrome.bench.trainer import Trainer

if TYPE_CHECKING:
    from velodrome.bench.problems.ar1 import TrainProblem


@contextmanager
def unheard_warnings() -> Iterator[None]:
    """Drop warnings, which TorchRL gives about its own next versions; recorded, because it sets filters of its own."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("ignore")
        yield


class TorchRLTrainer(Trainer):
    """The leanest loop that TorchRL's examples allow."""

    @unheard_warnings()
    def __init__(self, problem: TrainProblem, num_envs: int, seed: int) -> None:
        import torch
        from tensordict.nn import TensorDictModule
        from torchrl import collectors
        from torchrl.envs import GymWrapper, SerialEnv
        from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
        from torchrl.objectives import ClipPPOLoss
        from torchrl.objectives.value import GAE

        from velodrome.rollout.phases import PhaseClock

        settings = self.settings = problem.settings
        torch.manual_seed(seed)
        make = problem.case.plain
        envs = SerialEnv(num_envs, lambda: GymWrapper(make(), categorical_action_encoding=True))
        envs.set_seed(seed)

        def network(outputs: int) -> Any:
            return MLP(problem.case.floats, outputs, num_cells=list(settings.hidden), activation_class=torch.nn.Tanh)

        self.policy = network(int(envs.action_spec.space.n))
        actor = ProbabilisticActor(
            TensorDictModule(self.policy, ["observation"], ["logits"]),
            in_keys=["logits"],
            spec=envs.action_spec,
            distribution_class=torch.distributions.Categorical,
            return_log_prob=True,
        )
        critic = ValueOperator(network(1), in_keys=["observation"])
        # Named SyncDataCollector until 0.11.
        collector_type = getattr(collectors, "Collector", None) or collectors.SyncDataCollector
        self.collector = collector_type(envs, actor, frames_per_batch=settings.batch, total_frames=-1)
        self.batches = iter(self.collector)
        self.advantage = GAE(gamma=settings.gamma, lmbda=settings.gae_lambda, value_network=critic, average_gae=False)
        self.loss = ClipPPOLoss(
            actor,
            critic,
            clip_epsilon=settings.clip,
            entropy_bonus=False,
            critic_coeff=settings.value_weight,
            loss_critic_type="l2",
            normalize_advantage=True,
        )
        self.weights = list(self.loss.parameters())
        self.optimiser = torch.optim.Adam(self.weights, settings.learning_rate, eps=settings.adam_epsilon)
        self.clock, self.close = PhaseClock(), self.collector.shutdown
        envs.step_and_maybe_reset = timed(envs.step_and_maybe_reset, self.clock, "environment")

    @unheard_warnings()
    def run(self) -> dict[str, float]:
        self.clock.take()
        with self.clock("inference"):
            data = next(self.batches)
        with self.clock("learning"):
            self._learn(data)
        return self.clock.take()

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
        import torch

        with torch.no_grad():
            return self.policy(torch.from_numpy(observations)).argmax(1).numpy()
