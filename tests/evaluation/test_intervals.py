"""The stationary bootstrap: its blocks, their length, and whether its intervals cover what they say."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.evaluation.coverage import KINDS, covered, many_series
from velodrome.errors import ConfigError
from velodrome.evaluation.intervals import (
    Interval,
    block_length,
    dependence,
    percentile_interval,
    stationary_orders,
    student_quantile,
    widening,
)


def interval_of_mean(values: np.ndarray, confidence: float, samples: int, seed: int, block: float | None) -> Interval:
    """The mean of a series with its interval, made of the same parts as an evaluation's."""
    block = block_length(values) if block is None else block
    resampled = [values[order].mean() for order in stationary_orders(len(values), block, samples, seed)]
    return percentile_interval(float(values.mean()), np.array(resampled), confidence)


def autoregression(count: int, phi: float, rng: np.random.Generator) -> np.ndarray:
    values = np.empty(count)
    values[0] = rng.normal() / math.sqrt(1 - phi**2)
    for t in range(1, count):
        values[t] = phi * values[t - 1] + rng.normal()
    return values


@given(st.integers(1, 60), st.floats(1.0, 30.0), st.integers(0, 2**32))
def test_a_resample_consists_of_rows_of_the_series_and_repeats_with_its_seed(length, block, seed):
    first, second = (next(stationary_orders(length, block, 1, seed)) for _ in range(2))
    assert first.shape == (length,)
    assert ((first >= 0) & (first < length)).all()
    assert (first == second).all(), "the same seed gives the same rows"


def test_blocks_have_the_mean_length_that_was_asked_for_and_every_row_is_equally_likely():
    length, block = 500, 8.0
    orders = np.array(list(stationary_orders(length, block, 400, 1)))
    breaks = (orders[:, 1:] != (orders[:, :-1] + 1) % length).sum(axis=1) + 1
    assert length / breaks.mean() == pytest.approx(block, rel=0.03)
    counts = np.bincount(orders.ravel(), minlength=length)
    assert counts.std() / counts.mean() < 0.2


def test_one_endless_block_is_the_series_itself_begun_anywhere():
    order = next(stationary_orders(50, 1e12, 1, 4))
    assert (order == (order[0] + np.arange(50)) % 50).all()


def test_blocks_of_one_are_the_ordinary_bootstrap():
    order = next(stationary_orders(5000, 1.0, 1, 0))
    assert (order[1:] == order[:-1] + 1).mean() < 0.005


def slow_block_length(values: np.ndarray) -> float:
    """Politis and White (2004) and its correction (2009), as the papers have it, lag by lag."""
    count = len(values)
    mean = values.mean()

    def covariance(lag: int) -> float:
        return sum((values[t] - mean) * (values[t + lag] - mean) for t in range(count - lag)) / count

    quiet = max(5, math.isqrt(int(math.log10(count))))
    most = min(math.isqrt(count - 1) + 1 + quiet, count - 1)
    rho = [covariance(lag) / covariance(0) for lag in range(most + 1)]
    bound = 2 * math.sqrt(math.log10(count) / count)
    last = None
    for candidate in range(most - quiet + 1):
        if all(abs(rho[candidate + k]) < bound for k in range(1, quiet + 1)):
            last = candidate
            break
    if last is None:
        last = max((lag for lag in range(1, most + 1) if abs(rho[lag]) >= bound), default=0)
    width = min(2 * max(last, 1), most)

    def window(x: float) -> float:
        return 1.0 if abs(x) <= 0.5 else 2 * (1 - abs(x)) if abs(x) <= 1 else 0.0

    lags = range(-width, width + 1)
    slope = sum(window(k / width) * abs(k) * covariance(abs(k)) for k in lags)
    spectrum = sum(window(k / width) * covariance(abs(k)) for k in lags)
    chosen = (2 * slope**2 / (2 * spectrum**2)) ** (1 / 3) * count ** (1 / 3)
    return min(max(1.0, chosen), math.ceil(min(3 * math.sqrt(count), count / 3)))


