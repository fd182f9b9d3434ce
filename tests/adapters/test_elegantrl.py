"""`to_elegantrl`: actions of ElegantRL's agents mean what their spaces say, or are refused at once."""

from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import velodrome as vd
from velodrome.errors import ConfigError


class Echo(gymnasium.Env):
    """Earns the action it is given."""

    def __init__(self, action_space, observation_space=None):
        self.action_space = action_space
        self.observation_space = observation_space or spaces.Box(-9, 9, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(np.sum(action)), False, False, {}


def echoes(*its_spaces):
    return vd.to_elegantrl(vd.make_vec(lambda: Echo(*its_spaces), 3, backend="serial", seed=0))


def test_discrete_actions_count_from_the_first_of_the_space():
    envs = echoes(spaces.Discrete(3, start=-1))
    envs.reset()
    assert envs.step(torch.tensor([0, 1, 2]))[1].tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("shape", [(), (1,)], ids=["a number", "an array"])
def test_a_continuous_action_may_be_a_number_or_an_array(shape):
    envs = echoes(spaces.Box(0.0, 4.0, shape))
    envs.reset()
    assert envs.step(torch.tensor([[-1.0], [0.0], [1.0]]))[1].tolist() == [0.0, 2.0, 4.0]


def test_what_its_agents_cannot_choose_or_see_is_refused_at_once():
    with pytest.raises(ConfigError, match="Box of floats"):
        echoes(spaces.Box(0, 5, (2,), np.int32))
    with pytest.raises(ConfigError, match="FlattenObservation"):
        echoes(spaces.Discrete(2), spaces.Discrete(4))


def limited(steps: int) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Echo(spaces.Discrete(2)), steps)


@pytest.mark.parametrize(
    ("make", "steps"),
    [
        (lambda: vd.make_vec("Pendulum-v1", 2, backend="serial"), 200),
        (lambda: vd.make_vec("Pendulum-v1", 2, backend="process", workers=1, max_episode_steps=7), 7),
        (lambda: vd.make_vec([lambda: limited(3), lambda: limited(5)], 2, backend="serial"), 5),
        (lambda: gymnasium.make_vec("Pendulum-v1", 2, vectorization_mode="sync"), 200),
        (lambda: vd.make_vec(lambda: Echo(spaces.Discrete(2)), 2, backend="serial"), 12_345),
    ],
    ids=["an id", "its own limit", "wrapped", "gymnasium's", "no limit"],
)
def test_its_evaluator_plays_no_more_steps_than_the_longest_episode_has(make, steps):
    with closing(vd.to_elegantrl(make())) as envs:
        assert envs.env_args["max_step"] == steps
