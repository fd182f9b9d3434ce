"""Environments that this process has registered with Gymnasium can be made by their ids in workers, too."""

from __future__ import annotations

import dataclasses
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import velodrome as vd
from tests.vector.foreign_envs import Counting
from velodrome.runs.config.parameters import environment_name
from velodrome.vector.workers.env_maker import Registered, registered_here


@pytest.fixture
def registry():
    before = dict(gymnasium.registry)
    yield gymnasium.registry
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def make_env(name):
    """As programs for Gymnasium and Stable-Baselines3 have it: the id means something where it is called."""

    def thunk():
        return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(name))

    return thunk


@pytest.mark.parametrize("backend", ["process", "async"])
def test_functions_find_the_ids_that_the_program_has_registered(registry, backend):
    gymnasium.register("OwnCounting-v0", entry_point=Counting, max_episode_steps=3)
    del registry["CartPole-v1"]
    gymnasium.register("CartPole-v1", entry_point=CartPoleEnv, max_episode_steps=2)
    makers = [make_env("OwnCounting-v0")] * 2
    envs = vd.make_vec(makers, 2, backend=backend, workers=1)
    assert [spec.max_episode_steps for spec in envs.get_attr("spec")] == [3, 3]
    envs.close()
    envs = vd.make_vec(make_env("CartPole-v1"), 1, backend=backend, workers=1, seed=0)
    envs.reset()
    assert [bool(envs.step(np.zeros(1, int))[3][0]) for _ in range(2)] == [False, True]
    envs.close()


def test_a_class_of_the_script_is_found_by_its_name(registry, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "Counting", Counting, raising=False)
    gymnasium.register("OwnCounting-v0", entry_point="__main__:Counting")
    for own in ("OwnCounting-v0", make_env("OwnCounting-v0")):
        envs = vd.make_vec(own, 1, backend="process")
        assert envs.single_observation_space == Counting().observation_space
        envs.close()
    assert gymnasium.spec("OwnCounting-v0").entry_point == "__main__:Counting"


def test_what_cannot_be_sent_or_loaded_keeps_no_other_away(registry):
    gymnasium.register("Open-v0", entry_point=sys.stdout.write)
    gymnasium.register("OwnCounting-v0", entry_point=Counting)
    found = registered_here()
    assert "OwnCounting-v0" in found.packed
    assert "Open-v0" not in found.packed
    registry.clear()
    Registered({"Broken-v0": b"", **found.packed}).register()
    assert "Broken-v0" not in registry
    assert registry["OwnCounting-v0"].entry_point is Counting


class Doubled(gymnasium.RewardWrapper, gymnasium.utils.RecordConstructorArgs):
    def __init__(self, env, by=2.0):
        gymnasium.utils.RecordConstructorArgs.__init__(self, by=by)
        gymnasium.RewardWrapper.__init__(self, env)
        self.by = by

    def reward(self, reward):
        return reward * self.by


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_specification_makes_what_gymnasium_makes_of_it(monkeypatch, backend):
    monkeypatch.setattr(sys.modules["__main__"], "Doubled", Doubled, raising=False)
    monkeypatch.setattr(Doubled, "__module__", "__main__")
    one = gymnasium.make("CartPole-v1", max_episode_steps=3, sutton_barto_reward=True)
    spec = Doubled(gymnasium.wrappers.TimeAwareObservation(one), by=3.0).spec
    theirs = gymnasium.make(spec)
    envs = vd.make_vec([spec] * 2, 2, backend=backend)
    assert (envs.spec.id, envs.spec.max_episode_steps) == ("CartPole-v1", 3)
    np.testing.assert_array_equal(envs.reset(seed=5)[0][0], theirs.reset(seed=5)[0])
    for step in range(1, 4):
        expected = theirs.step(1)
        _, rewards, terminated, truncated, infos = envs.step(np.ones(2, int))
        assert (rewards[0], terminated[0], truncated[0]) == expected[1:4] == (-0.0, False, step == 3)
    np.testing.assert_array_equal(infos["final_obs"][0], expected[0])
    envs.close()


def test_a_specification_takes_parameters_besides_and_stands_where_an_id_does():
    spec = gymnasium.spec("CartPole-v1")
    with vd.EnvPool(2) as pool, pool.lease(spec, 1, backend="serial", max_episode_steps=2) as envs:
        assert envs.spec.max_episode_steps == 2
    assert spec.max_episode_steps == 500
    assert environment_name(spec) == "CartPole-v1"
    with pytest.raises(vd.errors.ConfigError, match="CartPole-v1 that differs from the registered one"):
        environment_name(dataclasses.replace(spec, max_episode_steps=7))


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_batch_says_what_its_environments_were_made_from(registry, backend):
    gymnasium.register("Described-v0", entry_point=CartPoleEnv, kwargs={"render_mode": "rgb_array"})
    params = {"max_episode_steps": 20, "sutton_barto_reward": True}
    for env, given in (("Described-v0", params), (lambda: gymnasium.make("Described-v0", **params), {})):
        envs = vd.make_vec(env, 1, backend=backend, **given)
        assert envs.spec == gymnasium.make("Described-v0", **params).spec
        envs.close()