@pytest.mark.parametrize("phi", [-0.4, 0.0, 0.3, 0.8])
def test_the_block_length_equals_a_slow_oracle(phi):
    rng = np.random.default_rng(int(10 * phi) + 50)
    for count in (12, 60, 250):
        values = autoregression(count, phi, rng)
        assert block_length(values) == pytest.approx(slow_block_length(values), rel=1e-9)


def test_the_block_length_approaches_its_theory_for_an_autoregression():
    phi, count = 0.5, 8000
    expected = (2 * phi / (1 - phi**2)) ** (2 / 3) * count ** (1 / 3)
    rng = np.random.default_rng(3)
    found = np.median([block_length(autoregression(count, phi, rng)) for _ in range(5)])
    assert found == pytest.approx(expected, rel=0.2)


def test_a_constant_or_very_short_series_has_blocks_of_one():
    assert block_length(np.full(100, 0.3)) == 1.0
    assert block_length(np.zeros(100)) == 1.0
    assert block_length(np.arange(5.0)) == 1.0


# Whether they cover what they say


@pytest.mark.parametrize(
    ("kind", "length", "least"),
    [
        ("independent", 250, 0.945),
        ("t(3)", 250, 0.94),
        ("GARCH", 250, 0.94),
        ("0.5", 250, 0.93),
        ("0.5", 1000, 0.93),
        ("0.95", 250, 0.93),
    ],
)
def test_the_interval_of_the_mean_covers_it_as_often_as_it_says(kind, length, least):
    """Percentiles alone cover 91 % at an autocorrelation of 0.5 and 73 % at 0.95."""
    share = covered(many_series(kind, 400, length))
    assert least <= share <= 0.985, f"{kind}, {length} values: {share:.1%}"


