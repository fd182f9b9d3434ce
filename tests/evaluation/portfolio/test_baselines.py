"""Portfolios without a thought, against accounts kept by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.evaluation.backtests import account_of, backtest
from tests.learn.portfolios import factors_basket, split_basket
from velodrome.envs.portfolio.config import portfolio_config
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.evaluation.baselines import (
    BEST_SINGLE,
    CASH,
    EQUAL_HELD,
    EQUAL_REBALANCED,
    FORECAST,
    HINDSIGHT,
    LABELS,
    MOMENTUM,
    RANDOM,
)
from velodrome.evaluation.portfolio.account import quotes
from velodrome.evaluation.portfolio.baselines import baselines as portfolio_baselines
from velodrome.evaluation.portfolio.baselines import best_single

BASKET = factors_basket(600)
WILD = split_basket()
FEES = {"buy_fee": 0.002, "sell_fee": 0.001, "half_spread": 0.0005}
KINDS = {
    "softmax": {}, "simplex": {"weighting": "simplex"}, "orders": {"action": "orders"},
    "crypto": {"preset": "crypto"}, "raw": {"preset": "alpaca_crypto"},
}  # fmt: skip


def baselines(basket=BASKET, **params):
    config = portfolio_config(**params)
    part = {**params, "start": "first", "episode_length": None}
    space = portfolio_world(basket.split("test"), **part).action_space
    found = {own.name: own for own in portfolio_baselines(config, basket, "test", space, 2)}
    assert list(found) == [FORECAST, MOMENTUM, EQUAL_HELD, EQUAL_REBALANCED, BEST_SINGLE, CASH, RANDOM]
    return found


def played(name, basket=BASKET, **params):
    own = baselines(basket, **params)[name]
    return account_of(backtest(own.policy, basket, "test", params if own.params is None else own.params))


def prices(params):
    """Return the quotes of the first decision and all closes of the split."""
    ((low, high),) = BASKET.splits["test"]
    return quotes(BASKET, portfolio_config(**params))[low], BASKET.close[low:high]


@pytest.mark.parametrize("kind", KINDS)
def test_equal_weights_are_bought_once_with_all_costs_and_held(kind):
    params = {**KINDS[kind], **FEES}
    account = played(EQUAL_HELD, **params)
    first, close = prices(params)
    # A third of the money for each, fees and spread included.
    units = 10_000 / 3 / (first * 1.0005 * 1.002)
    assert np.allclose(account.units[1:, :, 0], units, rtol=1e-6)
    assert np.allclose(account.equity[1:, 0], close[1:] @ units, rtol=1e-6)
    assert account.columns["fills"][-1, 0] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_in_hindsight_is_all_in_what_rose_most(kind):
    params = {**KINDS[kind], **FEES}
    account = played(BEST_SINGLE, **params)
    first, close = prices(params)
    best = int(np.argmax(close[-1] / first))
    assert best_single(BASKET.split("test"), portfolio_config(**params)) == best
    assert np.allclose(account.equity[1:, 0], 10_000 / (1.0005 * 1.002) * close[1:, best] / first[best], rtol=1e-6)
    note = baselines(**params)[BEST_SINGLE].note
    assert BASKET.symbols[best] in note
    assert "nobody knew" in note
    assert "hindsight" in LABELS[BEST_SINGLE]
    assert HINDSIGHT == (BEST_SINGLE,)


@pytest.mark.parametrize("kind", KINDS)
def test_rebalancing_without_costs_earns_the_mean_of_the_returns(kind):
    params = {**KINDS[kind], "buy_fee": 0.0, "sell_fee": 0.0, "fill": "close"}
    account = played(EQUAL_REBALANCED, **params)
    _, close = prices(params)
    growth = np.cumprod((close[1:] / close[:-1]).mean(axis=1))
    assert np.allclose(account.equity[1:, 0] / 10_000, growth, rtol=1e-6)
    dear = played(EQUAL_REBALANCED, **{**params, "buy_fee": 0.01})
    assert dear.equity[-1, 0] < account.equity[-1, 0] * 0.99


@pytest.mark.parametrize("kind", KINDS)
def test_cash_is_cash(kind):
    account = played(CASH, **{**KINDS[kind], **FEES})
    assert (account.equity == 10_000).all()
    assert account.columns["fills"][-1, 0] == 0


def test_stops_and_decay_do_not_sell_what_is_to_be_held():
    forced = {"trailing_stop": 0.001, "max_holding": 3, "decay": 0.5}
    assert played(EQUAL_HELD, **forced).columns["fills"][-1, 0] == 3
    assert "without trailing stops and decay" in baselines(**forced)[EQUAL_HELD].note


@pytest.mark.parametrize(
    ("limits", "invested"),
    [({"max_gross": 0.6}, 0.6), ({"cash_reserve": 0.25}, 0.75), ({"max_weight": 0.2}, 0.6), ({"max_gross": 2.5}, 1.0)],
)
def test_limits_hold_for_baselines_too(limits, invested):
    for name in (EQUAL_HELD, EQUAL_REBALANCED):
        account = played(name, fill="close", **limits)
        # What is bought first is at the quotes, which are the closes of the row before.
        bought = account.units[1, :, 0] * account.price[0]
        assert bought == pytest.approx(np.full(3, 10_000 * invested / 3), rel=1e-5), name


def test_instruments_that_ended_before_the_split_have_no_share():
    ended = split_basket(200, halts=0.0)
    ((low, _),) = ended.splits["test"]
    tradable = ended.tradable.copy()
    tradable[low:, 1] = 0
    opened, close = ended.open.copy(), ended.close.copy()
    opened[low:, 1] = close[low:, 1] = close[low - 1, 1]
    ended = replace(ended, tradable=tradable, open=opened, close=close)
    for name in (EQUAL_HELD, EQUAL_REBALANCED):
        account = played(name, ended, fill="close")
        assert account.held("gross")[1, 0] == pytest.approx(1.0, rel=1e-4), name
        assert (account.units[:, 1] == 0.0).all()
        bought = account.units[1, :, 0] * account.price[0]
        assert bought == pytest.approx(np.array([5_000, 0.0, 5_000]), rel=1e-5), name
        assert "can be had" in baselines(ended)[name].note


def test_an_order_at_the_next_bar_cannot_fill_on_the_first_row_of_a_split():
    brief = split_basket(200, halts=0.0)
    ((low, _),) = brief.splits["test"]
    tradable = brief.tradable.copy()
    tradable[low + 1 :, 1] = 0
    brief = replace(brief, tradable=tradable)
    assert (played(EQUAL_HELD, brief, fill="close").units[1, :, 0] > 0.0).all()
    assert (played(EQUAL_HELD, brief).units[1, :, 0] > 0.0).tolist() == [True, False, True]
    assert played(EQUAL_HELD, brief).held("gross")[1, 0] == pytest.approx(1.0, rel=0.01)


def test_what_is_not_listed_at_the_start_is_left_out_and_what_is_halted_is_bought_later():
    late = split_basket(200)
    ((_, high),) = late.splits["test"]
    late = type(late)(**{**late.__dict__, "splits": {"train": ((4, 8),), "test": ((10, high),)}})
    assert late.close[10, 2] == 0.0, "the last instrument is listed later"
    held = played(EQUAL_HELD, late)
    assert (held.units[:, 2] == 0.0).all()
    assert (held.units[-1, :2] > 0.0).all()
    assert "2 instruments that have a price" in baselines(late)[EQUAL_HELD].note
    rebalanced = played(EQUAL_REBALANCED, late)
    assert (rebalanced.units[-1] > 0.0).all(), "once listed it takes part"


def test_random_actions_are_those_of_the_agent():
    for params in ({}, {"action": "orders"}, {"weighting": "simplex"}):
        own = baselines(**params)[RANDOM]
        assert own.params is None
        assert played(RANDOM, **params).columns["fills"][-1, 0] > 100


@pytest.mark.slow
def test_random_discrete_actions_can_be_played():
    assert played(RANDOM, WILD, action="discrete").columns["fills"][-1, 0] > 100
