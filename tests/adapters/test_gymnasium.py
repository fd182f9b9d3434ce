"""What comes in from gymnasium.vector goes on as SAME_STEP, as Gymnasium's own class does it, or is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import velodrome as vd
from tests.adapters.scripted_env import MODES, VECTORS, ScriptedEnv, actions_for, gymnasium_sync
from velodrome.adapters.gymnasium import SameStepVectorEnv, from_gymnasium
from velodrome.errors import BackendError, ConfigError
from velodrome.rollout.worlds import make_worlds


def same(ours: Any, theirs: Any) -> bool:
    """Tell whether two nested values agree in structure, types and content."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and ours.keys() == theirs.keys() and all(same(ours[k], theirs[k]) for k in theirs)
    if isinstance(theirs, np.ndarray) and theirs.dtype == object:
        return len(ours) == len(theirs) and all(same(mine, other) for mine, other in zip(ours, theirs, strict=True))
    if isinstance(theirs, np.ndarray):
        return np.asarray(ours).dtype == theirs.dtype and np.array_equal(ours, theirs)
    # A row of a batch is a NumPy scalar where the environment returned a plain number.
    return np.asarray(ours).dtype.kind == np.asarray(theirs).dtype.kind and ours == theirs


@pytest.mark.parametrize(
    ("vector", "observation"),
    [*((vector, "flat") for vector in VECTORS), ("gymnasium sync", "dict"), ("serial", "dict"), ("process", "dict")],
)
@pytest.mark.parametrize("mode", ["next step", "disabled"])
def test_every_mode_becomes_what_gymnasium_does_in_the_same_step(vector, mode, observation):
    make = partial(ScriptedEnv, observation=observation)
    theirs = gymnasium_sync(make, 3, AutoresetMode.SAME_STEP)
    ours = from_gymnasium(VECTORS[vector](make, 3, MODES[mode]))
    assert ours.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    try:
        assert same(ours.reset(seed=5)[0], theirs.reset(seed=5)[0])
        ended = 0
        for actions in actions_for(theirs.single_action_space, 3, 14):
            mine, expected = ours.step(actions), theirs.step(actions)
            for name, left, right in zip(
                ("observations", "rewards", "terminated", "truncated", "infos"), mine, expected, strict=True
            ):
                assert same(left, right), (name, left, right)
            ended += int((expected[2] | expected[3]).sum())
        assert ended >= 9
    finally:
        ours.close()


@pytest.mark.parametrize("vector", ["gymnasium sync", "serial"])
def test_what_is_same_step_already_comes_back_as_it_is(vector):
    envs = VECTORS[vector](ScriptedEnv, 2, AutoresetMode.SAME_STEP)
    assert from_gymnasium(envs) is envs


def test_rule_environments_come_back_as_they_are():
    envs = vd.make_vec("template", 2, backend="python")
    assert from_gymnasium(envs) is envs


def test_learners_take_it():
    worlds = make_worlds(from_gymnasium(gymnasium_sync(ScriptedEnv, 2, AutoresetMode.NEXT_STEP)))
    worlds.reset(0)
    for _ in range(3):
        worlds.step(torch.zeros(2, dtype=torch.int64))
    assert worlds.terminated.all()
    assert worlds.final.values[:, 1].tolist() == [3.0, 3.0]
    assert worlds.observation.values[:, :2].tolist() == [[1.0, 0.0]] * 2
    assert worlds.mean_episode(worlds.take_sums().tolist()) == {
        "episode/count": 2.0,
        "episode/return": 6.0,
        "episode/length": 3.0,
    }


def test_wrappers_go_on_top():
    envs = RecordEpisodeStatistics(from_gymnasium(gymnasium_sync(ScriptedEnv, 2, AutoresetMode.NEXT_STEP)))
    envs.reset(seed=0)
    lengths = []
    for _ in range(12):
        infos = envs.step(np.zeros(2, np.int64))[4]
        if "episode" in infos:
            lengths.append(infos["episode"]["l"].tolist())
    assert lengths == [[3, 3], [4, 4], [5, 5]]


# Refusals


class Silent(VectorEnv):
    """A vector environment that leaves ended episodes to the caller and, told to reset some, resets all."""

    num_envs = 2
    single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)
    observation_space = batch_space(single_observation_space, 2)
    action_space = batch_space(single_action_space, 2)

    def __init__(self, mode: Any) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.time = np.zeros(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time[:] = 0
        return self.time[:, None].astype(np.float32), {}

    def step(self, actions: Any) -> Any:
        self.time += 1
        return self.time[:, None].astype(np.float32), self.time, self.time > [1, 9], np.zeros(2, bool), {}


def test_a_class_that_ignores_the_mask_is_found_out():
    envs = from_gymnasium(Silent(AutoresetMode.DISABLED))
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    with pytest.raises(BackendError, match=r'Silent ignored options\["reset_mask"\]: resetting 1 of 2'):
        envs.step(np.zeros(2, np.int64))


def test_another_class_that_honours_the_mask_is_taken():
    class Honest(Silent):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.time[(options or {}).get("reset_mask", slice(None))] = 0
            return self.time[:, None].astype(np.float32), {}

    envs = from_gymnasium(Honest(AutoresetMode.DISABLED))
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    observations, _, terminated, _, infos = envs.step(np.zeros(2, np.int64))
    assert terminated.tolist() == [True, False]
    assert observations.tolist() == [[0.0], [2.0]]
    assert infos["final_obs"][0].tolist() == [2.0]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: gymnasium.make("CartPole-v1"), ConfigError, "no gymnasium.vector.VectorEnv"),
        (lambda: Silent(AutoresetMode.NEXT_STEP), BackendError, "a step late"),
        (lambda: Silent(None), BackendError, "has autoreset_mode None in its metadata"),
        (
            lambda: gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point"),
            BackendError,
            "CartPoleVectorEnv begins the next episode a step late",
        ),
        (lambda: vd.make_vec("template", 2, backend="python", autoreset=False), BackendError, "autoreset=True"),
        (
            lambda: RecordEpisodeStatistics(SyncVectorEnv([ScriptedEnv] * 2)),
            BackendError,
            r"RecordEpisodeStatistics\(from_gymnasium\(envs\)\)",
        ),
    ],
    ids=["one environment", "unknown class", "no mode", "CartPoleVectorEnv", "rule", "wrapper"],
)  # fmt: skip
def test_what_cannot_be_made_same_step_is_refused(make, error, words):
    with pytest.raises(error, match=words):
        from_gymnasium(make())


def test_pipes_that_begin_an_episode_twice_are_refused():
    envs = AsyncVectorEnv([ScriptedEnv], shared_memory=False, context="forkserver")
    try:
        with pytest.raises(BackendError, match="shared_memory=False begins an episode twice"):
            from_gymnasium(envs)
    finally:
        envs.close()


def test_its_name_says_what_it_wraps():
    envs = from_gymnasium(gymnasium_sync(ScriptedEnv, 2, AutoresetMode.DISABLED))
    assert isinstance(envs, SameStepVectorEnv)
    assert "SyncVectorEnv" in repr(envs)
