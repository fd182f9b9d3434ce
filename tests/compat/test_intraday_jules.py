"""The intraday FX trainer's lines: its configuration, its environments under SB3, its YAML."""

from __future__ import annotations

import json
from contextlib import closing
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import polars as pl
import pytest

import velodrome as vd
from velodrome import cli
from velodrome.compat import intraday_jules
from velodrome.compat.intraday_jules import EnvBuilder, TrainerAgent, TrainerCore, read_config, run_settings
from velodrome.errors import ConfigError, DataError
from velodrome.runs.config.files import load_run_config

SYMBOLS = ["EURUSD", "GBPUSD", "USDJPY", "USDCHF"]
CONFIG = {
    'algorithm': 'DQN',
    'environment': {
        'observation_feature_cols': ['rsi_14', 'ema_10', 'ema_20'],
        'initial_balance': 100000,
        'action_type': 'discrete',
    },
    'training': {'total_timesteps': 500000},
}  # fmt: skip


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forex")
    bars = vd.synthetic_bars("ar1", 600, seed=1, symbols=SYMBOLS)
    for symbol in SYMBOLS:
        columns = {name: getattr(bars[symbol], name) for name in ("time", "open", "high", "low", "close", "volume")}
        frame = pl.DataFrame(columns).with_columns(pl.col("time").cast(pl.Datetime("ns")))
        frame.write_parquet(folder / f"{symbol}.parquet")
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Its monitor files go into a folder of the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(section, **values):
    return {**CONFIG, section: {**CONFIG[section], **values}}


def test_the_configuration_is_that_of_a_run():
    config = load_run_config("trading", run_settings(CONFIG))
    assert (config.algorithm, config.steps, config.env) == ("dqn", 500_000, "trading")
    assert tuple(config.market.features) == ("rsi_14", "ema_10", "ema_20")
    assert (config.params["initial_cash"], config.params["fee"], config.params["action"]) == (100_000, 0.001, "levels")
    told = run_settings({**changed("environment", action_type="continuous"), "algorithm": "PPO"})
    assert (told["algorithm"], told["params.action"]) == ("ppo", "continuous")
    tuned = run_settings({**CONFIG, "algo_params": {"learning_rate": 1e-3, "exploration_final_eps": 0.1}})
    assert load_run_config("trading", tuned).dqn.epsilon_end == 0.1


def test_settings_of_sb3_mean_the_same_here(here):
    params = {"vf_coef": 0.5, "n_steps": 64, "batch_size": 32, "max_grad_norm": 0.3}
    told = {**CONFIG, "algorithm": "PPO", "algo_params": params}
    data = {"n_envs": 4, "symbols": ["EURUSD"], "data_dir": "prices"}
    with Path("jules.yaml").open("w") as file:
        json.dump({**told, "training": {"total_timesteps": 512, "vectorized_training": data}}, file)
    ppo = load_run_config(read_config("jules.yaml")).ppo
    # The value's loss is half of its squared error here, and all of it there.
    assert (ppo.value_weight, ppo.rollout_length, ppo.minibatches, ppo.max_gradient_norm) == (1.0, 64, 8, 0.3)


def test_settings_of_sb3_that_cannot_be_are_told(data_dir, here):
    for params, told in (
        ({"batch_size": 32}, "batch_size = 32: needs n_steps"),
        ({"batch_size": 0, "n_steps": 8}, "batch_size = 0: needs a whole number"),
        ({"learning_rate": -1.0}, "ppo.learning_rate = -1.0"),
        ({"vf_coef": "much"}, "ppo.value_weight = 'much'"),
    ):
        trainer = TrainerAgent({**changed("environment", max_steps=20), "algorithm": "PPO", "algo_params": params})
        trainer.create_vectorized_env(symbols=SYMBOLS, data_dir=data_dir, n_envs=4)
        with pytest.raises(ConfigError, match=told):
            trainer.train()


def test_the_lines_make_a_vec_env_with_a_monitors_file(data_dir, here):
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    trainer = TrainerAgent(changed("environment", max_steps=50))
    envs = trainer.create_vectorized_env(symbols=SYMBOLS, data_dir=data_dir, n_envs=4, use_shared_memory=False)
    assert isinstance(envs, vec_env.VecMonitor)
    assert isinstance(envs, vec_env.VecEnv)
    trainer.set_env(envs)
    assert trainer.trainer_core.training_env_monitor is envs
    assert trainer.trainer_core.get_training_performance_info()["num_workers"] == 4
    envs.reset()
    for _ in range(50):
        _, _, dones, infos = envs.step(np.full(4, 1))
    assert dones.all()
    assert infos[0]["episode"]["l"] == 50
    (file,) = Path("logs/monitor").glob("*.monitor.csv")
    envs.close()
    assert len(file.read_text().splitlines()) == 2 + 4


def test_sb3_trains_in_it_where_it_is_asked_to(data_dir, here):
    pytest.importorskip("stable_baselines3")
    config = {**changed("training", total_timesteps=64, learner="sb3"), "algo_params": {"learning_starts": 16}}
    core = TrainerCore(config)
    told = {**CONFIG["environment"], "max_steps": 50}
    core.set_environment(core.create_vectorized_environment(SYMBOLS, data_dir, told, n_envs=4))
    path = core.train_model()
    assert path.endswith(".zip")
    assert Path(path).is_file()
    assert core.model.num_timesteps >= 64


