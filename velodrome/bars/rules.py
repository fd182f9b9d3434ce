"""The rules that price rows must meet: the one place that says what is refused, for reading and for checking alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.files import Table
from velodrome.bars.frame import PRICE_COLUMNS, Series
from velodrome.bars.timeframe import describe_time
from velodrome.bars.times import TIME_ADVICE

OK, NOTE, REFUSED = "ok", "note", "refused"
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
class Rows:
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

    def __len__(self) -> int:
        return len(self.time)

    def find(self, severity: str, rule: str, row: int, column: str, count: int, message: str, advice: str) -> Finding:
        """Return a finding located at the row."""
        table = self.tables[self.table[row]]
        own_name = self.names[self.table[row]].get(column, column)
        place = table.place(self.index[row])
        return Finding(severity, rule, self.symbol, count, str(table.file), place, own_name, message, advice)

    def received(self, row: int, column: str) -> str:
        """Return the value as the file has it, quoted."""
        table = self.tables[self.table[row]]
        name = self.names[self.table[row]].get(column)
        return repr(table.received(int(self.index[row]), name)) if name else "nothing"

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Rows whose time could be read."""
        return ~np.logical_or.reduce([np.zeros(len(self), np.bool_), *self.time_faults.values()])


def judge(
    rows: Rows, rule: str, broken: NDArray[np.bool_], column: str, tell: Callable[[int], str], advice: str
) -> Finding:
    """Return a refusal at the first broken row, or that the rule holds."""
    count = int(broken.sum())
    if count == 0:
        return Finding(OK, rule, rows.symbol, column=column)
    row = int(np.argmax(broken))
    return rows.find(REFUSED, rule, row, column, count, tell(row), advice)


def judge_times(rows: Rows) -> list[Finding]:
    return [
        judge(rows, rule, broken, "time", lambda row, rule=rule: f"{rule}: {rows.received(row, 'time')}", advice)  # type: ignore[misc]
        for rule, advice in TIME_ADVICE.items()
        if (broken := rows.time_faults.get(rule)) is not None
    ]


def judge_numbers(rows: Rows) -> list[Finding]:
    """Every price must be a positive finite number, and every volume a finite one from zero up."""
    findings = []
    for name in (*PRICE_COLUMNS, "volume"):
        value = rows.values[name]

        def tell(row: int, name: str = name) -> str:
            return f"{name} is {rows.received(row, name)}"

        number = np.isfinite(value)
        findings.append(
            judge(rows, "not a number", ~number, name, tell, "Repair the row, or delete it to leave a gap.")
        )
        if name == "volume":
            advice = "Repair the row or delete it."
            findings.append(judge(rows, "negative volume", number & (value < 0), name, tell, advice))
        else:
            advice = "Prices must be above zero: repair or delete the row, or shift a spread so that it stays positive."
            findings.append(judge(rows, "price not positive", number & (value <= 0), name, tell, advice))
    return findings


def judge_shape(rows: Rows) -> list[Finding]:
    """High is the highest and low the lowest price of a bar."""
    opened, high, low, closed = (rows.values[name] for name in PRICE_COLUMNS)
    room = TOLERANCE * np.abs(np.where(np.isfinite(high), high, 0))
    advice = "The bar is impossible: repair it from another source, or delete the row."
    crossed = high < low - room

    def tell_crossed(i: int) -> str:
        return f"high {high[i]} is below low {low[i]}"

    findings = [judge(rows, "high below low", crossed, "high", tell_crossed, advice)]
    for name, value in (("open", opened), ("close", closed)):

        def tell(i: int, name: str = name, value: NDArray[np.float64] = value) -> str:
            return f"{name} {value[i]} lies outside low {low[i]} … high {high[i]}"

        outside = ~crossed & ((value > high + room) | (value < low - room))
        findings.append(judge(rows, f"{name} outside the bar", outside, name, tell, advice))
    return findings


def time_order(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the readable rows in order of time, and which of them repeat the time of the one before."""
    readable = np.flatnonzero(rows.timed)
    order = readable[np.argsort(rows.time[readable], kind="stable")]
    time = rows.time[order]
    return order, np.r_[np.zeros(min(len(order), 1), np.bool_), time[1:] == time[:-1]]


def judge_duplicates(rows: Rows) -> list[Finding]:
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
    findings = []
    if differs.any():
        at = int(np.argmax(differs))
        row, earlier = int(order[at]), int(order[at - 1])
        other = rows.tables[rows.table[earlier]]
        message = (
            f"two rows for {describe_time(rows.time[row])} UTC with different values; "
            f"the other is {other.file.name}, {other.place(rows.index[earlier])}"
        )
        advice = "Delete the wrong row. If clocks went back in that hour, export the file in UTC."
        findings.append(rows.find(REFUSED, "conflicting rows", row, column, int(differs.sum()), message, advice))
    else:
        findings.append(Finding(OK, "conflicting rows", rows.symbol))
    same = repeats & ~differs
    if same.any():
        row = int(order[int(np.argmax(same))])
        message = f"the row for {describe_time(rows.time[row])} UTC stands in the file more than once"
        advice = "Equal rows count once; nothing to do."
        findings.append(rows.find(NOTE, "repeated rows", row, "time", int(same.sum()), message, advice))
    else:
        findings.append(Finding(OK, "repeated rows", rows.symbol))
    return findings


def judge_rows(rows: Rows) -> list[Finding]:
    """Return what every rule found, refusals in the order in which reading reports them."""
    return [*judge_times(rows), *judge_numbers(rows), *judge_shape(rows), *judge_duplicates(rows)]


def clean_series(rows: Rows) -> Series:
    """Return the rows sorted, each time once, with highs and lows widened over rounding noise."""
    order, repeats = time_order(rows)
    kept = order[~repeats]
    value = {name: values[kept] for name, values in rows.values.items()}
    opened, high, low, closed, volume = (value.pop(name) for name in (*PRICE_COLUMNS, "volume"))
    highest = np.maximum.reduce([opened, high, low, closed])
    lowest = np.minimum.reduce([opened, high, low, closed])
    return Series(rows.time[kept], opened, highest, lowest, closed, volume, value)
