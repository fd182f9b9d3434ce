"""Orders, the bar and brackets of the ledger, worked out by hand from docs/trading.md."""

from __future__ import annotations

import math

import pytest

from tests.oracles.ledger_cases import FLAT, FLAT_BAR, LONG, SHORT, TENFOLD, bar, brackets, ledger, near, posted


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
    ("next_bar", "cash"), [(bar(105, 105, high=110), 100.0), (bar(109.5, 105), 50.0), (bar(115, 105), 0.0)]
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
