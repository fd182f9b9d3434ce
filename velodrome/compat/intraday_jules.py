"""The intraday FX trainer's names, over Velodrome's trading environment (docs/migrate/intraday_jules.md).

Its nested configuration becomes settings of a run. `train` learns with Velodrome's own learner where the environments
come from here, and with Stable-Baselines3's where they are others, or where training.learner is 'sb3'.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.bars import read_bars, synthetic_bars
from velodrome.errors import ConfigError, VelodromeError, did_you_mean, reworded, sentence
from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.config.files import read_file
from velodrome.runs.config.others import ppo_of_sb3
from velodrome.runs.machine.recommendation import recommend
from velodrome.runs.run import train as train_run
from velodrome.tables import build_market
from velodrome.vector.argument_checks import checked_count
from velodrome.vector.make import make_vec

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

    from velodrome.tables.market import Market

SECTIONS = ("environment", "training")
REWARDS = {"pnl": "return", "log_return": "log_return", "sharpe": "differential_sharpe", "drawdown": "drawdown"}
ACTIONS = {"discrete": "levels", "continuous": "continuous"}
# Their key -> ours, of the section environment, of training and of algo_params.
ENVIRONMENT = {
    "observation_feature_cols": "market.features",
    "lookback_window": "market.windows",
    "initial_balance": "params.initial_cash",
    "transaction_cost": "params.fee",
    "max_steps": "params.episode_length",
    "reward_type": "params.reward",
    "action_type": "params.action",
}
DEFAULTS = {  # theirs
    "initial_balance": 100_000,
    "transaction_cost": 0.001,
    "lookback_window": 1,
    "max_steps": 1000,
    "reward_type": "pnl",
    "action_type": "discrete",
}
TRAINING = {
    "total_timesteps": "steps",
    "log_interval": "logging.log_every",
    "seed": "seed",
    "log_dir": "logging.folder",
}
LEARNER = {
    **{name: name for name in ("learning_rate", "gamma", "gae_lambda", "batch_size", "buffer_size", "learning_starts")},
    "n_steps": "rollout_length",
    "n_epochs": "epochs",
    "clip_range": "clip",
    "ent_coef": "entropy",
    "vf_coef": "value_weight",
    "max_grad_norm": "max_gradient_norm",
    "exploration_fraction": "epsilon_fraction",
    "exploration_initial_eps": "epsilon_start",
    "exploration_final_eps": "epsilon_end",
}
ELSEWHERE = ("vectorized_training", "learner")  # keys of training that are read here
WORDS = {ours: theirs for names in (ENVIRONMENT, TRAINING) for theirs, ours in names.items()}
WORDS |= {ours.partition(".")[2] or ours: theirs for ours, theirs in WORDS.items()}  # without their section, too
SAMPLE_BARS = 5_000  # on which the number of environments is measured before there is data
log = logging.getLogger("velodrome.compat")


def run_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that the nested configuration says, by dotted key."""
    for name in SECTIONS:
        if not isinstance(config, Mapping) or not isinstance(config.get(name), Mapping):
            needed = " and ".join(map(repr, SECTIONS))
            raise ConfigError(f"the configuration has no section '{name}'; it needs {needed}.")
    environment, trained = (config[name] for name in SECTIONS)
    try:
        asked = "DQN" if trained.get("learner") == "sb3" else str(config.get("algorithm", "DQN"))
        algorithm = ALGORITHMS.get(asked.lower()).name
    except ConfigError as error:
        raise ConfigError(f"{error} Stable-Baselines3 learns by others: training.learner = 'sb3'.") from error
    training = {key: value for key, value in trained.items() if key not in ELSEWHERE}
    found = {"env": "trading", "algorithm": algorithm}
    found |= _translated("environment", {**DEFAULTS, **environment}, ENVIRONMENT)
    found |= _translated("training", training, TRAINING)
    own = {theirs: f"{algorithm}.{ours}" for theirs, ours in LEARNER.items()}
    found |= _translated("algo_params", config.get("algo_params", {}), own)
    for key, names, what in (("params.action", ACTIONS, "action_type"), ("params.reward", REWARDS, "reward_type")):
        if key in found and found[key] not in names:
            raise ConfigError(f"environment.{what} = {found[key]!r}; there are {', '.join(names)}.")
        found |= {key: names[found[key]]} if key in found else {}
    data = trained.get("vectorized_training", {})
    named = {"data_dir": "market.source", "symbols": "market.symbols", "n_envs": "num_envs"}
    return found | {ours: data[theirs] for theirs, ours in named.items() if data.get(theirs) is not None}


