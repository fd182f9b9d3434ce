"""Environments as a learner sees them: the same as through Gymnasium, with the last states kept and savable."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import velodrome as vd
from tests.learn.learners import Bandit, Endless, foreign_worlds, trading_worlds
from tests.markets import small_market
from velodrome.envs.trading.state import STATISTICS
from velodrome.errors import BackendError, ConfigError
from velodrome.rollout.worlds import ForeignWorlds, RuleWorlds, box_bounds, make_worlds
from velodrome.runs import setup


def random_actions(space, count, generator):
    if isinstance(space, gymnasium.spaces.Discrete):
        return torch.randint(0, int(space.n), (count,), generator=generator)
    return torch.randn((count, *space.shape), generator=generator)


@pytest.mark.parametrize("params", [{}, {"action": "continuous"}, {"action": "brackets"}])
def test_rule_environments_are_those_of_make_vec(params):
    worlds = trading_worlds(7, seed=2, **params)
    envs = trading_worlds(7, seed=2, **params).envs
    worlds.reset(11)
    observation, _ = envs.reset(seed=11)
    generator = torch.Generator().manual_seed(0)
    sums, count = np.zeros(len(STATISTICS)), 0
    for _ in range(40):
        np.testing.assert_array_equal(worlds.observation.values.numpy(), observation["account"])
        np.testing.assert_array_equal(worlds.observation.cursor.numpy(), observation["cursor"])
        actions = random_actions(worlds.action_space, 7, generator)
        worlds.step(actions)
        legal = actions.clamp(-1.0, 1.0) if params.get("action") == "continuous" else actions
        observation, reward, terminated, truncated, infos = envs.step(legal)
        np.testing.assert_array_equal(worlds.reward.numpy(), reward)
        np.testing.assert_array_equal(worlds.terminated.numpy(), terminated)
        np.testing.assert_array_equal(worlds.truncated.numpy(), truncated)
        if infos:
            ended = infos["_final_obs"]
            np.testing.assert_array_equal(worlds.final.values.numpy()[ended], infos["final_obs"]["account"][ended])
            np.testing.assert_array_equal(worlds.final.cursor.numpy()[ended], infos["final_obs"]["cursor"][ended])
            sums += [infos["statistics"][name][ended].sum() for name in STATISTICS]
            count += int(ended.sum())
    found = worlds.mean_episode(worlds.take_sums().tolist())
    assert found["episode/count"] == count > 10
    by_name = dict(zip(STATISTICS, sums / count, strict=True))
    assert found["episode/return"] == pytest.approx(by_name["reward"])
    assert found["episode/turnover"] == pytest.approx(by_name["turnover"])
    assert worlds.mean_episode(worlds.take_sums().tolist()) == {"episode/count": 0.0}


@pytest.mark.parametrize("params", [{}, {"action": "continuous", "slippage": 0.01, "fee": (0.0, 0.01)}])
def test_environments_continue_from_their_state_to_the_bit(params):
    worlds, later = trading_worlds(7, seed=2, **params), trading_worlds(7, seed=99, **params)
    generator = torch.Generator().manual_seed(0)
    worlds.reset(11)
    for _ in range(9):
        worlds.step(random_actions(worlds.action_space, 7, generator))
    later.load_state({name: tensor.clone() for name, tensor in worlds.state().items()})
    for _ in range(25):
        for ours, theirs in zip(worlds.observation, later.observation, strict=True):
            assert ours is theirs is None or torch.equal(ours, theirs)
        actions = random_actions(worlds.action_space, 7, generator)
        worlds.step(actions)
        later.step(actions)
        assert torch.equal(worlds.reward, later.reward)
        assert torch.equal(worlds.truncated, later.truncated)


def test_a_state_of_other_environments_is_refused():
    worlds = trading_worlds(7)
    worlds.reset(0)
    with pytest.raises(ConfigError, match="num_envs"):
        trading_worlds(70).load_state(worlds.state())


def test_a_learner_reads_windows_by_cursor_only():
    envs = vd.make_vec("trading", 3, market=small_market(), observation="flat", episode_length=5)
    with pytest.raises(BackendError, match="use 'cursor'"):
        make_worlds(envs)


def test_the_kind_of_worlds_follows_from_the_environments():
    assert isinstance(trading_worlds(3), RuleWorlds)
    assert isinstance(make_worlds(foreign_worlds(lambda: Endless(3, terminates=True), 2).envs), ForeignWorlds)


# Environments of other libraries


@pytest.mark.parametrize("terminates", [False, True])
def test_foreign_environments_keep_their_last_state(terminates):
    worlds = foreign_worlds(lambda: Endless(3, terminates=terminates), 2)
    worlds.reset(0)
    actions = torch.zeros(2, dtype=torch.int64)
    for _ in range(2):
        worlds.step(actions)
        assert not worlds.terminated.any()
        assert not worlds.truncated.any()
    worlds.step(actions)
    assert worlds.terminated.tolist() == [terminates] * 2
    assert worlds.truncated.tolist() == [not terminates] * 2
    assert worlds.final.values.tolist() == [[0.0, 0.0, 0.0, 1.0]] * 2
    assert worlds.observation.values.tolist() == [[1.0, 0.0, 0.0, 0.0]] * 2
    assert worlds.mean_episode(worlds.take_sums().tolist()) == {
        "episode/count": 2.0,
        "episode/return": 3.0,
        "episode/length": 3.0,
    }
    assert worlds.state() == {}


def test_environments_that_lose_the_last_state_are_refused():
    envs = SyncVectorEnv([lambda: Endless(3, terminates=True)], autoreset_mode=AutoresetMode.NEXT_STEP)
    with pytest.raises(BackendError, match="SAME_STEP"):
        make_worlds(envs)


class Structured(gymnasium.Env):
    """Shows a number of four and an image; two steps long."""

    observation_space = gymnasium.spaces.Dict(
        {"digit": gymnasium.spaces.Discrete(4), "image": gymnasium.spaces.Box(0.0, 1.0, (2, 3), np.float32)}
    )
    action_space = gymnasium.spaces.Discrete(2)
    number = 0

    def _observation(self):
        return {"digit": self.number, "image": np.full((2, 3), self.number / 4, np.float32)}

    def reset(self, *, seed=None, options=None):
        self.number = 0
        return self._observation(), {}

    def step(self, action):
        self.number += 1
        return self._observation(), 0.0, False, self.number == 2, {}


def test_structured_observations_are_flattened():
    worlds = foreign_worlds(Structured, 3)
    assert worlds.shape.floats == 4 + 6
    worlds.reset(0)
    worlds.step(torch.zeros(3, dtype=torch.int64))
    assert worlds.observation.values[1].tolist() == [0.0, 1.0, 0.0, 0.0] + [0.25] * 6
    worlds.step(torch.zeros(3, dtype=torch.int64))
    assert worlds.final.values[2].tolist() == [0.0, 0.0, 1.0, 0.0] + [0.5] * 6
    assert worlds.observation.values[2].tolist() == [1.0, 0.0, 0.0, 0.0] + [0.0] * 6


def test_continuous_actions_reach_foreign_environments_within_their_range():
    space = gymnasium.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 0.5], np.float32))
    worlds = foreign_worlds(partial(Bandit, space), 2)
    worlds.reset(0)
    worlds.step(torch.tensor([[-7.0, 7.0], [0.25, -3.0]]))  # Bandit refuses what lies outside
    assert worlds.legal(torch.tensor([[-7.0, 7.0]])).tolist() == [[-1.0, 0.5]]


def test_actions_stay_within_the_range_of_an_environment_of_doubles():
    """As a float32, 0.1 is more than 0.1."""
    space = gymnasium.spaces.Box(-0.1, np.array([0.1, np.inf]), (2,), np.float64)
    read = setup.read_space(setup.describe_space(space))
    for low, high in (box_bounds(space, torch.device("cpu")), box_bounds(read, torch.device("cpu"))):
        assert space.contains(low.numpy().astype(np.float64))
        assert space.contains(high.numpy().astype(np.float64))
        assert low[0] == -high[0] == -np.nextafter(np.float32(0.1), np.float32(0))
