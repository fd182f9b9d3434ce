"""The smallest legal environment, made to be copied: guess on which side of zero a hidden walk will step next.

Copy this file, rename things, give it an entry in `catalog.py` (or register it from a package of your own), and give
`tests/contracts/` a world of yours: every backend then runs it. `docs/add_an_environment.md` explains each part.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from velodrome.envs.contract import Float64, Int32, Rule, UInt64, World
from velodrome.envs.parameters import EnvConfig
from velodrome.envs.rng import uniform


class TemplateConfig(EnvConfig):
    """Parameters: each with its meaning, its unit and its legal range."""

    momentum: float = Field(0.8, ge=0.0, le=1.0, description="probability that the walk keeps its direction")
    length: int = Field(50, ge=1, description="steps in an episode")


class Params(NamedTuple):
    """The scalars that the rule receives."""

    momentum: float
    length: int


class Tables(NamedTuple):
    """Read-only arrays shared by all environments."""

    payoff: NDArray[np.float64]  # [2] reward of a wrong and of a right guess


class State:
    """One column per value, one entry per environment. The first three are required."""

    rng_key: UInt64
    rng_counter: UInt64
    cursor: Int32  # steps taken in this episode
    direction: Float64  # of the last step of the walk: +1 or −1
    position: Float64
    score: Float64  # rewards of this episode


def reset(i: int, state: State, tables: Tables, params: Any) -> None:
    state.cursor[i] = 0
    state.position[i] = 0.0
    state.score[i] = 0.0
    state.direction[i] = 1.0 if uniform(i, state) < 0.5 else -1.0


def step(i: int, action: Any, state: State, tables: Tables, params: Any) -> tuple[float, bool, bool]:
    guess = 1.0 if action == 1 else -1.0
    if uniform(i, state) >= params.momentum:
        state.direction[i] = -state.direction[i]
    state.position[i] += state.direction[i]
    reward = tables.payoff[1] if guess == state.direction[i] else tables.payoff[0]
    state.score[i] += reward
    state.cursor[i] += 1
    terminated = abs(state.position[i]) >= 20.0
    truncated = state.cursor[i] >= params.length
    return reward, terminated, truncated


def observe(i: int, state: State, tables: Tables, params: Any, out: NDArray[np.float32]) -> None:
    out[0] = state.direction[i]
    out[1] = state.position[i] / 20.0


def finish(i: int, state: State, tables: Tables, params: Any, out: NDArray[np.float64]) -> None:
    out[0] = state.score[i]
    out[1] = state.cursor[i]


def template_world(**values: Any) -> World:
    """Assemble the environment from its parameters."""
    config = TemplateConfig.create(**values)
    return World(
        name="template",
        rule=Rule(reset, step, observe, finish),
        state_type=State,
        params=Params(config.momentum, config.length),
        tables=Tables(payoff=np.array([-1.0, 1.0])),
        action_space=gymnasium.spaces.Discrete(2),
        observed=("direction", "position"),
        statistics=("reward", "length"),
    )
