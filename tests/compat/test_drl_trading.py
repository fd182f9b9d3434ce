"""The trading pipeline's configuration and its training service."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import polars as pl
import pytest

import velodrome as vd
from velodrome.compat import drl_trading
from velodrome.compat.drl_trading import AgentTrainingService, DatasetEnv, VectorizedEnvConfig
from velodrome.errors import ConfigError, DataError
from velodrome.runs.config.files import load_run_config
from velodrome.vector.config import note_native
from velodrome.vector.fleet.pool import shared_pool


class BaseTradingEnv(gymnasium.Env):
    """One that trades a frame's closes."""

    def __init__(self, env_data_source, env_config=None, context_columns=None):
        self.given = (env_config, context_columns)
        self.returns = np.diff(np.log(env_data_source["close"].to_numpy())).astype(np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.returns[:1], {"bars": len(self.returns)}

    def step(self, action):
        self.at += 1
        return self.returns[self.at : self.at + 1], float(action - 1), False, self.at >= 20, {}


def frame(rows, seed=1):
    bars = vd.synthetic_bars("ar1", rows, seed=seed)
    series = bars[bars.symbols[0]]
    columns = {name: getattr(series, name) for name in ("time", "open", "high", "low", "close", "volume")}
    return pl.DataFrame(columns).with_columns(pl.col("time").cast(pl.Datetime("ns")))


def dataset(rows=900, seed=1):
    whole = frame(rows, seed)
    return SimpleNamespace(training_data=whole[: rows // 2], validation_data=whole[rows // 2 :])


# The configuration


def test_the_defaults_are_theirs():
    given = {"env_type": "DummyVecEnv", "num_envs": 4, "max_concurrent_envs": 8, "enable_monitoring": True}
    assert VectorizedEnvConfig().model_dump() == given
    assert VectorizedEnvConfig(**given) == VectorizedEnvConfig()
    for name in ("SubprocVecEnv", "native", "cuda", "serial", "process", "async", "auto"):
        assert VectorizedEnvConfig(env_type=name).env_type == name


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"env_type": "DummyVec"}, "env_type = 'DummyVec'; there are DummyVecEnv.*Did you mean 'DummyVecEnv'"),
        ({"num_envs": 0}, "^num_envs = 0: Input should be greater than or equal to 1. num_envs: environments of each"),
        ({"num_envs": 9}, "num_envs = 9 is more than max_concurrent_envs = 8"),
        ({"n_envs": 4}, "^n_envs = 4: there is no such field; there are env_type, num_envs.*Did you mean 'num_envs'"),
    ],
)
def test_what_is_not_legal_is_refused(given, told):
    with pytest.raises(ValueError, match=told):
        VectorizedEnvConfig(**given)


def test_for_a_rule_sb3s_types_mean_native_and_a_note_says_why(capsys):
    note_native.cache_clear()
    for kind in ("DummyVecEnv", "SubprocVecEnv"):
        envs = VectorizedEnvConfig(env_type=kind).make("template", seed=0)
        assert isinstance(envs, vd.VecMonitor)
        assert envs.backend == "native"
        envs.close()
    told = capsys.readouterr().err
    assert "DummyVecEnv (serial) means native here: template is a rule of Velodrome, compiled into one loop" in told
    assert load_run_config(None, {"vector.env_type": "SubprocVecEnv"}).vector.env_type == "native"
    with pytest.raises(ConfigError, match="template is a rule of Velodrome, which runs on native"):
        vd.VectorizedEnvConfig(env_type="async").make("template")


def test_environments_are_lent_by_the_pool_and_given_back_when_closed():
    config = VectorizedEnvConfig()
    first, second = config.make("template", seed=0), config.make("template", seed=1)
    pool = shared_pool(8)
    assert pool.status().leased == 8
    first.close()
    assert pool.status().leased == 4
    third = config.make("template", seed=2)
    assert third.reset()[0].shape[0] == 4
    second.close(), third.close()
    assert pool.status().leased == 0
    bare = VectorizedEnvConfig(enable_monitoring=False).make("template", seed=0)
    assert not isinstance(bare, vd.VecMonitor)
    bare.close()
    pool.close()


# The service


def test_an_episode_is_played_in_one_of_the_datasets(tmp_path):
    config = {"rl_model_config": {"agents": ["PPO"]}, "environment_config": {"fee": 1}}
    service = AgentTrainingService(config, BaseTradingEnv, folder=tmp_path)
    told = service._theirs([dataset(900), dataset(700, 2)])
    assert told["env"] == "velodrome.compat.drl_trading:DatasetEnv"
    env = DatasetEnv(**told["params"])
    seen = {env.reset(seed=seed)[1]["bars"] for seed in range(12)}
    assert seen == {449, 349}
    assert env.envs[0].given == ({"fee": 1}, [])
    assert {DatasetEnv(**told["params"], split="validation").reset(seed=s)[1]["bars"] for s in range(12)} == {449, 349}
    assert vd.make_vec(told["env"], 2, backend="serial", **told["params"]).reset()[0].shape == (2, 1)


