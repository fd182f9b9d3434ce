"""Which checkpoint is kept: by means of validations, and only if better by more than chance; the same after a stop."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from velodrome.evaluation.validation import BestSoFar, Validation
from velodrome.runs.config.files import load_run_config

GENERATOR = np.random.default_rng(0)


def validations(count, size=8):
    parts = GENERATOR.normal(size=(count, size))
    return [Validation({"return": float(own.sum())}, tuple(own.tolist())) for own in parts]


def chosen(best, found, first=0):
    """Return the places of those that were the best when they came."""
    return [first + k for k, own in enumerate(found) if best.is_improved_by(own, taught=first + k == 0)]


@pytest.mark.parametrize("averaged", [1, 3])
def test_without_a_margin_the_best_mean_wins(averaged):
    for _ in range(20):
        found = validations(12)
        returns = [found[0].figures["return"]] * (averaged - 1) + [own.figures["return"] for own in found]
        means = [math.fsum(returns[k : k + averaged]) / averaged for k in range(12)]
        assert chosen(BestSoFar(averaged, 0.0), found)[-1] == int(np.argmax(means))


def test_what_is_better_by_chance_alone_is_not_taken():
    gained = np.array([0.3, -0.1, 0.2, 0.0])
    error = gained.std(ddof=1) * 2.0  # of the sum
    steps = float(gained.sum() / error)
    # What both had in common is no noise, however large.
    first = 100.0 * GENERATOR.normal(size=4)
    pair = [Validation({"return": float(own.sum())}, tuple(own.tolist())) for own in (first, first + gained)]
    assert chosen(BestSoFar(1, 0.99 * steps), pair) == [0, 1]
    strict = BestSoFar(1, 1.01 * steps)
    assert chosen(strict, pair) == [0]
    assert (strict.since, strict.value) == (1, (1, pair[0].figures["return"]))
    assert chosen(strict, [Validation({"return": 1e3}, tuple((first + 1.0).tolist()))], 2) == [2]  # in every part
    assert chosen(BestSoFar(1, 2.0), pair[::-1]) == [0]


def test_of_policies_that_differ_by_chance_the_earliest_is_kept_however_many_there_are():
    def left(margin):
        return np.mean([len(chosen(BestSoFar(1, margin), validations(40, 32))) > 1 for _ in range(50)])

    assert left(0.0) > 0.9
    assert left(2.0) < 0.75  # forty independent looks; those of a training are hardly more than a few


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_it_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(margin):
    for stop in (1, 2, 5, 9):
        found = validations(12)
        whole, before, after = (BestSoFar(3, margin) for _ in range(3))
        expected = chosen(whole, found)
        kept = chosen(before, found[:stop])
        after.load(json.loads(json.dumps(before.state())), anew=False)
        assert kept + chosen(after, found[stop:], stop) == expected
        assert after.state() == whole.state()
    after.load(before.state(), anew=True)
    assert after.since == 0


def test_checkpoints_of_before_there_was_a_margin_say_enough():
    best = BestSoFar(3, 2.0)
    best.load({"best": 0.5, "averaged": 3, "recent": [0.4, 0.5, 0.6], "validations_since_best": 4}, anew=False)
    assert best.since == 4
    assert chosen(best, [Validation({"return": 0.1}, (0.1, 0.0)), Validation({"return": 2.0}, (1.0, 1.0))], 7) == [8]


def test_presets_for_data_of_ones_own_have_one_and_hashes_of_others_stay():
    assert load_run_config("trading", own_data=True).evaluation.margin == 2.0
    plain = load_run_config("smoke")
    assert load_run_config(plain, ["evaluation.margin=0"]).hash == plain.hash
    assert load_run_config(plain, ["evaluation.margin=1"]).hash != plain.hash
    assert load_run_config(plain, ["teacher.bars=all"]).hash == plain.hash
