"""The trading pipeline's `VectorizedEnvConfig` and `AgentTrainingService`, over Velodrome's service.

docs/migrate/drl_trading.md has their lines beside ours. Its application configuration is read where it has what theirs
has: `rl_model_config` (agents, total_timesteps), `environment_config`, `context_feature_config`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from velodrome.bars import read_bars
from velodrome.bars.dataframes import is_frame, joined_frames
from velodrome.bars.timeframe import describe_time
from velodrome.envs.catalog import CATALOG
from velodrome.envs.parameters import refusal
from velodrome.errors import ConfigError, JobError, did_you_mean
from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.metrics import last_values
from velodrome.runs.trained import Run
from velodrome.service.service import AgentTrainingService as Service
from velodrome.vector import config as own
from velodrome.vector.argument_checks import checked_count
from velodrome.vector.single import DrawnEnv
from velodrome.vector.workers.options import SPELLINGS
from velodrome.writing import new_folder

TIMESTEPS = 10_000  # of each agent, if nobody says how many
ENVIRONMENT = f"{__name__}:DatasetEnv"
FILE = "environments.pickle"
SPLITS = {"train": "training_data", "validation": "validation_data", "test": "test_data"}


class VectorizedEnvConfig(BaseModel):
    """How many environments an agent is trained in, of which type, and how many there are at once in all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env_type: str = Field("DummyVecEnv", description="DummyVecEnv, SubprocVecEnv, or a backend of Velodrome")
    num_envs: int = Field(4, ge=1, description="environments of each agent")
    max_concurrent_envs: int = Field(8, ge=1, description="environments of all agents that are trained at once")
    enable_monitoring: bool = Field(True, description="count episodes and time steps")

    @model_validator(mode="after")
    def _is_legal(self) -> VectorizedEnvConfig:
        legal = (*SPELLINGS, *own.get_args(own.EnvType))
        if self.env_type not in legal:
            near = did_you_mean(self.env_type, legal)
            raise ValueError(f"env_type = {self.env_type!r}; there are {', '.join(legal)}.{near}")
        self.velodrome()
        return self

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise refusal(VectorizedEnvConfig, given, error) from error

    def velodrome(self) -> own.VectorizedEnvConfig:
        """Return the same as Velodrome's own configuration."""
        return own.VectorizedEnvConfig(**self.model_dump())

    def make(self, env: Any, **params: Any) -> Any:
        """Return `num_envs` environments made so; see vd.VectorizedEnvConfig.make."""
        return self.velodrome().make(env, **params)


class Environments(NamedTuple):
    """Environments as a VecEnv of Stable-Baselines3 each."""

    train: Any
    validation: Any


class Agent(NamedTuple):
    """An agent that was trained, and its run."""

    name: str
    run: Run

    def predict(self, observation: Any, deterministic: bool = True) -> tuple[Any, None]:
        """Return actions for observations, and no state, as agents of Stable-Baselines3 do."""
        return self.run.policy.act(observation, deterministic=deterministic), None


class Trained(NamedTuple):
    """What `create_env_and_train_agents` returns."""

    environments: Environments
    agents: dict[str, Agent]
    metrics: dict[str, dict[str, float]]  # by agent: the last value of everything that was measured


class DatasetEnv(DrawnEnv):
    """Environments of a class, one for each dataset."""

    def __init__(self, file: str, split: str = "train") -> None:
        import cloudpickle

        env_class, datasets, arguments = cloudpickle.loads(Path(file).read_bytes())
        # Of data that was not split, both environments are given all.
        parts = (getattr(each, SPLITS[split], each) for each in datasets)
        super().__init__([env_class(part, *arguments) for part in parts])


