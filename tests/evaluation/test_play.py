"""Episodes in any vector environment."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.learn.policies import Recorded
from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.play import play_episodes


def cartpole(count: int, mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * count, autoreset_mode=mode)


def test_episodes_of_a_gymnasium_environment_equal_those_played_one_by_one():
    envs = cartpole(3)
    found = play_episodes(ConstantPolicy(1), envs, 5, seed=3)
    assert len(found) == 6, "as many for each environment"
    for index in range(3):
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=3 + index)
        for episode in range(2):
            if episode:
                env.reset()
            total, ended = 0.0, False
            while not ended:
                _, reward, terminated, truncated, _ = env.step(1)
                total += float(reward)
                ended = terminated or truncated
            assert found.returns.reshape(2, 3)[episode, index] == total
    assert np.array_equal(found.returns, found.lengths)
    assert found.actions.tolist() == [0, found.lengths.sum()]


def test_memory_of_ended_episodes_is_forgotten():
    policy = Recorded(np.ones((500, 2), np.int64))
    play_episodes(policy, cartpole(2), 4)
    assert policy.calls[0] == ("begin", 2)
    forgotten = sum(mask for name, mask in policy.calls[1:] if name == "forget")
    assert (forgotten >= 2).all()


def test_an_environment_that_resets_a_step_later_is_refused():
    with pytest.raises(ConfigError, match="SAME_STEP"):
        play_episodes(ConstantPolicy(1), cartpole(1, AutoresetMode.NEXT_STEP), 1)


def test_no_episodes_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        play_episodes(ConstantPolicy(1), cartpole(1), 0)
