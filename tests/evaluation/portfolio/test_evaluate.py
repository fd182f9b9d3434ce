"""Evaluations of portfolios: the table agrees with the account behind it, and can be kept."""

from __future__ import annotations

import io
import json

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from tests.evaluation.backtests import uncompiled
from tests.learn.portfolios import KNOWING, FollowsTheLast, factors_basket, split_basket
from velodrome.errors import LeakError
from velodrome.evaluation.baselines import (
    BEST_SINGLE,
    CASH,
    EQUAL_HELD,
    EQUAL_REBALANCED,
    FORECAST,
    MOMENTUM,
    RANDOM,
    ConstantPolicy,
)
from velodrome.evaluation.evaluate import Evaluation, evaluate_policy
from velodrome.evaluation.measures import METRICS
from velodrome.evaluation.portfolio import account as portfolio_account
from velodrome.evaluation.result import COMPARED
from velodrome.evaluation.validation import validate

BASKET = factors_basket(8000)
QUICK = {"samples": 60, "random_seeds": 2, "seeds": 2}
EVERY = [FORECAST, MOMENTUM, EQUAL_HELD, EQUAL_REBALANCED, BEST_SINGLE, CASH, RANDOM]


@pytest.fixture(scope="module")
def known() -> Evaluation:
    return evaluate_policy(FollowsTheLast(BASKET), BASKET, "test", {**KNOWING, "buy_fee": 1e-5}, **QUICK)


def text_of(evaluation: Evaluation) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(evaluation.table())
    return console.export_text()


def test_an_agent_that_knows_the_basket_beats_every_baseline_beyond_doubt(known):
    assert known.kind == "backtest"
    assert known.information["environment"] == "portfolio"
    assert known.row("of_optimum").value > 0.8
    compared = [own for own in known.differences if own.metric == COMPARED[0]]
    assert [own.baseline for own in compared] == EVERY
    # The forecaster knows nearly as much; all others are left behind.
    assert all(own.low > 0 for own in compared[1:])
    assert known.row("of_optimum").baselines[CASH] == 0.0


def test_every_row_is_a_declared_metric_in_order(known):
    declared = [metric.name for metric in METRICS]
    names = [row.name for row in known.rows]
    assert names == [name for name in declared if name in names]
    of_single_accounts = {"trades", "win_rate", "average_trade", "profit_factor", "long_share", "short_share"}
    assert set(declared) - set(names) == {"deflated_sharpe", "disagreement"} | of_single_accounts


def test_the_table_agrees_with_the_account_behind_it(known):
    bars, one = known.bars, known.bars.filter(pl.col("symbol") == BASKET.symbols[0])
    assert bars["symbol"].unique(maintain_order=True).to_list() == list(BASKET.symbols)
    growth = known.equity["agent"]
    assert known.row("return").value == pytest.approx(growth[-1] - 1)
    assert one["equity"][-1] / 10_000 == pytest.approx(growth[-1])
    by_time = bars.group_by("time", maintain_order=True).agg(pl.col("weight", "turnover", "contribution", "fees").sum())
    cash = one["cash"] / one["equity"]
    assert np.allclose(by_time["weight"] + cash, 1.0)
    assert known.row("cash_share").value == pytest.approx(cash[1:].mean())
    assert known.row("exposure").value == pytest.approx(by_time["weight"][1:].mean())
    assert known.row("turnover").value == pytest.approx(by_time["turnover"].sum())
    assert known.row("fees").value == pytest.approx(by_time["fees"].sum() / 10_000)
    assert by_time["contribution"].sum() == pytest.approx(known.row("return").value)
    widest = bars.group_by("time", maintain_order=True).agg(pl.col("weight").max())["weight"]
    assert known.row("largest_weight").value == pytest.approx(widest[1:].mean())
    assert known.row("positions").value == pytest.approx((widest[1:] > 0.01).mean())
    assert known.trades["profit"].sum() == pytest.approx(10_000 * known.row("return").value)
    assert known.row("orders").value >= known.trades.height
    assert bars["action"].drop_nulls().is_in([0.0, 1.0]).all()
    assert one["cash_action"][0] is None


