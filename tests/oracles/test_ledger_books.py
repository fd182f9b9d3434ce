"""Funding, risk rules, rewards and bookkeeping of the ledger, worked out by hand from docs/trading.md."""

from __future__ import annotations

import math
import random

import pytest

from tests.oracles.ledger_cases import FLAT, FLAT_BAR, LONG, SHORT, TENFOLD, bar, brackets, ledger, near
from tests.oracles.trading_account import EXIT_CODES, ORDER_CODES
from tests.oracles.trading_ledger import TradingLedger

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


# -------------------------------------------------------------------------------------- The mark, the books and the end


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
