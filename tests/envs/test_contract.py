"""What the contract refuses before anything is compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, NamedTuple

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

import velodrome as vd
from velodrome.envs._template import State as TemplateState
from velodrome.envs._template import template_world
from velodrome.envs.contract import Column, Float64, params_record, state_columns, state_dtype
from velodrome.errors import ConfigError
from velodrome.vector.rule_env import action_bounds


class Filled(NamedTuple):
    fill: int


class Averaged(TemplateState):
    mean: Float64


class Scribbling(TemplateState):
    notes: Annotated[NDArray[np.uint16], Column(np.uint16, rows=3, scratch=True)]


def test_a_scratch_column_is_in_the_block_but_not_part_of_the_state():
    assert set(state_columns(Scribbling)) == set(state_columns(TemplateState))
    assert state_dtype(Scribbling)["notes"].shape[0] == 3


def test_names_that_records_have_already_are_refused():
    with pytest.raises(ConfigError, match=r"Filled\.fill: NumPy's records have an attribute of that name"):
        params_record(Filled(1))
    with pytest.raises(ConfigError, match=r"Averaged\.mean: NumPy's records"):
        state_columns(Averaged)


def test_several_discrete_actions_have_a_bound_each():
    low, high = action_bounds(gymnasium.spaces.MultiDiscrete([3, 2]))
    np.testing.assert_array_equal(low, [0, 0])
    np.testing.assert_array_equal(high, [2, 1])
    with pytest.raises(ConfigError, match="actions count from 0, received MultiDiscrete"):
        action_bounds(gymnasium.spaces.MultiDiscrete([3, 2], start=[1, 0]))
    with pytest.raises(ConfigError, match="must be Discrete, MultiDiscrete"):
        action_bounds(gymnasium.spaces.MultiBinary(2))


def test_actions_that_do_not_count_from_0_are_refused():
    world = replace(template_world(), action_space=gymnasium.spaces.Discrete(2, start=3))
    with pytest.raises(ConfigError, match=r"from 0, received Discrete\(2, start=3\); leave `start` out"):
        vd.make_vec(world, 2, backend="python")
