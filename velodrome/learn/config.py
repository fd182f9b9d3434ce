"""The settings of networks and learners, each declared once with its meaning and range."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from velodrome.errors import did_you_mean

Schedule = Literal["constant", "linear", "cosine"]
Head = Literal["auto", "gaussian", "dirichlet"]


def searched(low: float, high: float, *, log: bool = False, beside: str | None = None) -> dict[str, Any]:
    """Declare beside a field, as its `json_schema_extra`, in which range a study searches it unless it is told.

    beside: dotted key of another field without whose value this one has no effect.
    """
    return {"search": {"low": low, "high": high, "log": log, "beside": beside}}


def searched_among(*values: Any) -> dict[str, Any]:
    """Declare beside a field which of its values a study tries unless it is told."""
    return {"search": {"choices": list(values)}}


class LearnConfig(BaseModel):
    """Base of the learners' configurations: frozen, unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NetworkConfig(LearnConfig):
    """The network between an observation and its heads (actions and value)."""

    kind: str = Field(
        "mlp",
        description="mlp, mlp_batch_norm, conv (1-D convolution over each window), gru (memory over the steps of an "
        "episode), instruments (portfolio: the same network for each instrument, joined by what all show together), or "
        "module:Class, an nn.Module of your own",
    )
    hidden: tuple[int, ...] = Field((64, 64), description="widths of the hidden layers")
    activation: Literal["tanh", "relu", "silu", "gelu"] = Field("tanh", description="between the layers")
    shared: bool = Field(False, description="one trunk for the policy and the value instead of one each")
    layer_norm: bool = Field(
        False, description="scale the sums of every hidden layer, sample by sample, to mean 0 and deviation 1"
    )
    dropout: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="share of the hidden units left out in learning, others for each sample; PPO acts with the masks "
        "that it learns with; nothing is left out in evaluation and use",
    )
    channels: tuple[int, ...] = Field((16, 32), description="conv: channels of the convolutions over a window")
    kernel: int = Field(5, ge=1, le=255, description="conv: bars that a convolution sees, unit: rows of the window")
    memory: int = Field(64, ge=1, le=4096, description="gru: width of the state carried from step to step")
    head: Head = Field(
        "auto",
        description="distribution over continuous actions: gaussian (cut at the ends of the range), or dirichlet "
        "(weights that add up to 1: portfolio with weighting = simplex; it learnt as much as gaussian there); auto: "
        "gaussian. A softmax head is gaussian with the portfolio's weighting = softmax",
    )
    initial_log_std: float = Field(
        -0.5, ge=-10.0, le=2.0, description="continuous actions: logarithm of the first standard deviation"
    )

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, kind: str) -> str:
        kind = "mlp_batch_norm" if kind == "batchnorm_mlp" else kind  # TorchTrade's word
        if kind not in NETWORKS and ":" not in kind:
            raise ValueError(
                f"no network {kind!r}; there are {', '.join(NETWORKS)}, or write module:Class."
                f"{did_you_mean(kind, NETWORKS)}"
            )
        return kind

    @field_validator("hidden", "channels")
    @classmethod
    def _widths_are_positive(cls, widths: tuple[int, ...]) -> tuple[int, ...]:
        if not widths or not all(1 <= width <= 65536 for width in widths):
            raise ValueError("needs one or more widths from 1 to 65536")
        return widths

    @model_validator(mode="after")
    def _layers_can_be_changed(self) -> Self:
        if self.layer_norm and self.kind == "mlp_batch_norm":
            raise ValueError("layer_norm = true: mlp_batch_norm normalises the same sums already; use kind = mlp")
        if ":" in self.kind and (self.layer_norm or self.dropout):
            raise ValueError(
                f"layer_norm and dropout change the layers of Velodrome's own networks, and kind = {self.kind} is one "
                f"of yours: leave them out here and give it such layers"
            )
        return self


NETWORKS = ("mlp", "mlp_batch_norm", "conv", "gru", "instruments")


