"""Round trips of a portfolio: a position from its first unit to its last, by instrument.

A policy that shifts weights every bar may hold a position from the first bar to the last: that is one trip, and what it
does meanwhile is in its turnover and in the number of its orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from velodrome.evaluation.portfolio.play import PortfolioBacktest
from velodrome.evaluation.portfolio.recording import BY_DECAY, BY_ORDER, BY_STOP
from velodrome.evaluation.trades import DECAY, END, ORDER, SCHEMA, STOP, Trip, trade_row

REASONS = {BY_ORDER: ORDER, BY_STOP: STOP, BY_DECAY: DECAY}


def portfolio_round_trips(played: PortfolioBacktest, seeds: Sequence[int] | None = None) -> pl.DataFrame:
    """Return the trades of the seeds in detail (or some of them), by instrument, seed and time of exit.

    The profits of all trades of a seed add up to the change of its equity.
    """
    rows: list[tuple] = []
    for instrument in range(len(played.symbols)):
        for column, seed in enumerate(played.seeds[: played.detailed]):
            if seeds is None or seed in seeds:
                rows.extend(_trips_of(played, instrument, column))
    return pl.DataFrame(rows, schema=dict(SCHEMA), orient="row")


def _trips_of(played: PortfolioBacktest, k: int, column: int) -> Iterator[tuple]:
    symbol, seed = played.symbols[k], played.seeds[column]
    units = played.units[:, k, column]
    bought, sold, buy_fees, sell_fees, spread, forced = (
        played.notes[name][:, k, column] for name in ("bought", "sold", "buy_fees", "sell_fees", "spread", "forced")
    )
    quote, time = played.quote[:, k], played.time
    flows = played.flows
    # Sums before each bar, so that the part of a trip is a difference.
    funding, funding_in_cash = (
        np.r_[0.0, np.cumsum(values[:, k, column])] for values in (flows.funding, flows.funding_in_cash)
    )
    at_close = played.config.fill == "close"
    trip: Trip | None = None

    def close(trip: Trip, bar: int, until: int, moment: int, reason: str) -> tuple:
        trip.funding = float(funding[until] - funding[trip.entry_step])
        trip.profit -= float(funding_in_cash[until] - funding_in_cash[trip.entry_step])
        return trade_row(trip, symbol, seed, bar, moment, reason)

    for bar in np.flatnonzero((bought > 0.0) | (sold > 0.0)).tolist():
        moment = int(time[bar if at_close else bar + 1])
        held = float(units[bar])
        pieces = _pieces(held, bought[bar], sold[bar], buy_fees[bar], sell_fees[bar], spread[bar])
        for place, (change, fee, cost) in enumerate(pieces):
            after = held + change
            # What the account says: sums of orders may miss it by a rounding, and funding may have taken units since.
            end = float(units[bar + 1])
            if place == len(pieces) - 1 and (end == 0.0 or played.funding[bar, column] == 0.0):
                after = end
            closing = abs(change) if after * held >= 0.0 else abs(held)
            if held * change < 0.0:
                assert trip is not None
                part = closing / abs(change)
                _book(trip, closing, True, quote[bar], fee * part, cost * part)
                if after * held <= 0.0:
                    yield close(trip, bar, bar, moment, REASONS[int(forced[bar])])
                    trip = None
                opening = abs(change) - closing
            else:
                opening = abs(change)
            if opening > 0.0:
                trip = trip or Trip(1.0 if change > 0.0 else -1.0, bar, moment)
                part = opening / abs(change)
                _book(trip, opening, False, quote[bar], fee * part, cost * part)
            held = after
    if trip is not None:
        last = int(played.bars[column])
        price, left = float(played.close[last, k]), abs(float(units[last]))
        trip.profit += trip.side * left * price
        trip.exit_value += left * price
        yield close(trip, last - 1, last, int(time[last]), END)


def _pieces(
    held: float, bought: float, sold: float, buy_fees: float, sell_fees: float, spread: float
) -> list[tuple[float, float, float]]:
    """Return what was traded within a bar in its order, as (signed units, fees, distance from the quote)."""
    total = bought + sold
    purchase = (float(bought), float(buy_fees), float(spread * bought / total))
    sale = (-float(sold), float(sell_fees), float(spread * sold / total))
    # What closes comes before what opens.
    return [piece for piece in ((purchase, sale) if held < 0.0 else (sale, purchase)) if piece[0] != 0.0]


def _book(trip: Trip, size: float, closes: bool, quote: float, fee: float, cost: float) -> None:
    """Book a fill on the trip that it belongs to."""
    value = size * float(quote)
    # A purchase fills above the quote, a sale below it.
    buys = (trip.side > 0.0) != closes
    fill = value + cost if buys else value - cost
    if closes:
        trip.exit_value += fill
    else:
        trip.entered += size
        trip.entry_value += fill
    trip.profit += (-fill if buys else fill) - fee
    trip.fees += fee
    trip.slippage += cost
