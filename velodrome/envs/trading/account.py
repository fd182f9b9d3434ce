"""A margin account of one instrument: what it is worth, when it is liquidated, and how an order changes it.

Isolated margin: a position of `units` entered at `entry` ties up |units| · entry / leverage; the rest is free `cash`.
Every function takes an Account and returns a new one, in the subset of Python that Numba compiles for CPU and CUDA.
`terms` are the parameters as the episode has them (`config.Terms`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from velodrome.envs.trading import codes

SMALLEST_PRICE = 1e-300

# One number for three counts of up to two million: an account is copied at every branch, and on a GPU each field costs
# registers and each state column a memory access.
CLOSED_POSITION = 1 << 21
WON_POSITION = 1 << 42
COUNT_MASK = CLOSED_POSITION - 1


class Account(NamedTuple):
    """The account within a step, and what the step did to it so far."""

    cash: float
    units: float
    entry: float
    stop: float
    target: float
    traded: float  # notional; the fee on it is paid
    events: int  # fills + CLOSED_POSITION · positions closed + WON_POSITION · those of them that won


def unpacked(events: int) -> tuple[int, int, int]:
    """Return the fills, the positions closed and the positions won that `events` count."""
    return events & COUNT_MASK, events // CLOSED_POSITION & COUNT_MASK, events // WON_POSITION


class RewardAccount(NamedTuple):
    """What a user's reward sees of the account before and after a step."""

    equity: float
    cash: float
    units: float
    entry: float
    price: float
    peak: float
    initial: float
    turnover: float  # of this step, times equity; 0 before it
    fees: float  # of this step; 0 before it


class Quote(NamedTuple):
    """What an order fills at."""

    price: float
    cost: float  # how much worse a fill is than the price, as a fraction of it: spread and slippage


class Bracket(NamedTuple):
    """What a bracket action asks for."""

    side: float  # HOLD, CLOSE, +1 or −1
    stop: float  # distances as fractions of the fill price
    target: float


class Bar(NamedTuple):
    """The bar that a step plays."""

    row: int
    open: float
    high: float
    low: float
    close: float


def bought_at(quote: Quote) -> float:
    return quote.price * (1.0 + quote.cost)


def sold_at(quote: Quote) -> float:
    return quote.price * (1.0 - quote.cost)


def left_at(quote: Quote, units: float) -> float:
    """Return the price at which a position is reduced or closed."""
    return sold_at(quote) if units > 0.0 else bought_at(quote)


def equity_at(account: Account, price: float, terms: Any) -> float:
    if account.units == 0.0:
        return account.cash
    return account.cash + abs(account.units) * account.entry * terms.margin + (price - account.entry) * account.units


def position_margin(account: Account, terms: Any) -> float:
    """Return the margin behind a position as a fraction of its entry value; a funding debt weighs on it."""
    if account.cash >= 0.0:
        return terms.margin
    return terms.margin + account.cash / (abs(account.units) * account.entry)


def liquidation_price(account: Account, terms: Any) -> float:
    """Return the price at which the position is liquidated; 0 if none."""
    if (account.units == 0.0) | ((terms.margin >= 1.0) & (account.units > 0.0) & (account.cash >= 0.0)):
        return 0.0
    margin = position_margin(account, terms)
    if account.units > 0.0:
        return max(0.0, account.entry * (1.0 - margin + terms.maintenance_margin))
    # A debt larger than the position can push it to zero or below; it must not be taken for "none".
    return max(SMALLEST_PRICE, account.entry * (1.0 + margin - terms.maintenance_margin))


def liquidation_fill(account: Account, opened_at: float, liquidation: float, terms: Any) -> float:
    """Return the price of a liquidation: the worse of open and level, but not beyond the bankruptcy price."""
    margin = position_margin(account, terms)
    if account.units > 0.0:
        return max(min(opened_at, liquidation), account.entry * (1.0 - margin) / (1.0 - terms.fee))
    return min(max(opened_at, liquidation), max(0.0, account.entry * (1.0 + margin) / (1.0 + terms.fee)))


def realise(account: Account, part: float, price: float, terms: Any) -> Account:
    """Turn a signed part of the position into cash; the whole of it closes the position."""
    closes = part == account.units
    notional = abs(part) * price
    fee = notional * terms.fee
    profit = (price - account.entry) * part
    cash = account.cash + profit - fee + abs(part) * account.entry * terms.margin
    is_win = closes & (profit - terms.fee * abs(part) * (price + account.entry) > 0.0)
    return Account(
        max(0.0 if closes else min(account.cash, 0.0), cash),
        account.units - part,
        0.0 if closes else account.entry,
        0.0 if closes else account.stop,
        0.0 if closes else account.target,
        account.traded + notional,
        account.events + 1 + (CLOSED_POSITION if closes else 0) + (WON_POSITION if is_win else 0),
    )


