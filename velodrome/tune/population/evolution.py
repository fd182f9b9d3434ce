"""Who gives way to whom in a population, and which settings are tried next (Jaderberg et al., 2017)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from velodrome.tune.space import Dimension, Space

SHARE = 0.25  # of all members that give way after a round, and of those that may take their places
FACTORS = (0.8, 1.25)  # by which a setting on a logarithmic range, or a whole number, moves
STRIDE = 0.1  # of a plain range, by which a setting on it moves


def first_settings(
    space: Space, given: Mapping[str, Any], members: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Return by key what each member begins with: the first what is given, the others what is drawn from the ranges."""
    drawn = [{one.key: one.at(float(rng.random())) for one in space} for _ in range(members - 1)]
    return [{one.key: given[one.key] for one in space}, *drawn]


def heirs(scores: Sequence[float], rng: np.random.Generator) -> dict[int, int]:
    """Return by the number of each member that gives way whose state takes its place. A score of NaN is the worst."""
    known = [-math.inf if math.isnan(score) else score for score in scores]
    order = sorted(range(len(known)), key=lambda number: known[number])
    count = max(1, int(SHARE * len(order)))
    found = {}
    for worse in order[:count]:
        better = order[-1 - int(rng.integers(count))]
        if known[better] > known[worse]:
            found[worse] = better
    return found


def moved(settings: Mapping[str, Any], space: Space, rng: np.random.Generator) -> dict[str, Any]:
    """Return settings near to others: each a step up or down, within its range."""
    return {one.key: _step(one, settings[one.key], bool(rng.integers(2))) for one in space}


def _step(dimension: Dimension, value: Any, up: bool) -> Any:
    """Return a value a step away; where that leaves the range, a step in the other direction."""
    for rises in (up, not up):
        found = _beside(dimension, value, rises)
        if found != value and dimension.holds(found):
            return found
    return value


def _beside(dimension: Dimension, value: Any, rises: bool) -> Any:
    if dimension.choices:
        place = dimension.choices.index(value) + (1 if rises else -1)
        return dimension.choices[min(max(place, 0), len(dimension.choices) - 1)]
    low, high = dimension.low, dimension.high
    if dimension.whole:
        by = max(1, round(abs(value * FACTORS[rises] - value)))
        return int(min(max(value + (by if rises else -by), low), high))
    stepped = value * FACTORS[rises] if dimension.log else value + (1 if rises else -1) * STRIDE * (high - low)
    return float(min(max(stepped, low), high))
