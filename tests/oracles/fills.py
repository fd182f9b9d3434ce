"""Round trips of trading, found the slow way: the rule is played again, uncompiled, and its fills are watched.

Three of its functions (`realise`, `enlarge` and `with_cash`) note what they do while it runs with the recorded actions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.envs.trading import account as account_rule
from velodrome.envs.trading import codes
from velodrome.envs.trading.account import Account
from velodrome.evaluation.play import Backtest, Track
from velodrome.evaluation.trades import END, LIQUIDATION, ORDER, SCHEMA, SESSION_END, STOP, TARGET_REACHED, Trip
from velodrome.vector.compile.assemble import rebuild, rule_substitutions

EXIT_REASONS = {
    codes.LIQUIDATED: LIQUIDATION,
    codes.STOPPED: STOP,
    codes.TARGET: TARGET_REACHED,
    codes.SESSION_CLOSED: SESSION_END,
}
REALISING_ORDERS = (codes.CLOSED, codes.SWITCHED, codes.SWITCH_CLOSED, codes.DECREASED)


class Change(NamedTuple):
    """One thing that a step did to the account."""

    units: float  # signed change of the position; 0 for funding
    price: float
    gain: float  # change of cash, less the margin released or plus the margin tied
    fee: float
    held: float  # signed units after it


class ListedTable:
    """A table [T] or [T, C] as lists: the uncompiled rule reads plain numbers several times as fast as NumPy's.

    Row numbers are those of the whole table.
    """

    def __init__(self, table: NDArray, first: int, end: int) -> None:
        self.first = first
        self.rows = table[first:end].tolist()

    def __getitem__(self, key: int | tuple[int, int]) -> Any:
        if isinstance(key, tuple):
            return self.rows[key[0] - self.first][key[1]]
        return self.rows[key - self.first]


def recording_step(played: Backtest, changes: list[Change]) -> Any:
    """Return the rule's step function, uncompiled, that appends to `changes` what it does to the account."""

    def realise(account: Account, part: float, price: float, terms: Any) -> Account:
        after = account_rule.realise(account, part, price, terms)
        released = abs(part) * account.entry * terms.margin
        fee = abs(part) * price * terms.fee
        changes.append(Change(-part, price, after.cash - account.cash - released, fee, after.units))
        return after

    def enlarge(account: Account, added: float, price: float, stop: float, target: float, terms: Any) -> Account:
        after = account_rule.enlarge(account, added, price, stop, target, terms)
        if after.events != account.events:
            tied = abs(added) * price * terms.margin
            fee = abs(added) * price * terms.fee
            changes.append(Change(added, price, after.cash - account.cash + tied, fee, after.units))
        return after

    def with_cash(account: Account, cash: float) -> Account:
        changes.append(Change(0.0, 0.0, cash - account.cash, 0.0, account.units))
        return account_rule.with_cash(account, cash)

    recorders: dict[str, Any] = {"realise": realise, "enlarge": enlarge, "with_cash": with_cash}
    world = replace(played.world, substitutions={**played.world.substitutions, **recorders})
    step: Any = world.rule.step
    return rebuild(step, rule_substitutions(world))


def watched_trips(played: Backtest) -> pl.DataFrame:
    """Return the trades of a backtest, by instrument, seed and time of exit."""
    rows: list[tuple] = []
    for track in played.tracks:
        for column in range(len(played.seeds)):
            rows.extend(_trips_of(played, track, column))
    return pl.DataFrame(rows, schema=dict(SCHEMA), orient="row")


def _trips_of(played: Backtest, track: Track, column: int) -> Iterator[tuple]:
    params = played.world.params
    changes: list[Change] = []
    step = recording_step(played, changes)
    state = SimpleNamespace(**{name: _of_one(values, column) for name, values in track.start_state.items()})
    tables = _listed(played.world.tables, track.first_row, track.first_row + len(track.time))
    actions = track.actions[:, column].tolist()
    seed, at_close = played.seeds[column], bool(params.fill_at_close)
    trip: Trip | None = None
    # The generator's products of 32-bit words wrap on purpose.
    with np.errstate(over="ignore"):
        for bar in range(int(track.bars[column])):
            cursor = state.cursor[0]
            changes.clear()
            step(0, actions[bar], state, tables, params)
            if not changes:
                continue
            quote = tables.ohlc[cursor, 3] if at_close else tables.ohlc[cursor + 1, 0]
            order_is_next = state.order_code[0] in REALISING_ORDERS
            for change in changes:
                if change.units == 0.0:
                    if trip is not None:
                        trip.funding -= change.gain
                        trip.profit += change.gain
                    continue
                # An order fills at the quote's moment; what the bar does to a position belongs to the bar.
                ordered, reason, base = True, ORDER, quote
                reduces = trip is not None and change.units * trip.side < 0.0
                if reduces and not order_is_next:
                    ordered, reason = False, EXIT_REASONS[state.exit_code[0]]
                    base = track.price[bar + 1] if reason == SESSION_END else change.price
                moment = int(track.time[bar if ordered and at_close else bar + 1])
                if reduces:
                    order_is_next = False
                trip = trip or Trip(math.copysign(1.0, change.units), bar, moment)
                size = abs(change.units)
                slippage = size * abs(change.price - base)
                trip.fill(size, size * change.price, change.gain, change.fee, slippage, closes=reduces)
                if change.held == 0.0:
                    yield trip.row(track.symbol, seed, bar, moment, reason)
                    trip = None
    assert math.isclose(max(state.equity[0], 0.0), track.equity[track.bars[column], column], rel_tol=1e-9)
    if trip is not None:
        last = int(track.bars[column])
        price, left = float(track.price[last]), abs(state.units[0])
        trip.profit += trip.side * left * (price - state.entry[0])
        trip.exit_value += left * price
        yield trip.row(track.symbol, seed, last - 1, int(track.time[last]), END)


def _of_one(values: NDArray, column: int) -> Any:
    """Return a state column of one environment: a list of one number, or an array [rows, 1]."""
    return values[..., column : column + 1].copy() if values.ndim > 1 else [values[column].item()]


def _listed(tables: Any, first: int, end: int) -> SimpleNamespace:
    """Return the rule's tables as lists, those by bar from one row to another."""
    plain = SimpleNamespace(**tables._asdict())
    for name in ("ohlc", "atr", "session_last", "funding"):
        table = getattr(tables, name)
        setattr(plain, name, ListedTable(table, first, end) if len(table) else table)
    for name in ("levels", "side", "stop", "target"):
        setattr(plain, name, getattr(tables, name).tolist())
    return plain
