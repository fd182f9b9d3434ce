"""From an action to the quantities that a portfolio wants to buy (above 0) or sell (below), in State.wanted."""

from __future__ import annotations

from typing import Any

import numpy as np

from velodrome.envs.elementary import exponential
from velodrome.envs.portfolio import codes
from velodrome.envs.portfolio.config import episode_terms
from velodrome.envs.portfolio.orders import DUST, STOPPED_NOW, buy_rate, is_tradable, quote_of, sell_rate
from velodrome.envs.portfolio.state import Book, Costs, Moment, instrument_count

CONVERGED = 1e-12  # of the equity factor
MOST_ITERATIONS = 500
SMALLEST_FACTOR = 1e-3
STEEPEST = -0.5  # of the cost by μ: costs beyond all markets, for which small steps are safer than Newton's


def size_action(
    i: int, action: Any, now: Moment, costs: Costs, book: Book, state: Any, tables: Any, params: Any
) -> None:
    """Turn an action into quantities."""
    terms = episode_terms(i, state, params)
    if params.action == codes.ORDERS:
        size_orders(i, action, state.initial[i], terms.order_scale, now, state, tables, params)
    elif params.action == codes.DISCRETE:
        size_steps(i, action, terms.trade_fraction, book.equity, now, state, tables, params)
    else:
        write_weights(i, action, terms.softmax_scale, costs, state, tables, params)
        size_weights(i, now, costs, book, state, tables, params)


def size_orders(
    i: int, action: Any, initial: float, scale: float, now: Moment, state: Any, tables: Any, params: Any
) -> None:
    """Turn money, in parts of the initial cash, into units."""
    for k in range(instrument_count(state, tables)):
        price = tables.first[k] if params.first_bar_reference else quote_of(k, now, tables, params)
        wanted = 0.0
        if price > 0.0:
            units = initial / (price * scale)
            if params.single_precision:
                wanted = float(np.float32(action[k]) * np.float32(units))
            else:
                wanted = np.float64(action[k]) * units
        elif action[k] != 0.0:
            # It cannot be traded; the order is counted as refused.
            wanted = np.inf if action[k] > 0.0 else -np.inf
        state.wanted[k, i] = wanted


def size_steps(
    i: int, action: Any, fraction: float, equity: float, now: Moment, state: Any, tables: Any, params: Any
) -> None:
    """Turn sell (0), hold (1) and buy (2) into a fraction of equity each."""
    for k in range(instrument_count(state, tables)):
        price = quote_of(k, now, tables, params)
        side = np.float64(action[k]) - 1.0
        wanted = 0.0
        if side != 0.0:
            wanted = side * fraction * equity / price if price > 0.0 else side * np.inf
        state.wanted[k, i] = wanted


def write_weights(i: int, action: Any, scale: float, costs: Costs, state: Any, tables: Any, params: Any) -> None:
    """Turn the numbers of an action into target weights; a position that was stopped in this step has 0."""
    instruments = instrument_count(state, tables)
    stops = costs.trailing_stop > 0.0
    # float() of a float32 is a float32 in compiled code.
    largest, total, threshold = 0.0, 0.0, 0.0
    if params.weighting == codes.SOFTMAX:
        largest = np.float64(action[instruments])
        for k in range(instruments):
            largest = max(largest, np.float64(action[k]))
        total = exponential(scale * (np.float64(action[instruments]) - largest))
        for k in range(instruments):
            power = exponential(scale * (np.float64(action[k]) - largest))
            total += power
            # Kept for the next loop; below 0 stands for none.
            stopped = stops & (state.wanted[k, i] == STOPPED_NOW)
            state.wanted[k, i] = -power if stopped else power
    elif params.weighting == codes.SIMPLEX:
        threshold = simplex_threshold(action, instruments + 1)
    else:
        for k in range(instruments):
            total += abs(np.float64(action[k]))
    for k in range(instruments):
        value = np.float64(action[k])
        if params.weighting == codes.SOFTMAX:
            weight = max(0.0, state.wanted[k, i]) / total
        elif params.weighting == codes.SIMPLEX:
            weight = max(0.0, value - threshold)
        else:
            weight = costs.max_gross * value / max(1.0, total)
        if stops & (state.wanted[k, i] == STOPPED_NOW):
            weight = 0.0
        state.wanted[k, i] = min(max(weight, -costs.max_weight), costs.max_weight)


