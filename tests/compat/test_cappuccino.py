"""The crypto trainer's environments: the original's numbers, tensors written in place, and ElegantRL's own PPO."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import torch

import velodrome as vd
from tests.shared_data import shared_folder
from velodrome import cli
from velodrome.compat.cappuccino import CryptoEnvAlpaca, VectorizedCryptoEnvAlpaca, VectorizedCryptoEnvAlpacaOptimized
from velodrome.errors import ActionError, ConfigError, DataError

PUBLIC = shared_folder("data/alpaca_crypto/public")
FILES = sorted(PUBLIC.glob("*.npz")) if PUBLIC else []
COINS, BARS = 3, 60
NORMS = {"norm_cash": 2**-12, "norm_stocks": 2**-8, "norm_tech": 2**-15, "norm_reward": 2**-10, "norm_action": 100}
ENV_PARAMS = {"lookback": 5, **NORMS}


def arrays():
    random = np.random.default_rng(0)
    price = 100 * np.exp(np.cumsum(random.normal(0, 0.01, (BARS, COINS)), axis=0))
    return {"price_array": price, "tech_array": random.normal(size=(BARS, 6)), "if_train": True}


@pytest.fixture(scope="module")
def many():
    return VectorizedCryptoEnvAlpaca(arrays(), ENV_PARAMS, n_envs=12, gpu_id=-1)


@pytest.mark.skipif(not FILES, reason="the recorded trajectories in ../shared are not here")
def test_the_states_and_rewards_are_those_of_the_original():
    recorded = dict(np.load(FILES[0], allow_pickle=False))
    told = json.loads(str(recorded["config"]))
    config = {"price_array": recorded["price"], "tech_array": recorded["indicators"]}
    limits = np.array(told["min_quantity"]) / 1.1
    costs = {"buy_cost_pct": told["fee"], "sell_cost_pct": told["fee"], "initial_capital": told["initial_capital"]}
    one = CryptoEnvAlpaca(config, told, alpaca_limits=limits, **costs)
    np.testing.assert_allclose(one.reset(), recorded["obs"][0], rtol=1e-6)
    for t in range(12):
        state, reward, done, info = one.step(recorded["action"][t])
        assert reward == pytest.approx(float(recorded["reward"][t]), rel=1e-5, abs=1e-7)
        assert info["total_asset"] == pytest.approx(float(recorded["total_asset"][t]), rel=1e-9)
        assert done == bool(recorded["done"][t])
        if t == 9:  # every tenth observation was recorded
            np.testing.assert_allclose(state, recorded["obs"][1], rtol=1e-5, atol=1e-7)


def test_one_and_many_agree_and_tensors_are_written_in_place(many):
    one = CryptoEnvAlpaca(arrays(), ENV_PARAMS)
    state, states = one.reset(), many.reset()
    assert states.shape == (12, many.state_dim) == (12, 1 + COINS + 6 * 5)
    np.testing.assert_array_equal(states[3].numpy(), state)
    places = (many.state.data_ptr(), many.reward.data_ptr(), many.done.data_ptr())
    actions, ended = np.random.default_rng(1).normal(size=(BARS, COINS)).astype(np.float32), 0
    for action in actions:
        state, reward, done, info = one.step(action)
        states, rewards, dones, infos = many.step(torch.from_numpy(np.tile(action, (12, 1))))
        assert (states.data_ptr(), rewards.data_ptr(), dones.data_ptr()) == places
        assert float(rewards[5]) == np.float32(reward)
        assert bool(dones[5]) == done
        if done:
            assert "final_obs" in infos
            ended, state = ended + 1, one.reset()
        np.testing.assert_array_equal(states[5].numpy(), state)
    assert ended == 1
    assert set(info) == {"total_asset", "cash", "stocks"}


def test_scripts_can_tell_the_vectorised_ones():
    for kind in (VectorizedCryptoEnvAlpaca, VectorizedCryptoEnvAlpacaOptimized):
        assert "n_envs" in inspect.signature(kind).parameters
    assert "n_envs" not in inspect.signature(CryptoEnvAlpaca).parameters


@pytest.mark.parametrize(
    ("config", "env_params", "more", "told"),
    [
        ({"tech_array": []}, ENV_PARAMS, {}, "config has no price_array; it needs price_array, tech_array"),
        ({}, {**ENV_PARAMS, "lookback": 0}, {}, "lookback = 0: needs a whole number of at least 1"),
        ({"price_array": np.full((BARS, COINS), np.nan)}, ENV_PARAMS, {}, "a price that is missing is 0"),
        ({}, {"lookback": 5}, {}, "env_params has no norm_cash, norm_stocks"),
        ({}, ENV_PARAMS, {"n_envs": 0}, "n_envs = 0: needs a whole number of at least 1"),
        ({}, ENV_PARAMS, {"alpaca_limits": [0.1]}, "alpaca_limits has 1 quantities for 3 coins"),
        ({"tech_array": np.zeros((7, 2))}, ENV_PARAMS, {}, "60 prices and 7 rows of indicators"),
    ],
)
def test_typical_mistakes_are_told_in_a_sentence(config, env_params, more, told):
    whole = config if told.startswith("config has no") else {**arrays(), **config}
    with pytest.raises((ConfigError, DataError), match=told):
        VectorizedCryptoEnvAlpaca(whole, env_params, gpu_id=-1, **more)


def test_wrong_actions_of_many_are_refused(many):
    many.reset()
    with pytest.raises(ActionError, match=r"actions have shape \(12, 2\); 12 environments need 3 numbers each"):
        many.step(torch.zeros(12, 2))


def test_wrong_actions_of_one_are_refused():
    one = CryptoEnvAlpaca(arrays(), ENV_PARAMS)
    one.reset()
    for action in (np.zeros(2), np.array([np.nan, 0, 0])):
        with pytest.raises(ConfigError, match="needs 3 finite numbers"):
            one.step(action)


# The adapter


def test_continuous_actions_stand_for_the_range_of_the_space():
    envs = vd.make_vec("Pendulum-v1", 3, backend="serial", seed=0)
    env = vd.to_elegantrl(envs)
    assert env.env_args == {
        "env_name": env.env_name,
        "num_envs": 3,
        "max_step": env.max_step,
        "state_dim": 3,
        "action_dim": 1,
        "if_discrete": False,
    }
    seen = []
    envs.step, inner = lambda actions: seen.append(np.array(actions)) or inner(actions), envs.step
    env.reset()
    states, rewards, dones, _ = env.step(torch.tensor([[-1.0], [0.0], [7.0]]))
    np.testing.assert_allclose(seen[0], [[-2.0], [0.0], [2.0]])
    assert (states.dtype, rewards.shape, dones.dtype) == (torch.float32, (3,), torch.bool)
    env.close()


def test_spaces_that_its_agents_do_not_take_are_refused():
    with pytest.raises(ConfigError, match="to_elegantrl takes flat ones"):
        vd.to_elegantrl(vd.make_vec("template", 2, observation="dict"))


def test_elegantrls_own_ppo_trains(many, tmp_path):
    agents = pytest.importorskip("elegantrl.agents", reason="pip install --no-deps elegantrl")
    from elegantrl import Config

    args = Config(agents.AgentPPO, VectorizedCryptoEnvAlpaca, many.env_args)
    args.batch_size, args.repeat_times = 32, 1
    agent = agents.AgentPPO((16, 16), many.state_dim, many.action_dim, gpu_id=-1, args=args)
    agent.last_state = many.reset()
    with torch.no_grad():
        items = agent.explore_vec_env(many, 64)
    assert items[0].shape == (64, 12, many.state_dim)
    assert float(items[-1].sum()) < 64 * 12  # some episodes ended
    before = [weights.clone() for weights in agent.act.parameters()]
    agent.update_net(list(items))
    assert any(not torch.equal(old, new) for old, new in zip(before, agent.act.parameters(), strict=True))


# Its flags


def test_its_study_command_is_taken_literally(monkeypatch, tmp_path):
    from velodrome.service import tuning

    seen = {}

    class Enough(Exception):
        """What the study would have been told is known."""

    def tune(source, trials, **told):
        seen.update(told, source=source, trials=trials)
        raise Enough

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.chdir(tmp_path)
    command = "tune portfolio --n-trials 500 --gpu 0 --study-name X --timeframe 5m --data-dir data/5m --n-envs 12"
    with pytest.raises(Enough):
        cli.run([*command.split(), "--replace"])
    assert (seen["source"], seen["trials"], seen["study"], seen["replace"]) == ("portfolio", 500, "X", True)
    assert (seen["device"], seen["market.timeframe"], seen["market.source"]) == ("cuda:0", "5m", "data/5m")
    assert seen["num_envs"] == 12


FLAGS = "--study-name X --timeframe 5m --data-dir data/5m --n-envs 12"
SMALL = (
    "--workers 1 --seeds 1 --confirm 1 --confirm-seeds 1 --no-test --search ppo.learning_rate=1e-4:1e-3:log "
    "--search-only steps=768 ppo.rollout_length=32"
)


@pytest.fixture
def coins(tmp_path, monkeypatch):
    """A folder with bars of three coins in data/5m."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data" / "5m"
    folder.mkdir(parents=True)
    bars = vd.synthetic_bars("factors", 3_000, seed=1, symbols=["BTC", "ETH", "LTC"], timeframe="5m")
    for symbol, series in bars.series.items():
        columns = {name: getattr(series, name) for name in ("time", "open", "high", "low", "close", "volume")}
        frame = pl.DataFrame(columns).with_columns(pl.col("time").cast(pl.Datetime("ns")))
        frame.write_parquet(folder / f"{symbol}.parquet")
    return tmp_path


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to use")
def test_a_gpu_that_is_not_there_is_told_before_anything_starts(coins, capsys):
    assert cli.run(["tune", "portfolio", "--n-trials", "500", "--gpu", "0", *FLAGS.split()]) == cli.REFUSED
    assert "device = 'cuda:0' cannot be used" in capsys.readouterr().err
    assert cli.run(["studies", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.slow
def test_its_flags_make_a_real_study_and_replace_it(coins):
    gpu = ["--gpu", "0"] if torch.cuda.is_available() else []
    command = [sys.executable, "-m", "velodrome", "tune", "portfolio", *gpu, *FLAGS.split(), *SMALL.split()]
    with open(coins / "first.txt", "w") as told:
        first = subprocess.Popen([*command, "--n-trials", "500"], stdout=told, stderr=told)
    try:
        patience = time.monotonic() + 240
        while "1 complete" not in (coins / "first.txt").read_text():
            assert first.poll() is None, (coins / "first.txt").read_text()[-2000:]
            assert time.monotonic() < patience
            time.sleep(1)
        again = [*command, "--n-trials", "2", "--replace", "--json"]
        second = subprocess.run(again, capture_output=True, text=True, timeout=400, check=False)
        assert second.returncode == 0, second.stderr[-2000:]
        first.wait(60)
    finally:
        first.kill()
    assert "replaced" in (coins / "first.txt").read_text()
    found = json.loads(second.stdout)
    assert (found["name"], found["status"], len(found["trials"])) == ("X", "finished", 2)
    logs = [path.read_text() for path in (coins / "runs").glob("X-*/log.txt")]
    assert len(logs) >= 4
    assert all("using 12 environments (" in log for log in logs if "INFO" in log)


def test_training_takes_the_number_of_environments_too(tmp_path):
    words = [f"logging.folder={tmp_path}", "steps=192", "ppo.rollout_length=16", "evaluation.every_steps=null"]
    assert cli.run(["train", "template", "--n-envs", "12", *words, "--quiet", "--no-evaluation"]) == cli.REFUSED
    assert cli.run(["train", "env=template", "--n-envs", "12", *words, "--quiet", "--no-evaluation"]) == 0
    (log,) = tmp_path.glob("*/log.txt")
    assert "using 12 environments (auto, cpu)" in log.read_text()
