"""The ledger against numbers worked out by hand, against its own books, and against recorded torchtrade accounts."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from tests.oracles.trading_ledger import EXIT_CODES, ORDER_CODES, TradingLedger

RECORDINGS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "torchtrade" / "public"

FLAT_BAR = (100.0, 100.0, 100.0, 100.0)  # open, high, low, close


def bar(bar_open: float, bar_close: float | None = None, *, high: float | None = None, low: float | None = None):
    """A bar that moves from open to close and no further, unless told."""
    bar_close = bar_open if bar_close is None else bar_close
    top, bottom = max(bar_open, bar_close), min(bar_open, bar_close)
    return (bar_open, top if high is None else high, bottom if low is None else low, bar_close)


def ledger(rows, **parameters) -> TradingLedger:
    """1,000 of cash, no maintenance margin, no bankruptcy floor: what a case is about it sets itself."""
    settings = {"initial_cash": 1000.0, "maintenance_margin": 0.0, "bankrupt_at": 0.0}
    return TradingLedger(ohlc=rows, **(settings | parameters))


def near(value: float):
    return pytest.approx(value, rel=1e-12, abs=1e-9)


def posted(account: TradingLedger) -> dict[str, float]:
    # The protection also evens out the rounding of an all-in order.
    return {kind: amount for kind, amount in account.posted.items() if abs(amount) > 1e-9}


SHORT, FLAT, LONG = 0, 1, 2  # indices of the default levels (-1, 0, 1)


@pytest.mark.parametrize("level", [SHORT, LONG])
def test_a_debt_larger_than_the_position_is_wiped_out_by_liquidation(level):
    account = ledger(
        [FLAT_BAR] * 3, initial_cash=11_000.0, leverage=10.0, fee=0.01, funding=0.0995, hold_on_same_action=False
    )
    account.step(level)  # 100,000 of notional, fee 1,000, funding 9,950: 50 left
    assert account.equity == near(50.0)
    account.step(level)  # 50/0.11 = 454.5 of notional stay; the fee on the rest is 995.5
    assert (account.order_code, account.exit_code) == ("decreased", "liquidated")
    assert account.cash == account.equity == 0.0
    assert account.step_notional >= 0.0
    assert account.statistics()["return"] == -1.0


# ------------------------------------------------------------------------------- The order: levels and continuous


def test_open_and_close_a_long_with_fee_at_leverage_1():
    account = ledger([FLAT_BAR, bar(100, 110), bar(120, 130)], initial_cash=10_010.0, fee=0.001)
    # 10,010 / 1.001 = 10,000 of notional: 100 units, fee 10, nothing left.
    result = account.step(LONG)
    assert account.order_code == "opened"
    assert account.units == near(100.0)
    assert account.entry == near(100.0)
    assert account.cash == near(0.0)
    assert account.equity == near(11_000.0)
    assert result.reward == near(math.log(11_000 / 10_010))
    assert result == (result.reward, False, False)
    assert account.liquidation_price == 0.0
    # Sold at the open, 120: 12,000 less a fee of 12.
    result = account.step(FLAT)
    assert account.order_code == "closed"
    assert (account.units, account.entry) == (0.0, 0.0)
    assert account.cash == account.equity == near(11_988.0)
    assert result.truncated
    statistics = account.statistics()
    assert statistics["fees"] == near(22.0)
    assert statistics["trades"] == 2
    assert statistics["win_rate"] == 1.0  # (120 - 100)*100 - 0.001*100*220 = 1978 > 0
    assert statistics["turnover"] == near(10_000 / 10_010 + 12_000 / 11_000)
    assert statistics["return"] == near(11_988 / 10_010 - 1)
    assert posted(account) == {
        "margin_posted": near(-10_000.0),
        "margin_released": near(10_000.0),
        "realised_profit": near(2_000.0),
        "fee": near(-22.0),
    }


def test_short_at_leverage_5():
    account = ledger([FLAT_BAR, bar(100, 98), bar(95, 95)], leverage=5.0, maintenance_margin=0.01)
    # 1,000 * 5 = 5,000 of notional: 50 units sold, all cash is margin.
    result = account.step(SHORT)
    assert (account.units, account.entry, account.cash) == (near(-50.0), near(100.0), near(0.0))
    assert account.equity == near(1_100.0)
    assert result.reward == near(math.log(1.1))
    assert account.liquidation_price == near(119.0)  # 100*(1 + 0.2 - 0.01)
    # Exposure 4900/1100; return 0.02; 1 bar; distance (119 - 98)/98; no drawdown; 1 of 2 bars left.
    assert account.account_vector() == near([49 / 11, -1.0, 0.02, 1.0, 5.0, 21 / 98, 0.0, 0.5])
    account.step(FLAT)
    assert account.cash == near(1_250.0)


def test_short_at_leverage_1_has_a_liquidation_price():
    account = ledger([FLAT_BAR, bar(100, 150, high=200)], maintenance_margin=0.01)
    account.step(SHORT)  # 10 units; 100*(1 + 1 - 0.01) = 199 is touched
    assert account.exit_code == "liquidated"
    assert account.cash == near(10.0)  # 1000 - 99*10


def test_increase_averages_the_entry():
    account = ledger([FLAT_BAR, bar(100), bar(80)], leverage=2.0, levels=(0.0, 0.25, 0.5))
    account.step(1)  # 1000*0.25*2 = 500: 5 units, margin 250
    assert (account.units, account.cash) == (near(5.0), near(750.0))
    account.step(2)  # E(80) = 900; 900*0.5*2 = 900: 11.25 units, 6.25 more for 500, margin 250
    assert account.order_code == "increased"
    assert account.units == near(11.25)
    assert account.cash == near(500.0)
    assert account.entry == near(1000 / 11.25)
    assert account.margin_account == near(500.0)
    assert account.equity == near(900.0)
    assert account.hold_counter == 2


def test_refused_increase_is_refused_whole_and_not_retried():
    account = ledger([FLAT_BAR, bar(100), bar(150), bar(150)], leverage=2.0, levels=(0.0, 0.5, 1.0))
    account.step(1)  # 10 units, margin 500, cash 500
    account.step(2)  # E(150) = 1500; target 20 units, 10 more cost 750 > 500
    assert account.order_code == "refused_cash"
    assert (account.units, account.cash, account.previous_level) == (near(10.0), near(500.0), 1.0)
    account.step(2)
    assert account.order_code == "held_same"
    account_that_retries = ledger([FLAT_BAR, bar(100), bar(150), bar(150)], leverage=2.0, action_kind="continuous")
    for level in (0.5, 1.0, 1.0):
        account_that_retries.step(level)
    assert account_that_retries.order_counts == {"opened": 1, "refused_cash": 2}


def test_switch_closes_then_opens_with_what_is_left():
    account = ledger([FLAT_BAR, bar(100), bar(110)], initial_cash=1020.0, leverage=2.0, fee=0.01)
    account.step(LONG)  # 1020/0.51 = 2000: 20 units, margin 1000, fee 20
    account.step(SHORT)  # +200 profit, fee 22, margin back: 1178; 1178/0.51 sold at 110
    assert account.order_code == "switched"
    assert account.units == near(-1178 / 0.51 / 110)
    assert account.entry == near(110.0)
    assert account.cash == near(0.0)
    assert account.hold_counter == 1
    statistics = account.statistics()
    assert statistics["fees"] == near(20.0 + 22.0 + 11.78 / 0.51)
    assert statistics["trades"] == 3
    assert statistics["win_rate"] == 1.0  # 200 - 0.01*20*210 = 158 > 0


def test_switch_that_leaves_nothing_stays_flat_and_is_protected():
    # The second step's sale slips by 20 %: (80 - 100)*100 + 1000 = -1000, which the account does not owe.
    account = ledger([FLAT_BAR] * 3, leverage=10.0, slippage=0.2, fill="close")
    account.step(LONG, u=0.0)
    account.step(SHORT, u=1.0)
    assert account.order_code == "switch_closed"
    assert (account.units, account.cash) == (0.0, 0.0)
    assert account.posted["negative_balance_protection"] == near(1000.0)
    assert account.statistics()["trades"] == 2


def test_decrease_keeps_the_entry():
    account = ledger([FLAT_BAR, bar(100), bar(120)], action_kind="continuous", fee=0.0)
    account.step(1.0)  # 10 units
    account.step(0.25)  # E(120) = 1200; target 300/120 = 2.5; 7.5 sold at 120
    assert account.order_code == "decreased"
    assert (account.units, account.entry, account.cash) == (near(2.5), near(100.0), near(900.0))
    assert account.posted["realised_profit"] == near(150.0)
    assert account.statistics()["win_rate"] == 0.0  # nothing was closed in full


def test_rebalance_band_and_smallest_trade():
    rows = [FLAT_BAR] * 4
    account = ledger(rows, action_kind="continuous", rebalance_band=0.02)
    account.step(0.5)  # 5 units
    account.step(0.505)  # 0.05 more of 5.05 is less than 2 %
    assert account.order_code == "held_band"
    account = ledger(rows, action_kind="continuous", rebalance_band=0.02, initial_cash=10.0)
    account.step(0.5)  # 5 of notional
    account.step(0.59)  # 0.9 more is less than 1 of currency, though more than 2 %
    assert account.order_code == "held_band"
    account.step(0.0)
    assert account.order_code == "closed"


def test_shorts_ruled_out_mean_flat():
    account = ledger([FLAT_BAR] * 4, allow_short=False)
    account.step(SHORT)
    assert (account.order_code, account.units, account.previous_level) == ("none", 0.0, -1.0)
    account.step(LONG)
    account.step(SHORT)
    assert account.order_code == "closed"


def test_prices_on_either_side():
    # c = 0.01 + 0.02*0.5 + 2*ATR/p = 0.02 + 2*1.5/100 = 0.05
    costs = {"half_spread": 0.01, "slippage": 0.02, "slippage_atr": 2.0}
    account = ledger([FLAT_BAR] * 3, atr=[1.5, 0.0, 0.0], **costs)
    account.step(LONG, u=0.5)
    assert account.entry == near(105.0)
    assert account.units == near(1000 / 105)
    account.step(FLAT, u=0.25)  # c = 0.01 + 0.005
    assert account.cash == near(98.5 * 1000 / 105)
    account.reset(0, 2)
    account.step(SHORT, u=0.5)
    assert account.entry == near(95.0)
    account = ledger([FLAT_BAR] * 3, atr=[80.0] * 3, slippage_atr=2.0, leverage=1.0)
    account.step(SHORT)
    assert account.posted["margin_posted"] == near(-1000.0)
    assert account.statistics()["turnover"] == near(1.0 + 2.0)
    # Sold at 100*(1 - 0.99) = 1, 1000 units; liquidated at once, not at 100 but at the bankruptcy price 2.
    assert account.exit_code == "liquidated"
    assert account.posted["realised_profit"] == near(-1000.0)
    account = ledger([FLAT_BAR, bar(100), bar(1)], atr=[80.0, 0.0, 0.0], slippage_atr=2.0, allow_short=False)
    account.step(LONG)
    assert account.entry == near(199.0)


# ------------------------------------------------------------------------------------------------------- The bar

TENFOLD = {"leverage": 10.0, "maintenance_margin": 0.01, "fill": "close"}  # 100 units at 100: liq 91, bankrupt at 90


@pytest.mark.parametrize(
    ("next_bar", "cash"),
    [
        (bar(95, 95, low=90), 100.0),  # at the level, 91: -900 + 1000
        (bar(90.5, 95), 50.0),  # opened past it: -950 + 1000
        (bar(85, 95), 0.0),  # held at the bankruptcy price, 90
        (bar(95, 95, low=91), 100.0),  # a touch is enough
    ],
)
def test_liquidation_of_a_long(next_bar, cash):
    account = ledger([FLAT_BAR, next_bar], **TENFOLD)
    result = account.step(LONG)
    assert account.exit_code == "liquidated"
    assert account.units == 0.0
    assert account.cash == near(cash)
    assert result.reward == (near(math.log(cash / 1000)) if cash > 0.0 else -10.0)
    assert account.statistics()["liquidations"] == 1
    assert account.statistics()["win_rate"] == 0.0
    assert "negative_balance_protection" not in posted(account)


@pytest.mark.parametrize(
    ("next_bar", "cash"),
    [(bar(105, 105, high=110), 100.0), (bar(109.5, 105), 50.0), (bar(115, 105), 0.0)],
)
def test_liquidation_of_a_short(next_bar, cash):
    account = ledger([FLAT_BAR, next_bar], **TENFOLD)
    account.step(SHORT)
    assert account.exit_code == "liquidated"
    assert account.cash == near(cash)


def test_bankruptcy_price_leaves_room_for_the_fee():
    # 1010/(0.1 + 0.001) = 10,000: 100 units. Bankrupt at 90/0.999: the fee of 9000*0.001/0.999 is what is left of 10.
    account = ledger([FLAT_BAR, bar(80)], initial_cash=1010.0, fee=0.001, **TENFOLD)
    account.step(LONG)
    assert account.cash == near(0.0)
    assert account.statistics()["fees"] == near(10.0 + 9.0 / 0.999)
    assert account.posted["realised_profit"] == near((90 / 0.999 - 100) * 100)


def test_liquidation_at_the_open_drops_the_order():
    account = ledger([FLAT_BAR, bar(100), bar(90.5, 100)], **(TENFOLD | {"fill": "next_open"}))
    account.step(LONG)
    account.step(SHORT)
    assert (account.order_code, account.exit_code) == ("dropped", "liquidated")
    assert account.cash == account.equity == near(50.0)
    assert account.previous_level == 1.0


def test_an_order_at_the_open_goes_before_the_bar():
    account = ledger([FLAT_BAR, bar(100), bar(91.5, low=80)], **(TENFOLD | {"fill": "next_open"}))
    account.step(LONG)
    account.step(FLAT)
    assert (account.order_code, account.exit_code) == ("closed", "none")
    assert account.cash == near(150.0)


def test_bankruptcy_floor_is_strict():
    account = ledger([FLAT_BAR, bar(100, 10), bar(10, 9.99)], bankrupt_at=0.1)
    assert not account.step(LONG).terminated  # 100 is not below 0.1*1000
    result = account.step(LONG)
    assert result.terminated
    assert result.truncated


# ------------------------------------------------------------------------------------------------------ Brackets


def brackets(rows, stop: float, target: float, **parameters) -> TradingLedger:
    """Actions: 0 HOLD, 1 CLOSE, 2 long, 3 short."""
    settings = {"action_kind": "brackets", "stop_loss": (stop,), "take_profit": (target,)}
    return ledger(rows, **(TENFOLD | settings | parameters))


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize(
    ("stop", "target", "offsets", "exit_code", "fill_offset"),
    [
        # Offsets from 100 in the position's favour: open, best, worst. Liquidation at -9, bankruptcy at -10.
        (0.05, 0.2, (-3, 0, -10), "stopped", -5),  # the stop is nearer than the liquidation
        (0.05, 0.2, (-7, 0, -10), "stopped", -7),  # opened past the stop, short of the liquidation
        (0.05, 0.2, (-9.5, 0, -10), "liquidated", -9.5),  # opened past both
        (0.095, 0.2, (-3, 0, -11), "liquidated", -9),  # the liquidation is nearer
        (0.05, 0.03, (0, 4, -6), "stopped", -5),  # both in one bar: the stop
        (0.095, 0.03, (0, 4, -9.2), "liquidated", -9),  # target and liquidation: the liquidation
        (0.05, 0.03, (6, 7, 6), "target", 3),  # exactly at the target, though it opened beyond
        (0.05, 0.03, (0, 2.9, -4.9), "none", None),
        (0.05, 0.03, (0, 3, -4.9), "target", 3),  # a touch is enough
    ],
)
def test_bracket_priorities(direction, stop, target, offsets, exit_code, fill_offset):
    prices = [100.0 + direction * offset for offset in offsets]
    rows = [FLAT_BAR, (prices[0], max(prices), min(prices), prices[0])]
    account = brackets(rows, stop, target)
    account.step(2 if direction > 0 else 3)
    assert (account.order_code, account.exit_code) == ("opened", exit_code)
    if fill_offset is None:
        assert account.stop == near(100 * (1 - direction * stop))
        assert account.target == near(100 * (1 + direction * target))
        price = rows[1][3]
        values = account.account_vector()
        assert values[8] == near(direction * (price - account.stop) / price)
        assert values[9] == near(direction * (account.target - price) / price)
    else:
        assert (account.stop, account.target) == (0.0, 0.0)
        assert account.cash == near(1000.0 + 100.0 * fill_offset)  # 100 units
        assert account.account_vector()[8:] == [0.0, 0.0]


@pytest.mark.parametrize("direction", [1, -1])
def test_a_tie_with_the_liquidation_price_is_a_liquidation(direction):
    # Leverage 4 and no maintenance margin: exactly 75 (125), the same number as the bankruptcy price. Stop at 12.5 %.
    tie = 100.0 - direction * 25.0
    action = 2 if direction > 0 else 3
    exact = {"leverage": 4.0, "maintenance_margin": 0.0}
    account = brackets([FLAT_BAR, bar(tie)], 0.125, 0.5, **exact)
    account.step(action)
    assert (account.exit_code, account.cash) == ("liquidated", 0.0)  # opened at both
    account = brackets([FLAT_BAR, bar(100, tie)], 0.125, 0.5, **exact)
    account.step(action)
    assert (account.exit_code, account.cash) == ("stopped", 500.0)  # 40 units lose 12.5
    account = brackets([FLAT_BAR, bar(100, tie)], 0.25, 0.5, **exact)
    account.step(action)
    assert account.exit_code == "liquidated"  # a stop at the liquidation price is not nearer


def test_bracket_action_list():
    grid = {"action_kind": "brackets", "stop_loss": (0.1, 0.2), "take_profit": (0.3, 0.4)}
    names = [tuple(action) for action in ledger([FLAT_BAR], **grid).bracket_actions]
    pairs = [(0.1, 0.3), (0.1, 0.4), (0.2, 0.3), (0.2, 0.4)]
    assert names[:2] == [("hold", 0, 0.0, 0.0), ("close", 0, 0.0, 0.0)]
    assert names[2:] == [("entry", 1, *pair) for pair in pairs] + [("entry", -1, *pair) for pair in pairs]
    bare = ledger([FLAT_BAR], **grid, include_hold=False, include_close=False, allow_short=False)
    assert [tuple(action) for action in bare.bracket_actions] == [("entry", 1, *pair) for pair in pairs]


def test_bracket_orders():
    account = brackets([FLAT_BAR] * 9, 0.05, 0.2)
    codes = []
    for action in (0, 1, 2, 2, 0, 3, 1):
        account.step(action)
        codes.append(account.order_code)
    assert codes == ["none", "none", "opened", "ignored", "none", "switched", "closed"]
    locked = brackets([FLAT_BAR] * 9, 0.05, 0.2, lock_position=True)
    codes = []
    for action in (0, 2, 2, 3, 1):
        locked.step(action)
        codes.append(locked.order_code)
    assert codes == ["none", "opened", "locked", "locked", "locked"]


def test_bracket_sizes():
    account = brackets([FLAT_BAR] * 2, 0.05, 0.2, position_fraction=0.5, fee=0.1)
    account.step(2)  # 500/(0.1 + 0.1) = 2500 of notional; margin 250 and fee 250
    assert (account.units, account.cash) == (near(25.0), near(500.0))
    account = brackets([FLAT_BAR] * 2, 0.05, 0.2, trade_mode="notional", quantity_per_trade=3000.0)
    account.step(3)
    assert (account.units, account.cash) == (near(-30.0), near(700.0))
    account = brackets([FLAT_BAR] * 3, 0.05, 0.2, trade_mode="quantity", quantity_per_trade=100.5)
    account.step(2)
    assert (account.order_code, account.units) == ("refused_cash", 0.0)  # 10,050/10 > 1000


def test_bracket_switch_that_cannot_be_paid_for():
    rows = [FLAT_BAR, bar(99.0), bar(99.0)]
    account = brackets(rows, 0.05, 0.2, trade_mode="quantity", quantity_per_trade=95.0)
    account.step(2)  # margin 950
    account.step(3)  # 50 - 95 + 950 = 905 < 95*99/10 = 940.5
    assert (account.order_code, account.units, account.stop) == ("switch_closed", 0.0, 0.0)
    assert account.cash == near(905.0)


# ------------------------------------------------------------------------------------------------------- Funding


def test_funding_debt_moves_the_liquidation_price():
    rows = [FLAT_BAR, bar(100), bar(100), bar(100, low=51.5)]
    account = ledger(rows, leverage=2.0, funding=0.01)
    account.step(LONG)  # 20 units, cash 0; due 0.01*2000 = 20
    assert account.cash == near(-20.0)
    assert account.margin_fraction == near(0.49)
    assert account.liquidation_price == near(51.0)
    account.step(LONG)
    assert account.cash == near(-40.0)
    assert account.liquidation_price == near(52.0)
    account.step(LONG)  # -40 - 48*20 + 1000 = 0; the free price 50 would not have been touched
    assert account.exit_code == "liquidated"
    assert account.equity == near(0.0)
    assert account.statistics()["funding"] == near(40.0)


def test_funding_debt_at_leverage_1():
    account = ledger([FLAT_BAR, bar(100), bar(100, low=1.0)], funding=0.02, maintenance_margin=0.01)
    account.step(LONG)  # 10 units, debt 20: margin 980 of 1000
    assert account.liquidation_price == near(100 * (1 - 0.98 + 0.01))
    assert account.account_vector()[5] == near(0.97)
    account.step(LONG)
    assert account.exit_code == "liquidated"
    assert account.cash == near(10.0)  # -20 + 3*10


def test_funding_takes_no_more_than_there_is():
    account = ledger([FLAT_BAR] * 4, leverage=2.0, funding=0.9)
    result = account.step(LONG)  # due 1800, equity 1000
    assert (account.cash, account.equity, result.reward) == (near(-1000.0), near(0.0), -10.0)
    result = account.step(LONG)  # bankrupt at 100: liquidated at the next open
    assert (account.exit_code, account.order_code) == ("liquidated", "dropped")
    assert result.reward == 0.0
    assert account.cash == near(0.0)


def test_close_fills_let_an_order_go_before_the_liquidation():
    # Funding has moved the liquidation price to the close, 100; the order fills at that close.
    account = ledger([FLAT_BAR, bar(100), bar(90)], leverage=2.0, funding=0.5, fill="close")
    account.step(LONG)
    assert account.liquidation_price == near(100.0)
    account.step(FLAT)
    assert (account.order_code, account.exit_code) == ("closed", "none")


def test_perpetual_funding_and_funding_by_column():
    rows = [FLAT_BAR] * 4
    account = ledger(rows, leverage=2.0, funding=0.01, funding_side="perpetual")
    account.step(SHORT)
    assert account.cash == near(20.0)
    assert account.statistics()["funding"] == near(-20.0)
    column = [9.0, 0.01, -0.02, 0.0]  # the value of the start bar is never used
    account = ledger(rows, leverage=2.0, funding_column=column)
    account.step(LONG)
    assert account.cash == near(-20.0)
    account.step(LONG)
    assert account.cash == near(20.0)
    account.step(LONG)
    assert account.cash == near(20.0)


def test_protection_never_deepens_nor_forgives_a_debt_while_a_position_remains():
    account = ledger([FLAT_BAR] * 4, leverage=2.0, funding_column=[0.0, 0.01, 0.0, 0.0], slippage=0.6, fill="close")
    account.hold_on_same_action = False
    account.levels = (0.0, 0.5, 1.0)
    account.step(2)  # 20 units, debt 20
    # E = 980; at 160 a purchase of 980: 6.125 units kept; 13.875 sold at 40: (40 - 100 + 50)*13.875 = -138.75
    account.step(1, u=1.0)
    assert account.order_code == "decreased"
    assert account.units == near(6.125)
    assert account.cash == near(-20.0)
    assert account.posted["negative_balance_protection"] == near(138.75)
    account.step(0, u=1.0)  # -20 + (40 - 100 + 50)*6.125 = -81.25
    assert account.cash == 0.0
    assert account.posted["negative_balance_protection"] == near(138.75 + 81.25)


# ------------------------------------------------------------------------------------------------ After the bar


def test_session_close():
    rows = [FLAT_BAR, bar(100), bar(100), bar(100)]
    sessions = [False, False, True, False]
    account = ledger(
        rows, session_last=sessions, flat_at_session_end=True, half_spread=0.01, initial_cash=1010.0, fee=0.0
    )
    account.step(LONG)  # 10 units at 101
    assert account.equity == near(1000.0)
    account.step(LONG)
    assert (account.order_code, account.exit_code) == ("held_same", "session_closed")
    assert account.equity == account.cash == near(990.0)  # sold at 99
    assert account.hold_counter == 0
    account.step(LONG)
    assert account.order_code == "opened"


def test_close_fills_do_not_carry_over_the_session_end():
    sessions = [False, True, False, False]
    account = ledger([FLAT_BAR] * 4, session_last=sessions, flat_at_session_end=True, fill="close")
    account.step(LONG)
    assert account.exit_code == "session_closed"
    account.step(LONG)  # at the close of the session's last bar
    assert (account.order_code, account.units, account.previous_level) == ("none", 0.0, 1.0)
    account.step(LONG)
    assert account.order_code == "opened"
    account = brackets([FLAT_BAR] * 4, 0.1, 0.1, session_last=sessions, flat_at_session_end=True)
    codes = []
    for _ in range(3):
        account.step(2)
        codes.append((account.order_code, account.exit_code))
    assert codes == [("opened", "session_closed"), ("none", "none"), ("opened", "none")]


def test_cooldown_gates_the_next_decisions():
    account = ledger([FLAT_BAR] * 9, cooldown=2)
    codes = []
    for action in (FLAT, LONG, FLAT, LONG, SHORT, FLAT, FLAT, LONG):
        account.step(action)
        codes.append(account.order_code)
    # LONG fills; FLAT is gated; LONG again is the same level (a gate leaves prev alone) and uses up the second.
    expected = ["none", "opened", "refused_cooldown", "held_same", "switched", "refused_cooldown", "refused_cooldown"]
    assert codes == [*expected, "switched"]


def test_forced_fills_start_a_cooldown():
    account = ledger([FLAT_BAR, bar(95, 100, low=90), *[FLAT_BAR] * 3], **TENFOLD, cooldown=1)
    codes = []
    for _ in range(3):
        account.step(LONG)
        codes.append((account.order_code, account.exit_code))
    assert codes == [("opened", "liquidated"), ("refused_cooldown", "none"), ("opened", "none")]
    bracket_account = brackets([FLAT_BAR] * 6, 0.1, 0.1, cooldown=1)
    codes = []
    for action in (2, 1, 2, 1):
        bracket_account.step(action)
        codes.append(bracket_account.order_code)
    assert codes == ["opened", "refused_cooldown", "ignored", "closed"]


def test_turnover_cap_holds_for_a_session():
    sessions = [False, False, False, True, False]
    account = ledger([FLAT_BAR] * 5, turnover_cap=1.5, session_last=sessions)
    codes = []
    for action in (LONG, FLAT, LONG, LONG):
        account.step(action)
        codes.append(account.order_code)
    assert codes == ["opened", "closed", "refused_turnover", "opened"]  # 0, 1, 2 used; then a new session
    assert account.statistics()["turnover"] == near(3.0)


def test_drawdown_rules():
    rows = [FLAT_BAR, bar(100, 120), bar(120, 96), bar(96, 96)]
    account = ledger(rows, max_drawdown=0.19)
    assert [account.step(LONG).terminated for _ in range(2)] == [False, True]  # 1 - 96/120 = 0.2
    assert account.statistics()["max_drawdown"] == near(0.2)
    account = ledger(rows, daily_drawdown=0.1)
    assert [account.step(LONG).terminated for _ in range(2)] == [False, False]  # 0.04 below the start
    account = ledger(rows, daily_drawdown=0.1, session_last=[False, True, False, False])
    assert [account.step(LONG).terminated for _ in range(2)] == [False, True]  # 0.2 below the first session's end
    account = ledger(rows, daily_drawdown=0.1, session_last=[False, False, True, False])
    assert [account.step(LONG).terminated for _ in range(3)] == [False, False, False]


# ------------------------------------------------------------------------------------------------------- Rewards


@pytest.mark.parametrize(
    ("parameters", "rewards"),
    [
        # Equity 1000, 1100, 1045 (-5 %), 1045.
        ({"reward": "log_return"}, [math.log(1.1), math.log(0.95), 0.0]),
        ({"reward": "return"}, [0.1, -0.05, 0.0]),
        ({"reward": "return", "turnover_penalty": 0.01}, [0.09, -0.05, 0.0]),  # turnover 1 in the first step
        ({"reward": "drawdown", "drawdown_penalty": 2.0}, [math.log(1.1), math.log(0.95) - 2 * 0.05, 0.0]),
        # A, B after the first step: 0.05, 0.005; variance 0.0025, to the power 1.5: 0.000125.
        # Second: (0.005*(-0.05 - 0.05) - 0.05*(0.0025 - 0.005)/2)/0.000125 = -3.5; then A = 0, B = 0.00375.
        # Third: R = 0: (0.00375*0 - 0)/... = 0.
        ({"reward": "differential_sharpe", "sharpe_decay": 0.5}, [0.0, -3.5, 0.0]),
    ],
)
def test_rewards(parameters, rewards):
    account = ledger([FLAT_BAR, bar(100, 110), bar(110, 104.5), bar(104.5)], **parameters)
    assert [account.step(LONG).reward for _ in range(3)] == near(rewards)
    statistics = account.statistics()
    assert statistics["reward"] == near(sum(rewards))
    assert statistics["length"] == 3
    mean, square = 0.05 / 3, 0.0125 / 3
    assert statistics["sharpe"] == near(mean / math.sqrt(square - mean**2))


# ---------------------------------------------------------------------------------------------------- Bookkeeping


def test_episode_of_no_bars():
    account = ledger([FLAT_BAR] * 2)
    account.reset(1, 1)
    assert account.step(LONG) == (0.0, False, True)
    assert (account.order_code, account.units, account.trades) == ("exhausted", 0.0, 0)
    assert account.account_vector() == [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_reset_forgets():
    account = ledger([FLAT_BAR, bar(100, 110), bar(110, 50)], fee=0.001, cooldown=3, funding=0.01)
    first = [account.step(LONG), account.step(FLAT), account.statistics(), account.account_vector(), account.journal]
    account.reset(0, 2)
    assert account.journal == []
    second = [account.step(LONG), account.step(FLAT), account.statistics(), account.account_vector(), account.journal]
    assert first == second


@pytest.mark.parametrize("name", ["cash", "units", "entry", "fees_paid", "margin_account"])
def test_audit_notices_a_tampered_account(name):
    account = ledger([FLAT_BAR] * 3, fee=0.001, leverage=3.0)
    account.step(LONG)
    setattr(account, name, getattr(account, name) + 0.001)
    with pytest.raises(AssertionError):
        account.step(LONG)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="not one of"):
        ledger([FLAT_BAR], fill="open")
    with pytest.raises(ValueError, match="positive fractions"):
        ledger([FLAT_BAR], action_kind="brackets", stop_loss=(-0.1,))
    with pytest.raises(ValueError, match="one value per bar"):
        ledger([FLAT_BAR], atr=[])
    with pytest.raises(ValueError, match="whole number"):
        ledger([FLAT_BAR] * 2).step(-1)
    with pytest.raises(ValueError, match=r"\[-1, 1\]"):
        ledger([FLAT_BAR] * 2, action_kind="continuous").step(math.nan)


def random_market(generator: random.Random, bars: int):
    rows, closing = [], 100.0
    for _ in range(bars):
        opening = closing * math.exp(generator.choice((0.0, 0.0, 0.02, 0.2)) * generator.gauss(0.0, 1.0))
        closing = opening * math.exp(0.03 * generator.gauss(0.0, 1.0))
        reach = math.exp(abs(generator.gauss(0.0, 0.03)))
        rows.append((opening, max(opening, closing) * reach, min(opening, closing) / reach, closing))
    return rows


@pytest.mark.parametrize("seed", range(60))
def test_books_balance_under_any_settings(seed):
    """The assertions are the ledger's own, after every step."""
    generator = random.Random(seed)
    pick = generator.choice
    bars = 300
    account = TradingLedger(
        ohlc=random_market(generator, bars),
        atr=[generator.uniform(0.0, 5.0) for _ in range(bars)],
        session_last=[generator.random() < 0.1 for _ in range(bars)],
        funding_column=pick((None, [generator.gauss(0.0, 0.02) for _ in range(bars)])),
        leverage=pick((1.0, 1.0, 2.0, 5.5, 20.0)),
        fee=pick((0.0, 0.001, 0.01)),
        maintenance_margin=pick((0.0, 0.004)),
        half_spread=pick((0.0, 0.001)),
        slippage=pick((0.0, 0.01, 0.5)),
        slippage_atr=pick((0.0, 0.1)),
        funding=pick((0.0, 0.001, 0.1, -0.01)),
        funding_side=pick(("holder", "perpetual")),
        fill=pick(("next_open", "close")),
        allow_short=pick((True, True, False)),
        action_kind=pick(("levels", "continuous", "brackets")),
        levels=(-1.0, -0.5, 0.0, 0.25, 0.5, 1.0),
        hold_on_same_action=pick((None, True, False)),
        lock_position=pick((False, False, True)),
        trade_mode=pick(("fractional", "notional", "quantity")),
        quantity_per_trade=pick((1.0, 20.0)),
        cooldown=pick((0, 0, 3)),
        turnover_cap=pick((0.0, 0.0, 3.0)),
        flat_at_session_end=pick((False, True)),
        bankrupt_at=0.0,
        reward=pick(("log_return", "return", "differential_sharpe", "drawdown")),
        initial_cash=pick((10.0, 1000.0, 1e6)),
    )
    count = len(account.bracket_actions) or len(account.levels)
    for _ in range(5):
        start = generator.randrange(bars - 50)
        account.reset(start, bars - 1)
        truncated = False
        while not truncated:
            continuous = account.action_kind == "continuous"
            action = generator.uniform(-1.0, 1.0) if continuous else generator.randrange(count)
            reward, _, truncated = account.step(action, generator.random())
            assert math.isfinite(reward)
            assert all(map(math.isfinite, account.account_vector()))
            assert account.order_code in ORDER_CODES
            assert account.exit_code in EXIT_CODES
        assert account.cash == pytest.approx(
            account.initial_cash + math.fsum(entry.amount for entry in account.journal),
            rel=1e-9,
            abs=1e-9 * account.largest_posting,
        )
        assert all(map(math.isfinite, account.statistics().values()))
        assert account.statistics()["length"] == bars - 1 - start


