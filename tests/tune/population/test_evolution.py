"""Who gives way in a population, and what is tried next."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from velodrome.tune.population.evolution import SHARE, first_settings, heirs, moved
from velodrome.tune.space import Dimension

SPACE = (
    Dimension("ppo.learning_rate", 1e-4, 1e-2, log=True),
    Dimension("ppo.clip", 0.1, 0.4),
    Dimension("ppo.epochs", 1, 8, whole=True),
    Dimension("ppo.minibatches", 1, 16, log=True, whole=True),
    Dimension("ppo.schedule", choices=("constant", "linear", "cosine")),
)
GIVEN = {"ppo.learning_rate": 3e-3, "ppo.clip": 0.2, "ppo.epochs": 4, "ppo.minibatches": 4, "ppo.schedule": "linear"}


def test_the_first_begins_as_it_was_told_and_the_others_all_over_the_ranges():
    found = first_settings(SPACE, {**GIVEN, "seed": 3}, 200, np.random.default_rng(0))
    assert found[0] == GIVEN
    for one in SPACE:
        values = [own[one.key] for own in found[1:]]
        assert all(map(one.holds, values))
        shares = [one.share(value) for value in values]
        assert min(shares) < 0.2 < 0.8 < max(shares)


@given(
    scores=st.lists(st.one_of(st.floats(-9.0, 9.0), st.just(math.nan)), min_size=2, max_size=40),
    seed=st.integers(0, 99),
)
def test_only_the_worst_give_way_and_only_to_better_ones_of_the_best(scores, seed):
    found = heirs(scores, np.random.default_rng(seed))
    known = sorted((-math.inf if math.isnan(score) else score) for score in scores)
    count = max(1, int(SHARE * len(scores)))
    for worse, better in found.items():
        low, high = (-math.inf if math.isnan(scores[one]) else scores[one] for one in (worse, better))
        assert low < high
        assert low <= known[count - 1]
        assert high >= known[-count]
    assert not set(found) & set(found.values())
    if len(set(known)) == len(known):
        assert len(found) == count


def test_equals_stay_as_they_are():
    assert heirs([1.0, 1.0, 1.0, 1.0], np.random.default_rng(0)) == {}


@given(shares=st.lists(st.floats(0.0, 1.0), min_size=5, max_size=5), seed=st.integers(0, 99))
def test_every_setting_moves_one_step_and_stays_in_its_range(shares, seed):
    before = {one.key: one.at(share) for one, share in zip(SPACE, shares, strict=True)}
    after = moved(before, SPACE, np.random.default_rng(seed))
    for one in SPACE:
        assert one.holds(after[one.key])
        assert type(after[one.key]) is type(before[one.key])
        assert after[one.key] != before[one.key]
    ratio = after["ppo.learning_rate"] / before["ppo.learning_rate"]
    assert 0.79 < ratio < 1.26
    assert abs(after["ppo.clip"] - before["ppo.clip"]) <= 0.03 + 1e-9
    places = [SPACE[-1].choices.index(own["ppo.schedule"]) for own in (before, after)]
    assert abs(places[0] - places[1]) == 1
