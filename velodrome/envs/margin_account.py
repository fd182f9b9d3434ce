"""A margin account of one instrument: what it is worth, when it is liquidated, and how an order changes it.

Isolated margin: a position of `units` entered at `entry` ties up |units| · entry / leverage; the rest is free `cash`.
Every function takes an Account and returns a new one, in the subset of Python that Numba compiles for CPU and CUDA.
"""

from __future__ import annotations

import math
from typing import NamedTuple

# What became of an order, and what the bar did. Counted per episode; the names are CODE_NAMES.
CODE_NAMES = (
    "none", "held_same", "held_band", "opened", "closed", "switched", "switch_closed", "increased", "decreased",
    "refused_cash", "refused_cooldown", "refused_turnover", "locked", "ignored", "dropped", "exhausted",
    "liquidated", "stopped", "target", "session_closed",
)  # fmt: skip
(
    NONE, HELD_SAME, HELD_BAND, OPENED, CLOSED, SWITCHED, SWITCH_CLOSED, INCREASED, DECREASED,
    REFUSED_CASH, REFUSED_COOLDOWN, REFUSED_TURNOVER, LOCKED, IGNORED, DROPPED, EXHAUSTED,
    LIQUIDATED, STOPPED, TARGET, SESSION_CLOSED,
) = range(len(CODE_NAMES))  # fmt: skip
CODES = len(CODE_NAMES)

FRACTIONAL, NOTIONAL, QUANTITY = 0, 1, 2  # sizes of a bracket entry
HOLD, CLOSE = 0.0, 2.0  # sides of bracket actions; +1 and −1 are entries


class Terms(NamedTuple):
    """What trading costs this episode."""

    margin: float  # 1 / leverage
    fee: float
    maintenance: float


class Account(NamedTuple):
    """The account within a step, and what the step did to it so far."""

    cash: float
    units: float
    entry: float
    stop: float
    target: float
    traded: float  # notional
    fees: float
    trades: int
    closed: int
    wins: int


def equity_at(account: Account, price: float, terms: Terms) -> float:
    if account.units == 0.0:
        return account.cash
    return account.cash + abs(account.units) * account.entry * terms.margin + (price - account.entry) * account.units


def position_margin(account: Account, terms: Terms) -> float:
    """Return the margin behind a position as a fraction of its entry value; a funding debt weighs on it."""
    if account.cash >= 0.0:
        return terms.margin
    return terms.margin + account.cash / (abs(account.units) * account.entry)


def liquidation_price(account: Account, terms: Terms) -> float:
    """Return the price at which the position is liquidated; 0 if none."""
    if account.units == 0.0 or (terms.margin >= 1.0 and account.units > 0.0 and account.cash >= 0.0):
        return 0.0
    margin = position_margin(account, terms)
    if account.units > 0.0:
        return max(0.0, account.entry * (1.0 - margin + terms.maintenance))
    return account.entry * (1.0 + margin - terms.maintenance)


def liquidation_fill(account: Account, opened_at: float, liquidation: float, terms: Terms) -> float:
    """Return the price of a liquidation: the worse of open and level, but not beyond the bankruptcy price."""
    margin = position_margin(account, terms)
    if account.units > 0.0:
        return max(min(opened_at, liquidation), account.entry * (1.0 - margin) / (1.0 - terms.fee))
    return min(max(opened_at, liquidation), account.entry * (1.0 + margin) / (1.0 + terms.fee))


def realise(account: Account, part: float, price: float, terms: Terms) -> Account:
    """Turn a signed part of the position into cash; the whole of it closes the position."""
    fee = abs(part) * price * terms.fee
    released = abs(part) * account.entry * terms.margin
    cash = account.cash + (price - account.entry) * part - fee + released
    traded = account.traded + abs(part) * price
    if part == account.units:
        gain = (price - account.entry) * part - terms.fee * abs(part) * (price + account.entry)
        wins = account.wins + 1 if gain > 0.0 else account.wins
        return Account(
            max(0.0, cash), 0.0, 0.0, 0.0, 0.0, traded, account.fees + fee, account.trades + 1, account.closed + 1, wins
        )
    return Account(
        max(min(account.cash, 0.0), cash), account.units - part, account.entry, account.stop, account.target,
        traded, account.fees + fee, account.trades + 1, account.closed, account.wins,
    )  # fmt: skip


def enlarge(account: Account, added: float, price: float, stop: float, target: float, terms: Terms) -> Account:
    """Open or increase by signed units, if affordable; an account that stays the same was refused."""
    notional = abs(added) * price
    fee = notional * terms.fee
    need = notional * terms.margin + fee
    if added == 0.0 or not need <= account.cash * (1.0 + 1e-9):
        return account
    held = abs(account.units)
    entry = price if held == 0.0 else (account.entry * held + price * abs(added)) / (held + abs(added))
    return Account(
        max(0.0, account.cash - need), account.units + added, entry, stop, target,
        account.traded + notional, account.fees + fee, account.trades + 1, account.closed, account.wins,
    )  # fmt: skip


