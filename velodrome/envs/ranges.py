"""Numeric parameters that are ranges: drawn per episode and environment (domain randomisation).

A rule that allows it has a state column `numbers` with a row for each numeric parameter, tables
`number_low`, `number_high` and `number_whole`, and a parameter `randomised`.
"""

from __future__ import annotations

import math
from typing import Any

from velodrome.envs.rng import uniform


def number(i: int, index: int, value: float, state: Any, params: Any) -> float:
    """Return a numeric parameter of environment i: the episode's draw if anything is drawn, else the given value."""
    return state.numbers[index, i] if params.randomised else value


def draw_numbers(i: int, state: Any, tables: Any) -> None:
    """Draw environment i's parameters for a new episode, in the order of declaration."""
    for k in range(tables.number_low.size):
        low, high = tables.number_low[k], tables.number_high[k]
        drawn = low
        if high > low:
            if tables.number_whole[k]:
                drawn = low + math.floor(uniform(i, state) * (high - low + 1.0))
            else:
                drawn = low + uniform(i, state) * (high - low)
        state.numbers[k, i] = drawn
