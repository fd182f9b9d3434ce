"""The ratios of Bailey and López de Prado against the numbers of their papers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from velodrome.errors import ConfigError
from velodrome.evaluation.sharpe import (
    Moments,
    Trials,
    deflated_sharpe,
    expected_best_sharpe,
    minimum_track_record,
    moments,
    probabilistic_sharpe,
)

# The worked example of "The deflated Sharpe ratio" (2014): an annualised Sharpe ratio of 2.5 over 5 years of 250 days,
# skewness −3, kurtosis 10, the best of 100 trials whose annualised Sharpe ratios have a variance of 1/2.
PAPER = Moments(1250, 2.5 / math.sqrt(250), -3.0, 10.0)


def trials(count: int) -> Trials:
    return Trials(count, 0.5 / 250)


def test_the_papers_example_of_the_deflated_ratio():
    assert expected_best_sharpe(trials(100)) == pytest.approx(0.1132, abs=5e-5)
    assert deflated_sharpe(PAPER, trials(100)) == pytest.approx(0.9004, abs=5e-5)
    assert deflated_sharpe(PAPER, trials(46)) == pytest.approx(0.9505, abs=5e-5)
    normal = Moments(1250, 2.5 / math.sqrt(250), 0.0, 3.0)
    assert deflated_sharpe(normal, trials(88)) == pytest.approx(0.9505, abs=5e-5)


def test_one_trial_deflates_nothing():
    assert deflated_sharpe(PAPER, trials(1)) == probabilistic_sharpe(PAPER)


def test_trials_of_which_one_ratio_is_known_vary_by_chance():
    """With a variance of 0 any number of them would deflate nothing."""
    known = Trials.among([PAPER.sharpe], 100, PAPER.count)
    assert known == Trials(100, 1 / 1249)
    assert deflated_sharpe(PAPER, known) < probabilistic_sharpe(PAPER)
    # So much do the ratios of those without skill vary.
    noise = np.random.default_rng(0).normal(0.0, 0.01, (4_000, 250))
    assert Trials.among([], 2, 250).variance == pytest.approx(np.var([moments(own).sharpe for own in noise]), rel=0.05)
    assert Trials.among([0.1, 0.3, math.nan], 7, 250) == Trials(7, Trials.of([0.1, 0.3]).variance)
    assert Trials.among([0.1], 1, 250) == Trials(1, 0.0)


@given(st.integers(2, 10_000), st.integers(2, 10_000))
def test_more_trials_make_a_result_less_likely_to_be_skill(one, other):
    fewer, more = sorted((one, other))
    assert deflated_sharpe(PAPER, trials(more)) <= deflated_sharpe(PAPER, trials(fewer)) + 1e-12


@given(st.floats(0.02, 0.5), st.floats(-1.0, 1.0), st.floats(3.0, 12.0))
def test_after_the_minimum_track_record_the_probability_is_what_was_asked_for(ratio, skewness, kurtosis):
    found = Moments(100, ratio, skewness, kurtosis)
    bars = minimum_track_record(found)
    # The probability is a function of n − 1, which may be fractional here.
    spread = 1 - skewness * ratio + (kurtosis - 1) / 4 * ratio**2
    score = ratio * math.sqrt((bars - 1) / spread)
    assert score == pytest.approx(1.6448536, rel=1e-6)


def test_moments_equal_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).standard_t(5, 500) * 0.01 + 0.001
    found = moments(values)
    assert found.sharpe == pytest.approx(values.mean() / values.std(ddof=1))
    assert found.skewness == pytest.approx(stats.skew(values))
    assert found.kurtosis == pytest.approx(stats.kurtosis(values, fisher=False))


@pytest.mark.parametrize("values", [np.zeros(50), np.full(50, 0.01), np.zeros(1), np.zeros(0)])
def test_constant_or_missing_returns_have_no_ratio(values):
    found = moments(values)
    assert math.isnan(probabilistic_sharpe(found))
    assert math.isnan(minimum_track_record(found))
    assert math.isnan(deflated_sharpe(found, trials(10)))


def test_a_losing_record_is_never_long_enough():
    assert minimum_track_record(Moments(100, -0.1, 0.0, 3.0)) == math.inf


def test_trials_come_from_their_ratios_and_nonsense_is_refused():
    made = Trials.of([0.1, 0.2, float("nan"), 0.3])
    assert made.count == 3
    assert made.variance == pytest.approx(0.01)
    assert Trials.of([0.2]).variance == 0.0
    with pytest.raises(ConfigError, match="at least one trial"):
        Trials(0, 1.0)
    with pytest.raises(ConfigError, match="no trial"):
        Trials.of([])
