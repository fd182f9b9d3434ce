"""Bars and ledgers for cases that are worked out by hand."""

from __future__ import annotations

import pytest

from tests.oracles.trading_ledger import TradingLedger

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

TENFOLD = {"leverage": 10.0, "maintenance_margin": 0.01, "fill": "close"}  # 100 units at 100: liq 91, bankrupt at 90


def brackets(rows, stop: float, target: float, **parameters) -> TradingLedger:
    """Actions: 0 HOLD, 1 CLOSE, 2 long, 3 short."""
    settings = {"action_kind": "brackets", "stop_loss": (stop,), "take_profit": (target,)}
    return ledger(rows, **(TENFOLD | settings | parameters))
