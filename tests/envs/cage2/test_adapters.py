"""CAGE-2 for Stable-Baselines3 and TorchRL: the same steps as without them."""

from __future__ import annotations

import numpy as np
import pytest

import velodrome as vd

ACTIONS = np.random.default_rng(2).integers(0, 145, (25, 4))


def make():
    return vd.make_vec("cage2", 4, seed=3, red_agent="meander", episode_length=20, copy=True)


def test_stable_baselines_steps_it():
    pytest.importorskip("stable_baselines3")
    from velodrome.adapters.sb3 import to_sb3

    plain, adapted = make(), to_sb3(make())
    np.testing.assert_array_equal(adapted.reset(), plain.reset()[0])
    for number, actions in enumerate(ACTIONS):
        observations, rewards, done, infos = adapted.step(actions)
        expected = plain.step(actions)
        np.testing.assert_array_equal(observations, expected[0])
        np.testing.assert_array_equal(rewards, expected[1])
        assert done.all() == (number == 19)
        if number == 19:
            assert all(info["TimeLimit.truncated"] for info in infos)
            assert [info["episode"]["l"] for info in infos] == [20] * 4


def test_torchrl_steps_it():
    pytest.importorskip("torchrl")
    import torch

    from velodrome.adapters.torchrl import to_torchrl

    plain, adapted = make(), to_torchrl(make())
    data = adapted.reset()
    plain.reset()
    for actions in ACTIONS[:19]:
        data["action"] = torch.from_numpy(actions)
        data = adapted.step(data)["next"]
        observations, rewards, *_ = plain.step(actions)
        np.testing.assert_array_equal(data["observation"].numpy(), observations)
        np.testing.assert_array_equal(data["reward"].numpy()[:, 0], rewards)