def simplex_threshold(action: Any, count: int) -> float:
    """Return what to take off each number so that those above it add up to 1: the nearest point of the simplex."""
    threshold = -np.inf
    above = 0
    while True:
        total, now = 0.0, 0
        for k in range(count):
            if np.float64(action[k]) > threshold:
                total += np.float64(action[k])
                now += 1
        if now == above:
            return threshold
        above = now
        threshold = (total - 1.0) / now


def size_weights(i: int, now: Moment, costs: Costs, book: Book, state: Any, tables: Any, params: Any) -> None:
    """Turn target weights into the trades that reach them with all costs paid.

    The equity after the trades is μ times that before, and μ = 1 − Σ rate · |target · μ − weight|. Where an instrument
    cannot be traded it keeps its units, and the others share what room that leaves.
    """
    instruments = instrument_count(state, tables)
    equity = book.equity
    locked_gross, locked_net, longs, shorts = 0.0, 0.0, 0.0, 0.0
    for k in range(instruments):
        if is_tradable(k, now, tables, params):
            target = state.wanted[k, i]
            longs += max(target, 0.0)
            shorts += max(-target, 0.0)
        else:
            weight = state.units[k, i] * quote_of(k, now, tables, params) / equity
            locked_gross += abs(weight)
            locked_net += weight
    buying, selling = buy_rate(costs), sell_rate(costs)
    factor, long_part, short_part = 1.0, 1.0, 1.0
    for _ in range(MOST_ITERATIONS):
        room = max(0.0, costs.max_gross - locked_gross / factor)
        short_part = min(1.0, room / (longs + shorts)) if longs + shorts > 0.0 else 1.0
        # Longs are paid for with equity and with what shorts bring in: cash is not borrowed.
        room = max(0.0, 1.0 - locked_net / factor + short_part * shorts)
        long_part = min(short_part, room / longs) if longs > 0.0 else 1.0
        # With rates below 0 for sales, costs are Σ rate · (target · μ − weight): a line, while sides stay as they are.
        slope, offset = 0.0, 0.0
        for k in range(instruments):
            if is_tradable(k, now, tables, params):
                target = state.wanted[k, i]
                target *= long_part if target > 0.0 else short_part
                value = state.units[k, i] * quote_of(k, now, tables, params)
                rate = buying if target * factor * equity > value else -selling
                slope += rate * target
                offset += rate * value
        before = factor
        after = 1.0 + offset / equity
        factor = after / (1.0 + slope) if slope > STEEPEST else after - slope * factor
        factor = max(SMALLEST_FACTOR, factor)
        if abs(factor - before) <= CONVERGED:
            break
    for k in range(instruments):
        quote = quote_of(k, now, tables, params)
        target = state.wanted[k, i]
        if is_tradable(k, now, tables, params):
            target *= long_part if target > 0.0 else short_part
        change = target * factor * equity - state.units[k, i] * quote
        wanted = 0.0
        if abs(change) > DUST * equity:
            wanted = change / quote if quote > 0.0 else change * np.inf
        if (target == 0.0) & (wanted != 0.0):
            wanted = -state.units[k, i]
        state.wanted[k, i] = wanted
    if costs.reserve > 0.0:
        keep_reserve(i, now, costs, book, state, tables, params)


def keep_reserve(i: int, now: Moment, costs: Costs, book: Book, state: Any, tables: Any, params: Any) -> None:
    """Cut all purchases by one factor to the cash above the reserve: none goes without because it comes last."""
    needed, room = 0.0, book.cash - costs.reserve
    for k in range(instrument_count(state, tables)):
        if is_tradable(k, now, tables, params):
            value = state.wanted[k, i] * quote_of(k, now, tables, params)
            if value > 0.0:
                needed += value * (1.0 + buy_rate(costs))
            else:
                room -= value * (1.0 - sell_rate(costs))
    if needed > max(0.0, room):
        part = max(0.0, room) / needed
        for k in range(instrument_count(state, tables)):
            if (state.wanted[k, i] > 0.0) & is_tradable(k, now, tables, params):
                wanted = state.wanted[k, i] * part
                worth = wanted * quote_of(k, now, tables, params)
                state.wanted[k, i] = wanted if worth > DUST * book.equity else 0.0
