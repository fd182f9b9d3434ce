"""`RunConfig`: everything that a run is told, each field declared once with its meaning and range."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.learn.config import DQNConfig, NetworkConfig, PPOConfig
from velodrome.runs.config.market import FOR_BASKETS, FOR_FILES, FOR_MARKETS, SYNTHETIC, MarketConfig, Section
from velodrome.runs.config.parameters import (
    check_environment,
    checked_parameters,
    is_rule,
    resolved_parameters,
    takes_basket,
    takes_market,
)
from velodrome.vector.config import WORKER_FIELDS, VectorizedEnvConfig

# Of the fields of a run, those that change what is kept of it and not what it learns.
NOT_IN_HASH = ("name", "checkpoint", "logging")
# Other spellings of fields; on a command line the last part of any key will do.
SPELLINGS = {"num_envs": "vector.num_envs", "env.id": "env"}


class CheckpointConfig(Section):
    """When a run's state is kept, so that it can go on after a stop; it is always kept at the end."""

    every_seconds: float | None = Field(60.0, gt=0.0, description="seconds between checkpoints; null: not by time")
    every_steps: int | None = Field(None, ge=1, description="environment steps between checkpoints; null: not by steps")
    keep: int = Field(2, ge=1, le=10_000, description="checkpoints kept; older ones are deleted")


class EvaluationConfig(Section):
    """How well the agent does on data it does not learn from."""

    split: str | None = Field("validation", description="split that is played during training; null: none")
    every_steps: int | None = Field(
        250_000, ge=1, description="environment steps between evaluations during training; null: none"
    )
    episodes: int = Field(
        16,
        ge=1,
        le=1_000_000,
        description="episodes of an evaluation during training; a market's split is played in so many pieces",
    )
    final_split: str | None = Field("test", description="split that is played once training has ended; null: none")
    seeds: int = Field(5, ge=1, le=10_000, description="seeds that the final evaluation is repeated with")
    bootstrap_samples: int = Field(1_000, ge=10, le=10_000_000, description="resamples behind a confidence interval")
    confidence: float = Field(0.95, gt=0.0, lt=1.0, description="level of the confidence intervals")


class LoggingConfig(Section):
    """Where what happened is written."""

    folder: str = Field("runs", min_length=1, description="folder in which every run has one of its own")
    store: str | None = Field(
        None, description="SQLAlchemy URL of the store of all runs, such as postgresql+psycopg://host/name; an SQLite "
        "file in the folder if null",
    )  # fmt: skip
    log_every: int = Field(1, ge=1, le=1_000_000, description="iterations between rows of metrics")
    tensorboard: bool = Field(False, description="write metrics for TensorBoard too")
    wandb: bool = Field(False, description="write metrics for Weights & Biases too")
    wandb_project: str = Field("velodrome", min_length=1, description="project of Weights & Biases")
    wandb_mode: Literal["offline", "online"] = Field("offline", description="online sends while the run goes on")

    @field_validator("folder", mode="before")
    @classmethod
    def _path_is_text(cls, folder: Any) -> Any:
        return str(folder) if isinstance(folder, Path) else folder


