"""A split played in pieces: the whole of it once, each bar in one piece, and the same figures as in one piece."""

from __future__ import annotations

import numpy as np
import pytest

import velodrome as vd
from velodrome.errors import LeakError
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.evaluator import evaluator_for
from velodrome.evaluation.validation import FIGURES, cut, validate

LONG, FLAT, SHORT = 2, 1, 0


@pytest.fixture(scope="module")
def market():
    bars = vd.synthetic_bars("ar1", 3_000, seed=0, symbols=["A", "B"])
    return vd.build_market(bars, features=["log_return"], windows=4, check_leaks=False)


@pytest.mark.parametrize("pieces", [1, 2, 7, 64])
def test_pieces_cover_every_bar_of_the_split_once(market, pieces):
    part = market.split("validation")
    first, last = cut(part, pieces)
    played = np.concatenate([np.arange(begin, end) for begin, end in zip(first, last, strict=True)])
    wanted = np.concatenate([np.arange(begin, end - 1) for begin, end in zip(part.begin, part.end, strict=True)])
    np.testing.assert_array_equal(played, wanted)


def test_one_piece_an_instrument_is_the_whole_way(market):
    """A long position that is never changed earns the same whether the way is cut or not, but for the cuts."""
    whole = evaluator_for("trading", market, "test", {}).play("agent", ConstantPolicy(LONG), (0,), 1, None)
    pieces = validate(ConstantPolicy(LONG), "trading", market, "test", {}, pieces=2)
    assert pieces["reward"] == pytest.approx(whole.curve.per_bar["reward"].mean(), rel=1e-9)


def test_every_figure_means_what_it_means_in_an_evaluation(market):
    """Played in one piece an instrument, they are equal; Sharpe is annualised in both."""
    pieces = validate(ConstantPolicy(LONG), "trading", market, "test", {"fee": 0.001}, pieces=2)
    quick = {"samples": 1, "random_seeds": 1}
    whole = evaluate_policy(ConstantPolicy(LONG), market, "test", {"fee": 0.001}, **quick).metrics
    assert tuple(pieces) == FIGURES
    assert pieces == pytest.approx({name: whole[name] for name in FIGURES}, rel=1e-9)


@pytest.mark.parametrize("pieces", [2, 16, 64])
def test_return_and_drawdown_are_of_one_curve_however_often_it_is_cut(market, pieces):
    """A position that is never changed loses the same in pieces, and no less than its deepest fall."""
    played = [validate(ConstantPolicy(side), "trading", market, "validation", {}, pieces=2) for side in (SHORT, LONG)]
    whole, side = min(zip(played, (SHORT, LONG), strict=True), key=lambda one: one[0]["return"])
    assert whole["return"] < 0.0
    found = validate(ConstantPolicy(side), "trading", market, "validation", {}, pieces=pieces)
    assert found["max_drawdown"] >= -found["return"]
    assert found["return"] == pytest.approx(whole["return"], abs=0.02)
    assert found["max_drawdown"] == pytest.approx(whole["max_drawdown"], abs=0.02)


def test_a_flat_policy_earns_nothing(market):
    found = validate(ConstantPolicy(FLAT), "trading", market, "test", {}, pieces=8)
    assert found["return"] == found["turnover"] == found["max_drawdown"] == 0.0
    assert "sharpe" not in found  # it is not defined


def test_the_training_split_is_refused(market):
    with pytest.raises(LeakError):
        validate(ConstantPolicy(FLAT), "trading", market, "train", {})


def test_a_piece_that_ends_early_counts_for_all_its_bars():
    bars = vd.synthetic_bars("gbm", 3_000, seed=1, volatility=0.02)
    market = vd.build_market(bars, features=["log_return"], windows=4, check_leaks=False)
    found = validate(ConstantPolicy(LONG), "trading", market, "test", {"leverage": 50.0, "bankrupt_at": 0.5}, pieces=4)
    assert found["return"] < -0.9
    assert np.isfinite(found["mean_log_return"])
