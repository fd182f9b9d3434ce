"""The rules that price rows must meet: the one place that says what is refused, for reading and for checking alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.bars.frame import BAR_COLUMNS, PRICE_COLUMNS, Series
from velodrome.bars.timeframe import describe_time

if TYPE_CHECKING:
    from velodrome.bars.files import Table

OK, NOTE, REFUSED = "ok", "note", "refused"
UNREADABLE = "unreadable time"
DAY_OR_MONTH = "day or month"
SKIPPED_HOUR = "skipped hour"
ROW_NUMBER = "row number as time"
TIME_ADVICE = {
    UNREADABLE: "Write times as 2020-01-31 09:30:00, with or without a zone such as +01:00, or as an epoch number.",
    DAY_OR_MONTH: "No value proves whether the day or the month comes first: pass day_first=True or day_first=False.",
    SKIPPED_HOUR: "Clocks skip this local time: pass the time zone that the file is really in, or export it in UTC.",
    ROW_NUMBER: "The numbers are too small for an epoch after March 1973: give the file a column with times.",
}
# Notes that stay with the bars, as `Bars.notes`.
CLOSE_ONLY, ADJUSTED, FUTURE, JOINED = "close only", "adjusted prices", "in the future", "several files"
RATIO_NOISE = 1e-12  # an adjusted close this near to the close is the close
# From so many on, and so large a share of the rows, single wrong rows are not why rows have one time.
MANY_CONFLICTS, CONFLICTS_SHARE = 10, 0.1
TOLERANCE = 1e-9  # relative: a close this far above the high is rounding, and the high is widened


@dataclass(frozen=True)
class Finding:
    """What one rule found in one symbol's rows."""

    severity: str  # "ok", "note" or "refused"
    rule: str
    symbol: str  # "": the finding is about a file or about all symbols
    count: int = 0
    file: str = ""
    place: str = ""  # "line 5", or "row 4 (counted from 0)" in Parquet: the first example
    column: str = ""
    message: str = ""
    advice: str = ""

    def __str__(self) -> str:
        column = f"column {self.column!r}" if self.column else ""
        location = ", ".join(part for part in (self.file, self.place, column) if part)
        times = f" ({self.count} times in all)" if self.count > 1 else ""
        return f"{location}{': ' if location else ''}{self.message}{times}. {self.advice}".rstrip()