class RunConfig(Section):
    """Everything that a run is told."""

    name: str | None = Field(
        None, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="of the run and its folder; made from the time and the environment if null",
        json_schema_extra={"legal": "letters, digits, '.', '_' and '-', 100 at most, or null"},
    )  # fmt: skip
    seed: int = Field(
        0, ge=0, lt=2**63, description="of environments, networks and sampling",
        json_schema_extra={"legal": "whole number 0 … 2^63 − 1"},
    )  # fmt: skip
    env: str = Field(
        "trading", description="environment: a name of the catalogue, or one that Gymnasium knows, such as CartPole-v1",
        json_schema_extra={"legal": "name of an environment"},
    )  # fmt: skip
    algorithm: Literal["ppo", "dqn"] = Field("ppo", description="how the agent learns; its section has the details")
    steps: int = Field(2_000_000, ge=1, description="environment steps in all, over all environments")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where environments and networks live; auto is cuda where that is usable, else cpu"
    )
    vector: VectorizedEnvConfig = Field(default_factory=VectorizedEnvConfig)
    market: MarketConfig = Field(default_factory=MarketConfig)
    params: dict[str, Any] = Field(
        default_factory=dict, description="parameters of the environment itself; `preset` names a set of them",
        json_schema_extra={"legal": "mapping of names to values"},
    )  # fmt: skip
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    ppo: PPOConfig = Field(default_factory=PPOConfig)
    dqn: DQNConfig = Field(default_factory=DQNConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)

    @model_validator(mode="before")
    @classmethod
    def _other_spellings(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "num_envs" not in given:
            return given
        content = respelled(given)
        vector = content.get("vector") or {}
        own = vector.model_dump(exclude_unset=True) if isinstance(vector, VectorizedEnvConfig) else vector
        num_envs = content.pop("vector.num_envs")
        return {**content, "vector": {**own, "num_envs": num_envs}}

    @field_validator("env")
    @classmethod
    def _environment_exists(cls, env: str) -> str:
        check_environment(env)
        return env

    @field_validator("params")
    @classmethod
    def _parameters_are_legal(cls, params: dict[str, Any], info: Any) -> dict[str, Any]:
        # Without `env` its own error is told instead.
        return checked_parameters(info.data["env"], params) if "env" in info.data else params

    @model_validator(mode="after")
    def _fields_agree(self) -> RunConfig:
        whole = self.model_dump()
        plain = type(self).model_construct().model_dump()
        for key, idle in self.idle_keys().items():
            if _at(whole, key) != _at(plain, key):
                raise ConfigError(no_effect(key, idle))
        self._check_backend()
        batch = self.num_envs * self.learner.rollout_length
        if self.steps < batch:
            raise ConfigError(
                f"steps = {self.steps:,} is less than one rollout: num_envs × {self.algorithm}.rollout_length is "
                f"{self.num_envs:,} × {self.learner.rollout_length:,} = {batch:,}. Give at "
                "least that, or make those smaller."
            )
        if takes_market(self.env):
            self._check_splits()
        return self

    def _check_backend(self) -> None:
        vector = self.vector
        vector.check(self.env, not is_rule(self.env))
        if vector.on_fault == "drop":
            raise ConfigError(
                "vector.on_fault = 'drop': a learner has a row for every environment and would learn from those that "
                "stand still. Use restart, or raise."
            )
        contradicting = {"native": "cuda", "python": "cuda", "cuda": "cpu"}.get(vector.env_type)
        if self.device == contradicting:
            raise ConfigError(
                f"vector.env_type = {vector.env_type!r} and device = {self.device!r} contradict each other: rules of "
                "Velodrome live where the network does. Leave one of them at auto."
            )

    def _check_splits(self) -> None:
        wanted = {"evaluation.split": self.evaluation.split, "evaluation.final_split": self.evaluation.final_split}
        splits = self.market.splits
        if splits and "train" not in splits:
            raise ConfigError(
                f"market.splits has {', '.join(splits)} and no 'train', on which the agent would learn; name one so, "
                "or write market.splits={} to learn on all data."
            )
        for key, split in wanted.items():
            if split is not None and split not in splits:
                raise ConfigError(
                    f"{key} = {split!r}: market.splits has {', '.join(splits) or 'none'}.{did_you_mean(split, splits)} "
                    f"Use one of them, or {key}=null for no such evaluation."
                )

    @property
    def num_envs(self) -> int:
        """Environments that are played at once."""
        return self.vector.num_envs

    @property
    def learner(self) -> PPOConfig | DQNConfig:
        """The section of the algorithm in use."""
        return self.ppo if self.algorithm == "ppo" else self.dqn

    def idle_keys(self) -> dict[str, Idle]:
        """Return the fields and sections that these choices leave without effect."""
        return idle_keys(self.env, self.algorithm, self.market.source)

    def content(self) -> dict[str, Any]:
        """Return all that is in use as plain JSON values in the order of declaration; `RunConfig(**content)` reads it.

        The order of `market.splits` and `market.windows` is part of their meaning.
        """
        content = self.model_dump(mode="json")
        for key in self.idle_keys():
            section, _, name = key.rpartition(".")
            _at(content, section).pop(name)
        return content

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits, the same for all that learn the same: name, checkpoint and logging aside."""
        content = {key: value for key, value in self.content().items() if key not in NOT_IN_HASH}
        vector = self.vector
        # Where environments run changes no result, and how many there are does.
        content["vector"] = [
            vector.num_envs,
            vector.autoscale and [vector.min_envs, vector.max_envs, vector.max_memory],
        ]
        content["params"] = sorted(resolved_parameters(self.env, self.params).items())
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def usable_device(self) -> Literal["cpu", "cuda"]:
        """Return the device that `device` means on this machine; cuda where it cannot be used is an error."""
        if self.device == "cpu" or self.vector.env_type in ("native", "python"):
            return "cpu"
        from velodrome.vector.cuda import unavailable_reason

        reason = unavailable_reason()
        if reason is None:
            return "cuda"
        wish = next((key for key, value in (("device", self.device), ("vector.env_type", self.vector.env_type))
                     if value == "cuda"), None)  # fmt: skip
        if wish is not None:
            raise BackendError(f"{wish} = 'cuda' cannot be used: {reason}. Use device=cpu, or device=auto.")
        return "cpu"


def respelled(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the fields' own names in place of other spellings."""
    env = content.get("env")
    if isinstance(env, Mapping) and set(env) == {"id"}:
        content = {**content, "env": env["id"]}
    for spelling, key in SPELLINGS.items():
        section, _, name = key.rpartition(".")
        inner = content.get(section) if section else None
        if spelling in content and (key in content or (isinstance(inner, Mapping) and name in inner)):
            raise ConfigError(f"{spelling} and {key} are one setting; give it once.")
    return {SPELLINGS.get(key, key): value for key, value in content.items()}


class Idle(NamedTuple):
    """Why a field has no effect."""

    chooser: str  # dotted key of the field that decided it
    reason: str


def idle_keys(env: str, algorithm: str, source: str) -> dict[str, Idle]:
    """Return the dotted keys of fields and sections that have no effect with these choices."""
    idle: dict[str, Idle] = {}
    if takes_market(env):
        for name in (*FOR_FILES, *dict.fromkeys(name for names in SYNTHETIC.values() for name in names)):
            if source not in SYNTHETIC and name not in FOR_FILES:
                reason = f"market.source is a path ({source}), and {name} is for a built-in process"
                idle[f"market.{name}"] = Idle("market.source", reason)
            elif source in SYNTHETIC and name not in SYNTHETIC[source]:
                reason = f"market.source is the built-in process {source}, which has no {name}"
                idle[f"market.{name}"] = Idle("market.source", reason)
        basket = takes_basket(env)
        for name in FOR_MARKETS if basket else FOR_BASKETS:
            data = "one grid of several instruments" if basket else "each instrument by itself"
            idle[f"market.{name}"] = Idle("env", f"env is {env}, which plays on {data} and has no use for {name}")
    else:
        for key in ("market", "evaluation.split", "evaluation.final_split"):
            idle[key] = Idle("env", f"env is {env}, which plays on no market")
    if is_rule(env):
        for name in WORKER_FIELDS:
            idle[f"vector.{name}"] = Idle("env", f"env is {env}, a rule of Velodrome, which needs no worker processes")
    for other in ("ppo", "dqn"):
        if other != algorithm:
            idle[other] = Idle("algorithm", f"algorithm is {algorithm}")
    return idle


def no_effect(key: str, idle: Idle) -> str:
    """Return what to say of a key that was set in vain."""
    return f"{key} is set and would have no effect: {idle.reason}. Leave {key} out, or change {idle.chooser}."


def _at(content: dict[str, Any], key: str) -> Any:
    """Return what lies at a dotted key; '' is the whole."""
    for name in key.split(".") if key else ():
        content = content[name]
    return content