@pytest.mark.slow
@pytest.mark.parametrize("length", [250, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_of_the_mean_and_of_the_sharpe_ratio_cover_them_on_every_kind_of_series(kind, length):
    values = many_series(kind, 3000, length, seed=1)
    # Two standard errors of a share of 3,000.
    least = 0.93 if kind in ("0.8", "0.95", "AR(2)") else 0.95 - 2 * math.sqrt(0.95 * 0.05 / 3000)
    assert least <= covered(values) <= 0.98
    assert covered(values, sharpe=0.1) >= least - 0.01


def slow_dependence(values: np.ndarray) -> tuple[float, float, float]:
    """Correlation of neighbours, long-run variance and degrees of freedom by the formulas, sum by sum."""
    count, mean = len(values), values.mean()
    own = [value - mean for value in values]
    found = sum(a * b for a, b in itertools.pairwise(own)) / sum(a * a for a in own[:-1])
    phi = min(max((count * found + 1) / (count - 3), -0.97), 0.97)
    left = [b - phi * a for a, b in itertools.pairwise(own)]
    terms = round(0.4 * count ** (2 / 3))
    cosines = [
        math.sqrt(2 / len(left)) * sum(x * math.cos(math.pi * k * (t + 0.5) / len(left)) for t, x in enumerate(left))
        for k in range(1, terms + 1)
    ]
    variance = sum(c * c for c in cosines) / terms / (1 - phi) ** 2
    return phi, variance, 2 / (2 / terms + 4 * (1 + phi) / (count * (1 - phi)))


@pytest.mark.parametrize("phi", [-0.4, 0.0, 0.7])
def test_the_dependence_equals_a_slow_oracle(phi):
    values = autoregression(61, phi, np.random.default_rng(5))
    found = dependence(values)
    assert found[:3] == pytest.approx(slow_dependence(values), rel=1e-9)
    assert found.effective == pytest.approx(61 * values.var() / found.variance)


def test_the_stretch_makes_up_for_what_the_blocks_of_the_resamples_cut():
    values, block = autoregression(120, 0.7, np.random.default_rng(2)), 3.0
    found, means = dependence(values), [values[o].mean() for o in stationary_orders(120, block, 10_000, 0)]
    student = stats.t.ppf(0.95, found.degrees) / stats.norm.ppf(0.95)
    expected = math.sqrt(found.variance / 120 / np.var(means)) * student
    assert widening(values, block, 0.9) == pytest.approx(expected, rel=0.03)
    assert widening(values, 1.0, 0.9) > widening(values, block, 0.9) > 1.0
    for unknown in (np.zeros(50), np.arange(5.0), np.full(40, -np.inf)):
        assert widening(unknown, block, 0.9) == 1.0


@pytest.mark.parametrize("degrees", [2.0, 2.7, 12.0, 300.0, 5000.0])
def test_quantiles_of_student(degrees):
    for share in (0.9, 0.975, 0.995):
        assert student_quantile(share, degrees) == pytest.approx(stats.t.ppf(share, degrees), rel=1e-3)


def test_autocorrelation_is_doubtful_where_few_values_count():
    rng = np.random.default_rng(0)
    assert dependence(autoregression(1000, 0.8, rng)).is_doubtful(1000)
    assert not dependence(autoregression(1000, 0.2, rng)).is_doubtful(1000)
    assert not dependence(rng.standard_t(3, 250)).is_doubtful(250)


def test_a_stretched_interval_keeps_within_what_is_possible():
    resampled = np.linspace(-0.9, 0.9, 101)
    low, high = percentile_interval(0.0, resampled, 0.9, 4.0)[1:]
    assert (low, high) == pytest.approx((-4 * 0.81, 4 * 0.81), rel=0.03)
    low, high = percentile_interval(0.0, resampled, 0.9, 4.0, "growth")[1:]
    assert -1.0 < low < -0.99
    assert high > 5.0
    assert percentile_interval(0.2, np.linspace(0.1, 0.3, 101), 0.9, 9.0, "size").low > 0.0
    assert percentile_interval(1e200, np.full(9, 1e300), 0.9, 9.0, "growth").high == math.inf
    assert percentile_interval(-1.0, np.full(9, -1.0), 0.9, 9.0, "growth") == (-1.0, -1.0, -1.0)


def test_a_paired_difference_takes_out_what_both_share():
    rng = np.random.default_rng(0)
    market = rng.normal(0.0, 1.0, 400)
    agent = market + 0.1 + 0.05 * rng.normal(size=400)
    # Resampled at the same bars, the difference of the means is the mean of the differences.
    paired = interval_of_mean(agent - market, 0.95, 1000, 1, None)
    alone = interval_of_mean(agent, 0.95, 1000, 1, None)
    assert not paired.includes_zero
    assert alone.includes_zero


def test_what_is_not_defined_gives_no_interval_and_no_warning():
    few = percentile_interval(1.0, np.array([1.0, np.nan, np.nan]), 0.9)
    assert math.isnan(few.low)
    assert few.value == 1.0
    wide = percentile_interval(1.0, np.array([-np.inf, 1.0, 2.0, np.inf]), 0.95)
    assert (wide.low, wide.high) == (-math.inf, math.inf)
    assert Interval(1.0, math.nan, math.nan).includes_zero


def test_illegal_numbers_are_refused_with_what_is_legal():
    with pytest.raises(ConfigError, match="between 0 and 1"):
        percentile_interval(0.0, np.ones(3), 95)
    with pytest.raises(ConfigError, match="blocks of at least 1"):
        next(stationary_orders(10, 0.5, 1, 0))


def test_draws_that_decide_nothing_are_passed_over_and_change_nothing():
    rng = np.random.default_rng(4)
    for order in stationary_orders(1001, 1.0, 5, 4):
        rng.random(1001)
        assert np.array_equal(order, rng.integers(0, 1001, 1001))
