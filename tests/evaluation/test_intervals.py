"""The stationary bootstrap: its blocks, their length, and whether its intervals cover what they say."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from velodrome.errors import ConfigError
from velodrome.evaluation.intervals import Interval, block_length, percentile_interval, stationary_orders


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


def test_intervals_cover_the_mean_of_a_dependent_series_as_often_as_they_say():
    rng = np.random.default_rng(7)
    covered = {"blocks": 0, "single": 0}
    series = 150
    for number in range(series):
        values = autoregression(300, 0.5, rng)
        for kind, block in (("blocks", None), ("single", 1.0)):
            found = interval_of_mean(values, 0.9, 150, number, block)
            covered[kind] += found.low <= 0.0 <= found.high
    assert 0.80 <= covered["blocks"] / series <= 0.97
    assert covered["single"] / series < 0.75, "drawing single bars ignores dependence; the test would notice"


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