def read_config(path: str | Path) -> dict[str, Any]:
    """Return the settings of a run that a YAML file with the same keys says; `velodrome train --from jules FILE`."""
    settings = run_settings(read_file(Path(path)))
    if "market.source" not in settings:
        raise ConfigError(f"{path}: training has no section 'vectorized_training' with data_dir and symbols.")
    return {"preset": "trading", **ppo_of_sb3(settings)}


def _translated(section: str, given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    for key in given:
        if key not in names:
            listed = ", ".join(names)
            raise ConfigError(f"{section}.{key} is not known here; there are {listed}.{did_you_mean(str(key), names)}")
    return {names[key]: value for key, value in given.items()}


class EnvBuilder:
    """Makes vectorised environments of symbols."""

    @staticmethod
    def build_vec_env(
        symbols: Sequence[str],
        data_dir: str | Path,
        config: Mapping[str, Any],
        n_envs: int | None = None,
        monitor_path: str | None = "logs/vec_monitor",
        use_shared_memory: bool = True,
        logger: logging.Logger | None = None,
    ) -> VecEnv:
        """Return a VecEnv of Stable-Baselines3 over the files of symbols, with its VecMonitor's file.

        config: the section environment. use_shared_memory: has no effect; the environments are one compiled loop in
        this process, whose arrays are shared with nobody.
        """
        from stable_baselines3.common.vec_env import VecMonitor

        from velodrome.adapters import to_sb3

        if isinstance(symbols, str) or not symbols:
            raise ConfigError(f"symbols = {symbols!r}: needs a list of at least one, such as ['EURUSD'].")
        settings = run_settings({"environment": config, "training": {}})
        if n_envs is None:
            n_envs = recommended(settings, symbols, data_dir)
        count = checked_count("n_envs", n_envs)
        market = market_of(settings, symbols, data_dir)
        with reworded(WORDS):
            envs = make_vec("trading", count, market=market, **_params(settings))
        (logger or log).info("using %d environments (native: one compiled loop, no processes)", count)
        if monitor_path is None:
            return to_sb3(envs)
        Path(monitor_path).parent.mkdir(parents=True, exist_ok=True)
        return VecMonitor(to_sb3(envs, monitor=False), filename=str(monitor_path))


build_vec_env = EnvBuilder.build_vec_env


class TrainerCore:
    """Holds the environments and trains in them."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None = None) -> None:
        self.config, self.logger, self.settings = config, logger or log, run_settings(config)
        self.learner = str(config["training"].get("learner", "velodrome"))
        if self.learner not in ("velodrome", "sb3"):
            raise ConfigError(f"training.learner = {self.learner!r}; there are velodrome, sb3.")
        self.training_env_monitor: Any = None
        self.run: Any = None
        self._made: tuple[Any, dict[str, Any]] | None = None  # environments from here, and the settings they stand for

    def create_vectorized_environment(
        self,
        symbols: Sequence[str],
        data_dir: str | Path,
        env_config: Mapping[str, Any] | None = None,
        n_envs: int | None = None,
        use_shared_memory: bool = True,
    ) -> VecEnv:
        """Return a VecEnv of Stable-Baselines3 over the files of symbols, and keep it as the environment."""
        told = self.config["environment"] if env_config is None else env_config
        folder = Path(str(self.config["training"].get("log_dir", "logs"))) / "monitor"
        path = folder / f"vec_monitor_{time.strftime('%Y%m%d_%H%M%S')}"
        made = build_vec_env(symbols, data_dir, told, n_envs, str(path), use_shared_memory, self.logger)
        data = {"market.source": str(data_dir), "market.symbols": list(symbols), "num_envs": made.num_envs}
        self._made = (made, data)
        self.set_environment(made)
        return made

    def set_environment(self, env: Any) -> None:
        """Train in this VecEnv, or single environment, from now on."""
        self.training_env_monitor = env

    def get_training_performance_info(self) -> dict[str, Any]:
        """Return what kind of environments there are, and how many."""
        count = getattr(self.training_env_monitor, "num_envs", 1)
        kind = "vectorized" if hasattr(self.training_env_monitor, "num_envs") else "single"
        return {"environment_type": kind, "num_workers": count, "shared_memory": False}

    def train_model(self, existing_model_path: str | Path | None = None) -> str:
        """Train and return the path of the model: TorchScript, or what Stable-Baselines3 saves."""
        env = self.training_env_monitor
        if env is None:
            raise ConfigError("there is no environment yet: create_vectorized_env(symbols, data_dir), or set_env(env).")
        own = self._made is not None and self._made[0] is env
        if own and self.learner == "velodrome":
            return self._train(existing_model_path)
        return self._train_with_sb3(env, existing_model_path)

    def _train(self, existing: str | Path | None) -> str:
        from velodrome.learn.policy_files import export_torchscript

        if existing is not None:
            raise ConfigError(f"existing_model_path = {existing}: a run goes on by velodrome train --resume.")
        assert self._made is not None
        with reworded(WORDS):
            self.run = train_run("trading", **ppo_of_sb3({**self.settings, **self._made[1]}))
        path = self.run.path / "policy.pt"
        export_torchscript(self.run.policy, path)
        return str(path)

    def _train_with_sb3(self, env: Any, existing: str | Path | None) -> str:
        import stable_baselines3

        name, training = str(self.config.get("algorithm", "DQN")), self.config["training"]
        kind = getattr(stable_baselines3, name.upper(), None)
        if kind is None:
            raise ConfigError(f"algorithm = {name!r}: Stable-Baselines3 has no such algorithm.")
        self.logger.info("%s of Stable-Baselines3 learns", name)
        params = self.config.get("algo_params", {})
        model = kind("MlpPolicy", env, **params) if existing is None else kind.load(existing, env=env)
        self.model = model.learn(int(training["total_timesteps"]), log_interval=training.get("log_interval", 4))
        path = Path(str(training.get("log_dir", "logs"))) / f"{name.lower()}_{time.strftime('%Y%m%d_%H%M%S')}.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.model.save(path)
        return str(path)


class TrainerAgent:
    """The trainer: environments of symbols, then a model."""

    def __init__(self, config: Mapping[str, Any], training_env: Any = None) -> None:
        self.config = config
        self.trainer_core = TrainerCore(config)
        if training_env is not None:
            self.set_env(training_env)

    def create_vectorized_env(
        self, symbols: Sequence[str], data_dir: str | Path, n_envs: int | None = None, use_shared_memory: bool = True
    ) -> VecEnv:
        """Return a VecEnv of Stable-Baselines3 over the files of symbols; n_envs is measured if None."""
        return self.trainer_core.create_vectorized_environment(symbols, data_dir, None, n_envs, use_shared_memory)

    def get_recommended_n_envs(self, symbols: Sequence[str]) -> int:
        """Return how many environments are about as fast as any, by measurement."""
        return recommended(self.trainer_core.settings, symbols, None)

    def set_env(self, env: Any) -> None:
        """Train in this VecEnv, or single environment, from now on."""
        self.trainer_core.set_environment(env)

    def train(self, existing_model_path: str | Path | None = None) -> str:
        """Train and return the path of the model."""
        return self.trainer_core.train_model(existing_model_path)


def market_of(settings: Mapping[str, Any], symbols: Sequence[str], data_dir: str | Path | None) -> Market:
    """Return the market of symbols: from their files, or if there is no folder a random one of that many."""
    if data_dir is None:
        bars = synthetic_bars("gbm", SAMPLE_BARS, seed=0, symbols=len(symbols))
    else:
        bars = read_bars(Path(data_dir), list(symbols))
    lookback = checked_count("lookback_window", settings["market.windows"])
    try:
        return build_market(bars, settings.get("market.features"), lookback)
    except VelodromeError as error:
        raise ConfigError(f"observation_feature_cols: {sentence(error)}") from error


def recommended(settings: Mapping[str, Any], symbols: Sequence[str], data_dir: str | Path | None) -> int:
    """Return the recommended number of environments."""
    market = market_of(settings, symbols, data_dir)
    return recommend("trading", market=market, **_params(settings)).num_envs


def _params(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("params."): value for key, value in settings.items() if key.startswith("params.")}
