"""A rule that compiles in a second and calls a user's function, as the trading rule calls a user's reward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import velodrome as vd
from velodrome.envs import _template
from velodrome.envs.contract import Rule, World
from velodrome.envs.rng import uniform


def own_reward(draw: float) -> float:
    """Stand in for the user's function."""
    return draw


def step(i: int, action: Any, state: Any, tables: Any, params: Any) -> tuple[float, bool, bool]:
    reward = own_reward(uniform(i, state))
    state.cursor[i] += 1
    return reward, False, state.cursor[i] >= params.length


def world_with(reward: Callable) -> World:
    """Return a world whose rewards are the function of a uniform draw."""
    world = _template.template_world()
    rule = Rule(_template.reset, step, _template.observe, _template.finish)
    return replace(world, name="small", rule=rule, substitutions={"own_reward": reward})


def rewards_of(reward: Callable, backend: str = "native") -> list[float]:
    """Return the rewards of two environments in two steps."""
    envs = vd.make_vec(world_with(reward), 2, backend=backend, seed=1)
    envs.reset()
    return [float(value) for _ in range(2) for value in envs.step(np.zeros(2, np.int64))[1]]
