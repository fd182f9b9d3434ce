"""Backtests of portfolios: the plain environment's account, and books by instrument that add up to it."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.evaluation.backtests import account_of, backtest, uncompiled
from tests.learn.policies import Recorded
from tests.learn.portfolios import INSTRUMENTS, KNOWING, FollowsTheLast, factors_basket, split_basket
from velodrome.envs.portfolio.config import portfolio_config
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import ConstantPolicy, RandomPolicy
from velodrome.evaluation.evaluate import evaluate_policy
from velodrome.evaluation.evaluator import draws_anything
from velodrome.evaluation.play import Backtest
from velodrome.evaluation.portfolio.account import PortfolioTrack, contributions
from velodrome.evaluation.portfolio.trades import round_trips
from velodrome.vector.make import make_vec

BASKET = split_basket()
COSTS = {"buy_fee": 0.001, "sell_fee": 0.002, "half_spread": 0.0005}
FAMILIES = {
    "softmax": COSTS,
    "simplex at the close": {**COSTS, "weighting": "simplex", "fill": "close", "max_weight": 0.5, "slippage": 0.001},
    "short": {**COSTS, "weighting": "signed", "allow_short": True, "max_gross": 2.0, "trailing_stop": 0.01},
    "orders": {**COSTS, "action": "orders", "trailing_stop": 0.02, "max_holding": 5, "cash_reserve": 0.1},
    "short orders": {"action": "orders", "allow_short": True, "trailing_stop": 0.01, "sell_fee": 0.003, "lot": 0.01},
    "funding": {"action": "orders", "order_scale": 2.0, "funding": 0.01, "fee_tiers": ((0.0, 0.01), (2e4, 0.001))},
    "float32 units": {**COSTS, "action": "orders", "single_precision": True, "fill": "next_close"},
    "drawn costs": {"buy_fee": (0.0, 0.01), "sell_fee": (0.0, 0.01), "slippage": (0.0, 0.01)},
}


def play(params: dict, seeds=(0, 1), **options) -> Backtest:
    space = portfolio_world(BASKET.split("test"), **params).action_space
    with uncompiled() if params == FAMILIES["drawn costs"] else contextlib.nullcontext():
        return backtest(RandomPolicy(space, 3), BASKET, "test", params, seeds, **options)


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES)
def played(request) -> Backtest:
    return play(request.param)


@pytest.fixture(scope="module")
def account(played) -> PortfolioTrack:
    return account_of(played)


@pytest.mark.parametrize("name", ["softmax", "orders", "short"])
def test_a_backtest_equals_an_environment_stepped_by_hand(name):
    params = FAMILIES[name]
    account = account_of(play(params, seeds=(0,)))
    part = BASKET.split("test")
    envs = make_vec("portfolio", 1, market=part, start="first", autoreset=False, backend="python", **params)
    envs.reset(options={"cursor": part.begin})
    wanted = {"equity": [], "cash": [], "fees": [], "turnover": [], "units": []}
    for step in range(len(account.rewards)):
        _, reward, terminated, truncated, infos = envs.step(account.actions[step])
        assert account.rewards[step, 0] == reward[0]
        for column, values in wanted.items():
            values.append(np.array(envs.column(column))[..., 0])
        if terminated[0] or truncated[0]:
            break
    count = len(wanted["equity"])
    assert account.bars[0] == count == len(part.time[part.begin[0] : part.end[0]]) - 1
    # Compiled and plain differ in the last bits of a fused product at most.
    assert np.allclose(account.equity[1:, 0], wanted["equity"], rtol=1e-12)
    assert np.allclose(account.cash[1:, 0], wanted["cash"], rtol=1e-9, atol=1e-8)
    assert np.allclose(account.units[1:, :, 0], wanted["units"], rtol=1e-9, atol=1e-12)
    assert np.allclose(np.cumsum(account.change("fees")[:, 0]), wanted["fees"], rtol=1e-9)
    assert np.allclose(np.cumsum(account.change("turnover")[:, 0]), wanted["turnover"], rtol=1e-9)
    assert infos["statistics"]["trades"][0] == account.columns["fills"][-1, 0]


def test_contributions_add_up_to_the_return(account):
    found = contributions([account])
    total = (account.equity[-1] / account.equity[0] - 1.0).mean()
    assert [row["symbol"] for row in found] == list(BASKET.symbols)
    assert sum(row["contribution"] for row in found) == pytest.approx(total, abs=1e-9)
    assert sum(row["gain"] - row["costs"] for row in found) == pytest.approx(total, abs=1e-9)
    in_bars = account.flows.net.sum(axis=1)
    assert np.allclose(in_bars, np.diff(account.equity, axis=0), atol=1e-7, rtol=0)


def test_costs_of_instruments_add_up_to_those_of_the_account(account):
    flows = account.flows
    for by_instrument, of_account in (
        (flows.fees, account.change("fees")),
        (flows.spread, account.change("spread_sum")),
        (flows.funding, account.change("funding")),
        (account.turnovers, account.change("turnover")),
    ):
        assert np.allclose(by_instrument.sum(axis=1), of_account, rtol=1e-9, atol=1e-9)


def test_trades_add_up_to_the_change_of_equity(played, account):
    trades = round_trips(played)
    for column, seed in enumerate(played.seeds):
        own = trades.filter(pl.col("seed") == seed)
        change = account.equity[-1, column] - account.equity[0, column]
        assert own["profit"].sum() == pytest.approx(change, abs=1e-6)
        assert own["fees"].sum() == pytest.approx(account.change("fees")[:, column].sum(), rel=1e-9)
        assert own["spread_and_slippage"].sum() == pytest.approx(
            account.change("spread_sum")[:, column].sum(), rel=1e-9
        )
        assert own["funding"].sum() == pytest.approx(account.change("funding")[:, column].sum(), rel=1e-9, abs=1e-9)
    assert (trades["exit_time"] >= trades["entry_time"]).all()


def test_weights_and_cash_are_the_equity(account):
    alive = account.equity > 0
    total = account.weights.sum(axis=1) + account.cash / np.where(alive, account.equity, 1.0)
    assert np.allclose(total[alive], 1.0, atol=1e-9)
    assert np.allclose(np.abs(account.weights[1:]).sum(axis=1), account.held("gross")[1:], atol=1e-9)
    assert np.allclose(np.abs(account.weights[1:]).max(axis=1), account.held("largest")[1:], atol=1e-9)


def test_a_stop_that_is_bought_back_in_the_same_bar_is_two_trades():
    params = {"action": "orders", "trailing_stop": 0.005, "order_scale": 5.0, "fill": "close"}
    bars = len(BASKET.time[BASKET.splits["test"][0][0] : BASKET.splits["test"][0][1]]) - 1
    always = Recorded(np.full((bars, 1, INSTRUMENTS), 0.5, np.float32))
    played = backtest(always, BASKET, "test", params)
    account = account_of(played)
    both = (account.notes["bought"] > 0) & (account.notes["sold"] > 0)
    assert both.any(), "a stop sells, and the order buys again"
    trades = round_trips(played)
    stops = trades.filter(pl.col("reason") == "stop")
    assert stops.height == int((account.notes["forced"] == 1).sum())
    bar, k = (int(index[0]) for index in np.nonzero(both[:, :, 0]))
    symbol, moment = BASKET.symbols[k], account.time[bar]
    own = trades.filter(pl.col("symbol") == symbol)
    times = own.select(pl.col("entry_time", "exit_time").dt.epoch("ns"))
    assert moment in times["exit_time"].to_list()
    assert moment in times["entry_time"].to_list()


def test_an_account_that_is_ruined_keeps_what_is_left_and_holds_nothing():
    params = {"weighting": "signed", "allow_short": True, "max_gross": 3.0, "sell_fee": 0.05, "buy_fee": 0.05}
    account = account_of(play(params))
    assert (account.bars < len(account.rewards)).all()
    for column, last in enumerate(account.bars):
        assert (account.equity[last:, column] == account.equity[last, column]).all()
        assert (account.units[last + 1 :, :, column] == 0.0).all()
        assert (account.rewards[last:, column] == 0.0).all()
    found = contributions([account])
    total = (account.equity[-1] / account.equity[0] - 1.0).mean()
    assert sum(row["contribution"] for row in found) == pytest.approx(total, abs=1e-9)


def test_what_a_short_owes_beyond_the_account_is_kept_apart_and_the_books_say_so():
    rises = split_basket(240, halts=0.0)
    ((low, _),) = rises.splits["test"]
    factor = np.ones(len(rises.time))
    factor[low + 5 :] = 20.0
    rises = replace(rises, open=rises.open * factor[:, None], close=rises.close * factor[:, None])
    params = {"weighting": "signed", "allow_short": True, "fill": "close"}
    short = ConstantPolicy(np.array([-0.5, 0.0, 0.0], np.float32))
    played = backtest(short, rises, "test", params)
    account = account_of(played)
    assert account.bars[0] == 5
    assert account.equity[-1, 0] == 0.0
    assert account.owed[0] > 10_000
    assert account.owed_share == account.owed[0] / 10_000
    total = account.equity[-1, 0] / account.equity[0, 0] - 1.0
    assert sum(row["contribution"] for row in contributions([account])) == pytest.approx(total - account.owed_share)
    assert round_trips(played)["profit"].sum() == pytest.approx(-10_000 - account.owed[0])
    found = evaluate_policy(short, rises, "test", params, samples=20, random_seeds=1)
    assert found.information["owed"] == account.owed_share
    assert account_of(backtest(short, BASKET, "test", params)).owed_share == 0.0


def test_a_short_that_is_enlarged_and_decays_in_one_bar_is_no_long_trade():
    calm = split_basket(240, halts=0.0)
    ((low, high),) = calm.splits["test"]
    actions = np.zeros((high - low - 1, 1, INSTRUMENTS), np.float32)
    actions[0, 0, 0], actions[3, 0, 0] = -0.2, -0.1
    params = {
        "action": "orders", "allow_short": True, "order_scale": 1.0, "fill": "close", "max_holding": 3, "decay": 0.9,
        "buys_restart_holding": False,
    }  # fmt: skip
    played = backtest(Recorded(actions), calm, "test", params)
    account = account_of(played)
    both = (account.notes["bought"] > 0) & (account.notes["sold"] > 0)
    assert both[3, 0, 0]
    trades = round_trips(played)
    assert set(trades["side"]) == {"short"}
    assert trades.height == 1
    assert trades["profit"].sum() == pytest.approx(account.equity[-1, 0] - account.equity[0, 0], abs=1e-6)


def test_seeds_differ_in_what_is_drawn_and_some_may_be_kept_in_detail_alone():
    assert not draws_anything(portfolio_config(**COSTS))
    assert draws_anything(portfolio_config(slippage=0.001))
    assert draws_anything(portfolio_config(buy_fee=(0.0, 0.01)))
    params = FAMILIES["drawn costs"]
    whole, brief = (account_of(play(params, (0, 1, 2), **options)) for options in ({}, {"detailed": 1}))
    assert len(set(whole.equity[-1])) == 3
    assert np.array_equal(whole.equity, brief.equity)
    assert np.array_equal(whole.change("spread_sum"), brief.change("spread_sum"))
    assert brief.units.shape[2] == 1
    assert np.array_equal(whole.units[:, :, :1], brief.units)
    for name, values in whole.per_bar.items():
        assert np.array_equal(values, brief.per_bar[name]), name
    with pytest.raises(ConfigError, match="seeds"):
        play(params, (1, 1))


def test_a_policy_that_knows_the_mean_reaches_the_known_optimum():
    basket = factors_basket(40_000)
    played = backtest(FollowsTheLast(basket), basket, "test", KNOWING)
    account = account_of(played)
    reached = np.log(account.equity[-1, 0] / account.equity[0, 0]) / len(account.rewards)
    assert 0.9 < reached / basket.optimum < 1.1
