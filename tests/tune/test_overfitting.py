"""The probability of backtest overfitting against a slow implementation, and on data whose answer is known."""

from __future__ import annotations

import itertools
import math
import statistics
import time

import numpy as np
import pytest

from velodrome.errors import ConfigError
from velodrome.tune.overfitting import cscv


def standardised(values: np.ndarray) -> np.ndarray:
    return (values - values.mean(axis=0)) / values.std(axis=0)


def slow_sharpe(values: list[float]) -> float:
    deviation = statistics.stdev(values)
    return statistics.fmean(values) / deviation if deviation > 0.0 else 0.0


def slow_cscv(columns: list[list[float]], blocks: int, measure) -> tuple[float, float, float]:
    """The paper's steps one by one, on lists: probability, slope and probability of loss."""
    length = len(columns[0]) // blocks
    start = len(columns[0]) - length * blocks
    pieces = [[column[start + b * length : start + (b + 1) * length] for b in range(blocks)] for column in columns]
    pairs, below, lost = [], [], []
    for chosen in itertools.combinations(range(blocks), blocks // 2):
        others = [b for b in range(blocks) if b not in chosen]
        inside = [measure([x for b in chosen for x in piece[b]]) for piece in pieces]
        outside = [measure([x for b in others for x in piece[b]]) for piece in pieces]
        best = [n for n, value in enumerate(inside) if value == max(inside)]
        share = []
        for n in best:
            rank = sum(o < outside[n] for o in outside) + (sum(o == outside[n] for o in outside) + 1) / 2
            omega = rank / (len(columns) + 1)
            share.append(math.log(omega / (1 - omega)) <= 0)
        below.append(statistics.fmean(share))
        lost.append(statistics.fmean(outside[n] < 0 for n in best))
        pairs.append((max(inside), statistics.fmean(outside[n] for n in best)))
    slope = statistics.linear_regression([a for a, _ in pairs], [b for _, b in pairs]).slope
    return statistics.fmean(below), slope, statistics.fmean(lost)


@pytest.mark.parametrize(("bars", "trials", "blocks"), [(48, 2, 2), (61, 5, 6), (80, 7, 8), (99, 12, 4)])
@pytest.mark.parametrize("measure", ["sharpe", "mean"])
def test_equal_to_a_slow_implementation(bars, trials, blocks, measure):
    rng = np.random.default_rng([bars, trials])
    returns = rng.standard_t(3, (bars, trials)) * 0.01 * rng.uniform(0.5, 2.0, trials)
    if trials > 6:
        returns[:, 3] = returns[:, 0]  # a trial entered twice: ties in sample and outside
        returns[:, 5] = 0.0  # one that never traded
        returns[: bars // 2, 4] = 0.0  # and one that began late
    found = cscv(returns, blocks, measure)
    slow = slow_cscv(returns.T.tolist(), blocks, slow_sharpe if measure == "sharpe" else statistics.fmean)
    assert (found.probability, found.loss) == pytest.approx((slow[0], slow[2]), abs=1e-12)
    assert found.slope == pytest.approx(slow[1], rel=1e-9)
    assert found.splits == math.comb(blocks, blocks // 2)
    assert (found.bars, found.left_out) == (bars - bars % blocks, bars % blocks)


@pytest.mark.parametrize("measure", ["sharpe", "mean"])
@pytest.mark.parametrize("seed", range(3))
def test_what_wins_only_by_where_its_gains_lie_is_overfitted_for_certain(seed, measure):
    """Without a mean, what a half of the bars gained the other lost: the best in sample is the worst outside."""
    returns = standardised(np.random.default_rng(seed).normal(size=(480, 60)))
    found = cscv(returns, 12, measure)
    assert found.probability == 1.0
    assert found.loss == 1.0
    assert found.slope < -0.5


def test_a_true_strategy_among_noise_is_not_overfitted():
    returns = np.random.default_rng(1).normal(size=(1600, 500)) * 0.01
    returns[:, 123] += 0.0025
    found = cscv(returns)
    assert found.probability < 0.01
    assert found.loss < 0.01


def test_noise_is_a_coin_toss_on_average():
    rng = np.random.default_rng(2)
    found = [cscv(rng.normal(size=(400, 40)), 8).probability for _ in range(200)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.05)


def test_five_hundred_trials_take_less_than_a_second():
    returns = np.random.default_rng(3).normal(size=(2000, 500))
    started = time.process_time()  # of the processor, so that a busy machine does not matter
    assert cscv(returns, 16).splits == 12870
    assert time.process_time() - started < 1.0


def test_scale_does_not_matter_and_digits_are_kept():
    returns = np.random.default_rng(4).normal(size=(320, 20))
    plain = cscv(returns, 8)
    scaled = cscv(returns * 10.0 ** np.arange(-100, 100, 10), 8)
    assert scaled.probability == plain.probability
    assert scaled.slope == pytest.approx(plain.slope)


def test_equal_trials_cannot_be_told_apart():
    column = np.random.default_rng(5).normal(size=(64, 1))
    found = cscv(np.repeat(column, 6, axis=1), 4)
    assert found.probability == 1.0  # the best is not above the median
    assert np.all(found.rank == 0.5)
    assert np.all(found.logits == 0.0)


def test_trials_that_never_traded_have_no_performance():
    found = cscv(np.zeros((64, 3)), 4)
    assert (found.probability, found.loss) == (1.0, 0.0)
    assert math.isnan(found.slope)


def broken(value: float) -> np.ndarray:
    values = np.random.default_rng(6).normal(size=(64, 4))
    values[10, 2] = value
    return values


@pytest.mark.parametrize(
    ("returns", "blocks", "message"),
    [
        (np.zeros((64, 1)), 16, "1 trial"),
        (np.zeros(64), 16, r"shape \(64,\)"),
        (np.zeros((31, 3)), 16, "31 bars: 16 blocks need at least 32"),
        (np.zeros((64, 3)), 7, "an even number from 2 to 20"),
        (np.zeros((64, 3)), 0, "an even number from 2 to 20"),
        (np.zeros((64, 3)), 22, "an even number from 2 to 20"),
        (np.zeros((64, 3)), 16.0, "an even number from 2 to 20"),
        (broken(math.nan), 16, "trial 2 has nan at bar 10"),
        (broken(math.inf), 16, "trial 2 has inf at bar 10"),
        ([["a", "b"]], 2, "not a table of numbers"),
    ],
)
def test_what_has_no_answer_is_refused_in_one_sentence(returns, blocks, message):
    with pytest.raises(ConfigError, match=message):
        cscv(returns, blocks)
    with pytest.raises(ConfigError, match="'sharpe' and 'mean'"):
        cscv(np.zeros((64, 3)), 4, "sortino")