class AgentTrainingService:
    """Trains several agents at once, each in a process of its own, under `max_concurrent_envs`.

    config: a VectorizedEnvConfig, or an application configuration (an object or a mapping) that may have one as
        `vectorized_env_config`.
    env_class: a class of Gymnasium environments, made as env_class(data, environment_config, context_columns) or, if
        the configuration has no environment_config, as env_class(data); or the name of one of Velodrome's.
    agents, total_timesteps: in place of those of `rl_model_config`; agents are names of algorithms, such as PPO.
    folder: of the runs. settings: further ones of Velodrome for every run, such as {"ppo.rollout_length": 64}.
    """

    def __init__(
        self,
        config: Any,
        env_class: type[gymnasium.Env] | str,
        *,
        agents: Sequence[str] | None = None,
        total_timesteps: int | None = None,
        folder: str | Path = "runs",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.config, self.env_class, self.folder, self.settings = config, env_class, Path(folder), dict(settings or {})
        is_vector = isinstance(config, VectorizedEnvConfig)
        vector = config if is_vector else _get(config, "vectorized_env_config", VectorizedEnvConfig())
        self.vector = VectorizedEnvConfig(**vector) if isinstance(vector, Mapping) else vector
        model = None if is_vector else _get(config, "rl_model_config", None)
        if not is_vector and model is None and agents is None:
            raise ConfigError(
                "the configuration has no section rl_model_config, which names the agents and total_timesteps; give "
                "it, or AgentTrainingService(config, env_class, agents=['PPO'], total_timesteps=…)."
            )
        names = _get(model, "agents", ("PPO",)) if agents is None else agents
        if isinstance(names, str) or not names:
            raise ConfigError(f"agents = {names!r}: needs a list of at least one, such as ['PPO', 'DQN'].")
        steps = _get(model, "total_timesteps", TIMESTEPS) if total_timesteps is None else total_timesteps
        self.total_timesteps = checked_count("total_timesteps", steps)
        self.agents = {name: ALGORITHMS.get(str(name).lower()).name for name in names}
        if isinstance(env_class, str):
            CATALOG.get(env_class)  # refuses what is none of ours
        elif not (isinstance(env_class, type) and issubclass(env_class, gymnasium.Env)):
            raise ConfigError(f"env_class = {env_class!r}: needs a class of gymnasium.Env, or the name of one of ours.")

    def create_env_and_train_agents(self, datasets: Sequence[Any]) -> Trained:
        """Train every agent on datasets; return environments, agents and metrics.

        datasets: data with training_data and validation_data, or data that both are made of. For one of Velodrome's
            environments they are price data, one instrument each.
        """
        if is_frame(datasets) or not datasets:
            raise ConfigError("datasets: needs a list of at least one, with training_data and validation_data.")
        told = self._own(datasets) if isinstance(self.env_class, str) else self._theirs(datasets)
        bars = told.pop("bars", None)
        vector = {f"vector.{name}": value for name, value in self.vector.model_dump().items()}
        if isinstance(self.env_class, str):
            del vector["vector.enable_monitoring"]  # rules report their episodes in any case
        vector.pop("vector.max_concurrent_envs")  # the service sees to it, over all processes
        shared = {**told, **vector, "steps": self.total_timesteps}
        with Service(self.folder, max_concurrent_envs=self.vector.max_concurrent_envs) as service:
            jobs = {
                name: service.submit({"algorithm": algorithm, **shared, **self._settings_of(algorithm)}, bars=bars)
                for name, algorithm in self.agents.items()
            }
            ended = service.wait(list(jobs.values()))
            runs = {name: service.run_of(job) for name, job in jobs.items() if service.job(job).status == "finished"}
        if failed := [job for job in ended if job.status != "finished"]:
            raise JobError(f"{failed[0].name} was not trained ({failed[0].status}): {failed[0].message}")
        agents = {name: Agent(name, run) for name, run in runs.items()}
        metrics = {name: last_values(run.metrics) for name, run in runs.items()}
        return Trained(self._environments(next(iter(runs.values()))), agents, metrics)

    def _settings_of(self, algorithm: str) -> dict[str, Any]:
        """Return the settings that are not for another algorithm."""
        others = {name for name in ALGORITHMS.names() if name != algorithm}
        return {key: value for key, value in self.settings.items() if key.partition(".")[0] not in others}

    def _theirs(self, datasets: Sequence[Any]) -> dict[str, Any]:
        """Return the settings of runs in environments of a class, which is kept beside the runs with its data."""
        import cloudpickle

        arguments: list[Any] = []
        if (environment := _get(self.config, "environment_config", None)) is not None:
            context = _get(self.config, "context_feature_config", None)
            columns: Any = getattr(context, "get_all_context_columns", list)()
            arguments = [environment, columns]
        content = cloudpickle.dumps((self.env_class, list(datasets), arguments))
        place = self.folder.resolve() / "datasets" / hashlib.sha256(content).hexdigest()[:16]
        if not place.exists():
            with new_folder(place) as folder:
                (folder / FILE).write_bytes(content)
        return {"env": ENVIRONMENT, "params": {"file": str(place / FILE)}}

    def _own(self, datasets: Sequence[Any]) -> dict[str, Any]:
        """Return the settings of runs in one of Velodrome's environments."""
        frames: dict[str, Any] = {}
        begins: dict[str, str] = {}  # by split: the time of its first bar
        for number, dataset in enumerate(datasets):
            parts = {split: getattr(dataset, name, None) for split, name in SPLITS.items()}
            parts = {split: part for split, part in parts.items() if part is not None}
            frames[f"dataset_{number}"] = joined_frames(list(parts.values())) if parts else dataset
            for split, part in parts.items():
                first = describe_time(min(series.time[0] for series in read_bars(part).series.values()))
                begins[split] = min(begins.get(split, first), first)
        told: dict[str, Any] = {"env": self.env_class, "bars": frames}
        if begins:
            edges = [None, *list(begins.values())[1:], None]
            told["market.splits"] = {split: list(pair) for split, pair in zip(begins, pairwise(edges), strict=True)}
            told["evaluation.final_split"] = list(begins)[-1]
        return told

    def _environments(self, run: Run) -> Environments:
        from velodrome.adapters import to_sb3

        if isinstance(self.env_class, str):
            market, splits = run.market, ("train", "validation")
            found = [{"market": market, "split": split, **run.config.params} for split in splits]
            return Environments(*(to_sb3(self.vector.make(self.env_class, **params)) for params in found))
        file = run.config.params["file"]
        made = (self.vector.make(DatasetEnv, file=file, split=split) for split in ("train", "validation"))
        return Environments(*(to_sb3(envs) for envs in made))


def _get(config: Any, name: str, default: Any) -> Any:
    """Return a field of an object or a mapping."""
    return config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)