class LearnerConfig(LearnConfig):
    """What all algorithms share; each has a model of its own that extends this one."""

    gamma: float = Field(
        0.99, ge=0.0, le=1.0, description="discount of the next step's value", json_schema_extra=searched(0.9, 0.999)
    )
    learning_rate: float = Field(
        3e-4,
        gt=0.0,
        le=1.0,
        description="step size of Adam at the start",
        json_schema_extra=searched(3e-5, 3e-3, log=True),
    )
    schedule: Schedule = Field("constant", description="how the learning rate falls to 0 over the run")
    max_gradient_norm: float = Field(0.5, gt=0.0, description="gradients longer than this are shortened to it")
    weight_decay: float = Field(
        0.0,
        ge=0.0,
        description="before each gradient step, weights shrink by learning_rate × this share of themselves (AdamW); "
        "biases, deviations and the scales of normalisations do not; 0: none",
    )
    normalise_observations: bool = Field(
        False,
        description="subtract the running mean of the observed values and divide by their deviation; market windows "
        "are scaled when the market is built and stay as they are",
    )
    normalise_rewards: bool = Field(
        False, description="divide rewards by the running deviation of the discounted return; for PPO"
    )
    compile: bool = Field(False, description="run networks and losses through torch.compile")
    cuda_graphs: bool = Field(True, description="on CUDA: capture the rollout and the update as one graph each")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the matrix products; bfloat16 is for GPUs (on CPUs it is slower)"
    )
    engine: Literal["auto", "autograd"] = Field(
        "auto", description="auto: compiled loops where the network is a plain perceptron, else torch's autograd"
    )
    per_bar: Literal["auto", "always", "never"] = Field(
        "auto", description="first layer: encode each distinct bar once instead of once per sample (same result)"
    )
    rollout_length: int = Field(
        32,
        ge=1,
        le=65536,
        description="steps of every environment between two updates",
        json_schema_extra=searched(8, 128, log=True),
    )

    @model_validator(mode="after")
    def _weights_keep_their_sign(self) -> Self:
        if self.learning_rate * self.weight_decay >= 1.0:
            raise ValueError(
                f"weight_decay = {self.weight_decay:g} with learning_rate = {self.learning_rate:g} takes all of a "
                f"weight away in a step; give a weight_decay below {1.0 / self.learning_rate:g}, usually 0.001 to 10"
            )
        return self

    def rate_at(self, done: float) -> float:
        """Return the learning rate when a fraction `done` of the run is over."""
        return self.learning_rate * _left(self.schedule, done)

    def scheduled(self, done: float) -> dict[str, float]:
        """Return everything that changes over a run, as it is when a fraction `done` of the run is over."""
        return {"learning_rate": self.rate_at(done)}

    def idle_at_first(self) -> tuple[str, int]:
        """Return for how many steps at the beginning the policy learns nothing, and the setting that says so."""
        return "", 0

    def fewest_envs(self, network: NetworkConfig) -> int:
        """Return how many environments it needs."""
        return 1

    def most_envs(self) -> int | None:
        """Return how many environments it can have; None: any number."""
        return None

    def samples(self, num_envs: int) -> int:
        """Return how many samples it has in memory at most, with this many environments."""
        return num_envs * self.rollout_length


class PPOConfig(LearnerConfig):
    """Proximal policy optimisation."""

    # Returns of a bar are so small that the value's loss would teach nothing: without this PPO did not learn on prices.
    normalise_rewards: bool = Field(
        True, description="divide rewards by the running deviation of the discounted return"
    )
    epochs: int = Field(
        4, ge=1, le=1000, description="passes over a rollout in an update", json_schema_extra=searched(1, 8)
    )
    minibatches: int = Field(
        4,
        ge=1,
        le=65536,
        description="parts of a rollout, each one gradient step",
        json_schema_extra=searched(1, 16, log=True),
    )
    gae_lambda: float = Field(
        0.95,
        ge=0.0,
        le=1.0,
        description="decay of advantages (0: one step, 1: Monte Carlo)",
        json_schema_extra=searched(0.8, 1.0),
    )
    clip: float = Field(
        0.2,
        gt=0.0,
        le=10.0,
        description="how far the probability ratio may move from 1",
        json_schema_extra=searched(0.1, 0.4),
    )
    value_clip: float | None = Field(None, gt=0.0, description="how far a value may move in an update; none: freely")
    entropy: float = Field(
        0.0, ge=0.0, description="weight of the entropy bonus", json_schema_extra=searched(0.0, 0.02)
    )
    entropy_schedule: Schedule = Field("constant", description="how the weight of the entropy bonus falls to 0")
    kl_penalty: float = Field(
        0.0, ge=0.0, description="weight of the KL divergence from the policy that acted, added to the loss; 0: none"
    )
    value_weight: float = Field(0.5, ge=0.0, description="weight of the value's loss")
    normalise_advantages: bool = Field(True, description="scale advantages to mean 0, deviation 1 per minibatch")
    target_kl: float | None = Field(
        None, gt=0.0, description="stop the update once the policy moved this far (approximate KL divergence)"
    )

    critic_first: int = Field(
        0,
        ge=0,
        description="environment steps at the beginning after which the policy is put back as it was, so that the "
        "critic alone learns: a policy that begins well would suffer from a critic that knows nothing; 0: none",
    )
    average_weights: bool = Field(
        False,
        description="validate, keep and use the mean of the weights after all updates so far, each weighted by its "
        "number, in place of the latest ones; learning itself goes on from those",
    )

    def scheduled(self, done: float) -> dict[str, float]:
        """Return the learning rate and, if it falls, the weight of the entropy bonus."""
        falls = self.entropy_schedule != "constant"
        weight = {"entropy_weight": self.entropy * _left(self.entropy_schedule, done)} if falls else {}
        return {**super().scheduled(done), **weight}

    def idle_at_first(self) -> tuple[str, int]:
        """Return for how many steps the critic learns alone."""
        return "critic_first", self.critic_first

    def fewest_envs(self, network: NetworkConfig) -> int:
        """Return how many environments it needs: a recurrent network is trained on minibatches of whole ones."""
        return self.minibatches if network.kind == "gru" else 1


