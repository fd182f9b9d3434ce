"""Round trips of a backtest: the rule is played again with its fills written down, and fills make trades.

A fill is known only inside a step of the rule, which may close, open and be stopped out within one bar. So the rule
itself runs once more, uncompiled and with the recorded actions, while three of its functions (`realise`, `enlarge` and
`with_cash`) note what they do. The account must come out as the compiled rule left it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.envs.trading import account as account_rule
from velodrome.envs.trading.account import Account
from velodrome.envs.trading.codes import (
    CLOSED,
    DECREASED,
    LIQUIDATED,
    SESSION_CLOSED,
    STOPPED,
    SWITCH_CLOSED,
    SWITCHED,
    TARGET,
)
from velodrome.errors import VelodromeError
from velodrome.evaluation.play import Backtest, Track
from velodrome.vector.compile.assemble import rebuild, rule_substitutions

ORDER, STOP, TARGET_REACHED, LIQUIDATION, SESSION_END, DECAY, END = (
    "order", "stop", "target", "liquidated", "session end", "decay", "end",
)  # fmt: skip
EXIT_REASONS = {LIQUIDATED: LIQUIDATION, STOPPED: STOP, TARGET: TARGET_REACHED, SESSION_CLOSED: SESSION_END}
REALISING_ORDERS = (CLOSED, SWITCHED, SWITCH_CLOSED, DECREASED)
TOLERANCE = 1e-9  # relative difference between the two ways of playing that rounding may make

SCHEMA: Mapping[str, Any] = {
    "symbol": pl.String,
    "seed": pl.Int64,
    "side": pl.String,
    "entry_time": pl.Datetime("ns", "UTC"),
    "exit_time": pl.Datetime("ns", "UTC"),
    "entry_price": pl.Float64,  # average of the fills that built the position
    "exit_price": pl.Float64,  # average of the fills that took it down; the last close for what was still open
    "units": pl.Float64,  # signed, all that was entered
    "bars": pl.Int64,  # from the bar of the first fill to that of the last; 0: within one bar
    "profit": pl.Float64,  # currency, after costs
    "return": pl.Float64,  # profit over the value entered
    "fees": pl.Float64,
    "spread_and_slippage": pl.Float64,
    "funding": pl.Float64,  # paid; below zero it was received
    "reason": pl.String,  # of the last fill
}


class Change(NamedTuple):
    """One thing that a step did to the account."""

    units: float  # signed change of the position; 0 for funding
    price: float
    gain: float  # change of cash, less the margin released or plus the margin tied
    fee: float
    held: float  # signed units after it


@dataclass
class Trip:
    """A position while it is held."""

    side: float
    entry_step: int
    entry_time: int
    entered: float = 0.0  # units
    entry_value: float = 0.0
    left: float = 0.0  # units
    exit_value: float = 0.0
    profit: float = 0.0
    fees: float = 0.0
    slippage: float = 0.0
    funding: float = 0.0


class PriceRows:
    """A table [T, C] as lists: plain floats keep the uncompiled rule several times as fast as NumPy's scalars."""

    def __init__(self, table: NDArray[np.float64], first: int, end: int) -> None:
        self.first = first
        self.columns = [column.tolist() for column in table[first:end].T]

    def __getitem__(self, key: tuple[int, int]) -> float:
        return self.columns[key[1]][key[0] - self.first]


class Rows:
    """A column [T] of a table as a list, by the row numbers of the whole table."""

    def __init__(self, table: NDArray, first: int, end: int) -> None:
        self.first = first
        self.values = table[first:end].tolist()

    def __getitem__(self, row: int) -> Any:
        return self.values[row - self.first]


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