@pytest.mark.slow
def test_subprocesses_of_their_own_under_a_monitor_are_trained_in(here):
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    made = vec_env.SubprocVecEnv([partial(gymnasium.make, "CartPole-v1")] * 2)
    with closing(vec_env.VecMonitor(made, filename="own.monitor.csv")) as envs:
        trainer = TrainerAgent({**changed("training", total_timesteps=300), "algo_params": {"learning_starts": 16}})
        trainer.set_env(envs)
        path = trainer.train()
    assert Path(path).is_file()
    assert path.endswith(".zip")
    assert len(Path("own.monitor.csv").read_text().splitlines()) > 2 + 2


def test_the_number_of_environments_is_measured(monkeypatch):
    seen = {}

    def recommend(env, **params):
        seen.update(params, env=env)
        return vd.recommend("template", 48)

    monkeypatch.setattr(intraday_jules, "recommend", recommend)
    assert TrainerAgent(CONFIG).get_recommended_n_envs(SYMBOLS) == 48
    assert (seen["env"], len(seen["market"].symbols), seen["initial_cash"]) == ("trading", 4, 100_000)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "the configuration has no section 'environment'; it needs 'environment' and 'training'"),
        (None, "the configuration has no section 'environment'"),
        ({"environment": {}}, "the configuration has no section 'training'"),
        ({**CONFIG, "algorithm": "A2C"}, "unknown algorithm 'a2c'; there are ppo, dqn.*learner = 'sb3'"),
        (changed("environment", action_type="boxy"), "action_type = 'boxy'; there are discrete, continuous"),
        (changed("environment", initial_balanc=1), "environment.initial_balanc is not known.*'initial_balance'"),
        (changed("training", learner="keras"), "training.learner = 'keras'; there are velodrome, sb3"),
    ],
)
def test_typical_mistakes_are_told_in_a_sentence(config, told):
    with pytest.raises(ConfigError, match=told):
        TrainerAgent(config)


def test_so_are_those_about_data(data_dir, here):
    build = EnvBuilder.build_vec_env
    columns = {**CONFIG["environment"], "observation_feature_cols": ["rsi_14", "sentiment"]}
    for given, told in (
        ((SYMBOLS, data_dir, columns, 2), "observation_feature_cols: no feature or column 'sentiment'"),
        ((["EURJPY"], data_dir, CONFIG["environment"], 2), "no symbol 'EURJPY'"),
        (([], data_dir, CONFIG["environment"], 2), r"symbols = \[\]: needs a list of at least one"),
        (("EURUSD", data_dir, CONFIG["environment"], 2), "symbols = 'EURUSD': needs a list"),
        ((SYMBOLS, data_dir / "nowhere", CONFIG["environment"], 2), "nowhere"),
        ((SYMBOLS, data_dir, {"initial_balance": -3}, 2), "^initial_balance = -3: out of range"),
        ((SYMBOLS, data_dir, {"lookback_window": 0}, 2), "lookback_window"),
        ((SYMBOLS, data_dir, CONFIG["environment"], 0), "n_envs = 0: needs a whole number of at least 1"),
    ):
        with pytest.raises((ConfigError, DataError), match=told):
            build(*given)
    with pytest.raises(ConfigError, match="there is no environment yet: create_vectorized_env"):
        TrainerAgent(CONFIG).train()


YAML = """
algorithm: PPO
environment: {observation_feature_cols: [rsi_14, ema_10], initial_balance: 100000, action_type: discrete, max_steps: 20}
training:
  total_timesteps: 512
  vectorized_training: {enabled: true, n_envs: 8, use_shared_memory: false, symbols: [EURUSD], data_dir: FOLDER}
"""


def test_the_yaml_trains(data_dir, here, capsys):
    Path("jules.yaml").write_text(YAML.replace("FOLDER", str(data_dir)))
    told = load_run_config(read_config("jules.yaml"))
    assert (told.num_envs, told.market.source, told.market.symbols) == (8, str(data_dir), ("EURUSD",))
    words = ["rollout_length=16", "device=cpu", "logging.folder=runs", "evaluation.every_steps=null"]
    command = ["train", "--from", "jules", "jules.yaml", *words, "--quiet", "--no-evaluation"]
    assert cli.run(command) == 0, capsys.readouterr().err
    assert cli.run(["train", "--from", "jule", "jules.yaml"]) == cli.REFUSED
    assert "--from jule: there is jules. Did you mean 'jules'?" in capsys.readouterr().err
    assert cli.run(["train", "--from", "jules"]) == cli.REFUSED
    assert "needs its configuration file" in capsys.readouterr().err
    Path("jules.yaml").write_text(YAML.partition("  vectorized_training")[0])
    with pytest.raises(ConfigError, match="no section 'vectorized_training' with data_dir and symbols"):
        read_config("jules.yaml")