@dataclass(frozen=True)
class SymbolRows:
    """One symbol's rows as the files hold them: any order, faults included. All arrays have one entry a row."""

    symbol: str
    tables: Sequence[Table]
    table: NDArray[np.int64]  # index into tables
    index: NDArray[np.int64]  # row of that table's frame
    time: NDArray[np.int64]  # nanoseconds UTC; 0 where a time fault holds
    time_faults: dict[str, NDArray[np.bool_]]  # reason → rows
    values: dict[str, NDArray[np.float64]]  # open, high, low, close, volume, then extra columns
    names: Sequence[dict[str, str]]  # for each table: value name or "time" → the file's own column
    has_volume: bool
    close_only: bool = False  # there is no other price; the other three are the close
    adjusted: str | None = None  # the value by which prices are adjusted: a close less splits and dividends
    from_name: bool = False  # no column says the symbol; it is that of the file's name

    def __len__(self) -> int:
        return len(self.time)

    def found(
        self, severity: str, rule: str, at: NDArray[np.int64], column: str, tell: Callable[[int], str], advice: str
    ) -> Finding:
        """Return a finding at the first of some rows, or that the rule holds where there are none."""
        if len(at) == 0:
            return Finding(OK, rule, self.symbol, column=column)
        return self.finding(severity, rule, int(at[0]), column, tell(int(at[0])), advice, len(at))

    def finding(
        self, severity: str, rule: str, row: int, column: str, message: str, advice: str, count: int
    ) -> Finding:
        """Return a finding located at a row."""
        table, names = self.tables[self.table[row]], self.names[self.table[row]]
        where = (table.origin, table.place(self.index[row]), names.get(column, column))
        return Finding(severity, rule, self.symbol, count, *where, message, advice)

    def received(self, row: int, column: str) -> str:
        """Return the value as the file has it, quoted; 'empty' of an empty cell."""
        table, name = self.tables[self.table[row]], self.names[self.table[row]].get(column)
        if name is None:
            return "nothing"
        value = table.frame[name][int(self.index[row])]
        if value is None or value == "":
            return "empty"
        return repr(str(value) if isinstance(value, date) else value)

    def row_at(self, moment: int | np.int64) -> int:
        """Return the first row of a time."""
        return int(np.argmax((self.time == moment) & self.timed))

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Rows whose time could be read."""
        return ~np.logical_or.reduce([np.zeros(len(self), np.bool_), *self.time_faults.values()])


def judge_times(rows: SymbolRows) -> list[Finding]:
    def tell(rule: str) -> Callable[[int], str]:
        return lambda row: f"{rule}: {rows.received(row, 'time')}"

    return [
        rows.found(REFUSED, rule, np.flatnonzero(rows.time_faults[rule]), "time", tell(rule), advice)
        for rule, advice in TIME_ADVICE.items()
        if rule in rows.time_faults
    ]


def judge_future(rows: SymbolRows) -> list[Finding]:
    """No bar can have opened after this moment. It is said and not refused: what is read must not depend on a clock."""
    ahead = np.flatnonzero(rows.timed & (rows.time > time.time_ns()))

    def tell(row: int) -> str:
        return f"{rows.received(row, 'time')} is {describe_time(rows.time[row])} UTC, which lies in the future"

    advice = "Check the time zone of the file, the order of day and month, the year, and the unit of epoch numbers."
    return [rows.found(NOTE, FUTURE, ahead, "time", tell, advice)]


def judge_numbers(rows: SymbolRows) -> list[Finding]:
    """Every price must be a positive finite number, and every volume a finite one from zero up."""
    findings = []
    for name in ("close", "volume") if rows.close_only else BAR_COLUMNS:
        value = rows.values[name]
        number = np.isfinite(value)
        rules = [("not a number", ~number, "Repair the row, or delete it to leave a gap.")]
        if name == "volume":
            rules.append(("negative volume", number & (value < 0), "Repair the row or delete it."))
        else:
            advice = "Prices must be above zero: repair or delete the row, or shift a spread so that it stays positive."
            rules.append(("price not positive", number & (value <= 0), advice))

        def tell(row: int, name: str = name) -> str:
            return f"{name} is {rows.received(row, name)}"

        findings += [
            rows.found(REFUSED, rule, np.flatnonzero(broken), name, tell, advice) for rule, broken, advice in rules
        ]
    return findings


def judge_closes(rows: SymbolRows) -> list[Finding]:
    """Say what becomes of closes that stand alone, and of those that come with adjusted ones."""
    findings = []
    closed = rows.values["close"]
    if rows.close_only:
        message = "there are closes and no other price: open, high and low are the close"
        advice = (
            "Orders fill at closes. If there are other prices, name their columns in place of NAME: "
            "columns={'open': 'NAME', 'high': 'NAME', 'low': 'NAME'}."
        )
        findings.append(rows.finding(NOTE, CLOSE_ONLY, 0, "close", message, advice, 1))
    if rows.adjusted is None:
        return findings
    adjusted = rows.values[rows.adjusted]
    broken = np.flatnonzero(~(np.isfinite(adjusted) & (adjusted > 0)))

    def tell(row: int) -> str:
        return f"the adjusted close is {rows.received(row, rows.adjusted or '')}"

    advice = "Fill it in, or pass adjust=False to use prices as they are."
    findings.append(rows.found(REFUSED, "adjusted close", broken, rows.adjusted, tell, advice))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = adjusted / closed
    changed = np.flatnonzero(np.isfinite(ratio) & (np.abs(ratio - 1.0) > RATIO_NOISE))
    if len(changed) and not len(broken):
        low, high = ratio[changed].min(), ratio[changed].max()
        message = f"all prices are multiplied by adjusted close over close, {low:.4g} … {high:.4g}; the volume is not"
        advice = "adjust=False (market.adjust=false) keeps prices as they are."
        row = int(changed[0])
        findings.append(rows.finding(NOTE, ADJUSTED, row, rows.adjusted, message, advice, len(changed)))
    return findings


def judge_shape(rows: SymbolRows) -> list[Finding]:
    """High is the highest and low the lowest price of a bar."""
    if rows.close_only:
        return []
    opened, high, low, closed = (rows.values[name] for name in PRICE_COLUMNS)
    room = TOLERANCE * np.abs(np.where(np.isfinite(high), high, 0))
    advice = "The bar is impossible: repair it from another source, or delete the row."
    crossed = high < low - room

    def tell_crossed(i: int) -> str:
        return f"high {high[i]} is below low {low[i]}"

    findings = [rows.found(REFUSED, "high below low", np.flatnonzero(crossed), "high", tell_crossed, advice)]
    for name, value in (("open", opened), ("close", closed)):

        def tell(i: int, name: str = name, value: NDArray[np.float64] = value) -> str:
            return f"{name} {value[i]} lies outside low {low[i]} … high {high[i]}"

        outside = np.flatnonzero(~crossed & ((value > high + room) | (value < low - room)))
        findings.append(rows.found(REFUSED, f"{name} outside the bar", outside, name, tell, advice))
    return findings


def time_order(rows: SymbolRows) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the readable rows in order of time, and which of them repeat the time of the one before."""
    readable = np.flatnonzero(rows.timed)
    order = readable[np.argsort(rows.time[readable], kind="stable")]
    time = rows.time[order]
    return order, np.r_[np.zeros(min(len(order), 1), np.bool_), time[1:] == time[:-1]]


