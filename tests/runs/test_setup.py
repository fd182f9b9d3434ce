"""From a configuration to environments, and from a checkpoint back to a policy."""

from __future__ import annotations

import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import velodrome as vd
from tests.learn.learners import make_ppo, portfolio_worlds
from tests.runs.small_runs import one_thread, tiny  # noqa: F401
from velodrome.bars.files import write_bars
from velodrome.errors import CheckpointError, ConfigError
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.config.sections import AugmentConfig
from velodrome.runs.evaluate import play_validation

LEARNERS = {
    "mlp": {},
    "gru": {"network.kind": "gru", "network.memory": 8, "ppo.normalise_observations": True},
    "continuous": {"params.action": "continuous"},
    "sac": {"algorithm": "sac", "sac.buffer_size": 512, "params.action": "continuous"},
    "dqn": {"algorithm": "dqn", "dqn.buffer_size": 512, "dqn.duelling": False, "dqn.normalise_observations": True},
}


def config_of(tmp_path, **settings):
    return load_run_config("smoke", tiny(tmp_path, **settings))


def spaces():
    ends = st.lists(st.floats(-100.0, 100.0, width=32), min_size=1, max_size=4)
    boxes = ends.map(lambda low: gymnasium.spaces.Box(np.array(low, np.float32), np.array(low, np.float32) + 1.0))
    discrete = st.integers(1, 50).map(gymnasium.spaces.Discrete)
    many = st.lists(st.integers(1, 9), min_size=1, max_size=5).map(gymnasium.spaces.MultiDiscrete)
    return st.one_of(boxes, discrete, many)


@given(spaces())
def test_an_action_space_comes_back_from_its_description(space):
    assert setup.read_space(setup.describe_space(space)) == space


def test_other_action_spaces_are_refused():
    with pytest.raises(ConfigError, match="cannot be learnt; there are Discrete, MultiDiscrete and Box"):
        setup.describe_space(gymnasium.spaces.MultiBinary(3))


def test_environments_are_those_of_the_training_split(tmp_path):
    config = config_of(tmp_path)
    market = setup.build_market(config)
    with setup.learning_worlds(config, market, "cpu") as worlds:
        assert worlds.envs.world.cursors == market.splits["train"]
        assert worlds.envs.world.action_names


def test_an_environment_without_a_market_builds_none(tmp_path):
    assert setup.build_market(load_run_config("cartpole")) is None
    assert setup.foreign_observation_space(config_of(tmp_path)) is None
    assert setup.foreign_observation_space(load_run_config("cartpole")).shape == (4,)


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_policy_comes_back_from_what_a_checkpoint_holds(learner, tmp_path):
    config = config_of(tmp_path, **LEARNERS[learner])
    market = setup.build_market(config)
    with setup.learning_worlds(config, market, "cpu") as worlds:
        learning = setup.make_learner(config, worlds)
        for _ in range(2):
            learning.iterate()
        tensors, _ = learning.state()
        agent = setup.describe_agent(config, worlds)
        plain = {"agent": agent} | ({"duelling": config.dqn.duelling} if config.algorithm == "dqn" else {})
        own = TrainedPolicy.of(learning.policy, worlds, learning.moments)
        loaded = setup.load_policy(tensors, plain)
        rng = np.random.default_rng(0)
        own.begin(16)
        loaded.begin(16)
        for _ in range(3):
            flat = rng.normal(size=(16, loaded.shape.floats)).astype(np.float32)
            assert np.array_equal(loaded.act(flat), own.act(flat))


