"""What the functions of a rule may be called, and what they may call columns, functions and constants of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import velodrome as vd
from velodrome.envs import _template
from velodrome.envs.contract import Int32, Rule, World
from velodrome.errors import ConfigError

take_step = _template.step
CONSTANT = 0.5  # the loops have a name like this


class State(_template.State):
    """Columns with the names of a rule's functions."""

    step: Int32
    reset: Int32
    observe: Int32
    finish: Int32


def unpack(number: float) -> float:
    """Bear the name of a function of the loops."""
    return number + CONSTANT


def total(i: int, state: Any) -> float:
    """Read the columns in a helper."""
    return unpack(float(state.step[i] + state.reset[i] + state.observe[i] + state.finish[i]))


def counting_step(i: int, action: Any, state: Any, tables: Any, params: Any) -> tuple[float, bool, bool]:
    _, terminated, truncated = take_step(i, action, state, tables, params)
    state.step[i] += 1
    state.reset[i] += 10
    state.observe[i] += 100
    state.finish[i] += 1000
    return total(i, state), terminated, truncated


def world_of(step: Any) -> World:
    rule = Rule(_template.reset, step, _template.observe, _template.finish)
    return replace(_template.template_world(), name="names", state_type=State, rule=rule)


@pytest.mark.parametrize(("backend", "specialise"), [("python", False), ("native", False), ("native", True)])
def test_columns_and_helpers_may_have_the_names_of_a_rules_functions(backend, specialise):
    envs = vd.make_vec(world_of(counting_step), 2, backend=backend, seed=0, threads=1, specialise=specialise)
    envs.reset()
    rewards = [float(envs.step(np.zeros(2, np.int64))[1][0]) for _ in range(2)]
    assert rewards == [1111.5, 2222.5]


def countdown(number: int) -> int:
    return 0 if number < 1 else count_further(number - 1)


def count_further(number: int) -> int:
    return countdown(number)


def recursive_step(i: int, action: Any, state: Any, tables: Any, params: Any) -> tuple[float, bool, bool]:
    return float(countdown(3)), False, False


def increment(number: float) -> float:
    return number + 1.0


def step_with_a_taken_name(i: int, action: Any, state: Any, tables: Any, params: Any) -> tuple[float, bool, bool]:
    return increment(1.0), False, False


@pytest.mark.parametrize("backend", ["python", "native"])
@pytest.mark.parametrize(
    ("step", "told"),
    [
        (recursive_step, "countdown → count_further → countdown: a function of a rule that calls itself"),
        (step_with_a_taken_name, "step_with_a_taken_name uses a global 'increment' of its own"),
    ],
)
def test_names_and_calls_that_cannot_be_compiled_are_refused(step, told, backend):
    with pytest.raises(ConfigError, match=told):
        vd.make_vec(world_of(step), 2, backend=backend)
