"""The policy of a study by itself: the same study in any order of ends, on any number of workers, after any restart."""

from __future__ import annotations

import math
import random

import pytest

from tests.tune.planted import SPACE, START, Landscape, searched_at_random, studied, tpe_of_single_seeds
from velodrome.tune.course import Course, simulate
from velodrome.tune.pruning import judge
from velodrome.tune.search import evenly, importances
from velodrome.tune.trial import COMPLETE, FAILED, PRUNED, Outcome, StudySettings, Trial

SETTINGS = StudySettings(search_seed=3, window=5)
TRIALS = 40


def known(course: Course):
    return [(trial.params, trial.status, trial.value, trial.reason) for trial in course.trials]


@pytest.fixture(scope="module")
def straight():
    """A study that one worker did."""
    return simulate(SPACE, SETTINGS, START, TRIALS, Landscape(1))[0]


@pytest.mark.parametrize("workers", [2, 40])
def test_a_study_is_the_same_in_any_order_of_ends(straight, workers):
    chance = random.Random(workers)

    def pick(ready):
        return chance.randrange(len(ready))

    course, _ = simulate(SPACE, SETTINGS, START, TRIALS, Landscape(1), pick, workers)
    assert known(course) == known(straight)
    assert course.winner.number == straight.winner.number
    assert {trial.status for trial in course.trials} == {COMPLETE, PRUNED}


def test_a_study_is_the_same_after_any_restart(straight):
    """A keeper that is begun anew has rows and nothing else: it chooses what the first one chose."""
    for number in (0, 7, 13, 25, 39):
        course = Course(SPACE, SETTINGS, START)
        begun = straight.trials[:number]
        open_ones = [Trial(trial.number, trial.params) for trial in begun[max(0, number - SETTINGS.window + 1) :]]
        course.trials = [*begun[: max(0, number - SETTINGS.window + 1)], *open_ones]
        assert course.ask().params == straight.trials[number].params


def test_a_trial_begins_when_those_a_window_before_it_are_over():
    course = Course(SPACE, SETTINGS, START)
    while course.may_ask(100):
        course.ask()
    assert len(course.trials) == SETTINGS.window
    for step in range(3):  # the last of them ends first, which opens nothing
        course.trials[4].outcomes[step] = Outcome(1.0)
    assert course.settle(course.trials[4])
    assert not course.may_ask(100)
    for step in range(3):
        course.trials[0].outcomes[step] = Outcome(1.0)
    course.settle(course.trials[0])
    assert course.may_ask(100)
    course.ask()
    assert not course.may_ask(100)


def test_the_first_trial_is_the_configuration_and_the_next_are_spread_evenly(straight):
    assert straight.trials[0].params == START
    counted = [0, 0, 0]
    for number in range(30):
        counted[int(3 * evenly(number, 6, 0)[4])] += 1
    assert min(counted) >= 8  # random ones would not
    assert StudySettings().startup_of(2) == 8
    assert StudySettings().startup_of(30) == 24


def test_hopeless_trials_are_pruned_after_their_first_seed_and_hopeful_ones_are_not():
    chance = random.Random(0)
    rivals = [[level + 0.1 * chance.gauss(0, 1) for _ in range(5)] for level in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    assert judge([0.1], rivals, 5).chance < 0.01
    assert judge([1.3], rivals, 5).chance > 0.9
    assert judge([1.0], rivals, 5).estimate == pytest.approx(1.0, abs=0.2)
    assert judge([0.1], rivals[:1], 5) is None  # how far seeds scatter is not known yet
    assert judge([0.1] * 5, rivals, 5) is None


def test_a_step_that_was_done_before_its_turn_changes_nothing():
    """With more workers than needed, a later seed may be known when the earlier one already decides."""
    early, late = (Course(SPACE, SETTINGS, START) for _ in range(2))
    for course in (early, late):
        simulated = simulate(SPACE, SETTINGS, START, 20, Landscape(2))[0]
        course.trials = [*simulated.trials, Trial(20, dict(START))]
        course.trials[20].outcomes[0] = Outcome(-5.0)
    late.trials[20].outcomes[1] = Outcome(50.0)
    assert early.settle(early.trials[20])
    assert late.settle(late.trials[20])
    assert known(early) == known(late)
    assert early.trials[20].status == PRUNED


def test_what_fails_by_its_own_fault_is_avoided_and_a_lost_machine_is_not_held_against_it():
    def study(kind):
        course = Course(SPACE, StudySettings(window=1, seeds=1, startup=4), START)
        while len(course.trials) < 24:
            trial = course.ask()
            bold = trial.params["ppo.learning_rate"] > 1e-3
            good = Outcome(1.0 - abs(math.log10(trial.params["ppo.learning_rate"]) + 2.5))  # better the bolder
            trial.outcomes[0] = Outcome(math.nan, "broke", kind) if bold else good
            course.settle(trial)
        return sum(trial.status == FAILED for trial in course.trials[8:])

    assert study("not_a_number") < study("machine_lost")


def test_the_winner_is_chosen_over_all_seeds_and_shown_by_fresh_ones(straight):
    candidates = straight.candidates
    assert [trial.number for trial in candidates][-1] == 0  # the configuration itself is looked at again, too
    assert len(candidates) == 6
    every = range(SETTINGS.final_step)
    assert straight.winner is max(candidates, key=lambda trial: trial.mean(every))
    assert straight.fresh_mean(straight.winner) == pytest.approx(straight.winner.mean(SETTINGS.fresh_steps))
    lost = Trial(0, START, COMPLETE, 1.0, outcomes={0: Outcome(1.0), 3: Outcome(math.nan, "lost")})
    course = Course(SPACE, StudySettings(seeds=1, confirm_seeds=1), START)
    course.trials = [lost]
    lost.outcomes = {0: Outcome(1.0), 1: Outcome(math.nan, "lost", "error")}
    assert course.is_confirmed
    assert course.winner is None


def test_importances_find_what_decides(straight):
    course, _ = simulate(
        SPACE, StudySettings(seeds=1), START, 40, lambda params, step: -abs(math.log10(params["ppo.learning_rate"]) + 3)
    )
    found = importances(SPACE, course.trials)
    assert sum(found.values()) == pytest.approx(1.0)
    assert max(found, key=found.get) == "ppo.learning_rate"
    assert importances(SPACE, straight.trials[:4]) == {}


def test_a_study_beats_random_search_and_single_seeds_on_a_planted_landscape():
    """The cheap version of the benchmark below: means over a few landscapes, at equal cost."""
    own, at_random, single = (sum(values) / 4 for values in zip(*map(compared, range(4)), strict=True))
    assert own > at_random
    assert own > single


def compared(number: int) -> tuple[float, float, float]:
    """Return what a study, random search and TPE of single seeds find on a landscape with as many trainings."""
    landscape = Landscape(number, 0.2)
    own, trainings = studied(landscape, 60)
    return own, searched_at_random(landscape, trainings, 3), tpe_of_single_seeds(landscape, trainings)