# -------------------------------------------------------------------------------------- Recorded torchtrade accounts


def recorded_files() -> list:
    if not RECORDINGS.is_dir():
        reason = f"the recorded torchtrade trajectories are not here: {RECORDINGS}"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="absent")]
    files = [path for path in sorted(RECORDINGS.glob("*.npz")) if not path.name.startswith("data_")]
    return [pytest.param(path, id=path.stem) for path in files]


def torchtrade_parameters(description: dict) -> dict:
    """The ledger's parameters for a recorded configuration (FORMAT.md, sections 4 and 5)."""
    config = description["config"]
    parameters = {
        "initial_cash": float(config["initial_cash"]),
        "fee": config["transaction_fee"],
        "leverage": float(config["leverage"]),
        "maintenance_margin": config["maintenance_margin_rate"],
        "bankrupt_at": config["bankrupt_threshold"],
        "fill": "close",
        "account_values": "torchtrade",
    }
    if description["kind"] == "base":
        levels = config["action_levels"]
        # Shorts need leverage there, and a level that asks for them.
        return parameters | {"levels": levels, "allow_short": config["leverage"] > 1 and min(levels) < 0}
    return parameters | {
        "action_kind": "brackets",
        "allow_short": config["leverage"] > 1,
        "stop_loss": [-level for level in config["stoploss_levels"]],  # negative there
        "take_profit": config["takeprofit_levels"],
        "include_hold": config["include_hold_action"],
        "include_close": config["include_close_action"],
        "lock_position": config["lock_position_until_sltp"],
        "trade_mode": config["trade_mode"],
        "position_fraction": config["position_fraction"],
        "quantity_per_trade": config["quantity_per_trade"],
    }


