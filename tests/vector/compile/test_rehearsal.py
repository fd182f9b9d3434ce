"""A rule from outside is played once in plain Python: what is wrong with it is told in its own terms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import velodrome as vd
from velodrome.envs import _template
from velodrome.envs.contract import Rule, World
from velodrome.errors import ConfigError
from velodrome.vector import native


def world_with(**functions: Any) -> World:
    world = _template.template_world(length=5)
    return replace(world, rule=Rule(**{**world.rule._asdict(), **functions}))


def observe_too_much(i, state, tables, params, out):
    _template.observe(i, state, tables, params, out)
    out[2] = 777.0


def observe_before(i, state, tables, params, out):
    _template.observe(i, state, tables, params, out)
    out[-1] = 777.0


def observe_too_little(i, state, tables, params, out):
    out[0] = 1.0


def finish_too_much(i, state, tables, params, out):
    out[0], out[1], out[2] = 0.0, 0.0, 0.0


def finish_nothing(i, state, tables, params, out):
    pass


def step_unknown_column(i, action, state, tables, params):
    state.nope[i] = 1
    return 1.0, False, False


def step_two_values(i, action, state, tables, params):
    return 1.0, False


def step_text(i, action, state, tables, params):
    return "much", False, False


def step_three_parameters(i, action, state):
    return 1.0, False, False


def step_raises(i, action, state, tables, params):
    raise ValueError("not today")


def reset_raises(i, state, tables, params):
    state.cursor[i] = tables.prices[0]


def step_lists(i, action, state, tables, params):
    rewards = [1.0, 2.0]
    state.cursor[i] += 1
    return rewards[0], False, state.cursor[i] >= 5


@pytest.mark.parametrize(
    ("role", "function", "words"),
    [
        ("observe", observe_too_much, r"index 2 is out of bounds.*room in `out` for 2 values: observed = \(.*python"),
        ("observe", observe_before, r"index -1 is out of bounds.*observed ="),
        ("observe", observe_too_little, r"writes no value for 'position'.*observed = "),
        ("finish", finish_too_much, r"index 2 is out of bounds.*room in `out` for 2 values: statistics = "),
        ("finish", finish_nothing, r"writes no value for 'reward', 'length'"),
        ("step", step_unknown_column, r"no attribute 'nope'.*columns rng_key, .*, score in `state`"),
        ("step", step_two_values, r"returned \(1.0, False\); a step returns three values"),
        ("step", step_text, r"returned reward = 'much'; it must be a number"),
        ("step", step_three_parameters, r"takes 3 positional arguments.*step\(i, action, state, tables, params\)"),
        ("step", step_raises, r"raised ValueError at .*test_rehearsal.py:\d+: not today.*backend='python'"),
        ("reset", reset_raises, r"no attribute 'prices'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_mistake_is_told_in_the_terms_of_the_rule(role, function, words):
    world = world_with(**{role: function})
    for _ in range(2):  # what was refused once is refused again
        with pytest.raises(ConfigError, match=rf"(?s)^{role} of the rule 'template' \({function.__name__}, .*{words}"):
            vd.make_vec(world, 4)


def test_of_many_values_an_error_names_a_few():
    names = tuple(f"cell_{cell}" for cell in range(121))
    with pytest.raises(ConfigError, match=r"no value for 'cell_1', .*'cell_8' and 112 more: .*'cell_7' and 113 more\)"):
        vd.make_vec(replace(world_with(observe=observe_too_little), observed=names), 4)


def test_what_cannot_be_compiled_is_told_where_the_environments_are_made():
    with pytest.raises(ConfigError, match=r"(?s)step step_lists.*no lists.*backend='python'.*What Numba says:\n"):
        vd.make_vec(world_with(step=step_lists), 4)
    assert vd.make_vec(world_with(step=step_lists), 4, backend="python").reset()[0].shape == (4, 2)


def test_one_environment_is_rehearsed_too():
    with pytest.raises(ConfigError, match="index 2 is out of bounds"):
        vd.make(world_with(observe=observe_too_much))


def test_a_value_that_is_not_a_number_counts_as_written():
    def observe(i, state, tables, params, out):
        out[0] = out[1] = np.nan

    native.rehearse(world_with(observe=observe), lambda: native.uncompiled_one(world_with(observe=observe)))


def test_a_rule_is_rehearsed_once_and_our_own_never():
    made = []

    def make(world):
        made.append(world)
        return native.uncompiled_one(world)

    def finish(i, state, tables, params, out):
        out[0], out[1] = state.score[i], state.cursor[i]

    world = world_with(finish=finish)
    for each in (world, world, world_with()):
        native.rehearse(each, lambda each=each: make(each))
    assert made == [world]
