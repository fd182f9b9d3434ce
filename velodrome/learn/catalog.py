"""The algorithms that Velodrome knows by name. An entry says everything that the rest of the package asks of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError
from velodrome.registry import Registry, load

if TYPE_CHECKING:
    import gymnasium

    from velodrome.learn.config import LearnerConfig, NetworkConfig

ACTION_SPACES = ("Discrete", "MultiDiscrete", "Box")  # that learners can take
EXAMPLES = {"Discrete": " (trading: action = 'levels' or 'brackets')", "Box": " (trading: action = 'continuous')"}
CHANGEABLE = (
    "gamma",
    "learning_rate",
    "schedule",
    "max_gradient_norm",
    "weight_decay",
)  # of every LearnerConfig, in mid-run


@dataclass(frozen=True)
class AlgorithmEntry:
    """One algorithm. What is given as text, "module:name", is imported when it is first needed."""

    name: str  # of the algorithm and of its section in a run's configuration
    config: str | type[LearnerConfig]  # the model of that section
    learner: str | Callable[..., Any]  # (worlds, network, config, *, total_steps, seed) -> a learner
    network: str | Callable[..., Any]  # (shape, action_space, NetworkConfig, **saved) -> the module in a checkpoint
    summary: str = ""  # one line for people
    action_spaces: tuple[str, ...] = ACTION_SPACES  # names of the Gymnasium spaces that it can act in
    saved: tuple[str, ...] = ()  # fields of its config that `network` needs; a checkpoint says them
    network_settings: tuple[str, ...] | None = None  # fields of NetworkConfig that it reads; None: all
    unread: tuple[str, ...] = ()  # fields of its config, inherited ones, that it does not read; setting one is an error
    # Fields of its config that a child of a run may change: those that shape neither the network nor the state.
    changeable: tuple[str, ...] = CHANGEABLE
    # Ways to spend less time on learning, for the sentence about the bottleneck: "fewer epochs (ppo.epochs)".
    advice: tuple[str, ...] = ()
    memory_advice: tuple[str, ...] = ()  # likewise ways to take less memory: "shorter rollouts (ppo.rollout_length)"
    augments: bool = False  # whether it calls `worlds.renew(steps)` before each rollout, which noise and masks need
    drops_units: bool = False  # whether it draws masks (`DropoutMasks`), without which network.dropout does nothing
    shares_trunk: bool = False  # whether network.shared makes its learning cheaper
    imitates: bool = False  # whether its policy can be taught a rule before it learns (learn/imitation.py)

    def config_model(self) -> type[LearnerConfig]:
        """Return the model of its section."""
        return load(self.config)

    def make_learner(self, *arguments: Any, **options: Any) -> Any:
        """Return a learner of it."""
        return load(self.learner)(*arguments, **options)

    def make_network(self, shape: Any, space: gymnasium.Space, network: NetworkConfig, saved: dict[str, Any]) -> Any:
        """Return a network as in a checkpoint, which says what was saved of the config."""
        return load(self.network)(shape, space, network, **{name: saved[name] for name in self.saved})

    def saved_facts(self, config: LearnerConfig) -> dict[str, Any]:
        """Return what a checkpoint must say of its network besides NetworkConfig."""
        return {name: getattr(config, name) for name in self.saved}

    def reads(self, section: str, name: str) -> bool:
        """Return whether it reads a field of its own section, or of the section `network`."""
        if (section, name) == ("network", "dropout") and not self.drops_units:
            return False
        if section == "network":
            return self.network_settings is None or name in self.network_settings
        return name not in self.unread

    def check_action_space(self, space: gymnasium.Space) -> None:
        """Refuse an action space that it cannot act in."""
        kind = type(space).__name__
        if kind in self.action_spaces:
            return
        others = [repr(entry.name) for entry in ALGORITHMS if kind in entry.action_spaces]
        example = next((text for name, text in EXAMPLES.items() if name in self.action_spaces), "")
        raise ConfigError(
            f"algorithm = {self.name!r} takes {' and '.join(self.action_spaces)} actions and the action space is "
            f"{space}. Use an environment with such actions{example}"
            + (f", or algorithm = {' or '.join(others)}." if others else ".")
        )


def _check(entry: AlgorithmEntry) -> None:
    from velodrome.learn.config import NetworkConfig

    own = load(entry.config)
    named = {name: (getattr(entry, name), own) for name in ("saved", "unread", "changeable")}
    named["network_settings"] = (entry.network_settings or (), NetworkConfig)
    for field, (names, model) in named.items():
        missing = [name for name in names if name not in model.model_fields]
        if missing:
            raise ConfigError(
                f"algorithm {entry.name!r}: {field} names {', '.join(missing)}, which {model.__name__} has not"
            )


ALGORITHMS = Registry(
    "algorithm",
    "velodrome.algorithms",
    (
        AlgorithmEntry(
            "ppo",
            config="velodrome.learn.config:PPOConfig",
            learner="velodrome.learn.ppo:PPO",
            network="velodrome.learn.policy:ActorCritic",
            summary="proximal policy optimisation",
            changeable=(
                *(*CHANGEABLE, "rollout_length", "epochs", "minibatches", "gae_lambda", "clip", "value_clip"),
                *("entropy", "entropy_schedule", "kl_penalty", "value_weight", "normalise_advantages", "target_kl"),
                "critic_first",
            ),
            advice=("fewer epochs (ppo.epochs)",),
            memory_advice=("shorter rollouts (ppo.rollout_length)", "more minibatches (ppo.minibatches)"),
            augments=True,
            drops_units=True,
            shares_trunk=True,
            imitates=True,
        ),
        AlgorithmEntry(
            "dqn",
            config="velodrome.learn.config:DQNConfig",
            learner="velodrome.learn.dqn:DQN",
            network="velodrome.learn.networks.q_network:QNetwork",
            summary="deep Q-learning, for discrete actions",
            action_spaces=("Discrete",),
            saved=("duelling",),
            network_settings=("kind", "hidden", "activation", "layer_norm", "dropout", "channels", "kernel"),
            unread=("engine",),
            changeable=(
                *(*CHANGEABLE, "rollout_length", "updates", "batch_size", "learning_starts", "target_every", "double"),
                *("priority_exponent", "importance_start", "epsilon_start", "epsilon_end", "epsilon_fraction"),
            ),
            augments=True,
            drops_units=True,
            advice=("fewer gradient steps (dqn.updates)", "smaller batches (dqn.batch_size)"),
            memory_advice=("a smaller replay buffer (dqn.buffer_size)", "smaller batches (dqn.batch_size)"),
        ),
        AlgorithmEntry(
            "sac",
            config="velodrome.learn.config:SACConfig",
            learner="velodrome.learn.sac:SAC",
            network="velodrome.learn.networks.soft_actor_critic:SquashedActor",
            summary="soft actor-critic, for continuous actions",
            action_spaces=("Box",),
            network_settings=("kind", "hidden", "activation", "layer_norm", "channels", "kernel"),
            unread=("engine", "compile", "per_bar"),
            changeable=(
                *(*CHANGEABLE, "rollout_length", "updates", "batch_size", "learning_starts", "target_share"),
                *("entropy", "entropy_target"),
            ),
            augments=True,
            advice=("fewer gradient steps (sac.updates)", "smaller batches (sac.batch_size)"),
            memory_advice=("a smaller replay buffer (sac.buffer_size)", "smaller batches (sac.batch_size)"),
        ),
    ),
    _check,
)


def register_algorithm(entry: AlgorithmEntry, *, replace: bool = False) -> None:
    """Make an algorithm known by name; a package does the same with an entry point of `velodrome.algorithms`."""
    ALGORITHMS.add(entry, replace=replace)