def account_with_cash(account: Account, cash: float) -> Account:
    return Account(
        cash, account.units, account.entry, account.stop, account.target, account.traded, account.fees, account.trades,
        account.closed, account.wins,
    )  # fmt: skip


def order_level(
    level: float, quote: float, cost: float, band: float, floor: float, account: Account, terms: Terms
) -> tuple[Account, int]:
    """Bring the position to the exposure `level`; return the account and a code."""
    units = account.units
    if level == 0.0:
        if units == 0.0:
            return account, NONE
        price = quote * (1.0 - cost) if units > 0.0 else quote * (1.0 + cost)
        return realise(account, units, price, terms), CLOSED
    price = quote * (1.0 + cost) if level > 0.0 else quote * (1.0 - cost)
    per_unit_of_equity = abs(level) / (terms.margin + terms.fee)
    wanted = math.copysign(max(0.0, equity_at(account, quote, terms)) * per_unit_of_equity / price, level)
    if units == 0.0:
        opened = enlarge(account, wanted, price, 0.0, 0.0, terms)
        return opened, OPENED if opened.trades > account.trades else REFUSED_CASH
    if wanted == 0.0:
        opposite = quote * (1.0 - cost) if units > 0.0 else quote * (1.0 + cost)
        return realise(account, units, opposite, terms), CLOSED
    if abs(wanted - units) < max(band * abs(wanted), floor / price):
        return account, HELD_BAND
    if wanted * units < 0.0:
        flat = realise(account, units, price, terms)
        wanted = math.copysign(flat.cash * per_unit_of_equity / price, level)
        opened = enlarge(flat, wanted, price, 0.0, 0.0, terms)
        return opened, SWITCHED if opened.trades > flat.trades else SWITCH_CLOSED
    if abs(wanted) > abs(units):
        increased = enlarge(account, wanted - units, price, 0.0, 0.0, terms)
        return increased, INCREASED if increased.trades > account.trades else REFUSED_CASH
    opposite = quote * (1.0 - cost) if units > 0.0 else quote * (1.0 + cost)
    return realise(account, units * (1.0 - abs(wanted) / abs(units)), opposite, terms), DECREASED


def order_bracket(
    side: float, stop: float, target: float, quote: float, cost: float, size: float, mode: int, account: Account,
    terms: Terms,
) -> tuple[Account, int]:  # fmt: skip
    """Close, or enter with a stop and a target; return the account and a code."""
    flat = account
    if account.units != 0.0:
        opposite = quote * (1.0 - cost) if account.units > 0.0 else quote * (1.0 + cost)
        flat = realise(account, account.units, opposite, terms)
    if side == CLOSE:
        return flat, CLOSED
    price = quote * (1.0 + side * cost)
    if mode == FRACTIONAL:
        added = flat.cash * size / (terms.margin + terms.fee) / price
    elif mode == NOTIONAL:
        added = size / price
    else:
        added = size
    opened = enlarge(flat, side * added, price, price * (1.0 - side * stop), price * (1.0 + side * target), terms)
    if opened.trades > flat.trades:
        return opened, SWITCHED if account.units != 0.0 else OPENED
    return flat, SWITCH_CLOSED if account.units != 0.0 else REFUSED_CASH


def play_bar(
    account: Account, opened_at: float, high: float, low: float, brackets: bool, terms: Terms
) -> tuple[Account, int]:
    """Apply liquidation, stop and target of one bar to an open position; return the account and a code."""
    is_long = account.units > 0.0
    stopped = False
    if brackets:
        stopped = low <= account.stop if is_long else high >= account.stop
    liquidation = liquidation_price(account, terms)
    if liquidation > 0.0 and (low <= liquidation if is_long else high >= liquidation):
        stop_is_nearer = account.stop > liquidation if is_long else account.stop < liquidation
        opened_short_of_it = opened_at > liquidation if is_long else opened_at < liquidation
        if not (stopped and stop_is_nearer and opened_short_of_it):
            price = liquidation_fill(account, opened_at, liquidation, terms)
            return realise(account, account.units, price, terms), LIQUIDATED
    if stopped:
        price = min(opened_at, account.stop) if is_long else max(opened_at, account.stop)
        return realise(account, account.units, price, terms), STOPPED
    if brackets and (high >= account.target if is_long else low <= account.target):
        return realise(account, account.units, account.target, terms), TARGET
    return account, NONE