def test_contributions_are_told_and_add_up(known):
    rows = known.information["contributions"]
    assert [row["symbol"] for row in rows] == list(BASKET.symbols)
    assert sum(row["contribution"] for row in rows) == pytest.approx(known.row("return").value, rel=1e-9)
    assert sum(row["turnover"] for row in rows) == pytest.approx(known.row("turnover").value)


def test_hindsight_is_marked_everywhere_and_casts_no_doubt(known):
    assert known.information["hindsight"] == [BEST_SINGLE]
    assert json.loads(known.to_json())["information"]["hindsight"] == [BEST_SINGLE]
    assert "best one (hindsight)" in text_of(known)
    lost = evaluate_policy(ConstantPolicy(np.zeros(4, np.float32)), BASKET, "test", {}, **QUICK)
    assert lost.row("return").baselines[BEST_SINGLE] > 0
    assert not [warning for warning in lost.warnings if "hindsight" in warning]
    assert [warning for warning in lost.warnings if "equal, held" in warning]


def test_the_split_played_in_pieces_comes_close_to_the_table(known):
    params = {**KNOWING, "buy_fee": 1e-5}
    pieces = validate(FollowsTheLast(BASKET), "portfolio", BASKET, "test", params, 4)
    assert pieces["of_optimum"] == pytest.approx(known.row("of_optimum").value, rel=0.01)
    with pytest.raises(LeakError):
        validate(FollowsTheLast(BASKET), "portfolio", BASKET, "train", params, 4)


def test_what_was_saved_is_loaded(known, tmp_path):
    known.save(tmp_path)
    loaded = Evaluation.load(tmp_path, "test")
    assert loaded.to_json() == known.to_json()
    assert loaded.bars.equals(known.bars)
    assert loaded.trades.equals(known.trades)
    assert text_of(loaded) == text_of(known)


def test_the_same_evaluation_twice_is_the_same_to_the_bit(known):
    again = evaluate_policy(FollowsTheLast(BASKET), BASKET, "test", {**KNOWING, "buy_fee": 1e-5}, **QUICK)
    assert again.to_json() == known.to_json()


def test_the_training_split_is_refused():
    with pytest.raises(LeakError, match="shares time with 'train'"):
        evaluate_policy(FollowsTheLast(BASKET), BASKET, "train", KNOWING, **QUICK)


def test_discrete_actions_are_named_and_ends_before_the_last_bar_are_said():
    wild = split_basket()
    params = {"action": "discrete", "bankrupt_at": 0.99}
    with uncompiled():
        found = evaluate_policy(ConstantPolicy(np.array([2, 2, 2])), wild, "test", params, **QUICK)
    assert dict(found.actions) == {"sell": 0.0, "hold": 0.0, "buy": 1.0}
    assert set(found.bars["action"].drop_nulls()) == {"buy"}
    assert any("terminated early" in warning for warning in found.warnings)
    assert any("no trading costs" in warning for warning in found.warnings)
    assert any("equal, held: 1 of 1 episodes terminated early" in note for note in found.notes)


def test_seeds_that_would_fill_the_memory_are_not_kept_in_detail_and_the_notes_say_so(monkeypatch):
    wild = split_basket()
    params = {"buy_fee": 0.005, "slippage": 0.001}  # slippage is drawn
    policy = ConstantPolicy(np.array([1.0, 0.5, 0.0, -1.0], np.float32))
    whole = evaluate_policy(policy, wild, "test", params, **{**QUICK, "seeds": 4})
    assert not [note for note in whole.notes if "memory" in note]
    ((low, high),) = wild.splits["test"]
    monkeypatch.setattr(portfolio_account, "VALUES_IN_DETAIL", 2 * (high - low) * 3 + 1)
    some = evaluate_policy(policy, wild, "test", params, **{**QUICK, "seeds": 4})
    assert any("agent: positions, winning holdings, actions and contributions are those of the first 2 of 4" in note
               for note in some.notes)  # fmt: skip
    assert set(some.trades["seed"]) == {0, 1}
    assert set(whole.trades["seed"]) == {0, 1, 2, 3}
    for name in ("return", "turnover", "orders"):
        assert some.row(name).value == whole.row(name).value
    monkeypatch.setattr(portfolio_account, "VALUES_IN_DETAIL", 1)
    assert set(evaluate_policy(policy, wild, "test", params, **{**QUICK, "seeds": 4}).trades["seed"]) == {0}
