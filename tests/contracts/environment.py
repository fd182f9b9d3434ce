"""The suite that every rule environment inherits: subclass it and say which world to run.

class TestMine(EnvironmentContract):
    def world(self):
        return my_world(...)
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tests.contracts.comparison import assert_same_bits, random_actions, run
from velodrome.envs.contract import World, state_columns
from velodrome.errors import ActionError, ConfigError
from velodrome.vector.native import NativeVectorEnv
from velodrome.vector.single import RuleEnv


class EnvironmentContract:
    """What holds for every environment on every backend that runs here; CUDA has its own suite in tests/vector."""

    steps = 40
    most_bytes = 1024  # of an environment

    def world(self) -> World:
        raise NotImplementedError

    def envs(self, num_envs: int = 3, **options: Any) -> NativeVectorEnv:
        return NativeVectorEnv(self.world(), num_envs, **{"seed": 7, **options})

    def test_it_declares_what_the_engine_needs(self):
        world = self.world()
        assert state_columns(world.state_type)
        assert len(set(world.observed)) == len(world.observed) > 0
        assert {"reward", "length"} <= set(world.statistics)
        for table in world.tables:
            assert isinstance(table, np.ndarray)

    def test_plain_python_and_compiled_code_agree_to_the_bit(self):
        world = self.world()
        plain = run(NativeVectorEnv(world, 3, seed=7, compiled=False), self.steps)
        assert_same_bits(run(NativeVectorEnv(world, 3, seed=7), self.steps), plain)

    def test_specialised_parameters_change_nothing(self):
        world = self.world()
        general = run(NativeVectorEnv(world, 3, seed=7), self.steps)
        assert_same_bits(run(NativeVectorEnv(world, 3, seed=7, specialise=True), self.steps), general)

    def test_threads_do_not_change_results(self):
        one = run(self.envs(300, threads=1), self.steps)
        assert_same_bits(run(self.envs(300, threads=2), self.steps), one)
        assert_same_bits(run(self.envs(300, threads=None), self.steps), one)

    def test_the_number_of_environments_does_not_change_results(self):
        many, few = run(self.envs(130), self.steps, width=130), run(self.envs(3), self.steps, width=130)
        for step_of_many, step_of_few in zip(many, few, strict=True):
            for name, values in step_of_few.items():
                np.testing.assert_array_equal(step_of_many[name][..., : values.shape[-1]], values, err_msg=name)

    def test_the_same_seed_repeats_and_another_differs(self):
        first, again = run(self.envs(), self.steps), run(self.envs(), self.steps)
        assert_same_bits(first, again)
        other = run(self.envs(seed=8), self.steps)
        assert any((a[name] != b[name]).any() for a, b in zip(first, other, strict=True) for name in a)

    def test_reset_with_a_seed_repeats(self):
        envs = self.envs()
        first, again = run(envs, self.steps, seed=11), run(envs, self.steps, seed=11)
        assert_same_bits(first, again)

    def test_one_environment_is_the_first_of_many(self):
        env, envs = RuleEnv(self.world()), self.envs(2, autoreset=False, copy=True)
        observation, _ = env.reset(seed=3)
        observations, _ = envs.reset(seed=3)
        np.testing.assert_array_equal(observation, observations[0])
        for actions in random_actions(envs.single_action_space, 2, self.steps, seed=1):
            observation, reward, terminated, truncated, info = env.step(actions[0])
            observations, rewards, terminations, truncations, _ = envs.step(actions)
            np.testing.assert_array_equal(observation, observations[0])
            assert (reward, terminated, truncated) == (rewards[0], terminations[0], truncations[0])
            if terminated or truncated:
                assert set(info["statistics"]) == set(envs.world.statistics)
                break

    def test_an_episode_that_ends_is_kept_and_the_next_begins_in_the_same_step(self):
        world = self.world()
        following = NativeVectorEnv(world, 4, seed=7, copy=True)
        stopping = NativeVectorEnv(world, 4, seed=7, copy=True, autoreset=False)
        following.reset()
        stopping.reset()
        ended_once = np.zeros(4, bool)
        for actions in random_actions(world.action_space, 4, 400, seed=2):
            observations, rewards, terminated, truncated, infos = following.step(actions)
            raw, raw_rewards, raw_terminated, raw_truncated, _ = stopping.step(actions)
            live = ~ended_once
            np.testing.assert_array_equal(rewards[live], raw_rewards[live])
            np.testing.assert_array_equal(terminated[live], raw_terminated[live])
            np.testing.assert_array_equal(truncated[live], raw_truncated[live])
            ended = (terminated | truncated) & live
            np.testing.assert_array_equal(observations[live & ~ended], raw[live & ~ended])
            if ended.any():
                np.testing.assert_array_equal(infos["final_obs"][ended], raw[ended])
                assert infos["_final_obs"][ended].all()
                assert infos["_statistics"][ended].all()
                np.testing.assert_array_equal(infos["statistics"]["length"][ended] > 0, True)
            ended_once |= ended
            if ended_once.all():
                break
        assert ended_once.any()

    def test_observations_and_actions_are_in_their_spaces(self):
        for kind in ("flat", "dict", "cursor"):
            envs = self.envs(4, observation=kind)
            observations, _ = envs.reset(seed=5)
            assert envs.observation_space.contains(observations)
            for actions in random_actions(envs.single_action_space, 4, 5, seed=3):
                observations, rewards, terminated, truncated, _ = envs.step(actions)
                assert envs.observation_space.contains(observations)
                assert rewards.dtype == np.float32
                assert terminated.dtype == truncated.dtype == bool

    def test_the_parts_of_an_observation_are_the_flat_one(self):
        flat, parts, cursors = (self.envs(3, observation=kind) for kind in ("flat", "dict", "cursor"))
        whole, named, short = (envs.reset(seed=5)[0] for envs in (flat, parts, cursors))
        for actions in random_actions(flat.single_action_space, 3, 10, seed=3):
            joined = [named[name].reshape(3, -1) for name in flat.world.window_names] + [named["account"]]
            np.testing.assert_array_equal(np.concatenate(joined, axis=1), whole)
            np.testing.assert_array_equal(short["account"], named["account"])
            whole, named, short = (envs.step(actions)[0] for envs in (flat, parts, cursors))

    def test_views_are_overwritten_and_copies_are_not(self):
        viewing, copying = self.envs(), self.envs(copy=True)
        first_view, first_copy = viewing.reset(seed=1)[0], copying.reset(seed=1)[0]
        kept = first_copy.copy()
        for actions in random_actions(viewing.single_action_space, 3, 5, seed=3):
            view, copy = viewing.step(actions)[0], copying.step(actions)[0]
            assert view is first_view
            np.testing.assert_array_equal(view, copy)
        np.testing.assert_array_equal(first_copy, kept)

    def test_gymnasium_checks_one_environment(self):
        with warnings.catch_warnings():
            # Unbounded observations are intended: features are what the user makes them.
            warnings.filterwarnings("ignore", message=".*A Box observation space m.*")
            check_env(RuleEnv(self.world()), skip_render_check=True)

    def test_gymnasiums_own_statistics_wrapper_agrees(self):
        envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(self.envs(4))
        envs.reset(seed=9)
        seen = 0
        for actions in random_actions(envs.single_action_space, 4, 400, seed=4):
            *_, infos = envs.step(actions)
            if "episode" in infos:
                ended = infos["_episode"]
                seen += int(ended.sum())
                np.testing.assert_array_equal(infos["episode"]["l"][ended], infos["statistics"]["length"][ended])
                ours = infos["statistics"]["reward"][ended]
                np.testing.assert_allclose(infos["episode"]["r"][ended], ours, rtol=1e-4, atol=1e-4)
        assert seen > 0

    def test_some_environments_can_be_reset_alone(self):
        envs = self.envs(4, copy=True)
        envs.reset(seed=2)
        for actions in random_actions(envs.single_action_space, 4, 3, seed=4):
            before = envs.step(actions)[0]
        mask = np.array([True, False, False, True])
        after, _ = envs.reset(options={"reset_mask": mask})
        np.testing.assert_array_equal(after[~mask], before[~mask])

    def test_illegal_actions_are_refused_and_nothing_is_stepped(self):
        envs = self.envs(3)
        envs.reset(seed=1)
        cursors = envs.column("cursor")
        discrete = np.issubdtype(envs.single_action_space.dtype, np.integer)
        bad = []
        fine = np.zeros((3, *envs.single_action_space.shape), np.int64 if discrete else np.float32)
        for value in (int(1e6), -1) if discrete else (1e6, np.nan):
            fine[1] = value
            bad.append(fine.copy())
        for actions in bad:
            with pytest.raises(ActionError, match=r"action of environment 1 is .* outside .*Nothing was stepped"):
                envs.step(actions)
        with pytest.raises(ActionError, match="expected one for each of 3 environments"):
            envs.step(fine[:2])
        np.testing.assert_array_equal(envs.column("cursor"), cursors)

    def test_a_step_before_the_first_reset_is_refused(self):
        with pytest.raises(ConfigError, match=r"call reset\(\) before"):
            self.envs(3).step(np.zeros(3, np.int64))

    def test_state_and_bookkeeping_stay_small(self):
        assert self.envs(1024).buffers.bytes_per_environment <= self.most_bytes