def judge_duplicates(rows: SymbolRows) -> list[Finding]:
    """Rows with one time must be equal in every column; then one of them is kept."""
    order, repeats = time_order(rows)
    differs = np.zeros(len(order), np.bool_)
    column = "time"
    for name, values in rows.values.items():
        ordered = values[order]
        unequal = repeats & (ordered != np.roll(ordered, 1)) & ~(np.isnan(ordered) & np.isnan(np.roll(ordered, 1)))
        if unequal.any() and not differs.any():
            column = name
        differs |= unequal

    def moment(row: int) -> str:
        return f"{describe_time(rows.time[row])} UTC"

    def other_row(marked: NDArray[np.bool_]) -> tuple[int, str]:
        """Return which table the row before the first of those marked is in, and the place there."""
        earlier = int(order[np.argmax(marked) - 1])
        other = rows.tables[rows.table[earlier]]
        return int(rows.table[earlier]), f"{Path(other.origin).name}, {other.place(rows.index[earlier])}"

    def tell_conflict(row: int) -> str:
        return f"two rows for {moment(row)} with different values; the other is {other_row(differs)[1]}"

    def tell_repeated(row: int) -> str:
        table, place = other_row(repeats & ~differs)
        if table != rows.table[row]:
            return f"the row for {moment(row)} stands in two files; the other is {place}"
        return f"the row for {moment(row)} stands in the file more than once"

    advice = _advice_on_conflicts(rows, order[differs])
    harmless = "Equal rows count once; nothing to do."
    return [
        rows.found(REFUSED, "conflicting rows", order[differs], column, tell_conflict, advice),
        rows.found(NOTE, "repeated rows", order[repeats & ~differs], "time", tell_repeated, harmless),
    ]


def _advice_on_conflicts(rows: SymbolRows, at: NDArray[np.int64]) -> str:
    """Say what to do about rows with one time: many of them are bars of several instruments, or lack a time of day."""
    if len(at) < max(MANY_CONFLICTS, CONFLICTS_SHARE * len(rows)):
        return "Delete the wrong row. If clocks went back in that hour, export the file in UTC."
    own = rows.table == rows.table[at[0]]
    table, known = rows.tables[rows.table[at[0]]], set(rows.names[rows.table[at[0]]].values())
    times = pl.Series(rows.time[own])
    texts = [
        name for name, dtype in table.frame.schema.items() if dtype in (pl.String, pl.Categorical, pl.Enum, pl.Time)
    ]
    for column in (name for name in texts if name not in known):
        values = table.frame[column][rows.index[own]].cast(pl.String)
        tells_apart = pl.DataFrame([times.alias("time"), values.alias("value")]).n_unique() == len(times)
        if tells_apart and values.str.contains(r"^\d{1,2}:\d{2}").all():
            return f"Column {column!r} holds the time of day: call it 'time', and the one with the date 'date'."
        if tells_apart and rows.from_name:
            return f"If {column!r} says which instrument a row is of: columns={{'symbol': {column!r}}}."
    instruments = "If the file holds several instruments, say which column names them: columns={'symbol': 'NAME'}. "
    missing = "If times of day are missing, write date and time of day into one column."
    return f"{instruments if rows.from_name else ''}{missing}"


JUDGES = (judge_times, judge_future, judge_numbers, judge_shape, judge_closes, judge_duplicates)


def judge_rows(rows: SymbolRows) -> list[Finding]:
    """Return what every rule found, refusals in the order in which reading reports them."""
    return [finding for judge in JUDGES for finding in judge(rows)]


def clean_series(rows: SymbolRows) -> Series:
    """Return the rows sorted, each time once, prices adjusted, highs and lows widened over rounding noise."""
    order, repeats = time_order(rows)
    kept = order[~repeats]
    value = {name: values[kept] for name, values in rows.values.items()}
    opened, high, low, closed, volume = (value.pop(name) for name in BAR_COLUMNS)
    if rows.close_only:
        opened = high = low = closed
    if rows.adjusted is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = value[rows.adjusted] / closed
            opened, high, low, closed = opened * ratio, high * ratio, low * ratio, value[rows.adjusted]
    highest = np.maximum.reduce([opened, high, low, closed])
    lowest = np.minimum.reduce([opened, high, low, closed])
    if rows.close_only:
        opened = highest = lowest = closed
    return Series(rows.time[kept], opened, highest, lowest, closed, volume, value, rows.close_only)
