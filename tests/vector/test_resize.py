"""Rule environments that change their number: those that stay go on to the bit, new ones begin their own streams."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.contracts.comparison import random_actions
from tests.markets import small_market
from tests.vector import resizing
from velodrome.envs import _template
from velodrome.envs.contract import LANES, Int64
from velodrome.errors import ConfigError
from velodrome.vector.compile.cpu_loops import compiled_functions
from velodrome.vector.cuda import unavailable_reason
from velodrome.vector.native import SMALLEST_PARALLEL_BATCH

NO_DEVICE = unavailable_reason()


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("name", resizing.COURSES)
def test_growing_and_shrinking_changes_no_other_environment(name, backend):
    assert resizing.play(name, backend) > 5


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of every course on the simulated device."""
    target = tmp_path_factory.mktemp("cuda") / "outcomes.pickle"
    answer = subprocess.run(
        [sys.executable, str(Path(resizing.__file__)), str(target)],
        env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return pickle.loads(target.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", resizing.COURSES)
def test_so_it_is_on_the_simulated_device(name, simulated):
    assert isinstance(simulated[name], int), simulated[name]
    assert simulated[name] > 5


@pytest.mark.gpu
@pytest.mark.skipif(NO_DEVICE is not None, reason=f"no CUDA device: {NO_DEVICE}")
@pytest.mark.parametrize("name", resizing.COURSES)
def test_so_it_is_on_a_device(name):
    assert resizing.play(name, "cuda") > 5


@given(st.lists(st.tuples(st.integers(1, 140), st.integers(0, 4)), min_size=1, max_size=8), st.integers(1, 140))
@settings(max_examples=40)
def test_any_course_leaves_those_that_stay_alone(course, first):
    envs, steady = (vd.make_vec("template", count, seed=3, length=5) for count in (first, 140))
    envs.reset()
    steady.reset()
    stay = first
    actions = iter(random_actions(envs.single_action_space, 140, 40, seed=1))
    for size, steps in course:
        observations = envs.resize(size)
        stay = min(stay, size)
        assert len(observations) == size
        np.testing.assert_array_equal(observations[:stay], steady._observations()[:stay])
        for _ in range(steps):
            action = next(actions)
            for ours, theirs in zip(envs.step(action[:size])[:4], steady.step(action)[:4], strict=True):
                np.testing.assert_array_equal(ours[:stay], theirs[:stay])


class StateWithLives(_template.State):
    """A state with something that lasts longer than an episode."""

    lives: Int64


def step_and_count(i, action, state, tables, params):
    state.lives[i] += 1
    return 0.0, False, False


def test_a_new_environment_finds_nothing_of_one_that_is_gone():
    """Also where the rule itself never clears it."""
    world = _template.template_world()
    world = replace(world, rule=world.rule._replace(step=step_and_count), state_type=StateWithLives)
    envs = vd.make_vec(world, 5, backend="python", seed=0)
    envs.reset()
    for size, lives in ((5, [2, 2, 2, 2, 2]), (3, [4, 4, 4]), (5, [6, 6, 6, 2, 2])):
        envs.resize(size)
        for _ in range(2):
            envs.step(np.zeros(size, np.int64))
        assert envs.column("lives").tolist() == lives


@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_batch_says_its_backend(backend):
    assert vd.make_vec("template", 2, backend=backend).backend == backend


def test_nothing_is_compiled_again():
    envs = vd.make_vec("trading", 4, market=small_market(), episode_length=5, threads=1)
    envs.reset(seed=0)
    envs.step(np.zeros(4, np.int64))
    loops = {id(function): list(function.signatures) for function in compiled_functions()}
    for size in (200, 3):
        envs.resize(size)
        envs.step(np.zeros(size, np.int64))
        envs.reset(seed=1)
    assert {id(function): list(function.signatures) for function in compiled_functions()} == loops


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core and no choice")
def test_a_batch_that_has_grown_may_use_all_cores_and_one_that_has_shrunk_uses_one():
    envs = vd.make_vec("template", 4, seed=0)
    envs.reset()
    assert envs._parallel is False
    envs.resize(SMALLEST_PARALLEL_BATCH)
    assert envs._parallel is None  # it is measured
    envs.step(np.zeros(SMALLEST_PARALLEL_BATCH, np.int64))
    envs.resize(SMALLEST_PARALLEL_BATCH - 1)
    assert envs._parallel is False


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="there is one core and no choice")
def test_a_thread_that_would_have_nothing_to_do_is_not_woken():
    envs = vd.make_vec("template", LANES, seed=0, threads=2)
    assert (envs._cores, envs._parallel) == (1, False)  # a thread steps whole blocks, and there is one
    envs.resize(LANES + 1)
    assert (envs._cores, envs._parallel) == (2, True)


def test_a_batch_that_was_never_reset_waits_for_it_whatever_its_size():
    envs, other = vd.make_vec("template", 2, seed=5), vd.make_vec("template", 6, seed=5)
    assert envs.resize(6) is None
    with pytest.raises(ConfigError, match=r"call reset\(\)"):
        envs.step(np.zeros(6, np.int64))
    np.testing.assert_array_equal(envs.reset()[0], other.reset()[0])


def test_environments_with_seeds_of_their_own_keep_them_and_new_ones_take_that_of_the_batch():
    envs, made = vd.make_vec("template", 3, seed=5), vd.make_vec("template", 4, seed=5)
    made.reset()
    envs.reset(seed=[8, None, 9])
    keys = envs.column("rng_key")
    envs.resize(4)
    np.testing.assert_array_equal(envs.column("rng_key")[:3], keys)
    assert envs.column("rng_key")[3] == made.column("rng_key")[3]


def test_a_reset_of_some_does_not_change_the_seed_of_those_to_come():
    envs, made = vd.make_vec("template", 3, seed=5), vd.make_vec("template", 4, seed=5)
    made.reset()
    envs.reset()
    envs.reset(seed=77, options={"reset_mask": [True, False, False]})
    envs.resize(4)
    assert envs.column("rng_key")[3] == made.column("rng_key")[3]


def test_what_was_returned_before_is_left_as_it_was():
    envs = vd.make_vec("template", 4, seed=5)
    before = envs.reset()[0]
    kept = before.copy()
    after = envs.resize(6)
    for _ in range(3):
        assert envs.step(np.ones(6, np.int64))[0] is after
    np.testing.assert_array_equal(before, kept)


def test_a_resize_to_the_same_number_changes_nothing():
    envs = vd.make_vec("template", 4, seed=5)
    before = envs.reset()[0]
    assert envs.resize(np.int64(4)) is before


@pytest.mark.parametrize("size", [0, -3, 2.0, True, "4", None])
def test_an_illegal_size_is_refused_and_nothing_changes(size):
    envs = vd.make_vec("template", 4, seed=5)
    envs.reset()
    with pytest.raises(ConfigError, match="num_envs = "):
        envs.resize(size)
    envs.step(np.zeros(4, np.int64))