@pytest.mark.parametrize(
    ("kind", "head", "params"),
    [("instruments", "dirichlet", {"weighting": "simplex"}), ("instruments", "auto", {"action": "discrete"}),
     ("instruments", "auto", {"account_values": "raw"}), ("mlp", "dirichlet", {"weighting": "simplex"})],
)  # fmt: skip
def test_the_policy_of_a_portfolio_comes_back_without_its_data(kind, head, params):
    worlds = portfolio_worlds(6, 3, **params)
    learning = make_ppo(worlds, {"kind": kind, "head": head, "hidden": (8, 6)}, normalise_observations=True)
    learning.iterate()
    config = SimpleNamespace(
        env="portfolio", algorithm="ppo", network=NetworkConfig(kind=kind, head=head, hidden=(8, 6))
    )  # fmt: skip
    agent = json.loads(json.dumps(setup.describe_agent(config, worlds)))
    assert agent == setup.describe_agent(config, worlds)
    loaded = setup.load_policy(learning.state()[0], {"agent": agent})
    own = TrainedPolicy.of(learning.policy, worlds, learning.moments)
    flat = np.random.default_rng(0).normal(size=(16, loaded.shape.floats)).astype(np.float32)
    assert np.array_equal(loaded.act(flat), own.act(flat))


def test_a_checkpoint_from_before_there_were_heads_and_instruments_still_serves():
    worlds = portfolio_worlds(6, 3)
    learning = make_ppo(worlds, {"hidden": (8, 6)})
    config = SimpleNamespace(env="portfolio", algorithm="ppo", network=NetworkConfig(hidden=(8, 6)))
    agent = setup.describe_agent(config, worlds)
    before = {name: value for name, value in agent.items() if name != "instruments"}
    before["network"] = {name: value for name, value in agent["network"].items() if name != "head"}
    setup.check_agent(before, agent, "here")
    loaded = setup.load_policy(learning.state()[0], {"agent": before})
    flat = np.random.default_rng(0).normal(size=(16, loaded.shape.floats)).astype(np.float32)
    assert np.array_equal(loaded.act(flat), TrainedPolicy.of(learning.policy, worlds).act(flat))
    other = {**agent, "network": {**agent["network"], "head": "gaussian"}}
    with pytest.raises(CheckpointError, match="network is"):
        setup.check_agent(before, other, "here")
    with pytest.raises(CheckpointError, match="instruments is"):
        setup.check_agent({**agent, "instruments": {"count": 3, "own": [1]}}, agent, "here")


def test_an_agent_that_differs_is_refused_by_what_differs(tmp_path):
    config = config_of(tmp_path)
    with setup.learning_worlds(config, setup.build_market(config), "cpu") as worlds:
        agent = setup.describe_agent(config, worlds)
    setup.check_agent(agent, agent, "here")
    for name in agent:
        with pytest.raises(CheckpointError, match=f"^there: this checkpoint is of another agent: {name} is 'other' "):
            setup.check_agent({**agent, name: "other"}, agent, "there")
        with pytest.raises(CheckpointError, match=f"{name} is None there"):
            setup.check_agent({key: value for key, value in agent.items() if key != name}, agent, "there")


ABSURD = {"augment.noise": 100.0, "augment.mask_bars": 0.9, "augment.mask_features": 0.9}
COPIES = {"augment.copies": 3, "augment.bootstrap_block": 8, "augment.price_noise": 9.0}


@pytest.mark.parametrize("kind", ["mlp", "gru", "continuous", "dqn", "sac", "portfolio"])
def test_validation_sees_nothing_of_noise_masks_and_copies(tmp_path, kind):
    further = {"env": "portfolio", "market.symbols": 3} if kind == "portfolio" else LEARNERS[kind]
    found = []
    for disturbed in ({}, ABSURD if kind == "portfolio" else ABSURD | COPIES):
        config = config_of(tmp_path, **further, **disturbed)
        market = setup.build_market(config)
        with setup.learning_worlds(config, market, "cpu") as worlds:
            learner = setup.make_learner(config, worlds)
            worlds.renew(learner.steps)  # as strongly as ever, and the weights are still the same
            policy = TrainedPolicy.of(learner.policy, worlds, learner.moments)
            found.append(play_validation(policy, config, market))
            assert worlds.bank is not None
            assert policy.bank is not None
            # The windows at the first bar of the validation split look back into the training split.
            first = torch.tensor([min(begin for begin, _ in market.splits["validation"])])
            assert torch.equal(worlds.bank.gather(first), policy.bank.gather(first)) == (not disturbed)
            assert all(np.isfinite(value) for value in learner.iterate().values())
    assert found[0] == found[1]


