"""TorchTrade's classes over the compiled rule, the words of its example, and the package itself where it is there."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import torch

import velodrome as vd
from velodrome import cli
from velodrome.compat import torchtrade
from velodrome.compat.torchtrade.history import note_python
from velodrome.compat.torchtrade.settings import translated
from velodrome.errors import ConfigError, DataError
from velodrome.runs.config.files import load_run_config
from velodrome.runs.metrics import with_names_of

pytest.importorskip("torchrl")
NAMES = ("SequentialTradingEnv", "SequentialTradingEnvSLTP")
COLUMNS = ("open", "high", "low", "close", "volume")
WORDS = [
    "env.train_envs=128",
    "model.hidden_size=256",
    "optim.lr=1e-4",
    "collector.frames_per_batch=2048",
    "collector.total_frames=2048",
    "loss.ppo_epochs=1",
]


@pytest.fixture(scope="module")
def df():
    series = next(iter(vd.synthetic_bars("gbm", 600, 0, timeframe="1h", volatility=0.02).series.values()))
    columns = {name: getattr(series, name) for name in COLUMNS}
    return pl.DataFrame({"timestamp": series.time.astype("datetime64[ns]"), **columns})


def made(name, df, features=None, reward=None, **values):
    config = getattr(torchtrade, f"{name}Config")(**values)
    return getattr(torchtrade, name)(df, config, features, reward)


def test_many_environments_have_their_keys_and_specifications(df):
    from torchrl.envs.utils import check_env_specs

    env = made("VectorizedSequentialTradingEnv", df, num_envs=8, time_frames=["1Hour", "240Min"], window_sizes=[10, 5])
    assert type(env) is torchtrade.VectorizedSequentialTradingEnv
    shapes = {name: tuple(part.shape) for name, part in env.reset().items()}
    assert shapes["account_state"] == (8, 6)
    assert shapes["market_data_1Hour_10"] == (8, 10, 5)
    assert shapes["market_data_240Minute_5"] == (8, 5, 5)
    check_env_specs(env)
    rollout = env.rollout(4)
    assert rollout["next", "reward"].shape == (8, 4, 1)
    env.close()


@pytest.mark.parametrize("name", NAMES)
def test_one_environment_has_no_batch(df, name):
    from torchrl.envs.utils import check_env_specs

    env = made(name, df)
    check_env_specs(env)
    assert env.batch_size == torch.Size([])
    assert env.rollout(5)["account_state"].shape == (5, 6)
    assert isinstance(env, getattr(torchtrade, name))
    played = []
    for seed in (3, 3, 4):
        env.set_seed(seed)
        torch.manual_seed(0)
        played.append(env.rollout(5)["account_state"])
        played.append(env.history.base_prices)
    torch.testing.assert_close(played[0], played[2])
    assert played[1] == played[3] != played[5]


def test_defaults_are_theirs():
    config = torchtrade.VectorizedSequentialTradingEnvSLTPConfig()
    assert (config.num_envs, config.time_frames, config.window_sizes) == (64, "1Hour", 10)
    assert config.action_levels == [-1, 0, 1]
    assert list(config.takeprofit_levels) == [0.05, 0.1, 0.2]


def test_cash_may_be_a_range_and_episodes_begin_where_they_are_told(df):
    env = made("VectorizedSequentialTradingEnv", df, num_envs=64, initial_cash=(1000, 5000), random_start=False)
    env.reset()
    cash = env.envs.column("cash")
    assert 1000 <= cash.min() < 2000 < 4000 < cash.max() <= 5000
    assert len(set(env.envs.column("cursor"))) == 1


def test_features_are_those_that_a_function_makes(df):
    pytest.importorskip("pandas")

    def features(frame):
        frame = frame.copy().reset_index(drop=False)
        frame["features_close"] = frame["close"]
        frame["features_return"] = frame["close"].pct_change().fillna(0)
        return frame

    env = made("VectorizedSequentialTradingEnv", df, features, num_envs=2, random_start=False)
    shown = env.reset()["market_data_1Hour_10"]
    assert shown.shape == (2, 10, 2)
    at = int(env.envs.column("cursor")[0])
    closes = df["close"].to_numpy().astype(np.float32)
    np.testing.assert_array_equal(shown[0, :, 0].numpy(), closes[at - 9 : at + 1])
    with pytest.raises(ConfigError, match="made no columns that begin with 'features_'"):
        made("SequentialTradingEnv", df, lambda frame: frame)


@pytest.mark.filterwarnings("ignore")  # TorchRL's, about its own next versions
def test_torchrls_collector_takes_it(df):
    from torchrl.collectors import Collector

    env = made("VectorizedSequentialTradingEnvSLTP", df, num_envs=8, max_traj_length=20)
    collector = Collector(env, frames_per_batch=320, total_frames=320)
    (batch,) = list(collector)
    collector.shutdown()
    assert batch["next", "truncated"].sum() >= 8
    assert int(batch["action"].max()) < env.action_spec.space.n


@pytest.mark.parametrize(
    ("change", "values", "told"),
    [
        (lambda df: df.drop("volume"), {}, r"DataFrame missing required columns: \['volume'\]"),
        (lambda df: df.to_dict(), {}, "df is a dict; needs a DataFrame of pandas or Polars"),
        (lambda df: df.with_columns(close=float("nan")), {}, r"the columns \['close'\] have values that are no finite"),
        (None, {"transaction_fee": 2}, "^transaction_fee = 2: out of range"),
        (None, {"action_levels": []}, r"^action_levels = \(\)"),
        (None, {"num_envs": 0}, "num_envs = 0: needs a whole number of at least 1"),
        (None, {"window_sizes": [3, 4]}, "1 time_frames but 2 window_sizes"),
        (None, {"time_frames": "1Week"}, "TorchTrade has minutes, hours and days"),
        (None, {"margin_mode": "crossed"}, "isolated margin"),
        (None, {"time_frames": "4Hour", "window_sizes": 400}, "leave no usable bar"),
    ],
)
def test_typical_mistakes_are_told_in_a_sentence(df, change, values, told):
    with pytest.raises((ConfigError, DataError), match=told):
        made("VectorizedSequentialTradingEnv", change(df) if change else df, **values)


def test_a_configuration_of_another_class_is_refused(df):
    for config in ({"num_envs": 3}, torchtrade.SequentialTradingEnvConfig()):
        with pytest.raises(ConfigError, match=r"this one takes a VectorizedSequentialTradingEnvConfig\."):
            torchtrade.VectorizedSequentialTradingEnv(df, config)
    with pytest.raises(ConfigError, match="takes a SequentialTradingEnvSLTPConfig"):
        torchtrade.SequentialTradingEnvSLTP(df, torchtrade.SequentialTradingEnvConfig())
    with pytest.raises(ConfigError, match=r"stoploss_levels = \(0.02,\): needs negative fractions"):
        torchtrade.SequentialTradingEnvSLTPConfig(stoploss_levels=(0.02,))


def test_rewards_of_many_are_a_function_of_portfolio_values(df, capsys):
    note_python.cache_clear()

    def doubled(old, new):
        assert old.dtype == new.dtype == torch.float64
        return new.div_(old).log_().mul_(2)  # in place

    told = {"num_envs": 8, "max_traj_length": 20, "initial_cash": (1000, 5000), "transaction_fee": 0.001}
    ours, plain = (made("VectorizedSequentialTradingEnv", df, None, each, **told) for each in (doubled, None))
    mine, seen = ours.reset(), plain.reset()
    ended = 0
    for actions in torch.randint(0, 3, (45, 8), generator=torch.Generator().manual_seed(0)):
        mine["action"] = seen["action"] = actions
        stepped, mine = ours.step_and_maybe_reset(mine)
        expected, seen = plain.step_and_maybe_reset(seen)
        rewards = 2 * expected["next", "reward"]
        torch.testing.assert_close(stepped["next", "reward"], rewards, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(stepped["next", "account_state"], expected["next", "account_state"])
        ended += int(expected["next", "done"].sum())
    assert ended == 16
    assert capsys.readouterr().err.count("reward_function runs in Python after every step") == 1


def test_one_remembers_its_episode_and_is_rewarded_by_it(df):
    def profit(history):
        return history.portfolio_values[-1] - history.portfolio_values[0]

    env = made("SequentialTradingEnv", df, None, profit, max_traj_length=12, random_start=False)
    seen, lengths = env.reset(), []
    assert (len(env.history), env.history.action_types) == (1, ["hold"])
    for step in range(25):
        seen["action"] = torch.tensor(2 if step % 3 else 0)
        stepped, seen = env.step_and_maybe_reset(seen)
        lengths.append(len(env.history))
        if stepped["next", "done"]:
            assert len(env.history) == 1
            continue
        past = env.history
        assert past.rewards[-1] == past.portfolio_values[-1] - 10_000
        assert float(stepped["next", "reward"]) == pytest.approx(past.rewards[-1], rel=1e-6)
        assert past.base_prices[-1] == pytest.approx(df["close"][int(env.envs.column("cursor")[0])], rel=1e-6)
    assert max(lengths) == 11
    assert set(past.to_dict()) == {*vars(torchtrade.HistoryTracker())}
    assert {"buy", "sell", "hold"} >= set(past.action_types) > {"hold"}


def test_an_episode_that_ended_is_drawn(df):
    pytest.importorskip("matplotlib")
    env = made("SequentialTradingEnv", df, max_traj_length=30, leverage=3)
    env.rollout(100)
    assert len(env.history) == 30
    figure = env.render_history(return_fig=True)
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["price", "portfolio", "buy and hold (3x)", "exposure"]
    np.testing.assert_allclose(figure.axes[1].lines[0].get_ydata(), env.history.portfolio_values, rtol=1e-4)
    bare = env.render_history(return_fig=True, plot_bh_baseline=False)
    assert len(bare.axes[1].lines) == 1


@pytest.mark.parametrize(
    ("name", "function", "told"),
    [
        ("VectorizedSequentialTradingEnv", lambda history: 0.0, r"many environments give it \(old_pvs, new_pvs\)"),
        ("SequentialTradingEnv", lambda old, new: new, r"one environment gives it \(history\)"),
        ("VectorizedSequentialTradingEnv", lambda old, new: new.sum(), r"returned \(\); needs \(64,\), one number"),
    ],
)
def test_a_function_of_something_else_is_refused(df, name, function, told):
    with pytest.raises(ConfigError, match=told):
        made(name, df, None, function).rollout(2)


def test_other_names_are_none_of_the_module():
    with pytest.raises(AttributeError, match="OneStepTradingEnv"):
        _ = torchtrade.OneStepTradingEnv


# The words of its example


def test_its_words_are_settings_with_a_note_each():
    given = {"env.train_envs": 128, "collector.frames_per_batch": 4096, "loss.mini_batch_size": 1024, "steps": 9}
    found, notes = translated(given, 64)
    assert found == {"num_envs": 128, "ppo.rollout_length": 32, "ppo.minibatches": 4, "steps": 9}
    assert notes[1] == "collector.frames_per_batch=4096 is ppo.rollout_length=32 here"
    assert translated({"collector.frames_per_batch": 6400}, 64)[0] == {"ppo.rollout_length": 100}
    given = {"env.num_envs": 16, "model.num_layers": 4, "model.hidden_size": 32, "collector.frames_per_batch": 64}
    expected = {"num_envs": 16, "network.hidden": [32] * 4, "ppo.rollout_length": 4}
    assert translated({**given, "loss.entropy_coeff": 0.01}, 64)[0] == {**expected, "ppo.entropy": 0.01}
    # The value's loss is half of its squared error here, and all of it there (loss_critic_type: l2).
    assert translated({"loss.critic_coeff": 1.0}, 64)[0] == {"ppo.value_weight": 2.0}
    for wrong, told in (
        ({"model.num_layers": 3}, "model.num_layers = 3: needs model.hidden_size beside it"),
        ({"env.train_env": 1}, "Did you mean 'env.train_envs'"),
        ({"env.train_envs": 0}, "env.train_envs = 0: needs a whole number of at least 1"),
        ({"collector.frames_per_batch": "many"}, "collector.frames_per_batch = 'many': needs a whole number"),
        ({"collector.frames_per_batch": 3}, "less than one step of each"),
        ({"loss.mini_batch_size": 3}, "needs collector.frames_per_batch beside it"),
    ):
        with pytest.raises(ConfigError, match=told):
            translated(wrong, 64)


def test_the_preset_has_its_defaults():
    config = load_run_config("torchtrade")
    assert (config.num_envs, config.network.kind) == (64, "mlp_batch_norm")
    assert config.logging.metric_names == "torchtrade"
    wandb = translated({"logger.project_name": "P", "logger.group_name": "G"}, 64)[0]
    told = load_run_config("torchtrade", wandb).logging
    assert (told.wandb_project, told.wandb_group) == ("P", "G")


def test_its_metrics_are_written_beside_ours():
    metrics = {"time/sps_total": 2.0, "episode/return": 3.0, "evaluation/validation/reward": 4.0}
    named = with_names_of("torchtrade", metrics)
    assert named == {**metrics, "time/SPS-total": 2.0, "train/reward": 3.0, "eval/reward": 4.0}
    assert with_names_of("velodrome", metrics) == metrics


def test_the_command_is_taken_literally(tmp_path, capsys):
    small = [f"logging.folder={tmp_path}", "market.length=2000", "market.windows=4", "device=cpu"]
    small += ["params.episode_length=8", "evaluation.every_steps=2048"]
    assert cli.run(["train", "torchtrade", *WORDS, *small, "--quiet", "--no-evaluation"]) == 0
    told = capsys.readouterr().err
    assert "note: env.train_envs=128 is num_envs=128 here" in told
    assert told.count("note: ") == len(WORDS)
    run = vd.Run.open("latest", tmp_path)
    assert (run.config.num_envs, run.config.network.hidden) == (128, (256, 256))
    assert (run.config.ppo.rollout_length, run.config.ppo.learning_rate) == (16, 1e-4)
    names = set(run.metrics["name"].to_list())
    assert {"time/SPS-collecting", "time/SPS-total", "train/reward", "eval/reward"} <= names
    assert "using 128 environments (" in (run.path / "log.txt").read_text()
    assert cli.run(["config", "torchtrade", "env.train_env=3"]) == cli.REFUSED
    assert "env.train_env is not a setting of TorchTrade's example" in capsys.readouterr().err


# The package itself


IN_CI = [("SequentialTradingEnvSLTP", 5), ("VectorizedSequentialTradingEnv", 1)]
ALL = {(f"{many}{name}", leverage) for many in ("", "Vectorized") for name in NAMES for leverage in (1, 5)}


@pytest.mark.filterwarnings("ignore")  # TorchTrade's and its dependencies'
@pytest.mark.parametrize(
    ("name", "leverage"), [*IN_CI, *(pytest.param(*each, marks=pytest.mark.slow) for each in sorted(ALL - {*IN_CI}))]
)
def test_the_package_computes_the_same(name, leverage):
    theirs = pytest.importorskip(
        "torchtrade.envs.offline", reason="TorchTrade is not installed; the Makefile shows how (--no-deps)"
    )
    import pandas

    series = next(iter(vd.synthetic_bars("gbm", 1500, 0, timeframe="1h", volatility=0.02).series.values()))
    columns = {column: getattr(series, column) for column in COLUMNS}
    df = pandas.DataFrame({"timestamp": pandas.to_datetime(series.time), **columns})
    values = {"time_frames": ["1Hour", "4Hour"], "window_sizes": [10, 5], "max_traj_length": 200, "seed": 0}
    values |= {"random_start": False, "leverage": leverage, "transaction_fee": 0.001}
    values |= {"num_envs": 4} if name.startswith("Vectorized") else {}
    ours = made(name, df, **values)
    other = getattr(theirs, name)(df, getattr(theirs, f"{name}Config")(**values))
    mine, yours = ours.reset(), other.reset()
    generator = torch.Generator().manual_seed(1)
    for _ in range(250):
        actions = torch.randint(0, int(ours.action_spec.space.n), ours.batch_size, generator=generator)
        mine["action"], yours["action"] = actions, actions.clone()
        stepped, mine = ours.step_and_maybe_reset(mine)
        expected, yours = other.step_and_maybe_reset(yours)
        assert set(stepped["next"].keys()) == set(expected["next"].keys())
        for key, value in expected["next"].items():
            torch.testing.assert_close(stepped["next", key], value, rtol=1e-6, atol=1e-9)
        if not name.startswith("Vectorized"):
            mine_past, past = ours.history.to_dict(), other.history.to_dict()
            assert mine_past.pop("action_types") == past.pop("action_types")
            for kept, numbers in past.items():
                np.testing.assert_allclose(mine_past[kept], numbers, rtol=1e-6, atol=1e-9, err_msg=kept)
