"""Round trips of a portfolio, and a world that notes what each step traded: the same rule, three names replaced.

Within a step an instrument may be sold by its stop and bought again by an order, so the change of its units does not
tell what was traded. `trade`, `is_stopped` and `decays` of the rule are called as always, and record more.

A trip is a position from its first unit to its last, by instrument. A policy that shifts weights every bar may hold one
from the first bar to the last; what it does meanwhile shows in the turnover and in the number of orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.envs.contract import Column, Float64, World
from velodrome.envs.portfolio.orders import decays as decays_in_the_rule
from velodrome.envs.portfolio.orders import is_stopped as is_stopped_in_the_rule
from velodrome.envs.portfolio.orders import trade as trade_of_the_rule
from velodrome.envs.portfolio.state import Book, Costs
from velodrome.evaluation.play import Backtest
from velodrome.evaluation.portfolio.account import PortfolioTrack, pieces_of
from velodrome.evaluation.trades import DECAY, END, ORDER, SCHEMA, STOP, Trip

BY_ORDER, BY_STOP, BY_DECAY = 0, 1, 2  # what sold a position, in `forced`
# Columns of several rows, [K, lanes], each about the last step; the reader empties them.
NOTED = ("bought", "sold", "buy_fees", "sell_fees", "spread", "forced")
REASONS = {BY_ORDER: ORDER, BY_STOP: STOP, BY_DECAY: DECAY}


# The world that notes its trades


def noted_trade(i: int, k: int, change: float, quote: float, costs: Costs, book: Book, state: Any, params: Any) -> Book:
    """Trade as the rule does, and note units, fees and the distance of the fill from the quote."""
    size = abs(change)
    distance = size * quote * costs.cost
    if change > 0.0:
        state.bought[k, i] += size
        state.buy_fees[k, i] += size * quote * (1.0 + costs.cost) * costs.buy_fee
    else:
        state.sold[k, i] += size
        state.sell_fees[k, i] += size * quote * (1.0 - costs.cost) * costs.sell_fee
    state.spread[k, i] += distance
    state.spread_sum[i] += distance
    state.fills[i] += 1.0
    return trade_of_the_rule(i, k, change, quote, costs, book, state, params)


def noted_stop(i: int, k: int, quote: float, distance: float, state: Any) -> bool:
    """Stop as the rule does, and note it."""
    stopped = is_stopped_in_the_rule(i, k, quote, distance, state)
    if stopped:
        state.forced[k, i] = BY_STOP
    return stopped


def noted_decay(i: int, k: int, longest: float, state: Any) -> bool:
    """Find what was held for too long, as the rule does, and note it."""
    due = decays_in_the_rule(i, k, longest, state)
    if due:
        state.forced[k, i] = BY_DECAY
    return due


def recording_world(world: World, instruments: int) -> World:
    """Return a portfolio world whose state has the columns of NOTED, and the sums `spread_sum` and `fills`."""
    columns: dict[str, Any] = {
        name: Annotated[NDArray, Column(np.int32 if name == "forced" else np.float64, rows=instruments)]
        for name in NOTED
    }
    columns |= {"spread_sum": Float64, "fills": Float64}
    state_type = type(
        "State", (world.state_type,), {"__annotations__": columns, "__module__": __name__, "__doc__": "With notes."}
    )
    noting: dict[str, Any] = {"trade": noted_trade, "is_stopped": noted_stop, "decays": noted_decay}
    params = world.params._replace(counts_positions=True)
    return replace(world, state_type=state_type, params=params, substitutions={**world.substitutions, **noting})


# What its notes amount to


def round_trips(played: Backtest) -> pl.DataFrame:
    """Return the trades of the seeds in detail, by instrument, seed and time of exit.

    The profits of all trades of a seed add up to the change of its equity.
    """
    pieces, rows = pieces_of(played), list[tuple]()
    for instrument in range(len(pieces[0].symbols)):
        for column, seed in enumerate(played.seeds[: played.detailed]):
            for piece in pieces:
                rows.extend(_trips_of(piece, instrument, column, seed))
    return pl.DataFrame(rows, schema=dict(SCHEMA), orient="row")


def _trips_of(account: PortfolioTrack, k: int, column: int, seed: int) -> Iterator[tuple]:
    symbol, time = account.symbols[k], account.time
    units, quote = account.units[:, k, column], account.quote[:, k]
    bought, sold, buy_fees, sell_fees, spread, forced = (account.notes[name][:, k, column] for name in NOTED)
    flows, paid = account.flows, account.change("funding")[:, column]
    # Sums before each bar, so that the part of a trip is a difference.
    funding, funding_in_cash = (
        np.r_[0.0, np.cumsum(values[:, k, column])] for values in (flows.funding, flows.funding_in_cash)
    )
    trip: Trip | None = None

    def close(trip: Trip, bar: int, until: int, moment: int, reason: str) -> tuple:
        trip.funding = float(funding[until] - funding[trip.entry_step])
        trip.profit -= float(funding_in_cash[until] - funding_in_cash[trip.entry_step])
        return trip.row(symbol, seed, bar, moment, reason)

    for bar in np.flatnonzero((bought > 0.0) | (sold > 0.0)).tolist():
        moment = int(time[bar if account.fills_at_close else bar + 1])
        held = float(units[bar])
        orders = _in_order(held, (bought[bar], buy_fees[bar]), (sold[bar], sell_fees[bar]), spread[bar])
        for place, (change, fee, cost) in enumerate(orders):
            after = held + change
            # What the account says: sums of orders may miss it by a rounding, and funding may have taken units since.
            end = float(units[bar + 1])
            if place == len(orders) - 1 and (end == 0.0 or paid[bar] == 0.0):
                after = end
            closing = abs(change) if after * held >= 0.0 else abs(held)
            if held * change < 0.0:
                assert trip is not None
                _book(trip, closing, True, quote[bar], fee, cost, closing / abs(change))
                if after * held <= 0.0:
                    yield close(trip, bar, bar, moment, REASONS[int(forced[bar])])
                    trip = None
                opening = abs(change) - closing
            else:
                opening = abs(change)
            if opening > 0.0:
                trip = trip or Trip(1.0 if change > 0.0 else -1.0, bar, moment)
                _book(trip, opening, False, quote[bar], fee, cost, opening / abs(change))
            held = after
    if trip is not None:
        last = int(account.bars[column])
        price, left = float(account.price[last, k]), abs(float(units[last]))
        trip.profit += trip.side * left * price
        trip.exit_value += left * price
        yield close(trip, last - 1, last, int(time[last]), END)


def _in_order(
    held: float, bought: tuple[float, float], sold: tuple[float, float], spread: float
) -> list[tuple[float, float, float]]:
    """Return what was traded within a bar in its order, as (signed units, fees, distance from the quote).

    bought, sold: units and fees.
    """
    total = bought[0] + sold[0]
    purchase = (float(bought[0]), float(bought[1]), float(spread * bought[0] / total))
    sale = (-float(sold[0]), float(sold[1]), float(spread * sold[0] / total))
    # What closes comes before what opens.
    return [order for order in ((purchase, sale) if held < 0.0 else (sale, purchase)) if order[0] != 0.0]


def _book(trip: Trip, size: float, closes: bool, quote: float, fee: float, cost: float, part: float) -> None:
    """Book some units of an order, and that part of its fee and of its cost, on the trip that they belong to."""
    fee, cost = fee * part, cost * part
    value = size * float(quote)
    # A purchase fills above the quote, a sale below it.
    buys = (trip.side > 0.0) != closes
    fill = value + cost if buys else value - cost
    trip.fill(size, fill, (-fill if buys else fill) - fee, fee, cost, closes=closes)
