"""The trading rule's codes: integers for what is chosen once, what is asked for, and what happened."""

from __future__ import annotations

LEVELS, CONTINUOUS, BRACKETS = 0, 1, 2  # action kinds
LOG_RETURN, RETURN, DIFFERENTIAL_SHARPE, DRAWDOWN, CUSTOM = 0, 1, 2, 3, 4  # rewards
FRACTIONAL, NOTIONAL, QUANTITY = 0, 1, 2  # sizes of a bracket entry
HOLD, CLOSE = 0.0, 2.0  # sides of bracket actions; +1 and −1 are entries
OPEN_PRICE, HIGH_PRICE, LOW_PRICE, CLOSE_PRICE = 0, 1, 2, 3  # columns of Tables.ohlc

# What became of an order, and what the bar did. Each is counted per episode; CODE_NAMES are their names in this order.
NONE, HELD_SAME, HELD_BAND, OPENED, CLOSED, SWITCHED, SWITCH_CLOSED, INCREASED, DECREASED = range(9)
REFUSED_CASH, REFUSED_COOLDOWN, REFUSED_TURNOVER, LOCKED, IGNORED, DROPPED, EXHAUSTED = range(9, 16)
LIQUIDATED, STOPPED, TARGET, SESSION_CLOSED = range(16, 20)
CODE_NAMES = (
    *("none", "held_same", "held_band", "opened", "closed", "switched", "switch_closed", "increased", "decreased"),
    *("refused_cash", "refused_cooldown", "refused_turnover", "locked", "ignored", "dropped", "exhausted"),
    *("liquidated", "stopped", "target", "session_closed"),
)
CODES = len(CODE_NAMES)
