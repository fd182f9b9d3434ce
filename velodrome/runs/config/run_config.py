"""`RunConfig`: everything that a run is told, each field declared once with its meaning and range."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from velodrome.envs.catalog import CATALOG
from velodrome.errors import BackendError, ConfigError, did_you_mean
from velodrome.learn.catalog import ALGORITHMS
from velodrome.learn.config import DQNConfig, LearnerConfig, NetworkConfig, PPOConfig, SACConfig
from velodrome.runs.config import parameters, sections
from velodrome.runs.config.parameters import is_rule, price_data
from velodrome.runs.config.sections import CheckpointConfig, EvaluationConfig, LoggingConfig, Section, setting
from velodrome.vector.config import WORKER_FIELDS, VectorizedEnvConfig

# Fields that change what is kept of a run, but not what it learns.
NOT_IN_HASH = ("name", "checkpoint", "logging", "resources")
# Fields, or whole sections, that older runs had not: at their defaults they do not count, because hashes last.
LATER = (
    *("augment", "weight_decay", "kl_penalty", "layer_norm", "dropout", "averaged", "patience", "folds", "shorten"),
    *("share", "fewest", "teacher", "critic_first", "average_weights", "official", "entropy_schedule"),
    *("bars", "margin", "rounds", "sums"),
)
OF_MARKETS = ("evaluation.split", "evaluation.final_split", "evaluation.folds")
# Other spellings of fields; on a command line the last part of any key will do.
SPELLINGS = {"num_envs": "vector.num_envs", "env.id": "env"}


class RunConfig(Section):
    """Everything that a run is told.

    An algorithm of the catalogue that has no field here has its section among the extra fields, under its name.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(lambda read: read())]]

    name: str | None = setting(
        None,
        "of the run and its folder; made from the time and the environment if null",
        legal="letters, digits, '.', '_' and '-', 100 at most, or null",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
    )
    seed: int = setting(0, "of environments, networks and sampling", legal="whole number 0 … 2^63 − 1", ge=0, lt=2**63)
    seeds: int = setting(
        1,
        "agents to train that differ only in their seed (seed, seed + 1, …); their evaluation is about all of them",
        ge=1,
        le=1_000,
    )
    ensemble: int = setting(
        1,
        "agents to train that differ only in their seed (seed, seed + 1, …) and act as one, by the mean of their "
        "distributions (docs/ensembles.md)",
        ge=1,
        le=100,
    )
    env: Annotated[str, AfterValidator(parameters.known_environment)] = setting(
        "trading",
        "environment: a name of the catalogue, one that Gymnasium knows, such as CartPole-v1, or module:Class (or "
        "module:function) of your own",
        legal="name of an environment, or module:Class",
    )
    algorithm: Annotated[str, AfterValidator(lambda name: ALGORITHMS.get(name).name)] = setting(
        "ppo",
        "how the agent learns; its section has the details",
        legal=lambda: f"one of {', '.join(ALGORITHMS.names())}",
    )
    steps: int = setting(2_000_000, "environment steps in all, over all environments", ge=1)
    episodes: int | None = setting(
        None,
        "episodes in all, over all environments, after which a run ends, with the rollout in which the last of them "
        "ends; steps is then as many as they can take, or what is given beside it; null: steps alone count",
        ge=1,
    )
    device: str = setting(
        "auto",
        "where environments and networks live; auto is cuda where that is usable, else cpu; cuda:1 is a GPU by its "
        "number",
        legal="auto, cpu, cuda or cuda:N",
        pattern=r"^(auto|cpu|cuda|cuda:\d{1,3})$",
    )
    vector: VectorizedEnvConfig = Field(default_factory=VectorizedEnvConfig)
    market: sections.MarketConfig = Field(default_factory=sections.MarketConfig)
    params: dict[str, Any] = setting(
        {}, "parameters of the environment itself; `preset` names a set of them", legal="mapping of names to values"
    )
    network: NetworkConfig = Field(default_factory=NetworkConfig)
    ppo: PPOConfig = Field(default_factory=PPOConfig)
    dqn: DQNConfig = Field(default_factory=DQNConfig)
    sac: SACConfig = Field(default_factory=SACConfig)
    augment: sections.AugmentConfig = Field(default_factory=sections.AugmentConfig)
    teacher: sections.TeacherConfig = Field(default_factory=sections.TeacherConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    logging: LoggingConfig = Field(default_factory=LoggingConfig)
    resources: sections.ResourcesConfig = Field(default_factory=sections.ResourcesConfig)

    @model_validator(mode="before")
    @classmethod
    def _sections_and_spellings(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        content = nested(respelled(dotted(given)))
        algorithm = content.get("algorithm")
        if isinstance(algorithm, str) and algorithm not in cls.model_fields and algorithm in ALGORITHMS:
            content.setdefault(algorithm, {})
        # Read while pydantic validates, so that its errors name the section.
        for name in content.keys() - cls.model_fields:
            content[name] = functools.partial(_read_section, name, content[name])
        return content

    @field_validator("params")
    @classmethod
    def _parameters_are_legal(cls, params: dict[str, Any], info: Any) -> dict[str, Any]:
        # Without a legal `env` only the error about that is told.
        return parameters.checked_parameters(info.data["env"], params) if "env" in info.data else params

    @model_validator(mode="after")
    def _fields_agree(self) -> RunConfig:
        defaults = dotted(type(self).model_construct().model_dump())
        for key, value in dotted(self.model_dump(exclude_unset=True)).items():
            idle = self.choices.idle(key)
            if idle is not None and value != defaults.get(key, {}):
                raise ConfigError(idle.told(key))
        if self.seeds > 1 and self.ensemble > 1:
            raise ConfigError(
                f"seeds = {self.seeds} and ensemble = {self.ensemble}: agents of several seeds are evaluated one by "
                "one, and members of an ensemble as one policy. Give one of both; for the chance in training of an "
                f"ensemble, train several with seeds that are apart: seed=0, seed={self.ensemble}, …"
            )
        if self.algorithm == "ppo" and self.ppo.critic_first and self.network.shared:
            raise ConfigError(
                f"ppo.critic_first = {self.ppo.critic_first} and network.shared = true: the critic cannot learn alone "
                "while it shares its layers with the policy. Set ppo.critic_first = 0, or network.shared = false."
            )
        self._check_backend()
        funding = self.params.get("funding_column")
        if funding is not None and self.market.sums is None and self.market.timeframe and not self.market.is_synthetic:
            # Holding a position through a longer bar costs what it costs through all bars in it.
            object.__setattr__(self, "market", self.market.model_copy(update={"sums": (funding,)}))
        if self.episodes is not None and "steps" not in self.model_fields_set:
            object.__setattr__(self, "steps", self._steps_of_episodes())
        length, vector = getattr(self.learner, "rollout_length", 1), self.vector
        number = vector.min_envs if vector.num_envs == "auto" else vector.num_envs
        if self.steps < number * length:
            raise ConfigError(
                f"steps = {self.steps:,} is less than one rollout: num_envs × {self.algorithm}.rollout_length is "
                f"{number:,} × {length:,} = {number * length:,}. Give at least that, or make those smaller."
            )
        if price_data(self.env) is not None:
            self._check_splits()
        return self

    def _check_backend(self) -> None:
        vector = self.vector.for_env(self.env, not is_rule(self.env))
        if vector is not self.vector:  # DummyVecEnv of a rule
            object.__setattr__(self, "vector", vector)
        if vector.on_fault == "drop":
            raise ConfigError(
                "vector.on_fault = 'drop': a learner has a row for every environment and would go on learning from "
                "those that stand still. Use restart, or raise."
            )
        contradicting = {"native": "cuda", "python": "cuda", "cuda": "cpu"}.get(vector.env_type)
        if self.device.partition(":")[0] == contradicting:
            raise ConfigError(
                f"vector.env_type = {vector.env_type!r} and device = {self.device!r} contradict each other: rules of "
                "Velodrome live where the network does. Leave one of them at auto."
            )

    def _check_splits(self) -> None:
        splits = self.market.splits
        if splits and "train" not in splits:
            raise ConfigError(
                f"market.splits has {', '.join(splits)} and no 'train', on which the agent would learn. Name one of "
                "them train, or write market.splits={} to learn on all data."
            )
        for name in ("split", "final_split"):
            split = getattr(self.evaluation, name)
            if split is not None and split not in splits:
                raise ConfigError(
                    f"evaluation.{name} = {split!r}: market.splits has {', '.join(splits) or 'none'}."
                    f"{did_you_mean(split, splits)} Use one of them, or evaluation.{name}=null for no such evaluation."
                )

    def _steps_of_episodes(self) -> int:
        """Return as many steps as the episodes can take: those of all environments run side by side."""
        longest = parameters.longest_episode(self.env, self.params)
        if longest is None:
            raise ConfigError(
                f"episodes = {self.episodes:,}: how many steps an episode of {self.env} can take is not known. Give "
                "steps too, and the run ends with whichever comes first."
            )
        vector, length = self.vector, getattr(self.learner, "rollout_length", 1)
        number = vector.min_envs if vector.num_envs == "auto" else vector.num_envs
        in_each = -(-self.episodes // number) * longest  # type: ignore[operator]
        return number * max(in_each, length)

    @property
    def num_envs(self) -> int:
        """Environments that are played at once; `auto` is none until a training has chosen them."""
        number = self.vector.num_envs
        if number == "auto":
            raise ConfigError("num_envs = 'auto' is measured when a training begins; give a number here.")
        return number

    def with_num_envs(self, num_envs: int) -> RunConfig:
        """Return the same with another number of environments."""
        vector = self.vector.model_copy(update={"num_envs": num_envs})
        if not vector.autoscale:  # the bounds of num_envs = auto have had their effect, and would be refused beside it
            bounds = {name: type(vector).model_fields[name].default for name in ("min_envs", "max_envs")}
            vector = vector.model_copy(update=bounds)
        found = self.model_copy(update={"vector": vector})
        if self.episodes is None or "steps" in self.model_fields_set:
            return found
        return found.model_copy(update={"steps": found._steps_of_episodes()})

    @property
    def trainings(self) -> int:
        """Agents that are trained: one, or several that differ only in their seed."""
        return max(self.seeds, self.ensemble)

    @property
    def learner(self) -> LearnerConfig:
        """The section of the algorithm in use."""
        return getattr(self, self.algorithm)

    @property
    def choices(self) -> Choices:
        """The choices that decide which other fields have an effect."""
        return Choices(self.env, self.algorithm, self.market.source)

    def content(self) -> dict[str, Any]:
        """Return all that is in use as plain JSON values in the order of declaration; `RunConfig(**content)` reads it.

        The order of `market.splits` and `market.windows` is part of their meaning.
        """
        return self._content(self.choices)

    def _content(self, choices: Choices) -> dict[str, Any]:
        settings = dotted(self.model_dump(mode="json"))
        return nested({key: value for key, value in settings.items() if choices.idle(key) is None})

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits, equal for runs that learn the same: name, checkpoint and logging do not count."""
        # Settings that the algorithm does not read have their defaults; older runs counted them, and hashes last.
        settings = dotted(self._content(self.choices._replace(count_unread=True)))
        everything = nested({key: value for key, value in settings.items() if not _is_later_default(key, value)})
        content = {key: value for key, value in everything.items() if key not in NOT_IN_HASH}
        for name in ("seeds", "ensemble"):
            if content[name] == 1:
                del content[name]  # the hash of a single agent is that of a member of a group, and of older runs
        if content["episodes"] is None:
            del content["episodes"]
        content.get("market", {}).pop("leak_seconds", None)  # how long is looked for leaks changes no result
        vector = self.vector
        # Where environments run changes no result; how many there are does.
        scaling = vector.autoscale and [vector.min_envs, vector.max_envs, vector.max_memory]
        content["vector"] = [vector.num_envs, scaling]
        content["params"] = sorted(parameters.resolved_parameters(self.env, self.params).items())
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def code_names(self) -> list[str]:
        """Return by what it names code: modules to import, and texts that the code of others is given.

        Names of the catalogues and of Gymnasium's registry are those of packages that a person installed.
        """
        modules = {"env": self.env, "network.kind": self.network.kind}
        named = {key: value for key, value in modules.items() if ":" in value}
        if not is_rule(self.env):  # a constructor may import what a text of its names, as those of wrappers do
            named |= {f"params.{key} of {self.env}": value for key, value in self.params.items() if _holds_text(value)}
        if self.logging.store is not None:
            named["logging.store"] = self.logging.store
        return [f"{key} = {value}" for key, value in named.items()]

    def usable_device(self) -> str:
        """Return the device that `device` means on this machine; one that cannot be used is an error."""
        if self.device == "cpu" or self.vector.env_type in ("native", "python"):
            return "cpu"
        from velodrome.vector.cuda import is_rocm, missing_device, own_gpu, unavailable_reason

        if is_rocm() and self.device.startswith("cuda"):
            import torch

            # AMD's GPUs: networks learn there, and environments stay on the CPU.
            reason = missing_device(self.device, torch.cuda.device_count())
        else:
            reason = unavailable_reason(self.device if self.device != "auto" else "cuda")
        if reason is None:
            return own_gpu("cuda" if self.device == "auto" else self.device)
        for key, value in (("device", self.device), ("vector.env_type", self.vector.env_type)):
            if value.startswith("cuda"):
                raise BackendError(
                    f"{key} = {value!r} cannot be used: {reason}. Use another, device=cpu or device=auto."
                )
        return "cpu"


def _is_later_default(key: str, value: Any) -> bool:
    """Return whether a setting is one that older runs had not, at its default."""
    section, _, name = key.partition(".")
    model = section_model(section)
    return model is not None and not {section, name}.isdisjoint(LATER) and value == model.model_fields[name].default


def _holds_text(value: Any) -> bool:
    """Return whether there is a text in a parameter, at any depth."""
    if isinstance(value, Mapping):
        return bool(value)
    return any(map(_holds_text, value)) if isinstance(value, list | tuple) else isinstance(value, str)


SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


def section_model(name: str) -> type[BaseModel] | None:
    """Return the model of a section, that of an algorithm of the catalogue too; None for what is no section."""
    if name in RunConfig.model_fields:
        return SECTIONS.get(name)
    return ALGORITHMS.get(name).config_model() if name in ALGORITHMS else None


def _read_section(name: str, given: Any) -> BaseModel:
    model = section_model(name)
    if model is None:
        raise ConfigError(f"unknown key {name!r}.{did_you_mean(name, RunConfig.model_fields)}")
    return model.model_validate(given)


# Settings by dotted key


def dotted(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return settings by dotted key, such as ppo.clip; a section that is empty or not a mapping stays as it is."""
    settings: dict[str, Any] = {}
    for key, value in content.items():
        given = value.model_dump(exclude_unset=True) if isinstance(value, BaseModel) else value
        if isinstance(given, Mapping) and given and (key in ("env", "params") or section_model(key)):
            settings |= {f"{key}.{_named(name)}": inner for name, inner in given.items()}
        else:
            empty = given is None and (key == "params" or section_model(key))
            settings[_named(key)] = {} if empty else given
    return settings


def _named(key: Any) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"the key {key!r} is of type {type(key).__name__}; keys are texts, such as steps.")
    return key


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a mapping for each section; a section that was given as one value stays what it is."""
    content: dict[str, Any] = {}
    for key, value in settings.items():
        section, dot, name = key.partition(".")
        if not dot:
            content[key] = value
        elif isinstance(content.setdefault(section, {}), dict):
            content[section][name] = value
    return content


def respelled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by the fields' own keys in place of other spellings."""
    for spelling, key in SPELLINGS.items():
        if spelling in settings and key in settings:
            raise ConfigError(f"{spelling} and {key} are one setting; give it once.")
    found = {SPELLINGS.get(key, key): value for key, value in settings.items()}
    return {**found, "env": parameters.environment_name(found["env"])} if "env" in found else found


# Settings without effect


class Idle(NamedTuple):
    """Why a field has no effect."""

    chooser: str  # dotted key of the field that decided it
    reason: str

    def told(self, key: str) -> str:
        """Return what to say about a key that was set in vain."""
        return f"{key} is set and would have no effect: {self.reason}. Leave {key} out, or change {self.chooser}."


class Choices(NamedTuple):
    """What decides which other fields have an effect; '' stands for an environment or algorithm that is not known."""

    env: str
    algorithm: str
    source: str  # of the market
    count_unread: bool = False  # whether fields that the algorithm does not read count as if it did

    @classmethod
    def among(cls, settings: Mapping[str, Any]) -> Choices:
        """Return the choices that settings by dotted key make; a wrong one is left for the models to refuse."""
        env, algorithm, source = (settings.get(key) for key in ("env", "algorithm", "market.source"))
        made = RunConfig.model_construct().choices
        if isinstance(env, str):
            made = made._replace(env=env if parameters.is_known(env) else "")
        if isinstance(algorithm, str):
            made = made._replace(algorithm=algorithm if algorithm in ALGORITHMS else "")
        return made._replace(source=str(source)) if isinstance(source, str | Path) else made

    def idle(self, key: str) -> Idle | None:
        """Return why a dotted key has no effect, None if it has one, or if that cannot be said yet."""
        if not self.env or not self.algorithm:
            return None
        section, _, name = key.partition(".")
        data, model = price_data(self.env), section_model(section)
        if data is None and (section in ("market", "augment", "teacher") or key in OF_MARKETS):
            return Idle("env", f"env is {self.env}, which plays on no market")
        if key == "evaluation.official" and not (is_rule(self.env) and CATALOG.get(self.env).official):
            own = ", ".join(entry.name for entry in CATALOG if entry.official)
            return Idle("env", f"env is {self.env}, which has no evaluation of its own; those that have one: {own}")
        if section == "augment" and not ALGORITHMS.get(self.algorithm).augments:
            return Idle("algorithm", f"algorithm is {self.algorithm}, which does not renew what its environments show")
        if section == "teacher" and not ALGORITHMS.get(self.algorithm).imitates:
            return Idle("algorithm", f"algorithm is {self.algorithm}, whose policy cannot be taught")
        if section == "teacher" and is_rule(self.env) and CATALOG.get(self.env).teacher is None:
            return Idle("env", f"env is {self.env}, which has no teacher")
        if data == "basket" and key in sections.OF_COPIES:
            why = "whose basket keeps opens and closes alone: features cannot be made anew from resampled bars"
            return Idle("env", f"env is {self.env}, {why}")
        if section == "market":
            reason = sections.unused_by_source(name, self.source)
            if reason is not None:
                return Idle("market.source", reason)
            if sections.FOR_DATA.get(name, data) != data:
                kind = "one grid of several instruments" if data == "basket" else "each instrument by itself"
                return Idle("env", f"env is {self.env}, which plays on {kind} and has no use for {name}")
        elif section == "vector" and name in WORKER_FIELDS and is_rule(self.env):
            return Idle("env", f"env is {self.env}, a rule of Velodrome, which needs no worker processes")
        elif model and section != self.algorithm and (section not in SECTIONS or issubclass(model, LearnerConfig)):
            return Idle("algorithm", f"algorithm is {self.algorithm}")
        elif section in ("network", self.algorithm) and not self.count_unread and model and name in model.model_fields:
            return self._unread(section, name, model)
        return None

    def _unread(self, section: str, name: str, model: type[BaseModel]) -> Idle | None:
        """Return why a field of the algorithm's section, or of its network, has no effect; None if it has one."""
        entry = ALGORITHMS.get(self.algorithm)
        if entry.reads(section, name):
            return None
        fields = [field for field in model.model_fields if entry.reads(section, field)]
        listed = f"of {section} it reads {', '.join(fields)}"
        read = listed if section == "network" else f"`velodrome config {section}` lists what it reads"
        return Idle("algorithm", f"algorithm is {self.algorithm}, which does not read {name} ({read})")
