"""A portfolio's orders: what is traded at which price, what cuts or refuses it, and how it changes the account.

Cash is never borrowed: a purchase is cut to what there is. Short positions bring cash in, and are limited by the
weights. Every function is in the subset of Python that Numba compiles for CPU and CUDA.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from velodrome.envs.contract import LOCKSTEP, increment
from velodrome.envs.portfolio import codes
from velodrome.envs.portfolio.state import Book, Costs, Moment, instrument_count

STOPPED_NOW = -1.0  # in State.wanted: the trailing stop has closed this position in this step
DUST = 1e-12  # of equity: what rounding leaves of a weight or of the cash is not traded
NOTICED = 1e-9  # of equity: target weights lie on their limits, so a smaller cut may be rounding
MOST_LOTS = 1e15
LOT_ROUNDING = 1e-9  # a quantity this close below a whole number of lots is that number


def quote_of(k: int, now: Moment, tables: Any, params: Any) -> float:
    """Return the price of instrument k at which orders fill, before costs."""
    if params.fill_at == codes.NEXT_OPEN:
        return tables.open[now.bar, k]
    return tables.close[now.cursor, k] if params.fill_at == codes.CLOSE else tables.close[now.bar, k]


def is_tradable(k: int, now: Moment, tables: Any, params: Any) -> bool:
    if not params.has_halts:
        return True
    return tables.tradable[now.cursor if params.fill_at == codes.CLOSE else now.bar, k] == 1


def buy_rate(costs: Costs) -> float:
    """Return what a purchase costs beyond its value at the quote, as a fraction of that."""
    return (1.0 + costs.cost) * (1.0 + costs.buy_fee) - 1.0


def sell_rate(costs: Costs) -> float:
    return 1.0 - (1.0 - costs.cost) * (1.0 - costs.sell_fee)


def kept(units: float, params: Any) -> float:
    """Return a quantity as the account keeps it."""
    return float(np.float32(units)) if params.single_precision else units


def share_of(units: float, share: float, params: Any) -> float:
    """Return a share of a quantity, multiplied in the precision that it is kept in."""
    return float(np.float32(units) * np.float32(share)) if params.single_precision else units * share


def trade(i: int, k: int, change: float, quote: float, costs: Costs, book: Book, state: Any, params: Any) -> Book:
    """Buy or sell; the position grows, shrinks or closes, but does not change its side."""
    buys = change > 0.0
    price = quote * (1.0 + costs.cost) if buys else quote * (1.0 - costs.cost)
    notional = abs(change) * price
    fee = notional * (costs.buy_fee if buys else costs.sell_fee)
    before, entry = state.units[k, i], state.entry[k, i]
    after = kept(before + change, params)
    mean = (entry * abs(before) + notional) / (abs(before) + abs(change))
    grown = mean if abs(after) > abs(before) else entry
    opened = price if before == 0.0 else grown
    state.entry[k, i] = 0.0 if after == 0.0 else opened
    if params.has_stop and before == 0.0:
        state.extreme[k, i] = quote
    restarts = params.buys_restart_holding | (abs(after) < abs(before))
    state.holding[k, i] = 0 if restarts else state.holding[k, i]
    state.units[k, i] = after
    increment(state.counts, codes.BUYS if buys else codes.SELLS, i)
    # A purchase was cut to the cash there is; the last bit of it may be missing.
    cash = max(0.0, book.cash - notional - fee) if buys else book.cash + notional - fee
    return Book(
        cash,
        book.equity - abs(change) * quote * costs.cost - fee,
        book.gross + (abs(after) - abs(before)) * quote,
        book.fees + fee,
        book.traded + notional,
    )


def whole_lots(quantity: float, lot: float) -> float:
    """Return a quantity rounded down to whole lots, unless there are more lots than a float64 can count."""
    if (lot <= 0.0) | (quantity >= MOST_LOTS * lot):
        return quantity
    return math.floor(quantity / lot + LOT_ROUNDING) * lot


def cut_to_cash(i: int, quantity: float, quote: float, costs: Costs, cash: float, state: Any) -> float:
    """Return as much of a purchase as the cash above the reserve can pay; a cut is counted."""
    price = (1.0 + costs.buy_fee) * (quote * (1.0 + costs.cost))
    usable = costs.safety * max(0.0, cash - costs.reserve)
    if quantity * price <= usable:
        return quantity
    payable = min(quantity, usable / price)
    if (quantity - payable) * quote > costs.noticed:
        increment(state.counts, codes.CUT_CASH, i)
    return payable


def cut_to_limits(
    i: int, size: float, held: float, rate: float, quote: float, costs: Costs, book: Book, state: Any
) -> float:
    """Return as much of an order that enlarges a position as the limits allow; a cut is counted."""
    # What is paid for the trade makes the equity smaller, and with it the limits.
    by_weight, weight_scale = costs.max_weight * book.equity - held * quote, 1.0 + costs.max_weight * rate
    by_gross, gross_scale = costs.max_gross * book.equity - book.gross, 1.0 + costs.max_gross * rate
    worth = size * quote
    if (worth * weight_scale <= by_weight) & (worth * gross_scale <= by_gross):
        return size
    limit = max(0.0, min(by_weight / weight_scale, by_gross / gross_scale)) / quote
    if (size - limit) * quote > costs.noticed:
        increment(state.counts, codes.CUT_LIMIT, i)
    return min(size, limit)


def closing_part(
    i: int, k: int, wanted: float, quote: float, costs: Costs, book: Book, state: Any, tables: Any, params: Any
) -> float:
    """Return the part of an order that reduces a position on the other side, as far as cash allows; signed."""
    held = abs(state.units[k, i])
    buys = wanted > 0.0
    part = min(abs(wanted), held)
    if buys:
        part = cut_to_cash(i, part, quote, costs, book.cash, state)
    left = held - part
    # A halted instrument may be quoted at 0, where everything is worth nothing.
    closes = (left <= 0.0) | ((quote > 0.0) & (left * quote <= costs.dust))
    if params.has_quantities:
        part = whole_lots(part, tables.lot[k])
    part = held if closes else part
    if buys & (not closes) & (part * quote <= costs.dust):
        part = 0.0
    return part if buys else -part


def opening_part(
    i: int, k: int, wanted: float, quote: float, costs: Costs, book: Book, state: Any, tables: Any, params: Any
) -> float:
    """Return the part of an order that opens or enlarges a position, as far as limits and cash allow; signed."""
    buys = wanted > 0.0
    held = state.units[k, i]
    size = abs(wanted)
    rate = buy_rate(costs) if buys else sell_rate(costs)
    # Longs that cash has paid for are never worth more than the equity: limits from 1 up mean nothing to them.
    if params.allow_short | (costs.max_weight < 1.0) | (costs.max_gross < 1.0):
        size = cut_to_limits(i, size, abs(held), rate, quote, costs, book, state)
    if buys:
        size = cut_to_cash(i, size, quote, costs, book.cash, state)
    if params.has_quantities:
        size = whole_lots(size, tables.lot[k])
        if size < tables.min_quantity[k]:
            increment(state.counts, codes.DROPPED_MINIMUM, i)
            return 0.0
    if size * quote <= costs.dust:
        return 0.0
    return size if buys else -size


def is_stopped(i: int, k: int, quote: float, distance: float, state: Any) -> bool:
    """Say whether a position's quote is too far from its best price so far; if so, count it."""
    units = state.units[k, i]
    if (distance <= 0.0) | (units == 0.0):
        return False
    best = max(state.extreme[k, i], quote) if units > 0.0 else min(state.extreme[k, i], quote)
    state.extreme[k, i] = best
    stopped = (quote < best * (1.0 - distance)) if units > 0.0 else (quote > best * (1.0 + distance))
    if stopped:
        increment(state.counts, codes.STOPPED, i)
    return stopped


