"""Round trips: their profits are the change of equity, whatever the rule does."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.backtests import backtest
from tests.learn.policies import Recorded, split_market
from tests.oracles.fills import watched_trips
from velodrome.envs.trading.account import CLOSED_POSITION, COUNT_MASK
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.play import Backtest
from velodrome.evaluation.trades import SCHEMA
from velodrome.evaluation.trading.trades import round_trips

MARKET = split_market(bars=150, jump=0.03)
CALM = split_market(bars=150, instruments=1, jump=0.0, volatility=0.001)
CASES = {
    "levels": {"fee": 0.001},
    "free": {},
    "fine levels": {"levels": (-1.0, -0.3, 0.0, 0.5, 1.0), "hold_on_same_action": False, "fee": 0.0005,
                    "rebalance_band": 0.0, "min_trade": 0.0},
    "leverage": {"leverage": 8.0, "fee": 0.002, "funding": 0.001, "bankrupt_at": 0.0},
    "perpetual": {"leverage": 3.0, "funding_column": "funding_rate", "funding_side": "perpetual"},
    "close": {"fill": "close", "half_spread": 0.001, "slippage_atr": 0.1, "fee": 0.001},
    "slippage": {"slippage": 0.002, "fee": (0.0, 0.002), "leverage": (1.0, 5.0)},
    "sessions": {"flat_at_session_end": True, "half_spread": 0.001, "daily_drawdown": 0.3, "funding": 0.0005},
    "cooldown": {"cooldown": 3, "turnover_cap": 4.0, "fee": 0.001},
    "continuous": {"action": "continuous", "fee": 0.001, "leverage": 2.0},
    "brackets": {"action": "brackets", "fee": 0.001, "leverage": 4.0, "slippage": 0.001, "funding": 0.001},
    "tight brackets": {"action": "brackets", "stop_loss": (0.002, 0.3), "take_profit": (0.003,), "leverage": 10.0},
    "quantity": {"action": "brackets", "trade_mode": "quantity", "quantity_per_trade": 20.0, "fill": "close"},
}  # fmt: skip


def play(params: dict, seed: int, seeds: tuple[int, ...] = (0,), market=MARKET) -> Backtest:
    rng = np.random.default_rng(seed)
    shape = (60, len(market.symbols) * len(seeds))
    kind = params.get("action", "levels")
    if kind == "continuous":
        actions = rng.uniform(-1, 1, shape) * rng.integers(0, 2, shape)
    else:
        stops, targets = len(params.get("stop_loss", (0,) * 3)), len(params.get("take_profit", (0,) * 3))
        count = 2 + 2 * stops * targets if kind == "brackets" else len(params.get("levels", (0,) * 3))
        actions = rng.integers(0, count, shape)
    return backtest(Recorded(actions), market, "test", params, seeds)


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_profits_and_costs_add_up_to_what_happened_to_the_account(name, seed):
    played = play(CASES[name], seed, (0, 7))
    trades = round_trips(played)
    for track in played.tracks:
        for column, drawn in enumerate(played.seeds):
            own = trades.filter((pl.col("symbol") == track.symbol) & (pl.col("seed") == drawn))
            start, end = track.equity[0, column], track.equity[-1, column]
            assert own["profit"].sum() == pytest.approx(end - start, rel=1e-9, abs=1e-9 * start)
            assert own["fees"].sum() == pytest.approx(track.change("fees")[:, column].sum(), rel=1e-9, abs=1e-9 * start)
            assert own["funding"].sum() == pytest.approx(
                track.change("funding")[:, column].sum(), rel=1e-9, abs=1e-9 * start
            )
            traded = (own["units"].abs() * (own["entry_price"] + own["exit_price"])).sum()
            unfinished = own.filter(pl.col("reason") == "end")
            marked = (unfinished["units"].abs() * unfinished["exit_price"]).sum()
            before = track.equity[:-1, column]
            if unfinished.is_empty():
                assert traded - marked == pytest.approx((track.change("turnover")[:, column] * before).sum(), rel=1e-9)
            assert (own["entry_time"] <= own["exit_time"]).all()
            assert (own["bars"] >= 0).all()


@pytest.mark.parametrize("name", CASES)
def test_there_is_a_trade_for_every_position_that_the_rule_closed(name):
    played = play(CASES[name], 3)
    trades = round_trips(played)
    for track in played.tracks:
        codes = track.held("order_code")[1:, 0], track.held("exit_code")[1:, 0]
        own = trades.filter(pl.col("symbol") == track.symbol)
        closed = own.filter(pl.col("reason") != "end")
        # Codes that close a position: closed, switched, switch_closed; liquidated, stopped, target, session_closed.
        expected = np.isin(codes[0], (4, 5, 6)).sum() + (codes[1] >= 16).sum()
        assert closed.height == expected
        assert own.height - closed.height == (track.units[track.bars[0], 0] != 0.0)
        for reason, code in (("liquidated", 16), ("stop", 17), ("target", 18), ("session end", 19)):
            assert closed.filter(pl.col("reason") == reason).height == (codes[1] == code).sum()
    assert CLOSED_POSITION > COUNT_MASK


def test_a_trade_has_the_prices_times_and_costs_of_its_fills():
    # Long at bar 2's open, held, closed at bar 5's open.
    actions = np.array([1, 2, 2, 2, 1, *[1] * 60])[:, None]
    params = {"fee": 0.001, "half_spread": 0.002, "initial_cash": 1000.0}
    played = backtest(Recorded(actions), CALM, "test", params)
    (trade,) = round_trips(played).iter_rows(named=True)
    first = CALM.splits["test"][0][0]
    opens = CALM.ohlc[:, 0]
    entry, leave = opens[first + 2] * 1.002, opens[first + 5] * 0.998
    units = 1000.0 / 1.001 / entry
    assert trade["side"] == "long"
    assert trade["entry_price"] == pytest.approx(entry)
    assert trade["exit_price"] == pytest.approx(leave)
    assert trade["units"] == pytest.approx(units)
    assert trade["bars"] == 3
    assert trade["fees"] == pytest.approx(0.001 * units * (entry + leave))
    assert trade["spread_and_slippage"] == pytest.approx(0.002 * units * (opens[first + 2] + opens[first + 5]))
    assert trade["profit"] == pytest.approx(units * (leave - entry) - trade["fees"])
    assert trade["return"] == pytest.approx(trade["profit"] / (units * entry))
    assert trade["reason"] == "order"
    assert trade["entry_time"].timestamp() * 1e9 == CALM.time[first + 2]
    assert trade["exit_time"].timestamp() * 1e9 == CALM.time[first + 5]


def test_a_position_still_open_at_the_end_is_marked_without_exit_costs():
    played = backtest(ConstantPolicy(2), CALM, "test", {"fee": 0.001})
    (trade,) = round_trips(played).iter_rows(named=True)
    assert trade["reason"] == "end"
    assert trade["exit_price"] == played.tracks[0].price[-1]
    assert trade["fees"] == pytest.approx(0.001 * trade["units"] * trade["entry_price"])


def test_a_switch_is_two_trades():
    actions = np.array([2, 0, 1, *[1] * 60])[:, None]
    trades = round_trips(backtest(Recorded(actions), CALM, "test", {}))
    assert trades["side"].to_list() == ["long", "short"]
    assert trades["exit_time"][0] == trades["entry_time"][1]
    assert trades["exit_price"][0] == trades["entry_price"][1]


def test_an_increase_averages_the_entry_and_a_decrease_the_exit():
    params = {"levels": (0.0, 0.5, 1.0), "rebalance_band": 0.0, "min_trade": 0.0}
    actions = np.array([1, 2, 1, 0, *[0] * 60])[:, None]
    (trade,) = round_trips(backtest(Recorded(actions), CALM, "test", params)).iter_rows(named=True)
    first = CALM.splits["test"][0][0]
    opens = CALM.ohlc[first + 1 : first + 5, 0]
    assert min(opens[:2]) <= trade["entry_price"] <= max(opens[:2])
    assert min(opens[2:]) <= trade["exit_price"] <= max(opens[2:])
    assert trade["bars"] == 3


def test_without_a_fill_there_is_an_empty_table_with_its_columns():
    trades = round_trips(backtest(ConstantPolicy(1), CALM, "test", {}))
    assert trades.is_empty()
    assert dict(trades.schema) == dict(SCHEMA)


def test_only_the_seeds_that_are_asked_for():
    played = play({"slippage": 0.001}, 1, (0, 7))
    assert set(round_trips(played, (7,))["seed"]) == {7}
    assert set(round_trips(played)["seed"]) == {0, 7}


@pytest.mark.parametrize("name", CASES)
def test_trades_are_those_that_the_uncompiled_rule_makes(name):
    for seed in range(3):
        played = play(CASES[name], seed, (0, 7))
        found, expected = round_trips(played), watched_trips(played)
        whole = [column for column, kind in SCHEMA.items() if kind != pl.Float64]
        assert found.select(whole).equals(expected.select(whole))
        for column in set(SCHEMA) - set(whole):
            # Profits and costs come out of sums of the whole account.
            size = {"profit": 1e-9 * 1e4, "funding": 1e-9 * 1e4}.get(column, 1e-12)
            assert found[column].to_numpy() == pytest.approx(expected[column].to_numpy(), rel=1e-7, abs=size), column