class ReplayConfig(LearnerConfig):
    """What algorithms share that learn from a replay buffer."""

    rollout_length: int = Field(4, ge=1, le=65536, description="steps of every environment between two updates")
    updates: int = Field(
        8, ge=1, le=65536, description="gradient steps after each rollout", json_schema_extra=searched(1, 32, log=True)
    )
    rounds: int = Field(
        1,
        ge=1,
        le=65536,
        description="rollouts, each with its gradient steps, in an iteration. What is learnt does not depend on it; "
        "metrics are gathered, and a GPU is waited for, once an iteration",
    )
    batch_size: int = Field(
        1024, ge=1, description="transitions in a gradient step", json_schema_extra=searched(128, 4096, log=True)
    )
    buffer_size: int = Field(200_000, ge=1, description="transitions that the replay buffer holds")
    learning_starts: int = Field(10_000, ge=0, description="transitions collected before the first gradient step")

    @property
    def steps_of_transition(self) -> int:
        """How many steps a transition is made of at most."""
        return 1

    def idle_at_first(self) -> tuple[str, int]:
        """Return for how many steps transitions are collected alone: the round that comes to the number learns."""
        return "learning_starts", max(self.learning_starts - 1, 0)

    def most_envs(self) -> int | None:
        """Return how many environments the buffer holds enough steps of."""
        return self.buffer_size // self.steps_of_transition

    def samples(self, num_envs: int) -> int:
        """Return how many samples it has in memory at most: those of the replay buffer, and a batch."""
        return super().samples(num_envs) + self.buffer_size + self.batch_size


class DQNConfig(ReplayConfig):
    """Deep Q-learning; discrete actions only."""

    target_every: int = Field(
        200,
        ge=1,
        description="gradient steps between copies into the target network",
        json_schema_extra=searched(50, 2000, log=True),
    )
    n_step: int = Field(
        1,
        ge=1,
        le=1024,
        description="steps of reward before the value of the state reached",
        json_schema_extra=searched(1, 8),
    )
    double: bool = Field(True, description="choose the next action by the online network, value it by the target")
    duelling: bool = Field(True, description="separate state value and action advantages")
    prioritised: bool = Field(False, description="replay transitions in proportion to their error")
    priority_exponent: float = Field(0.6, ge=0.0, le=1.0, description="prioritised: 0 is uniform, 1 fully by error")
    importance_start: float = Field(0.4, ge=0.0, le=1.0, description="prioritised: correction of the bias, rises to 1")
    epsilon_start: float = Field(1.0, ge=0.0, le=1.0, description="share of random actions at the start")
    epsilon_end: float = Field(0.05, ge=0.0, le=1.0, description="share of random actions at the end")
    epsilon_fraction: float = Field(
        0.5,
        gt=0.0,
        le=1.0,
        description="part of the run over which that share falls",
        json_schema_extra=searched(0.1, 0.9),
    )

    @property
    def steps_of_transition(self) -> int:
        """How many steps a transition is made of at most."""
        return self.n_step

    def scheduled(self, done: float) -> dict[str, float]:
        """Return the learning rate, the share of random actions and, if used, the power of the importance weights."""
        epsilon = _between(self.epsilon_start, self.epsilon_end, done / self.epsilon_fraction)
        importance = {"importance": _between(self.importance_start, 1.0, done)} if self.prioritised else {}
        return {**super().scheduled(done), "epsilon": epsilon, **importance}


class SACConfig(ReplayConfig):
    """Soft actor-critic; continuous actions only."""

    max_gradient_norm: float = Field(
        10.0, gt=0.0, description="gradients longer than this are shortened to it, those of policy and values apart"
    )
    # Returns of a bar are so small that the entropy's weight would have to fall by thousands first.
    normalise_rewards: bool = Field(
        True, description="divide rewards by the running deviation of the discounted return"
    )
    updates: int = Field(
        16, ge=1, le=65536, description="gradient steps after each rollout", json_schema_extra=searched(1, 64, log=True)
    )
    target_share: float = Field(
        0.005,
        gt=0.0,
        le=1.0,
        description="how far the target network follows the values in a gradient step",
        json_schema_extra=searched(0.001, 0.05, log=True),
    )
    entropy: float | None = Field(
        None, ge=0.0, description="weight of the policy's entropy; null: learnt, so that it stays at entropy_target"
    )
    entropy_start: float = Field(0.1, gt=0.0, description="weight of the entropy at first, where it is learnt")
    entropy_target: float | None = Field(
        None,
        description="entropy that the policy is held at where the weight is learnt, in nats, of actions from -1 to 1; "
        "null: -1 for each number of an action",
    )


def _left(schedule: Schedule, done: float) -> float:
    """Return the share that a schedule leaves of a number when a fraction `done` of the run is over."""
    left = 1.0 - min(max(done, 0.0), 1.0)
    return {"constant": 1.0, "linear": left, "cosine": 0.5 * (1.0 - math.cos(math.pi * left))}[schedule]


def _between(start: float, end: float, done: float) -> float:
    """Return where a number is on its way when a fraction `done` of the way is over."""
    return start + (end - start) * min(max(done, 0.0), 1.0)
