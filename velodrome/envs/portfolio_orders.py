"""A portfolio's orders: what is traded at which price, what cuts or refuses it, and how it changes the account.

Cash is never borrowed: a purchase is cut to what there is. Short positions bring cash in, and are limited by the
weights. Every function is in the subset of Python that Numba compiles for CPU and CUDA.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from velodrome.envs.contract import increment
from velodrome.envs.portfolio_numbers import (
    BUYS,
    CLOSE,
    CUT_CASH,
    CUT_LIMIT,
    DECAYED,
    DROPPED_MINIMUM,
    NEXT_OPEN,
    REFUSED_UNTRADABLE,
    SELLS,
    STOPPED,
)

STOPPED_NOW = -1.0  # in State.wanted: the trailing stop has closed this position in this step
# The phases of a step. All that closes comes before anything that opens: limits then see what is left, in whatever
# order instruments stand. Sales come before what they pay for.
STOPS, CLOSING_SALES, DECAYS, CLOSING_PURCHASES, OPENING_SALES, OPENING_PURCHASES = range(6)
PHASES = 6
DUST = 1e-12  # of equity: what a rounding leaves of a weight or of the cash is not traded
NOTICED = 1e-9  # of equity: an order that loses less was not cut but rounded, as target weights lie on their limits
MOST_LOTS = 1e15
LOT_ROUNDING = 1e-9  # a quantity this close below a whole number of lots is that number


class Terms(NamedTuple):
    """What trading costs in this step, and what limits it."""

    buy_fee: float
    sell_fee: float
    cost: float  # spread and slippage, a fraction of the quote
    reserve: float  # cash that buying may not touch
    max_weight: float
    max_gross: float
    safety: float  # part of the cash that one purchase may take
    dust: float  # of equity: what is worth no more is neither bought nor left over


class Forced(NamedTuple):
    """What is sold whatever the action says."""

    stop: float  # distance of the trailing stop; 0: none
    longest: float  # bars without a trade after which positions decay; 0: never
    share: float  # by how much


class Book(NamedTuple):
    """The account within a step, valued at the quotes of its orders."""

    cash: float
    equity: float
    gross: float  # Σ |units · quote|
    fees: float  # of this step
    traded: float  # notional of this step


def quote_of(k: int, cursor: int, bar: int, tables: Any, params: Any) -> float:
    """Return the price of instrument k at which orders fill, before costs."""
    if params.fill_at == NEXT_OPEN:
        return tables.open[bar, k]
    return tables.close[cursor, k] if params.fill_at == CLOSE else tables.close[bar, k]


def is_tradable(k: int, cursor: int, bar: int, tables: Any, params: Any) -> bool:
    if not params.has_halts:
        return True
    return tables.tradable[cursor if params.fill_at == CLOSE else bar, k] == 1


def buy_rate(terms: Terms) -> float:
    """Return what a purchase costs beyond its value at the quote, as a fraction of that."""
    return (1.0 + terms.cost) * (1.0 + terms.buy_fee) - 1.0


def sell_rate(terms: Terms) -> float:
    return 1.0 - (1.0 - terms.cost) * (1.0 - terms.sell_fee)


def kept(units: float, params: Any) -> float:
    """Return a quantity as the account keeps it."""
    return float(np.float32(units)) if params.single_precision else units


def share_of(units: float, share: float, params: Any) -> float:
    """Return a share of a quantity, multiplied in the precision that it is kept in."""
    return float(np.float32(units) * np.float32(share)) if params.single_precision else units * share


def trade(i: int, k: int, change: float, quote: float, terms: Terms, book: Book, state: Any, params: Any) -> Book:
    """Buy or sell; the position grows, shrinks or closes, but does not change its side."""
    buys = change > 0.0
    price = quote * (1.0 + terms.cost) if buys else quote * (1.0 - terms.cost)
    notional = abs(change) * price
    fee = notional * (terms.buy_fee if buys else terms.sell_fee)
    before = state.units[k, i]
    after = kept(before + change, params)
    if after == 0.0:
        state.entry[k, i] = 0.0
    elif before == 0.0:
        state.entry[k, i] = price
        if params.has_stop:
            state.extreme[k, i] = quote
    elif abs(after) > abs(before):
        state.entry[k, i] = (state.entry[k, i] * abs(before) + notional) / (abs(before) + abs(change))
    if params.buys_restart_holding or abs(after) < abs(before):
        state.holding[k, i] = 0
    state.units[k, i] = after
    increment(state.counts, BUYS if buys else SELLS, i)
    # A purchase was cut to the cash there is; the last bit of it may be missing.
    cash = max(0.0, book.cash - notional - fee) if buys else book.cash + notional - fee
    return Book(
        cash,
        book.equity - abs(change) * quote * terms.cost - fee,
        book.gross + (abs(after) - abs(before)) * quote,
        book.fees + fee,
        book.traded + notional,
    )


def whole_lots(quantity: float, lot: float) -> float:
    """Return a quantity rounded down to whole lots; so many that a float64 cannot count them are left as they are."""
    if (lot <= 0.0) | (quantity >= MOST_LOTS * lot):
        return quantity
    return math.floor(quantity / lot + LOT_ROUNDING) * lot


def cut_to_cash(i: int, quantity: float, quote: float, terms: Terms, book: Book, state: Any) -> float:
    """Return as much of a purchase as the cash above the reserve can pay; a cut is counted."""
    price = (1.0 + terms.buy_fee) * (quote * (1.0 + terms.cost))
    cash = terms.safety * max(0.0, book.cash - terms.reserve)
    if quantity * price <= cash:
        return quantity
    payable = min(quantity, cash / price)
    if (quantity - payable) * quote > NOTICED * book.equity:
        increment(state.counts, CUT_CASH, i)
    return payable


def cut_to_limits(i: int, size: float, held: float, rate: float, quote: float, terms: Terms, book: Book, state: Any
) -> float:  # fmt: skip
    """Return as much of an order that enlarges a position as the limits allow; a cut is counted."""
    # What is paid for the trade makes the equity smaller, and with it the limits.
    by_weight, weight_scale = terms.max_weight * book.equity - held * quote, 1.0 + terms.max_weight * rate
    by_gross, gross_scale = terms.max_gross * book.equity - book.gross, 1.0 + terms.max_gross * rate
    worth = size * quote
    if (worth * weight_scale <= by_weight) & (worth * gross_scale <= by_gross):
        return size
    limit = max(0.0, min(by_weight / weight_scale, by_gross / gross_scale)) / quote
    if (size - limit) * quote > NOTICED * book.equity:
        increment(state.counts, CUT_LIMIT, i)
    return min(size, limit)


def closing_part(
    i: int, k: int, wanted: float, quote: float, terms: Terms, book: Book, state: Any, tables: Any, params: Any
) -> float:
    """Return the part of an order that reduces a position on the other side, as far as cash allows; signed."""
    held = state.units[k, i]
    buys = wanted > 0.0
    if (held >= 0.0) if buys else (held <= 0.0):
        return 0.0
    part = min(abs(wanted), abs(held))
    if buys:
        part = cut_to_cash(i, part, quote, terms, book, state)
    left = abs(held) - part
    # A halted instrument may be quoted at 0, where everything is worth nothing.
    if (left <= 0.0) | ((quote > 0.0) & (left * quote <= terms.dust * book.equity)):
        part = abs(held)
    else:
        if params.has_quantities:
            part = whole_lots(part, tables.lot[k])
        if buys & (part * quote <= terms.dust * book.equity):
            return 0.0
    return part if buys else -part


def opening_part(
    i: int, k: int, wanted: float, quote: float, terms: Terms, book: Book, state: Any, tables: Any, params: Any
) -> float:
    """Return the part of an order that opens or enlarges a position, as far as limits and cash allow; signed."""
    buys = wanted > 0.0
    held = state.units[k, i]
    size = abs(wanted)
    on_other_side = (held < 0.0) if buys else (held > 0.0)
    if on_other_side | (size <= 0.0) | ((not buys) & (not params.allow_short)):
        return 0.0
    rate = buy_rate(terms) if buys else sell_rate(terms)
    # Longs that cash has paid for are never worth more than the equity: limits from 1 up mean nothing to them.
    if params.allow_short | (terms.max_weight < 1.0) | (terms.max_gross < 1.0):
        size = cut_to_limits(i, size, abs(held), rate, quote, terms, book, state)
    if buys:
        size = cut_to_cash(i, size, quote, terms, book, state)
    if params.has_quantities:
        size = whole_lots(size, tables.lot[k])
        if size < tables.min_quantity[k]:
            increment(state.counts, DROPPED_MINIMUM, i)
            return 0.0
    if size * quote <= terms.dust * book.equity:
        return 0.0
    return size if buys else -size


def stop_order(i: int, k: int, quote: float, distance: float, state: Any) -> float:
    """Return the order that closes a position whose quote is too far from its best price so far, else 0."""
    units = state.units[k, i]
    if (distance <= 0.0) | (units == 0.0):
        return 0.0
    best = max(state.extreme[k, i], quote) if units > 0.0 else min(state.extreme[k, i], quote)
    state.extreme[k, i] = best
    if (quote < best * (1.0 - distance)) if units > 0.0 else (quote > best * (1.0 + distance)):
        increment(state.counts, STOPPED, i)
        return -units
    return 0.0


def decay_order(i: int, k: int, longest: float, share: float, state: Any, params: Any) -> float:
    """Return the order that sells a share of a position that was not traded for too long, else 0."""
    units = state.units[k, i]
    if (longest <= 0.0) | (units == 0.0) | (state.holding[k, i] < longest):
        return 0.0
    increment(state.counts, DECAYED, i)
    state.holding[k, i] = 0
    part = share_of(abs(units), share, params)
    return -part if units > 0.0 else part


def screened(i: int, k: int, wanted: float, tradable: bool, state: Any, tables: Any, params: Any) -> float:
    """Return an order, or 0 if it is too small or the instrument cannot be traded; either is counted."""
    if wanted == 0.0:
        return 0.0
    if params.has_quantities and abs(wanted) <= tables.min_quantity[k]:
        increment(state.counts, DROPPED_MINIMUM, i)
        return 0.0
    if not tradable:
        increment(state.counts, REFUSED_UNTRADABLE, i)
        return 0.0
    return wanted


def order_of(
    i: int, k: int, phase: int, quote: float, tradable: bool, forced: Forced, state: Any, tables: Any, params: Any
) -> float:
    """Return what is to be bought (above 0) or sold of instrument k in a phase of the step."""
    if phase == STOPS:
        wanted = stop_order(i, k, quote, forced.stop, state) if tradable else 0.0
        state.wanted[k, i] = STOPPED_NOW if wanted != 0.0 else 0.0
        return wanted
    if phase == DECAYS:
        allowed = tradable or params.decay_when_halted
        return decay_order(i, k, forced.longest, forced.share, state, params) if allowed else 0.0
    wanted = state.wanted[k, i]
    if phase == CLOSING_SALES:
        wanted = screened(i, k, wanted, tradable, state, tables, params)
        state.wanted[k, i] = wanted
    sells = (phase == CLOSING_SALES) | (phase == OPENING_SALES)
    return wanted if ((wanted < 0.0) if sells else (wanted > 0.0)) else 0.0


def take_orders(
    i: int, phase: int, cursor: int, bar: int, forced: Forced, terms: Terms, book: Book, state: Any, tables: Any,
    params: Any,
) -> Book:  # fmt: skip
    """Carry out the orders of one phase, in the order of the instruments."""
    opening = (phase == OPENING_SALES) | (phase == OPENING_PURCHASES)
    ordered = (phase == CLOSING_SALES) | (phase == CLOSING_PURCHASES)
    for k in range(tables.lot.size):
        quote = quote_of(k, cursor, bar, tables, params)
        tradable = is_tradable(k, cursor, bar, tables, params)
        wanted = order_of(i, k, phase, quote, tradable, forced, state, tables, params)
        if wanted == 0.0:
            continue
        if opening:
            change = opening_part(i, k, wanted, quote, terms, book, state, tables, params)
        else:
            change = closing_part(i, k, wanted, quote, terms, book, state, tables, params)
            if ordered:
                # Closing all may take a rounding more than was wanted; that is no order to open.
                state.wanted[k, i] = wanted - change if abs(change) < abs(wanted) else 0.0
        if change != 0.0:
            book = trade(i, k, change, quote, terms, book, state, params)
    return book
