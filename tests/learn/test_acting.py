"""A trained policy acts on whatever the environments return, and remembers by environment."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch

import velodrome as vd
from tests.evaluation.backtests import backtest
from tests.learn.learners import SMALL_NETWORK, Bandit, Cue, foreign_worlds, make_ppo, trading_worlds
from tests.learn.test_policy import SPACES, make_policy
from tests.markets import small_market
from tests.rollout.test_worlds import Structured
from velodrome.errors import ConfigError
from velodrome.evaluation.play import play_episodes
from velodrome.learn.acting import TrainedPolicy
from velodrome.learn.config import NetworkConfig
from velodrome.learn.networks.q_network import QNetwork
from velodrome.rollout.moments import RunningMoments
from velodrome.rollout.observation import Observation, ObservationShape, WindowBank

MARKET = small_market(bars=60, instruments=2, seed=1)
KINDS = ("mlp", "mlp_batch_norm", "conv", "gru")


def environments(observation, num_envs=6, **params):
    values = {"episode_length": (3, 9), "seed": 3, "threads": 1, **params}
    return vd.make_vec("trading", num_envs, market=MARKET, observation=observation, **values)


def trading_policy(kind="mlp", normalise=True, market=MARKET, **params):
    """A policy with random weights, far from uniform, for the environments above."""
    worlds = trading_worlds(4, market=market, **params)
    torch.manual_seed(5)
    network = {**SMALL_NETWORK, "kind": kind}
    learner = make_ppo(worlds, network, normalise_observations=normalise)
    learner.iterate()
    with torch.no_grad():
        learner.policy.policy_head.weight.mul_(300.0)
    return TrainedPolicy.of(learner.policy, worlds, learner.moments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("params", [{}, {"action": "continuous"}])
def test_the_three_kinds_of_observation_lead_to_the_same_actions(kind, params):
    every = {name: environments(name, **params) for name in ("cursor", "dict", "flat")}
    policies = {name: trading_policy(kind, **params) for name in every}
    seen = {name: envs.reset()[0] for name, envs in every.items()}
    for name, policy in policies.items():
        policy.begin(every[name].num_envs)
    taken = []
    for _ in range(15):
        actions = {name: policies[name].act(seen[name]) for name in every}
        for name, envs in every.items():
            np.testing.assert_allclose(actions[name], actions["flat"], rtol=1e-5, atol=1e-5)
            assert envs.action_space.contains(actions["flat"])
            seen[name], _, terminated, truncated, _ = envs.step(actions["flat"])
            policies[name].forget(terminated | truncated)
        taken.append(actions["flat"].copy())
    assert len(np.unique(np.round(np.stack(taken), 3))) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_actions_are_the_likeliest_of_the_network_on_normalised_values(kind):
    policy = trading_policy(kind)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, policy.shape.floats, generator=generator)
    at = policy.shape.window_floats
    values = policy.moments.normalise(rows[:, at:])
    policy.network.eval()
    memory = torch.zeros(20, policy.network.memory_size)
    with torch.no_grad():
        outputs = policy.network(Observation(values, None, rows[:, :at]), None, None, memory)
    np.testing.assert_array_equal(policy.act(rows.numpy()), outputs.parameters.argmax(1).numpy())


def test_a_single_observation_gets_a_single_action():
    policy = trading_policy()
    for kind in ("flat", "dict", "cursor"):
        env = vd.make("trading", market=MARKET, observation=kind, seed=1, episode_length=5)
        observation, _ = env.reset()
        action = policy.act(observation)
        assert np.shape(action) == ()
        assert action.dtype == np.int64
        env.step(action)
    continuous = trading_policy(action="continuous")
    action = continuous.act(np.zeros(continuous.shape.floats))
    assert action.shape == (1,)
    assert action.dtype == np.float32


def test_continuous_actions_stay_within_their_range():
    space = gymnasium.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32))
    torch.manual_seed(0)
    network = make_policy(space="continuous", shape=ObservationShape(4))
    with torch.no_grad():
        network.policy_head.weight.mul_(10_000.0)
    policy = TrainedPolicy(network, ObservationShape(4), space)
    actions = policy.act(np.random.default_rng(0).normal(size=(200, 4)))
    assert (actions >= space.low).all()
    assert (actions <= space.high).all()
    assert set(actions[:, 1].tolist()) >= {0.0, 0.5}


@pytest.mark.parametrize("space", SPACES)
def test_drawn_actions_are_those_of_training(space):
    shape = ObservationShape(4)
    first, same = (TrainedPolicy(make_policy(space=space, shape=shape), shape, SPACES[space], seed=8) for _ in range(2))
    rows = np.zeros((3000, 4), np.float32)
    drawn = first.act(rows, deterministic=False)
    np.testing.assert_array_equal(drawn, same.act(rows, deterministic=False))
    assert not np.array_equal(drawn, first.act(rows, deterministic=False))
    assert all(len(np.unique(column)) > 1 for column in drawn.reshape(3000, -1).T)
    assert len(np.unique(first.act(rows), axis=0)) == 1


def test_values_of_actions_are_acted_on_but_not_drawn_from():
    shape = ObservationShape(4, ((5, 3),))
    network = QNetwork(shape, SPACES["discrete"], NetworkConfig(hidden=(8,)), duelling=True)
    policy = TrainedPolicy(network, shape, SPACES["discrete"])
    rows = torch.randn(30, 19)
    with torch.no_grad():
        expected = network(Observation(rows[:, 15:], None, rows[:, :15])).argmax(1)
    np.testing.assert_array_equal(policy.act(rows.numpy()), expected.numpy())
    with pytest.raises(ConfigError, match="cannot draw"):
        policy.act(rows.numpy(), deterministic=False)


def test_a_policy_leaves_the_network_as_it_was():
    policy = trading_policy("mlp_batch_norm")
    state = {name: tensor.clone() for name, tensor in policy.network.state_dict().items()}
    for training in (True, False):
        policy.network.train(training)
        policy.act(np.random.default_rng(0).normal(size=(6, policy.shape.floats)))
        assert policy.network.training == training
    assert all(torch.equal(tensor, state[name]) for name, tensor in policy.network.state_dict().items())


# Memory


def test_memory_goes_from_step_to_step_and_is_forgotten_by_environment():
    network = make_policy("gru", shape=ObservationShape(2))
    with torch.no_grad():
        network.policy_head.weight.mul_(300.0)
    policy = TrainedPolicy(network, ObservationShape(2), SPACES["discrete"])
    rows = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(2))
    ended = np.array([True, False, False])
    policy.begin(3)
    memory = torch.zeros(3, network.memory_size)
    for t in range(5):
        with torch.no_grad():
            outputs = network(Observation(rows[t]), memory=memory)
        np.testing.assert_array_equal(policy.act(rows[t].numpy()), outputs.parameters.argmax(1).numpy())
        memory = outputs.memory
        if t == 2:
            policy.forget(ended)
            memory = memory * torch.tensor([[0.0], [1.0], [1.0]])
    policy.begin(3)
    with torch.no_grad():
        expected = network(Observation(rows[0]), memory=torch.zeros_like(memory)).parameters.argmax(1)
    np.testing.assert_array_equal(policy.act(rows[0].numpy()), expected.numpy())


def test_a_recurrent_policy_refuses_another_number_of_environments():
    network = make_policy("gru", shape=ObservationShape(2))
    policy = TrainedPolicy(network, ObservationShape(2), SPACES["discrete"])
    policy.act(np.zeros((3, 2)))
    with pytest.raises(ConfigError, match="remembers 3 environments; received 2"):
        policy.act(np.zeros((2, 2)))
    with pytest.raises(ConfigError, match="one boolean for each"):
        policy.forget(np.zeros(2, bool))
    with pytest.raises(ConfigError, match="at least 1"):
        policy.begin(0)
    policy.begin(2)
    assert policy.act(np.zeros((2, 2))).shape == (2,)


def test_a_policy_without_memory_takes_any_number():
    policy = trading_policy()
    for rows in (1, 5, 2):
        assert policy.act(np.zeros((rows, policy.shape.floats))).shape == (rows,)


def test_what_was_learned_with_memory_is_played_with_memory():
    worlds = foreign_worlds(lambda: Cue(2), 32)
    learner = make_ppo(
        worlds, {"kind": "gru", "hidden": (16,), "memory": 16}, rollout_length=12, epochs=4, learning_rate=1e-2,
        gamma=0.9,
    )  # fmt: skip
    for _ in range(25):
        learner.iterate()
    played = play_episodes(TrainedPolicy.of(learner.policy, worlds), foreign_worlds(lambda: Cue(2), 20).envs, 100)
    assert played.returns.mean() > 0.95


# Other markets and other libraries


def test_another_market_of_the_same_features_is_read_through_its_own_bank():
    policy = trading_policy()
    other = small_market(bars=80, instruments=1, seed=9)
    moved = policy.with_bank(WindowBank(other.windows))
    account = np.random.default_rng(0).normal(size=(40, policy.shape.values)).astype(np.float32)
    cursor = np.arange(40, 80)
    windows = moved.bank.gather(torch.from_numpy(cursor)).numpy()
    expected = policy.act(np.concatenate([windows, account], 1))
    np.testing.assert_array_equal(moved.act({"account": account, "cursor": cursor}), expected)
    assert not np.array_equal(policy.act({"account": account, "cursor": cursor}), expected)
    assert moved.network is policy.network


def test_a_policy_can_be_backtested():
    market = small_market(bars=60, instruments=2, seed=1)
    market = type(market)(**{**vars(market), "splits": {"test": ((30, 60), (90, 120))}})
    played = backtest(trading_policy(), market, "test", {})
    assert all(track.actions.shape == (29, 1) for track in played.tracks)


def test_observations_of_other_libraries_are_flattened_as_in_training():
    worlds = foreign_worlds(Structured, 3)
    policy = TrainedPolicy.of(make_ppo(worlds, {}).policy, worlds)
    envs = foreign_worlds(Structured, 3).envs
    observation, _ = envs.reset(seed=0)
    with pytest.raises(ConfigError, match=r"begin\(num_envs\)"):
        policy.act(observation)
    policy.begin(3)
    worlds.reset(0)
    for _ in range(3):
        with torch.no_grad():
            expected = policy.network(worlds.observation).parameters.argmax(1)
        actions = policy.act(observation)
        np.testing.assert_array_equal(actions, expected.numpy())
        observation = envs.step(actions)[0]
        worlds.step(torch.from_numpy(actions))
    assert np.shape(policy.act(Structured().reset()[0])) == ()


def test_images_are_taken_in_their_own_shape():
    space = gymnasium.spaces.Box(0.0, 1.0, (2, 3), np.float32)
    policy = TrainedPolicy(
        make_policy(shape=ObservationShape(6)), ObservationShape(6), SPACES["discrete"], observation_space=space
    )
    rows = np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    assert policy.act(rows).shape == (4,)
    assert policy.act(rows[1]) == policy.act(rows)[1]
    with pytest.raises(ConfigError, match="2 × 3 floats"):
        policy.act(rows.reshape(4, 6))


def test_an_environment_of_another_library_is_played():
    worlds = foreign_worlds(partial(Bandit, gymnasium.spaces.MultiDiscrete([2, 3])), 4)
    policy = TrainedPolicy.of(make_ppo(worlds).policy, worlds)
    assert len(play_episodes(policy, worlds.envs, 8)) == 8


# Refusals


@pytest.mark.parametrize("shape", [(26,), (28,), (3, 26), (3, 27, 1), ()])
def test_rows_of_another_size_are_refused_with_both_sizes(shape):
    policy = TrainedPolicy(make_policy(), ObservationShape(4, ((5, 3), (2, 2))), SPACES["discrete"])
    assert policy.shape.floats == 23
    with pytest.raises(
        ConfigError, match=r"trained on 23 floats: 5 × 3 \+ 2 × 2 \+ 4 values; received an array"
    ) as found:
        policy.act(np.zeros(shape))
    assert str(shape) in str(found.value)


def observation_parts(rows=3):
    return {"account": np.zeros((rows, 4)), "1m": np.zeros((rows, 5, 3)), "2m": np.zeros((rows, 2, 2))}


@pytest.mark.parametrize(
    ("change", "message"),
    [({"account": np.zeros((3, 5))}, "account values of shape"), ({"1m": np.zeros((3, 5, 2))}, "window '1m'"),
     ({"2m": np.zeros((2, 2, 2))}, "window '2m'"), ({"3m": np.zeros((3, 2, 2))}, "account, 1m, 2m; received"),
     ({"2m": None}, "account, 1m, 2m; received account, 1m"), ({"cursor": np.zeros(3, int)}, "received")],
)  # fmt: skip
def test_wrong_parts_are_refused(change, message):
    policy = TrainedPolicy(
        make_policy(), ObservationShape(4, ((5, 3), (2, 2))), SPACES["discrete"], window_names=("1m", "2m")
    )
    assert policy.act(observation_parts()).shape == (3,)
    given = {name: part for name, part in {**observation_parts(), **change}.items() if part is not None}
    with pytest.raises(ConfigError, match=message):
        policy.act(given)


def test_windows_without_known_names_are_refused():
    policy = TrainedPolicy(make_policy(), ObservationShape(4, ((5, 3), (2, 2))), SPACES["discrete"])
    with pytest.raises(ConfigError, match="a window each"):
        policy.act(observation_parts())
    with pytest.raises(ConfigError, match="needs 2 names"):
        TrainedPolicy(make_policy(), policy.shape, SPACES["discrete"], window_names=("1m",))


@pytest.mark.parametrize("cursor", [[0, 1, 120], [0, 1, -1], [0, 1], [0.0, 1.0, 2.0]])
def test_cursors_that_point_nowhere_are_refused(cursor):
    policy = trading_policy()
    with pytest.raises(ConfigError, match="3 whole numbers from 0 to 119"):
        policy.act({"account": np.zeros((3, policy.shape.values)), "cursor": np.array(cursor)})


def test_a_cursor_needs_a_market():
    shape = ObservationShape(4, ((5, 3), (2, 2)))
    policy = TrainedPolicy(make_policy(), shape, SPACES["discrete"])
    with pytest.raises(ConfigError, match=r"with_bank\(…\)"):
        policy.act({"account": np.zeros((3, 4)), "cursor": np.zeros(3, int)})
    with pytest.raises(ConfigError, match="same windows and features"):
        policy.with_bank(WindowBank(small_market(windows=((4, 3), (2, 2))).windows))


def test_nan_is_said_to_come_from_the_observation_or_the_weights():
    policy = trading_policy()
    rows = np.zeros((3, policy.shape.floats))
    rows[1, 2] = np.nan
    with pytest.raises(ConfigError, match=r"environment 1: .* from its observation"):
        policy.act(rows)
    with torch.no_grad():
        policy.network.policy_head.bias.fill_(torch.nan)
    with pytest.raises(ConfigError, match=r"environment 0: .* from its weights"):
        policy.act(np.zeros((3, policy.shape.floats)))


def test_moments_of_a_learner_that_goes_on_learning_are_followed():
    moments = RunningMoments(4)
    policy = TrainedPolicy(
        make_policy(shape=ObservationShape(4), space="continuous"), ObservationShape(4), SPACES["continuous"],
        moments=moments,
    )  # fmt: skip
    rows = np.random.default_rng(0).normal(5.0, 1.0, (50, 4)).astype(np.float32)
    before = policy.act(rows)
    moments.update(torch.from_numpy(rows))
    assert not np.allclose(before, policy.act(rows))