def replay(parameters: dict, recording: dict) -> dict[str, np.ndarray]:
    """What the ledger makes of the recorded bars and actions; arrays as in FORMAT.md, section 1."""
    values: dict[str, list] = {name: [] for name in COMPARED}
    for episode, (first, end) in enumerate(zip(recording["ep_offset"][:-1], recording["ep_offset"][1:], strict=True)):
        # Prices are float32 and used as float64.
        rows = [recording["ep_reset_ohlcv"][episode].tolist(), *recording["bar_ohlcv"][first:end].tolist()]
        last = int(recording["ep_end_index"][episode] - recording["ep_start_index"][episode]) - 1
        rows += rows[-1:] * (last + 1 - len(rows))  # never reached: the episode was terminated before
        account = TradingLedger(ohlc=rows, **parameters)
        account.reset(0, last)
        assert account.equity == recording["ep_reset_portfolio_value"][episode]
        assert account.account_vector() == recording["ep_reset_account_state"][episode].tolist()
        for action in recording["action"][first:end].tolist():
            result = account.step(action)
            values["balance"].append(account.cash)
            values["position_size"].append(account.units)
            values["entry_price"].append(account.entry)
            values["portfolio_value"].append(account.equity)
            values["hold_counter"].append(account.hold_counter)
            values["liquidation_price"].append(account.liquidation_price)
            values["stop_loss"].append(account.stop)
            values["take_profit"].append(account.target)
            values["reward64"].append(result.reward)
            values["terminated"].append(result.terminated)
            values["truncated"].append(result.truncated)
            values["account_state"].append(account.account_vector())
        assert result.terminated or result.truncated
    return {name: np.array(column) for name, column in values.items()}


