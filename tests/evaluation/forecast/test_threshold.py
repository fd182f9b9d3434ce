"""The side that is held and what it grows by, against a loop; the threshold that pays for the costs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from velodrome.evaluation.forecast.threshold import Stakes, best_rule, earned, promised


def slow_growth(forecast, gains, first, threshold, stakes):
    held = side = total = 0.0
    for row, value in enumerate(forecast):
        if first[row]:
            held, side = 0.0, 0
        if value > threshold:
            side = 1
        elif value < -threshold:
            side = -1
        wanted = {1: stakes.long, 0: 0.0, -1: stakes.short}[side]
        total += math.log1p(wanted * gains[row] - stakes.cost * abs(wanted - held))
        held = wanted
    return total / len(forecast)


@pytest.mark.parametrize("stakes", [Stakes(1.0, -1.0, 0.001), Stakes(2.0, 0.0, 0.0), Stakes(0.5, -0.25, 0.01)])
@pytest.mark.parametrize("threshold", [0.0, 0.7, math.inf])
def test_what_is_earned_is_what_a_loop_finds(stakes, threshold):
    rng = np.random.default_rng(1)
    forecast, gains, first = rng.normal(size=400), rng.normal(0.0, 0.01, 400), np.zeros(400, bool)
    first[[0, 150, 151]] = True
    found = earned(forecast, gains, first, threshold, stakes).mean()
    assert found == pytest.approx(slow_growth(forecast, gains, first, threshold, stakes), abs=1e-15)


def test_a_side_is_kept_until_the_other_one_is_taken():
    forecast = np.array([0.1, 2.0, 0.3, -0.5, -3.0, 0.0, 0.2, -0.1])
    first = np.array([True, *[False] * 5, True, False])
    found = np.expm1(earned(forecast, np.full(8, 0.1), first, 1.0, Stakes(1.0, -1.0, 0.0)))
    assert found.round(9).tolist() == [0.0, 0.1, 0.1, 0.1, -0.1, -0.1, 0.0, 0.0]


@pytest.mark.parametrize("stakes", [Stakes(1.0, -1.0, 0.001), Stakes(2.0, 0.0, 0.0), Stakes(0.5, -0.25, 0.01)])
@pytest.mark.parametrize("deviation", [0.01, 5.0])
def test_what_is_promised_is_what_would_be_earned_both_ways(stakes, deviation):
    rng = np.random.default_rng(5)
    forecast, promise, first = rng.normal(size=400), rng.normal(0.0, 0.01, 400), np.arange(400) % 130 == 0
    for threshold in (0.0, 0.7, math.inf):
        both = (earned(forecast, promise + way, first, threshold, stakes) for way in (deviation, -deviation))
        wanted = sum(own.sum() for own in both)
        found = promised(forecast, promise, deviation, first, threshold, stakes)
        assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_costs_raise_the_threshold_until_nothing_is_traded():
    rng = np.random.default_rng(2)
    forecast = rng.normal(0.0, 0.001, 20_000)
    gains = forecast + rng.normal(0.0, 0.01, 20_000)
    first = np.arange(20_000) == 0
    found = [best_rule(forecast, gains, first, Stakes(1.0, -1.0, cost)) for cost in (0.0, 0.0005, 0.0015, 0.01)]
    thresholds, growths = zip(*((rule.threshold, rule.earned.mean()) for rule in found), strict=True)
    assert thresholds[0] < thresholds[1] < thresholds[2] <= thresholds[3] == math.inf
    assert list(growths) == sorted(growths, reverse=True)
    assert growths[-1] == 0.0


def test_the_threshold_is_what_the_costs_ask_for_and_not_what_chance_paid_for():
    rng = np.random.default_rng(3)
    first = np.arange(1_200) == 0
    found = []
    for _ in range(40):
        forecast = rng.normal(0.0, 0.001, 1_200)
        gains = 2.0 * forecast + rng.normal(0.0, 0.005, 1_200)  # shrunk forecasts promise twice what they say
        found.append(best_rule(forecast, gains, first, Stakes(1.0, -1.0, 0.0)).threshold)
    # Without costs any forecast is worth following. Chosen by what it gained, the largest of them was 0.0003.
    assert max(found) == 0.0


def test_what_did_not_come_true_is_not_traded():
    rng = np.random.default_rng(4)
    forecast, first = rng.normal(0.0, 0.001, 2_000), np.arange(2_000) == 0
    for gains in (-forecast, np.zeros(2_000)):
        assert best_rule(forecast, gains, first, Stakes(1.0, -1.0, 0.0)).threshold == math.inf
    assert best_rule(np.zeros(0), np.zeros(0), np.zeros(0, bool), Stakes(1.0, -1.0, 0.0)).threshold == math.inf
    # Of gains whose deviation eats up what is expected, nothing is left to grow by.
    wild = forecast + np.where(np.arange(2_000) % 2, 0.5, -0.5)
    assert best_rule(forecast, wild, first, Stakes(1.0, 0.0, 0.0)).threshold == math.inf


def test_with_a_margin_what_may_be_chance_is_not_traded():
    rng = np.random.default_rng(0)
    forecast, first = rng.normal(0.0, 0.002, 500), np.arange(500) == 0
    gains, stakes = 0.4 * forecast + rng.normal(0.0, 0.01, 500), Stakes(1.0, -1.0, 2e-5)
    found = best_rule(forecast, gains, first, stakes).earned
    errors = float(found.sum() / (found.std() * np.sqrt(len(found))))
    assert errors > 0.0
    assert np.isfinite(best_rule(forecast, gains, first, stakes, 0.99 * errors).threshold)
    assert best_rule(forecast, gains, first, stakes, 1.01 * errors).threshold == math.inf