def round_trips(played: Backtest, seeds: Sequence[int] | None = None) -> pl.DataFrame:
    """Return the trades of some of a backtest's seeds (all by default), by instrument, seed and time of exit."""
    rows: list[tuple] = []
    for track in played.tracks:
        for column, seed in enumerate(played.seeds):
            if seeds is None or seed in seeds:
                rows.extend(_trips_of(played, track, column))
    return pl.DataFrame(rows, schema=dict(SCHEMA), orient="row")


def _trips_of(played: Backtest, track: Track, column: int) -> list[tuple]:
    tables, params = played.world.tables, played.world.params
    first, end = track.first_row, track.first_row + len(track.time)
    changes: list[Change] = []
    step = recording_step(played, changes)
    state = SimpleNamespace(
        **{name: (values[..., column : column + 1].copy() if values.ndim > 1 else [values[column].item()])
           for name, values in track.start_state.items()}
    )  # fmt: skip
    plain = SimpleNamespace(**tables._asdict())
    plain.ohlc = PriceRows(tables.ohlc, first, end)
    plain.atr, plain.session_last = Rows(tables.atr, first, end), Rows(tables.session_last, first, end)
    if len(tables.funding):
        plain.funding = Rows(tables.funding, first, end)
    for name in ("levels", "side", "stop", "target"):
        setattr(plain, name, getattr(tables, name).tolist())
    actions = track.actions[:, column].tolist()
    seed, at_close = played.seeds[column], played.config.fill == "close"
    found: list[tuple] = []
    trip: Trip | None = None
    # The generator's products of 32-bit words wrap on purpose.
    with np.errstate(over="ignore"):
        for bar in range(int(track.bars[column])):
            cursor = state.cursor[0]
            changes.clear()
            step(0, actions[bar], state, plain, params)
            if not changes:
                continue
            quote = plain.ohlc[cursor, 3] if at_close else plain.ohlc[cursor + 1, 0]
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
                trip = _apply(change, trip, bar, moment, base)
                if trip.left == 0.0:
                    found.append(trade_row(trip, track.symbol, seed, bar, moment, reason))
                    trip = None
    _check_replay(track, column, state)
    if trip is not None:
        last = int(track.bars[column])
        price = float(track.price[last])
        trip.profit += trip.side * trip.left * (price - state.entry[0])
        trip.exit_value += trip.left * price
        found.append(trade_row(trip, track.symbol, seed, last - 1, int(track.time[last]), END))
    return found


def _apply(change: Change, trip: Trip | None, bar: int, moment: int, base: float) -> Trip:
    """Book a fill on the trip that it belongs to, which it may begin."""
    if trip is None:
        trip = Trip(math.copysign(1.0, change.units), bar, moment)
    size = abs(change.units)
    if change.units * trip.side > 0.0:
        trip.entered += size
        trip.entry_value += size * change.price
    else:
        trip.exit_value += size * change.price
    trip.left = abs(change.held)
    trip.profit += change.gain
    trip.fees += change.fee
    trip.slippage += size * abs(change.price - base)
    return trip


def trade_row(trip: Trip, symbol: str, seed: int, bar: int, moment: int, reason: str) -> tuple:
    """Return a trip that has ended as a row of SCHEMA."""
    return (
        symbol, seed, "long" if trip.side > 0.0 else "short", trip.entry_time, moment,
        trip.entry_value / trip.entered, trip.exit_value / trip.entered, trip.side * trip.entered,
        bar - trip.entry_step, trip.profit, trip.profit / trip.entry_value, trip.fees, trip.slippage, trip.funding,
        reason,
    )  # fmt: skip


def _check_replay(track: Track, column: int, state: SimpleNamespace) -> None:
    expected = float(track.equity[track.bars[column], column])
    received = max(state.equity[0], 0.0)
    if not math.isclose(received, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE * state.initial[0]):
        raise VelodromeError(
            f"{track.symbol}, seed column {column}: the uncompiled rule ends with an equity of {received!r}, the "
            f"compiled one with {expected!r}; the list of trades would be wrong. Clear Velodrome's kernel cache and "
            "report this."
        )