def test_environments_play_on_the_copies_beside_the_training_split(tmp_path):
    config = config_of(tmp_path, **COPIES)
    market = setup.build_market(config)
    with setup.learning_worlds(config, market, "cpu") as worlds:
        world = worlds.envs.world
        assert len(world.cursors) == 4
        assert world.cursors[0] == market.splits["train"][0]
        worlds.reset(0)
        seen = {np.searchsorted([end for _, end in world.cursors], cursor, "right") for cursor in _cursors(worlds)}
        assert seen == {0, 1, 2, 3}


def _cursors(worlds):
    for _ in range(40):
        worlds.step(torch.ones(worlds.num_envs, dtype=torch.int64))
        yield from worlds.observation.cursor.tolist()


def test_a_portfolio_refuses_copies(tmp_path):
    with pytest.raises(ConfigError, match="whose basket keeps opens and closes alone"):
        config_of(tmp_path, **{"env": "portfolio", "market.symbols": 3}, **COPIES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"copies": 3}, "they would all be the true history"), ({"bootstrap_block": 8}, "copies = 0"),
     ({"price_noise": 0.1}, "copies = 0"), ({"copies": 1, "bootstrap_block": 0}, "greater than or equal to 1")],
)  # fmt: skip
def test_copies_and_how_they_differ_belong_together(settings, message):
    with pytest.raises(ValueError, match=message):
        AugmentConfig(**settings)


def test_windows_are_shortened_before_a_training_and_stay_so(tmp_path):
    console = Console(record=True, width=300)
    settings = tiny(tmp_path, steps=128, **{"market.windows": 16, "market.shorten": True, "market.length": 2000})
    run = vd.train("smoke", mode="plain", console=console, evaluate=False, **settings)
    rows = run.config.market.windows
    assert rows < 16
    assert f"Windows show the latest {rows} of 16 rows: walk-forward regression" in console.export_text()
    assert run.market.windows.length.tolist() == [rows]
    assert vd.evaluate(run, report=False).policy.step == 128
    assert vd.resume(run, mode="quiet", evaluate=False, steps=256).config.market.windows == rows


def test_windows_of_several_timeframes_are_shortened_each():
    several = {"market.source": "ar1", "market.windows": {"1m": 8, "5m": 4}, "market.shorten": True}
    config = load_run_config("smoke", several | {"market.length": 3000, "market.features": ["log_return"]})
    shorter, market, told = setup.market_to_train_on(config)
    rows = shorter.market.windows["1m"]
    assert rows in (1, 2)
    assert shorter.market.windows == {"1m": rows, "5m": rows}
    assert market.content_hash == setup.build_market(shorter).content_hash
    assert told.startswith(f"Windows show the latest {rows} of 8 rows")


def test_files_are_read_once_though_windows_are_shortened(tmp_path, monkeypatch):
    write_bars(vd.synthetic_bars("ar1", 3000, seed=1), tmp_path)
    given = {"market.source": str(tmp_path), "market.windows": 16, "market.shorten": True}
    config, read = load_run_config("smoke", given), []
    bars = type(config.market).bars
    monkeypatch.setattr(type(config.market), "bars", lambda own: read.append(own) or bars(own))
    shorter, market, told = setup.market_to_train_on(config)
    assert len(read) == 1
    assert told.startswith("Windows show")
    assert market.content_hash == setup.build_market(shorter).content_hash


def test_an_environment_without_a_market_has_none_to_train_on():
    config = load_run_config("cartpole")
    assert setup.market_to_train_on(config) == (config, None, "")
