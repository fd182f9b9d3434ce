"""Round trips of trading, and a world that notes what each step traded: the same rule, two names replaced.

A step may close, open and be stopped out within one bar. So `take_order` and `keep_books` of the rule are called as
always, and note the account between the order and the bar, and how much was traded in all. With the account before and
after the step that tells every fill: a step realises and enlarges by its order, once each at most, and then realises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.envs.contract import Column, World
from velodrome.envs.trading import codes
from velodrome.envs.trading.config import episode_terms
from velodrome.envs.trading.orders import take_order as take_order_of_the_rule
from velodrome.envs.trading.rule import keep_books as keep_books_of_the_rule
from velodrome.envs.trading.state import Before, Mark, Move, Outcome, State, Tables
from velodrome.evaluation.play import Backtest, Track
from velodrome.evaluation.trades import END, LIQUIDATION, ORDER, SCHEMA, SESSION_END, STOP, TARGET_REACHED
from velodrome.outside.kernels import cached_njit

# A column of several rows about the last step: cash, units, entry and notional traded after its order, and the notional
# after its bar.
NOTED = ("ordered",)
CASH, UNITS, ENTRY, TRADED_BY_ORDER, TRADED = range(5)
NOTED_AMOUNTS = {"ordered": np.arange(5) != ENTRY}  # which rows are amounts; the entry is a price
RECORDED = ("cash", "entry", "order_code", "exit_code")  # columns that trades are made from besides the account's
# By number: of an order, of what was still open, and of what a bar does, whose codes follow below.
REASONS = (ORDER, END, LIQUIDATION, STOP, TARGET_REACHED, SESSION_END)
BY_ORDER, AT_END, BY_SESSION = 0, 1, 5
EXIT_CODES = (codes.LIQUIDATED, codes.STOPPED, codes.TARGET, codes.SESSION_CLOSED)
CLOSING_ORDERS = (codes.CLOSED, codes.SWITCHED, codes.SWITCH_CLOSED, codes.DECREASED)
ROUNDING = 1e-12  # part of a price: closer to the quote than that, a fill was at it

# Columns of a trip, all float64.
SIDE, ENTRY_STEP, ENTRY_MOMENT, EXIT_STEP, EXIT_MOMENT, ENTERED, ENTRY_VALUE, EXIT_VALUE = range(8)
PROFIT, FEES, SLIPPAGE, FUNDING, REASON = range(8, 13)
TRIP = 13

# The world that notes what it trades


def noted_order(
    i: int, gate: int, move: Move, before: Before, terms: Any, state: State, tables: Tables, params: Any
) -> Outcome:
    """Take the order as the rule does, and note the account after it."""
    outcome = take_order_of_the_rule(i, gate, move, before, terms, state, tables, params)
    ordered: Any = state.ordered  # type: ignore[attr-defined]
    ordered[CASH, i] = outcome.account.cash
    ordered[UNITS, i] = outcome.account.units
    ordered[ENTRY, i] = outcome.account.entry
    ordered[TRADED_BY_ORDER, i] = outcome.account.traded
    return outcome


def noted_books(
    i: int, mark: Mark, outcome: Outcome, move: Move, before: Before, terms: Any, state: State, params: Any
) -> None:
    """Keep the books as the rule does, and note what was traded."""
    state.ordered[TRADED, i] = outcome.account.traded  # type: ignore[attr-defined]
    keep_books_of_the_rule(i, mark, outcome, move, before, terms, state, params)


def recording_world(world: World) -> World:
    """Return a trading world whose state has the column of NOTED."""
    column = Annotated[NDArray[np.float64], Column(np.float64, rows=5)]
    names = {"__annotations__": {"ordered": column}, "__module__": __name__, "__doc__": "With notes."}
    noting: dict[str, Any] = {"take_order": noted_order, "keep_books": noted_books}
    state_type = type("State", (world.state_type,), names)
    return replace(world, state_type=state_type, substitutions={**world.substitutions, **noting})


# What its notes amount to


@cached_njit
def write_trips(cash, units, entry, ordered, orders, exits, funding, quote, close, at_close, fee, margin, out):
    """Write the round trips of one account, a row each, and return how many there are.

    T bars were played. cash, units, entry, close: [T + 1]; ordered: [T, 5], as in NOTED; orders, exits: [T] codes;
    funding: [T] paid; quote: [T] what orders fill at; fee, margin: parts of the value. Columns of `out`: see above.
    """
    trips, bars = 0, orders.size
    trip = np.zeros(TRIP)
    for bar in range(bars):
        by_bar, moment = BY_ORDER, bar if at_close else bar + 1
        for k in range(len(EXIT_CODES)):
            if exits[bar] == EXIT_CODES[k]:
                by_bar = k + 2
        closes_by_order = False
        for code in CLOSING_ORDERS:
            closes_by_order = closes_by_order or orders[bar] == code
        before, middle, after = units[bar], ordered[bar, UNITS], units[bar + 1]
        traded = ordered[bar, TRADED_BY_ORDER]
        gained = ordered[bar, CASH] - cash[bar]  # by the order, margins included
        opened = 0.0  # units
        if orders[bar] == codes.DROPPED:  # a position that is liquidated before the order
            closed, reason, when = before, by_bar, bar + 1
        elif closes_by_order:
            closed, reason, when = (before if before * middle <= 0.0 else before - middle), BY_ORDER, moment
            opened = middle if before * middle < 0.0 else 0.0
        else:
            closed, reason, when = 0.0, BY_ORDER, moment
            opened = middle - before if traded > 0.0 else 0.0
        entered = abs(opened) * ordered[bar, ENTRY] if before * middle <= 0.0 else traded
        if closed != 0.0:
            price = (traded - (entered if opened != 0.0 else 0.0)) / abs(closed)
            base = quote[bar] if reason == BY_ORDER else price
            gain = gained - abs(closed) * entry[bar] * margin
            if opened != 0.0:  # what it left paid for what was opened, and for the fee
                gain += entered * (margin + fee)
            book(trip, closed, price, base, gain, fee, True)
            if closed == before:
                finish(trip, bar, when, reason, out[trips])
                trips += 1
        if opened != 0.0:
            if closed != 0.0 or before == 0.0:
                begin(trip, opened, bar, moment)
            gain = -entered * fee if closed != 0.0 else gained + entered * margin
            book(trip, opened, entered / abs(opened), quote[bar], gain, fee, False)
        if middle != 0.0:
            # Funding is paid for what the bar has not closed, before a session ends.
            if by_bar in (BY_ORDER, BY_SESSION):
                trip[PROFIT] -= funding[bar]
                trip[FUNDING] += funding[bar]
            if after == 0.0:
                price = (ordered[bar, TRADED] - traded) / abs(middle)
                base, paid = (close[bar + 1], funding[bar]) if by_bar == BY_SESSION else (price, 0.0)
                gain = cash[bar + 1] - ordered[bar, CASH] + paid - abs(middle) * ordered[bar, ENTRY] * margin
                book(trip, middle, price, base, gain, fee, True)
                finish(trip, bar, bar + 1, by_bar, out[trips])
                trips += 1
    left = units[bars]
    if left != 0.0:
        trip[PROFIT] += left * (close[bars] - entry[bars])
        trip[EXIT_VALUE] += abs(left) * close[bars]
        finish(trip, bars - 1, bars, AT_END, out[trips])
        trips += 1
    return trips


@cached_njit
def begin(trip, units, bar, moment):
    """Begin a trip."""
    trip[:] = 0.0
    trip[SIDE], trip[ENTRY_STEP], trip[ENTRY_MOMENT] = math.copysign(1.0, units), bar, moment


@cached_njit
def book(trip, units, price, base, gain, fee, closes):
    """Book a fill of some units; base: the price that it is measured against; gain: of cash, without margins."""
    size = abs(units)
    if abs(price - base) <= ROUNDING * base:
        price = base
    if closes:
        trip[EXIT_VALUE] += size * price
    else:
        trip[ENTERED] += size
        trip[ENTRY_VALUE] += size * price
    trip[PROFIT] += gain
    trip[FEES] += size * price * fee
    trip[SLIPPAGE] += size * abs(price - base)


@cached_njit
def finish(trip, bar, moment, reason, row):
    """Write a trip that ends."""
    trip[EXIT_STEP], trip[EXIT_MOMENT], trip[REASON] = bar, moment, reason
    row[:] = trip


def round_trips(played: Backtest, seeds: Sequence[int] | None = None) -> pl.DataFrame:
    """Return the trades of some of a backtest's seeds in detail (all by default), by instrument, seed and exit."""
    found = [
        _trips_of(played, track, column)
        for track in played.tracks
        for column, seed in enumerate(played.seeds[: played.detailed])
        if seeds is None or seed in seeds
    ]
    return pl.concat(found)


