"""Halves of the training rows: inside runs of neighbours, two that make up the whole, the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import velodrome as vd
from velodrome.evaluation.forecast.forecast import Fitted, Part, fill_gains
from velodrome.evaluation.forecast.halves import block_length, half_of_the_blocks, runs_of
from velodrome.evaluation.forecast.regression import Regression
from velodrome.evaluation.portfolio.teacher import teacher as portfolio_teacher
from velodrome.evaluation.trading.teacher import teacher

MARKET = vd.build_market(vd.synthetic_bars("ar1", 3_000, seed=3), windows=4, check_leaks=False)
GENERATOR = np.random.default_rng(0)


def test_runs_end_where_any_label_changes():
    labels = np.array([0, 0, 0, 1, 1, 1, 1]), np.array([0, 0, 1, 1, 1, 0, 0])
    assert runs_of(*labels) == [slice(0, 2), slice(2, 3), slice(3, 5), slice(5, 7)]
    assert runs_of(np.zeros(0, np.int64)) == []


@pytest.mark.parametrize("lengths", [(1_400,), (300, 1, 7, 512, 12), (1, 1, 2)])
def test_two_halves_make_up_the_whole_and_blocks_stay_inside_runs(lengths):
    edges = np.cumsum([0, *lengths])
    runs = [slice(int(begin), int(end)) for begin, end in pairwise(edges)]
    length = block_length(int(edges[-1]))
    for pair in range(20):
        first, second = half_of_the_blocks(runs, 2 * pair), half_of_the_blocks(runs, 2 * pair + 1)
        assert np.array_equal(first, half_of_the_blocks(runs, 2 * pair))
        assert set(np.unique(first)) <= {0, 2}
        assert (first + second == 2).all()
        for run in runs:  # as many blocks in both, which lie inside the run; at its ends there are shorter ones
            own = first[run]
            assert abs(int(own.sum()) - len(own)) <= 3 * length
            inner = np.flatnonzero(np.diff(own)) + 1
            assert (np.diff(inner) % length == 0).all()
    assert len({half_of_the_blocks(runs, 2 * pair).tobytes() for pair in range(20)}) > 1


def test_a_row_that_counts_twice_is_there_twice():
    x = GENERATOR.normal(size=(600, 5)).astype(np.float32)
    y = x @ np.array([0.4, -0.2, 0.1, 0.0, 0.0]) + GENERATOR.normal(size=600)
    block, choices = np.arange(600) // 100, [np.arange(2), np.arange(5)]
    counts = half_of_the_blocks(runs_of(block), 4)
    plain, halved = (Regression(x, y, block, choices, adaptive=True, counts=own) for own in (None, counts))
    assert (halved.choice, halved.place) == (plain.choice, plain.place)
    for kind in ("ridge", "logistic"):
        all_rows, own = getattr(plain, kind)(), getattr(halved, kind)()
        assert np.array_equal(own.unseen, all_rows.unseen, equal_nan=True)  # what is chosen by it is the same, too
        once = Regression(x, y, block, choices, adaptive=True, counts=np.ones(600, np.int64))
        assert np.allclose(getattr(once, kind)().expected(x), all_rows.expected(x))
        changed = np.where(counts == 0, y + GENERATOR.normal(size=600), y)
        other = Regression(x, changed, block, choices, adaptive=False, counts=counts)
        same = Regression(x, y, block, choices, adaptive=False, counts=counts)
        other.place, other.inputs, same.place, same.inputs = (plain.place, plain.inputs) * 2
        assert np.allclose(getattr(other, kind)().expected(x), getattr(same, kind)().expected(x))


def gains_of(market):
    prices = np.r_[market.ohlc[1:, 0], np.nan]
    return fill_gains(prices, market.begin, market.end - 1)[:, None]


def test_halves_lie_in_the_training_split_and_in_its_stretches():
    bars = vd.synthetic_bars("ar1", 1_200, seed=1, symbols=3)
    market = vd.build_market(bars, windows=4, check_leaks=False)
    fitted = Fitted(market, "train", gains_of(market), refined=True, half=5)
    inside = np.concatenate([np.arange(begin, end) for begin, end in market.splits["train"]])
    assert np.isin(fitted.rows, inside).all()
    assert len(fitted.counts) == len(fitted.rows)
    assert 0.4 < (fitted.counts > 0).mean() < 0.6
    assert fitted.fitted_rows == (fitted.counts[np.isfinite(fitted.gains[:, 0])] > 0).sum()


def test_what_a_half_teaches_knows_nothing_of_other_splits():
    rows = Part(MARKET, "train").rows
    ohlc = MARKET.ohlc.copy()
    last = int(rows[-1])
    ohlc[last + 1 :] *= np.exp(0.01 * GENERATOR.normal(size=(len(ohlc) - last - 1, 1)))
    later = replace(MARKET, ohlc=ohlc)
    for half in (0, 1):
        found, other = (teacher(market, {"fee": 1e-4}, half=half).rule for market in (MARKET, later))
        assert np.array_equal(found.expected[rows], other.expected[rows])
        assert np.array_equal(found.threshold[rows], other.threshold[rows])


def test_two_halves_differ_agree_on_what_is_chosen_and_are_about_the_whole_together():
    rows = Part(MARKET, "train").rows
    whole = teacher(MARKET, {"fee": 1e-4}).rule
    first, second = (teacher(MARKET, {"fee": 1e-4}, half=half).rule for half in (6, 7))
    assert not np.array_equal(first.expected[rows], second.expected[rows])
    assert np.array_equal(first.threshold[rows], second.threshold[rows])
    assert np.array_equal(first.threshold[rows], whole.threshold[rows])
    together = 0.5 * (first.expected[rows] + second.expected[rows])
    apart = np.abs(first.expected[rows] - second.expected[rows]).mean()
    assert np.abs(together - whole.expected[rows]).mean() < 0.25 * apart


def test_portfolios_have_halves_too():
    basket = vd.build_basket(vd.synthetic_bars("factors", 600, symbols=3, seed=2), windows=2, check_leaks=False)
    whole, first, second = (portfolio_teacher(basket, {}, half=half) for half in (None, 0, 1))
    assert "fitted to" in first.about
    assert first.rule.patience == second.rule.patience == whole.rule.patience
    assert not np.array_equal(first.rule.expected, second.rule.expected)