def decays(i: int, k: int, longest: float, state: Any) -> bool:
    """Say whether a position went without a trade for too long; if so, count it and start again."""
    if (longest <= 0.0) | (state.units[k, i] == 0.0) | (state.holding[k, i] < longest):
        return False
    increment(state.counts, codes.DECAYED, i)
    state.holding[k, i] = 0
    return True


def screened(i: int, k: int, wanted: float, tradable: bool, state: Any, tables: Any, params: Any) -> float:
    """Return an order; 0, and counted, if it is too small or the instrument cannot be traded."""
    if params.has_quantities and (wanted != 0.0) & (abs(wanted) <= tables.min_quantity[k]):
        increment(state.counts, codes.DROPPED_MINIMUM, i)
        return 0.0
    if (not tradable) and wanted != 0.0:
        increment(state.counts, codes.REFUSED_UNTRADABLE, i)
        return 0.0
    return wanted


def is_due(i: int, k: int, phase: int, now: Moment, costs: Costs, state: Any, tables: Any, params: Any) -> bool:
    """Say whether there is an order in instrument k in a phase of the step."""
    tradable = is_tradable(k, now, tables, params)
    if phase == codes.STOPS:
        due = tradable and is_stopped(i, k, quote_of(k, now, tables, params), costs.trailing_stop, state)
        state.wanted[k, i] = STOPPED_NOW if due else 0.0
        return due
    if phase == codes.DECAYS:
        return (tradable or params.decay_when_halted) and decays(i, k, costs.max_holding, state)
    wanted = state.wanted[k, i]
    if phase == codes.CLOSING_SALES:
        wanted = screened(i, k, wanted, tradable, state, tables, params)
        state.wanted[k, i] = wanted
    side = -1.0 if (phase == codes.CLOSING_SALES) | (phase == codes.OPENING_SALES) else 1.0
    opening = (phase == codes.OPENING_SALES) | (phase == codes.OPENING_PURCHASES)
    closing = side * state.units[k, i] < 0.0
    return (side * wanted > 0.0) & (closing != opening)