def enlarge(account: Account, added: float, price: float, stop: float, target: float, terms: Any) -> Account:
    """Open or increase by signed units, if affordable; an account that stays the same was refused."""
    notional = abs(added) * price
    fee = notional * terms.fee
    need = notional * terms.margin + fee
    if (added == 0.0) | (need > account.cash * (1.0 + 1e-9)):
        return account
    held = abs(account.units)
    entry = price if held == 0.0 else (account.entry * held + price * abs(added)) / (held + abs(added))
    cash = max(0.0, account.cash - need)
    return Account(cash, account.units + added, entry, stop, target, account.traded + notional, account.events + 1)


def with_cash(account: Account, cash: float) -> Account:
    _, units, entry, stop, target, traded, events = account
    return Account(cash, units, entry, stop, target, traded, events)


# Each order below realises at most once and enlarges at most once, in this order, and conditions are joined by & and |
# instead of `and` and `or`, which are branches: on a GPU the environments of a warp that open, close and switch then
# run through the same code together.


def order_level(level: float, quote: Quote, account: Account, terms: Any) -> tuple[Account, int]:
    """Bring the position to the exposure `level`; return the account and a code."""
    units = account.units
    if (level == 0.0) & (units == 0.0):
        return account, codes.NONE
    exit_price = left_at(quote, units)
    price = sold_at(quote) if level < 0.0 else bought_at(quote)
    units_per_equity = abs(level) * terms.sizing / price if level != 0.0 else 0.0
    wanted = math.copysign(max(0.0, equity_at(account, quote.price, terms)) * units_per_equity, level)
    change = abs(wanted - units)
    is_small = (change == 0.0) | (change < terms.rebalance_band * abs(wanted)) | (change * price < terms.min_trade)
    if (units != 0.0) & (wanted != 0.0) & is_small:
        return account, codes.HELD_BAND
    leaves = (units != 0.0) & (wanted * units <= 0.0)
    decreases = (not leaves) & (abs(wanted) < abs(units))
    if leaves | decreases:
        part = units if leaves else units * (1.0 - abs(wanted) / abs(units))
        account = realise(account, part, exit_price, terms)
    if decreases:
        return account, codes.DECREASED
    if wanted == 0.0:
        return account, codes.CLOSED if leaves else codes.REFUSED_CASH
    if leaves:
        wanted = math.copysign(account.cash * units_per_equity, level)
    larger = enlarge(account, wanted - account.units, price, 0.0, 0.0, terms)
    if larger.events == account.events:
        return account, codes.SWITCH_CLOSED if leaves else codes.REFUSED_CASH
    return larger, codes.SWITCHED if leaves else (codes.OPENED if units == 0.0 else codes.INCREASED)


def order_bracket(bracket: Bracket, mode: int, quote: Quote, account: Account, terms: Any) -> tuple[Account, int]:
    """Close, or enter with a stop and a target; return the account and a code."""
    leaves = account.units != 0.0
    if leaves:
        account = realise(account, account.units, left_at(quote, account.units), terms)
    side = bracket.side
    if side == codes.CLOSE:
        return account, codes.CLOSED
    price = bought_at(quote) if side > 0.0 else sold_at(quote)
    added = terms.quantity_per_trade
    if mode == codes.FRACTIONAL:
        added = account.cash * terms.position_fraction * terms.sizing / price
    elif mode == codes.NOTIONAL:
        added = terms.quantity_per_trade / price
    stop, target = price * (1.0 - side * bracket.stop), price * (1.0 + side * bracket.target)
    larger = enlarge(account, side * added, price, stop, target, terms)
    if larger.events == account.events:
        return account, codes.SWITCH_CLOSED if leaves else codes.REFUSED_CASH
    return larger, codes.SWITCHED if leaves else codes.OPENED


def leave_within(bar: Bar, has_bracket: bool, account: Account, terms: Any) -> tuple[Account, int]:
    """Apply liquidation, stop and target to a position while a bar passes; return the account and a code."""
    is_long = account.units > 0.0
    price = 0.0
    code = codes.NONE
    if has_bracket:
        stopped = bar.low <= account.stop if is_long else bar.high >= account.stop
        reached = bar.high >= account.target if is_long else bar.low <= account.target
        if stopped:
            price = min(bar.open, account.stop) if is_long else max(bar.open, account.stop)
            code = codes.STOPPED
        elif reached:
            price = account.target
            code = codes.TARGET
    liquidation = liquidation_price(account, terms)
    touched = bar.low <= liquidation if is_long else bar.high >= liquidation
    if (liquidation > 0.0) & touched:
        stop_is_nearer = account.stop > liquidation if is_long else account.stop < liquidation
        opened_short_of_it = bar.open > liquidation if is_long else bar.open < liquidation
        if not ((code == codes.STOPPED) & stop_is_nearer & opened_short_of_it):
            price = liquidation_fill(account, bar.open, liquidation, terms)
            code = codes.LIQUIDATED
    if code != codes.NONE:
        account = realise(account, account.units, price, terms)
    return account, code