def test_price_data_becomes_a_market_split_where_the_datasets_are(tmp_path):
    service = AgentTrainingService(VectorizedEnvConfig(), "trading", folder=tmp_path, agents=["PPO"])
    told = service._own([dataset(900)])
    assert list(told["market.splits"]) == ["train", "validation"]
    assert told["market.splits"]["train"] == [None, "2020-01-01 07:30:00"]
    assert told["market.splits"]["validation"] == ["2020-01-01 07:30:00", None]
    assert told["bars"]["dataset_0"].height == 900


@pytest.mark.parametrize(
    ("config", "env_class", "more", "told"),
    [
        ({}, BaseTradingEnv, {}, "no section rl_model_config, which names the agents and total_timesteps"),
        ({"rl_model_config": {"agents": ["PPPO"]}}, BaseTradingEnv, {}, "unknown algorithm 'pppo'; there are ppo, dqn"),
        ({"rl_model_config": {"agents": "PPO"}}, BaseTradingEnv, {}, "agents = 'PPO': needs a list of at least one"),
        ({"rl_model_config": {"total_timesteps": 0}}, BaseTradingEnv, {}, "total_timesteps = 0: needs a whole number"),
        (VectorizedEnvConfig(), int, {}, "needs a class of gymnasium.Env, or the name of one of ours"),
        (VectorizedEnvConfig(), "tradin", {}, "unknown environment 'tradin'"),
    ],
)
def test_typical_mistakes_are_told_in_a_sentence(config, env_class, more, told):
    with pytest.raises(ConfigError, match=told):
        AgentTrainingService(config, env_class, **more)


def test_no_data_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="datasets: needs a list of at least one"):
        AgentTrainingService(VectorizedEnvConfig(), "trading", folder=tmp_path).create_env_and_train_agents([])


@pytest.mark.slow
def test_agents_are_trained_side_by_side(tmp_path):
    pytest.importorskip("stable_baselines3")
    settings = {"dqn.learning_starts": 64, "dqn.batch_size": 32, "ppo.rollout_length": 16}
    config = {"rl_model_config": {"agents": ["PPO", "DQN"], "total_timesteps": 512}}
    service = AgentTrainingService(config, BaseTradingEnv, folder=tmp_path, settings=settings)
    environments, agents, metrics = service.create_env_and_train_agents([dataset()])
    assert set(agents) == set(metrics) == {"PPO", "DQN"}
    assert metrics["PPO"]["time/steps_per_second"] > 0
    actions, state = agents["DQN"].predict(environments.validation.reset())
    assert (actions.shape, state) == ((4,), None)
    environments.train.close(), environments.validation.close()
    own = AgentTrainingService(VectorizedEnvConfig(), "trading", agents=["PPO"], total_timesteps=512, folder=tmp_path)
    environments, agents, _ = own.create_env_and_train_agents([dataset()])
    assert agents["PPO"].predict(environments.train.reset())[0].shape == (4,)
    assert drl_trading.Trained._fields == ("environments", "agents", "metrics")
    environments.train.close(), environments.validation.close()


@pytest.mark.slow
def test_agents_are_trained_in_an_environment_of_ours(tmp_path):
    pytest.importorskip("stable_baselines3")
    settings = {"market.windows": 4, "params.episode_length": 50, "ppo.rollout_length": 16, "device": "cpu"}
    given = {"agents": ["PPO"], "total_timesteps": 512}
    service = AgentTrainingService(VectorizedEnvConfig(), "trading", folder=tmp_path, settings=settings, **given)
    environments, agents, metrics = service.create_env_and_train_agents([dataset(2_000), dataset(2_000, 2)])
    assert metrics["PPO"]["time/steps_per_second"] > 0
    shown = environments.validation.reset()
    actions, _ = agents["PPO"].predict(shown)
    _, rewards, _, _ = environments.validation.step(actions)
    assert rewards.shape == (4,)
    environments.train.close(), environments.validation.close()


def test_data_without_a_column_is_told_by_its_name(tmp_path):
    service = AgentTrainingService(VectorizedEnvConfig(), "trading", folder=tmp_path)
    with pytest.raises(DataError, match="close"):
        service.create_env_and_train_agents([dataset_without("close")])


def dataset_without(column):
    whole = dataset()
    parts = {name: part.drop(column) for name, part in vars(whole).items()}
    return SimpleNamespace(**parts)
