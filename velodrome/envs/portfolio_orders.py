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


class Book(NamedTuple):
    """The account within a step, valued at the quotes of its orders."""

    cash: float
    equity: float
    gross: float  # Σ |units · quote|
    fees: float  # of this step
    traded: float  # notional of this step


def quote_of(k: int, cursor: int, bar: int, tables: Any, params: Any) -> float:
    """Return the price of instrument k at which orders fill, before costs."""
    if params.fill == NEXT_OPEN:
        return tables.open[bar, k]
    return tables.close[cursor, k] if params.fill == CLOSE else tables.close[bar, k]


def is_tradable(k: int, cursor: int, bar: int, tables: Any, params: Any) -> bool:
    return tables.tradable[cursor if params.fill == CLOSE else bar, k] == 1


def buy_rate(terms: Terms) -> float:
    """Return what a purchase costs beyond its value at the quote, as a fraction of that."""
    return (1.0 + terms.cost) * (1.0 + terms.buy_fee) - 1.0


def sell_rate(terms: Terms) -> float:
    return 1.0 - (1.0 - terms.cost) * (1.0 - terms.sell_fee)


def kept(units: float, params: Any) -> float:
    """Return a quantity as the account keeps it."""
    return float(np.float32(units)) if params.single_precision else units


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
        state.extreme[k, i] = 0.0
    elif before == 0.0:
        state.entry[k, i] = price
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
    return quantity if lot <= 0.0 else math.floor(quantity / lot + LOT_ROUNDING) * lot


def affordable(quote: float, terms: Terms, book: Book) -> float:
    """Return how many units the cash above the reserve can pay."""
    price = quote * (1.0 + terms.cost)
    return terms.safety * max(0.0, book.cash - terms.reserve) / ((1.0 + terms.buy_fee) * price)


def take_order(
    i: int, k: int, wanted: float, quote: float, terms: Terms, book: Book, state: Any, tables: Any, params: Any
) -> Book:
    """Reduce the position that is on the other side, then enlarge it on this side as far as cash and limits allow."""
    buys = wanted > 0.0
    size, lot = abs(wanted), tables.lot[k]
    held = state.units[k, i]
    if (held < 0.0) if buys else (held > 0.0):
        part = min(size, abs(held))
        if buys:
            part = min(part, affordable(quote, terms, book))
            if part < min(size, abs(held)):
                increment(state.counts, CUT_CASH, i)
        if part < abs(held):
            part = whole_lots(part, lot)
        if part > 0.0:
            book = trade(i, k, part if buys else -part, quote, terms, book, state, params)
        if part < abs(held):
            return book
        size -= part
    if (size <= 0.0) | ((not buys) & (not params.allow_short)):
        return book
    rate = buy_rate(terms) if buys else sell_rate(terms)
    # What is paid for the trade makes the equity smaller, and with it the limits.
    by_weight = (terms.max_weight * book.equity - abs(state.units[k, i]) * quote) / (1.0 + terms.max_weight * rate)
    by_gross = (terms.max_gross * book.equity - book.gross) / (1.0 + terms.max_gross * rate)
    limit = max(0.0, min(by_weight, by_gross)) / quote
    if limit < size:
        size = limit
        increment(state.counts, CUT_LIMIT, i)
    if buys:
        payable = affordable(quote, terms, book)
        if payable < size:
            size = payable
            increment(state.counts, CUT_CASH, i)
    size = whole_lots(size, lot)
    if (size <= 0.0) | (size < tables.min_quantity[k]):
        increment(state.counts, DROPPED_MINIMUM, i)
        return book
    return trade(i, k, size if buys else -size, quote, terms, book, state, params)


def stop_positions(
    i: int, distance: float, cursor: int, bar: int, terms: Terms, book: Book, state: Any, tables: Any, params: Any
) -> Book:
    """Close positions whose quote is too far from the best price since they were opened; mark them in `wanted`."""
    for k in range(tables.lot.size):
        state.wanted[k, i] = 0.0
        units = state.units[k, i]
        if (distance > 0.0) & (units != 0.0):
            quote = quote_of(k, cursor, bar, tables, params)
            best = state.extreme[k, i]
            if is_tradable(k, cursor, bar, tables, params):
                best = max(best, quote) if units > 0.0 else min(best, quote)
                state.extreme[k, i] = best
                if (quote < best * (1.0 - distance)) if units > 0.0 else (quote > best * (1.0 + distance)):
                    book = trade(i, k, -units, quote, terms, book, state, params)
                    state.wanted[k, i] = STOPPED_NOW
                    increment(state.counts, STOPPED, i)
    return book


def take_orders(
    i: int, buys: bool, cursor: int, bar: int, terms: Terms, book: Book, state: Any, tables: Any, params: Any
) -> Book:
    """Carry out the sales or the purchases in `wanted`, in the order of the instruments."""
    for k in range(tables.lot.size):
        wanted = state.wanted[k, i]
        if (wanted > tables.min_quantity[k]) if buys else (wanted < -tables.min_quantity[k]):
            if is_tradable(k, cursor, bar, tables, params):
                quote = quote_of(k, cursor, bar, tables, params)
                book = take_order(i, k, wanted, quote, terms, book, state, tables, params)
            else:
                increment(state.counts, REFUSED_UNTRADABLE, i)
    return book


def decay_positions(
    i: int, longest: float, share: float, cursor: int, bar: int, terms: Terms, book: Book, state: Any, tables: Any,
    params: Any,
) -> Book:  # fmt: skip
    """Sell a share of every position that was not traded for too long."""
    for k in range(tables.lot.size):
        units = state.units[k, i]
        is_old = (units != 0.0) & (state.holding[k, i] >= longest)
        if is_old and (params.decay_when_halted or is_tradable(k, cursor, bar, tables, params)):
            quote = quote_of(k, cursor, bar, tables, params)
            part = kept(abs(units) * share, params)
            if units < 0.0:
                part = min(part, affordable(quote, terms, book))
            if part < abs(units):
                part = whole_lots(part, tables.lot[k])
            if part > 0.0:
                book = trade(i, k, -part if units > 0.0 else part, quote, terms, book, state, params)
                state.holding[k, i] = 0
                increment(state.counts, DECAYED, i)
    return book