COMPARED = (
    *("balance", "position_size", "entry_price", "portfolio_value", "hold_counter", "liquidation_price"),
    *("stop_loss", "take_profit", "reward64", "terminated", "truncated", "account_state"),
)


@pytest.mark.parametrize("path", recorded_files())
def test_recorded_torchtrade_accounts(path):
    """Tolerances of FORMAT.md, section 6."""
    with np.load(path, allow_pickle=False) as file:
        recording = {name: file[name] for name in file.files if not name.startswith("win_")}
    description = json.loads(str(recording["config"]))
    parameters = torchtrade_parameters(description)
    if description["kind"] == "sltp":
        check_action_map(description["config"]["action_map"], parameters)
    ours = replay(parameters, recording)

    soft = recording["soft"]
    cash = parameters["initial_cash"]
    for name in ("terminated", "truncated"):
        np.testing.assert_array_equal(ours[name], recording[name], err_msg=name)
    assert np.all(np.abs(ours["portfolio_value"][soft]) <= 1e-6 * cash)

    firm = ~soft
    np.testing.assert_array_equal(ours["hold_counter"][firm], recording["hold_counter"][firm])
    absolute = {"balance": 1e-9 * max(1.0, cash), "portfolio_value": 1e-9 * max(1.0, cash), "reward64": 1e-9}
    for name, tolerance in absolute.items():
        np.testing.assert_allclose(ours[name][firm], recording[name][firm], rtol=0.0, atol=tolerance, err_msg=name)
    for name in ("position_size", "entry_price", "liquidation_price", "stop_loss", "take_profit"):
        np.testing.assert_allclose(ours[name][firm], recording[name][firm], rtol=1e-9, atol=0.0, err_msg=name)
    account_state = recording["account_state"].astype(np.float64)
    tolerance = 1.2e-7 * np.maximum(1.0, np.abs(account_state))
    difference = np.abs(ours["account_state"].astype(np.float32).astype(np.float64) - account_state)
    assert np.all((difference <= tolerance)[firm])


def check_action_map(recorded: list, parameters: dict) -> None:
    """The recorded list writes a short's stop and target with their signs flipped."""
    account = TradingLedger(ohlc=[FLAT_BAR], **parameters)
    ours = []
    for kind, direction, stop, target in account.bracket_actions:
        name = {"hold": None, "close": "close", "entry": "long" if direction > 0 else "short"}[kind]
        signs = (-direction * stop, direction * target) if kind == "entry" else (None, None)
        ours.append([name, *signs])
    assert ours == recorded