def _trips_of(played: Backtest, track: Track, column: int) -> pl.DataFrame:
    """Return the trades of one account under one seed."""
    bars, params, ohlc = int(track.bars[column]), played.world.params, played.world.tables.ohlc
    terms = episode_terms(column, SimpleNamespace(**track.start_state), params)
    cash, units, entry, orders, exits = (
        np.ascontiguousarray(track.columns[name][: bars + 1, column])
        for name in ("cash", "units", "entry", "order_code", "exit_code")
    )
    ordered = np.ascontiguousarray(track.notes["ordered"][:bars, :, column])
    first, price = (track.first_row, codes.CLOSE_PRICE) if params.fill_at_close else (track.first_row + 1, 0)
    quote = np.ascontiguousarray(ohlc[first : first + bars, price])
    out = np.zeros((2 * np.count_nonzero(ordered[:, TRADED]) + 1, TRIP))
    charged = (track.change("funding")[:bars, column], quote, track.price, bool(params.fill_at_close))
    rates = float(terms.fee), float(terms.margin)
    count = write_trips(cash, units, entry, ordered, orders[1:], exits[1:], *charged, *rates, out)
    trip = out[:count].T
    entered, left, begun, ended, reason = (
        trip[place].astype(np.int64) for place in (ENTRY_MOMENT, EXIT_MOMENT, ENTRY_STEP, EXIT_STEP, REASON)
    )
    return pl.DataFrame(
        {
            "symbol": [track.symbol] * count,
            "seed": [played.seeds[column]] * count,
            "side": np.where(trip[SIDE] > 0.0, "long", "short"),
            "entry_time": track.time[entered],
            "exit_time": track.time[left],
            "entry_price": trip[ENTRY_VALUE] / trip[ENTERED],
            "exit_price": trip[EXIT_VALUE] / trip[ENTERED],
            "units": trip[SIDE] * trip[ENTERED],
            "bars": ended - begun,
            "profit": trip[PROFIT],
            "return": trip[PROFIT] / trip[ENTRY_VALUE],
            "fees": trip[FEES],
            "spread_and_slippage": trip[SLIPPAGE],
            "funding": trip[FUNDING],
            "reason": np.array(REASONS)[reason],
        },
        schema=dict(SCHEMA),
    )
