"""The algorithms that Velodrome knows by name. An entry says everything that the rest of the package asks of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from velodrome.registry import Registry, load

if TYPE_CHECKING:
    from velodrome.learn.config import LearnerConfig


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm. What is given as text, "module:name", is imported when it is first needed."""

    name: str  # of the algorithm and of its section in a run's configuration
    config: str | type[LearnerConfig]  # the model of that section
    learner: str | Callable[..., Any]  # (worlds, network, config, *, total_steps, seed) -> a learner
    network: str | Callable[..., Any]  # (shape, action_space, NetworkConfig, saved) -> the module in a checkpoint
    summary: str = ""  # one line for people

    def config_model(self) -> type[LearnerConfig]:
        """Return the model of its section."""
        return load(self.config)

    def make_learner(self, *arguments: Any, **options: Any) -> Any:
        """Return a learner of it."""
        return load(self.learner)(*arguments, **options)

    def make_network(self, *arguments: Any) -> Any:
        """Return a network as its checkpoints hold it."""
        return load(self.network)(*arguments)


def _check(entry: AlgorithmEntry) -> None:
    load(entry.config)


ALGORITHMS = Registry(
    "algorithm",
    "velodrome.algorithms",
    (
        AlgorithmEntry(
            "ppo",
            config="velodrome.learn.config:PPOConfig",
            learner="velodrome.learn.ppo:PPO",
            network="velodrome.learn.policy:network_of_checkpoint",
            summary="proximal policy optimisation",
        ),
        AlgorithmEntry(
            "dqn",
            config="velodrome.learn.config:DQNConfig",
            learner="velodrome.learn.dqn:DQN",
            network="velodrome.learn.networks.q_network:network_of_checkpoint",
            summary="deep Q-learning, for discrete actions",
        ),
    ),
    _check,
)


def register_algorithm(entry: AlgorithmEntry, *, replace: bool = False) -> None:
    """Make an algorithm known by name; a package does the same with an entry point of `velodrome.algorithms`."""
    ALGORITHMS.add(entry, replace=replace)