def queue_orders(i: int, phase: int, now: Moment, costs: Costs, state: Any, tables: Any, params: Any) -> int:
    """Write the instruments that have an order in a phase to State.queue; return their number."""
    count = 0
    for k in range(instrument_count(state, tables)):
        # Written whether it is due or not: no processor can predict which instruments have an order.
        state.queue[count, i] = k
        count += is_due(i, k, phase, now, costs, state, tables, params)
    return count


def amount_of(i: int, k: int, phase: int, share: float, state: Any, params: Any) -> float:
    """Return what an order of a phase buys (above 0) or sells of instrument k."""
    if phase == codes.STOPS:
        return -state.units[k, i]
    if phase == codes.DECAYS:
        part = share_of(abs(state.units[k, i]), share, params)
        return -part if state.units[k, i] > 0.0 else part
    return state.wanted[k, i]


def take_orders(
    i: int, phase: int, now: Moment, costs: Costs, book: Book, state: Any, tables: Any, params: Any
) -> Book:
    """Carry out the orders of one phase, in the order of the instruments."""
    opening = (phase == codes.OPENING_SALES) | (phase == codes.OPENING_PURCHASES)
    ordered = (phase == codes.CLOSING_SALES) | (phase == codes.CLOSING_PURCHASES)
    if LOCKSTEP:
        count = instrument_count(state, tables)
    else:
        count = queue_orders(i, phase, now, costs, state, tables, params)
    for n in range(count):
        k = n if LOCKSTEP else state.queue[n, i]
        if LOCKSTEP and not is_due(i, k, phase, now, costs, state, tables, params):
            continue
        quote = quote_of(k, now, tables, params)
        wanted = amount_of(i, k, phase, costs.decay, state, params)
        if opening:
            change = opening_part(i, k, wanted, quote, costs, book, state, tables, params)
        else:
            change = closing_part(i, k, wanted, quote, costs, book, state, tables, params)
            if ordered & params.allow_short:
                # Closing all may take a rounding more than was wanted; that is no order to open.
                state.wanted[k, i] = wanted - change if abs(change) < abs(wanted) else 0.0
        if change != 0.0:
            book = trade(i, k, change, quote, costs, book, state, params)
    return book
