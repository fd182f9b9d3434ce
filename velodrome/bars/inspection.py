"""From a path or a frame to findings and bars: the steps that `read_bars` and `check_bars` share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.bars.columns import ColumnMap, check_roles, map_columns
from velodrome.bars.dataframes import describe_source, frame_tables, is_frame
from velodrome.bars.files import Table, find_files, read_table, stem_of
from velodrome.bars.frame import Bars, Series, check_sums
from velodrome.bars.gaps import AUTO, check_max_gap, judge_gaps
from velodrome.bars.makes.one_symbol import name_symbols, note_joined
from velodrome.bars.rules import (
    ADJUSTED,
    CLOSE_ONLY,
    FUTURE,
    JOINED,
    NOTE,
    REFUSED,
    Finding,
    SymbolRows,
    clean_series,
    judge_rows,
)
from velodrome.bars.summary import listed
from velodrome.bars.timeframe import Timeframe, check_timezone, infer_timeframe, parse_timeframe, resample
from velodrome.bars.values import decimal_marks, join_date_and_clock, parse_numbers, parse_times
from velodrome.errors import ConfigError, DataError, did_you_mean, printable

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

    Frame: TypeAlias = pl.DataFrame | pl.LazyFrame | pd.DataFrame | pd.Series
    Source: TypeAlias = str | Path | Frame | Mapping[str, Frame]

# Notes that stay with the bars.
SAID = {
    CLOSE_ONLY: "there are closes and no other price: open, high and low are the close, and orders fill at closes",
    ADJUSTED: "prices are multiplied by adjusted close over close",
    FUTURE: "some bars lie in the future",
    JOINED: "several files are joined in order of time",
}
NAMED = 3  # symbols that such a note names


@dataclass(frozen=True)
class Reading:
    """How bars are read; `read_bars` explains each option."""

    symbols: str | Sequence[str] | None = None
    timeframe: str | None = None
    timezone: str = "UTC"
    day_first: bool | None = None
    columns: Mapping[str, str] | None = None
    adjust: bool = True
    max_gap: str | None = AUTO
    sums: Collection[str] | None = None

    @property
    def requested(self) -> tuple[str, ...] | None:
        """The symbols to keep; None keeps all."""
        return (
            None if self.symbols is None else (self.symbols,) if isinstance(self.symbols, str) else tuple(self.symbols)
        )

    def check(self) -> None:
        """Refuse an option that no data could make legal."""
        if self.timeframe is not None:
            parse_timeframe(self.timeframe)
        check_timezone(self.timezone)
        check_roles(self.columns)
        check_max_gap(self.max_gap)
        if self.requested == ():
            raise ConfigError("symbols is empty. Name at least one symbol, or pass None for all of them.")


@dataclass(frozen=True)
class Inspection:
    """What was found in a source, and the bars if nothing is refused."""

    findings: tuple[Finding, ...]
    rows: Mapping[str, SymbolRows]  # by symbol, as received
    series: Mapping[str, Series]  # by symbol, cleaned as far as the faults allow, before resampling
    bars: Bars | None  # None: at least one finding is a refusal

    @property
    def refusals(self) -> list[Finding]:
        """The findings for which there are no bars."""
        return [finding for finding in self.findings if finding.severity == REFUSED]


def inspect_bars(source: Source, reading: Reading) -> Inspection:
    """Read everything there is and judge it. Only a wrong argument raises (`ConfigError`); data never does."""
    reading.check()
    requested, where = reading.requested, describe_source(source)
    findings: list[Finding] = []
    read: list[SymbolRows] = []
    unread: list[str] = []  # origins
    for get_table, origin in tables_of(source, reading):
        try:
            read += read_rows(get_table(), reading, findings)
        except DataError as error:
            findings.append(file_refusal(error, origin))
            unread.append(origin)
    file_symbols: dict[str, str] = {}
    if isinstance(source, str | Path):
        read, findings, file_symbols = with_names(read, unread, findings)
    parts: dict[str, list[SymbolRows]] = {}
    for part in read:
        parts.setdefault(part.symbol, []).append(part)
    if requested is not None:
        unknown = [symbol for symbol in requested if symbol not in parts]
        if unknown and not any(finding.severity == REFUSED for finding in findings):
            raise ConfigError(
                f"no symbol {unknown[0]!r} in {where}; there are {', '.join(sorted(parts))}."
                f"{did_you_mean(unknown[0], parts)}"
            )
        if not unknown:  # faults elsewhere in the folder do not concern these symbols
            findings = [
                finding
                for finding in findings
                if (finding.symbol or (finding.severity == REFUSED and file_symbols.get(finding.file))) in requested
            ]
        parts = {symbol: parts[symbol] for symbol in requested if symbol in parts}

    rows = {symbol: joined(parts[symbol]) for symbol in (requested or sorted(parts)) if symbol in parts}
    for symbol_rows in rows.values():
        findings.extend(note_joined(symbol_rows))
        findings.extend(judge_rows(symbol_rows))
    series = {symbol: clean_series(symbol_rows) for symbol, symbol_rows in rows.items()}
    for symbol, own in series.items():
        if len(own) >= 2:
            size = infer_timeframe(own.time)
            findings.extend(judge_gaps(rows[symbol], own, size, reading.timezone, reading.max_gap))
        elif rows[symbol].timed.all():  # unreadable times are a finding already
            findings.append(too_short(symbol, own, rows[symbol]))
    bars = None
    if not any(finding.severity == REFUSED for finding in findings):
        try:
            wanted = None if reading.timeframe is None else parse_timeframe(reading.timeframe)
            common, sized = fit_timeframe(series, wanted, reading.timezone, reading.sums or ())
            bars = Bars(sized, common.text, reading.timezone, where, notes=tuple(what_is_said(findings)))
        except DataError as error:
            findings.append(file_refusal(error, "", rule="bar size"))
    return Inspection(tuple(findings), rows, series, bars)


def with_names(
    read: Sequence[SymbolRows], unread: Sequence[str], findings: Sequence[Finding]
) -> tuple[list[SymbolRows], list[Finding], dict[str, str]]:
    """Return rows and findings under the symbols that the names of their files say, and those symbols by origin.

    What is found alike in several files of a symbol is one finding.
    """
    of_files = [part for part in read if part.from_name]
    by_column = {part.symbol for part in read if not part.from_name}
    naming = name_symbols(of_files, {origin: stem_of(Path(origin)) for origin in unread}, by_column)
    symbols = naming.symbols
    named = [replace(part, symbol=symbols[part.tables[0].origin]) if part.from_name else part for part in read]
    alike: dict[tuple[str, ...], Finding] = {}
    for one in findings:
        told = replace(one, symbol=symbols.get(one.file, one.symbol)) if one.symbol else one
        file = "" if told.severity == NOTE and told.symbol else told.file
        key = (told.severity, told.rule, told.symbol, told.column, told.message, file)
        known = alike.get(key)
        alike[key] = told if known is None else replace(known, count=known.count + told.count)
    return named, [*alike.values(), *naming.findings], symbols


def what_is_said(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the notes that stay with the bars, with the symbols that each is about."""
    for rule, note in SAID.items():
        symbols = [finding.symbol for finding in findings if finding.rule == rule and finding.severity == NOTE]
        if symbols:
            yield f"{', '.join(listed(tuple(symbols), NAMED))}: {note}"


def tables_of(source: Source, reading: Reading) -> list[tuple[Callable[[], Table], str]]:
    """Return how to get each table of a source, which may refuse, and where it comes from."""

    def refuse(error: DataError) -> Table:
        raise error

    requested = reading.requested
    try:
        if is_frame(source) or isinstance(source, Mapping):
            name = requested[0] if requested and len(requested) == 1 else None
            return [(partial(lambda table: table, table), table.origin) for table in frame_tables(source, name)]
        if not isinstance(source, str | Path):
            raise ConfigError(
                f"bars are read from a path, a pandas or Polars DataFrame, or {{symbol: frame}}; received a "
                f"{type(source).__name__}."
            )
        named = (reading.columns or {}).values()
        return [(partial(read_table, file, named), str(file)) for file in find_files(source)]
    except DataError as error:
        return [(partial(refuse, error), describe_source(source))]


def file_refusal(error: DataError, file: str, rule: str = "unreadable file") -> Finding:
    """Return the error as a finding; its message already names the file."""
    return Finding(REFUSED, rule, "", 1, message=str(error).removeprefix(f"{file}: ").rstrip("."), file=file)


def too_short(symbol: str, series: Series, rows: SymbolRows) -> Finding:
    file = rows.tables[0].origin
    message = f"{symbol} has {len(series)} bar{'' if len(series) == 1 else 's'}; at least 2 are needed"
    advice = "Add bars or leave the symbol out."
    return Finding(REFUSED, "too few bars", symbol, 1, file, message=message, advice=advice)


def read_rows(table: Table, reading: Reading, findings: list[Finding]) -> list[SymbolRows]:
    """Return the table's rows by symbol; what is found in its columns is added to the findings."""
    columns = map_columns(table.frame.columns, table.origin, {**table.roles, **(reading.columns or {})})
    if table.read_as:
        advice = "Nothing to do if that is so; else put a header line above the data."
        findings.append(Finding(NOTE, "no header", table.symbol, 1, table.origin, "", "", table.read_as, advice))
    adjusted = columns.adjusted if reading.adjust else None
    close_only = len(columns.prices) == 1
    names = {"time": columns.time, **columns.prices}
    volume_column, extra = choose_volume(table, columns)
    if volume_column is not None:
        names["volume"] = volume_column
    numbers = {
        name: parse_numbers(table.frame[column], table.separator, short=name == "volume").value
        for name, column in names.items()
        if name != "time"
    }
    numbers.setdefault("volume", np.zeros(len(table.frame)))
    if close_only:
        numbers |= dict.fromkeys(("open", "high", "low"), numbers["close"])
    findings.extend(judge_decimals(table, columns))
    for name, column in extra.items():
        parsed = parse_numbers(table.frame[column], table.separator)
        empty = bool(np.isnan(parsed.value).all())
        if empty or (parsed.unreadable.any() and name != adjusted):
            adjusted = None if name == adjusted else adjusted
            message, advice = "the column holds no numbers and is left out", "Nothing to do unless you need it."
            findings.append(Finding(NOTE, "text column", table.symbol, 1, table.origin, "", column, message, advice))
            continue
        names[name], numbers[name] = column, parsed.value

    moments = table.frame[columns.time]
    if columns.clock is not None:
        together = join_date_and_clock(moments, table.frame[columns.clock])
        if together is None:
            names["time"], moments = columns.clock, table.frame[columns.clock]
        else:
            moments = together
    times = parse_times(moments, "UTC" if columns.time_is_utc else reading.timezone, reading.day_first)

    everything = SymbolRows(
        table.symbol,
        [table],
        np.zeros(len(table.frame), np.int64),
        np.arange(len(table.frame)),
        times.time,
        times.faults,
        numbers,
        [names],
        volume_column is not None,
        close_only,
        adjusted,
        columns.symbol is None,
    )
    return split_symbols(everything, table, columns)


def judge_decimals(table: Table, columns: ColumnMap) -> list[Finding]:
    """Refuse prices with decimal commas in some rows and decimal points in others: 1.234 may then be either."""
    prices = [] if table.separator is None else list(dict.fromkeys(columns.prices.values()))
    if not any(table.frame[column].str.contains(",", literal=True).any() for column in prices):
        return []
    seen: dict[str, tuple[int, str]] = {}  # mark → first row and column that has it
    for column in prices:
        for mark, rows in decimal_marks(table.frame[column], table.separator).items():
            if len(rows) and (mark not in seen or rows[0] < seen[mark][0]):
                seen[mark] = (int(rows[0]), column)
    if len(seen) < 2:
        return []
    (first, first_column), (later, column) = sorted(seen.values())
    message = (
        f"decimal commas and decimal points in one file: {table.frame[column][later]!r} here and "
        f"{table.frame[first_column][first]!r} in {table.place(first)}, column {first_column!r}"
    )
    advice = "Write all numbers with one of them."
    where = (table.origin, table.place(later), column)
    return [Finding(REFUSED, "mixed decimals", table.symbol, 1, *where, message, advice)]


def choose_volume(table: Table, columns: ColumnMap) -> tuple[str | None, dict[str, str]]:
    """Return the volume column, None if it is empty throughout, and the extra columns.

    Tick volume takes the place of a volume that is always zero.
    """
    if columns.volume is None:
        return None, columns.extra
    traded = parse_numbers(table.frame[columns.volume], table.separator, short=True)
    if not traded.unreadable.any() and np.isnan(traded.value).all():
        return None, columns.extra
    if columns.tick_volume is None or traded.unreadable.any() or np.any(traded.value != 0):
        return columns.volume, columns.extra
    others = {name: column for name, column in columns.extra.items() if column != columns.tick_volume}
    return columns.tick_volume, others


def split_symbols(rows: SymbolRows, table: Table, columns: ColumnMap) -> list[SymbolRows]:
    """Return the rows by the value of the symbol column, if the file has one."""
    if columns.symbol is None:
        return [rows]
    if table.named:
        if (count := table.frame[columns.symbol].n_unique()) > 1:
            raise DataError(
                f"{table.origin}: column {columns.symbol!r} holds {count} symbols. Give the frame without a symbol, or "
                "one frame for each."
            )
        return [rows]
    symbol = table.frame[columns.symbol].cast(pl.String).str.strip_chars()
    nameless = (symbol.is_null() | (symbol == "")).to_numpy()
    if nameless.any():
        place = table.place(int(np.argmax(nameless)))
        raise DataError(f"{table.origin}: {place}, column {columns.symbol!r}: no symbol. Fill it in or delete the row.")
    values = symbol.to_numpy()
    unique = sorted(symbol.unique().to_list())
    if len(unique) == 1:
        return [replace(rows, symbol=printable(unique[0], kept=""))]
    return [replace(chosen(rows, np.flatnonzero(values == name)), symbol=printable(name, kept="")) for name in unique]


def chosen(rows: SymbolRows, keep: NDArray[np.int64]) -> SymbolRows:
    """Return some of the rows."""
    return replace(
        rows,
        table=rows.table[keep],
        index=rows.index[keep],
        time=rows.time[keep],
        time_faults={reason: mask[keep] for reason, mask in rows.time_faults.items()},
        values={name: values[keep] for name, values in rows.values.items()},
    )


def joined(parts: list[SymbolRows]) -> SymbolRows:
    """Return one symbol's rows of several files together, in order of time; a column that one lacks is NaN there."""
    if len(parts) == 1:
        return parts[0]
    parts = sorted(parts, key=lambda part: part.time[part.timed].min(initial=np.iinfo(np.int64).max))

    def together(arrays: Callable[[SymbolRows], Mapping[str, NDArray]], absent: float) -> dict[str, NDArray]:
        names = dict.fromkeys(name for part in parts for name in arrays(part))
        return {
            name: np.concatenate([arrays(part).get(name, np.full(len(part), absent)) for part in parts])
            for name in names
        }

    return SymbolRows(
        parts[0].symbol,
        [table for part in parts for table in part.tables],
        np.concatenate([np.full(len(part), number) for number, part in enumerate(parts)]),
        np.concatenate([part.index for part in parts]),
        np.concatenate([part.time for part in parts]),
        together(lambda part: part.time_faults, absent=False),
        together(lambda part: part.values, absent=np.nan),
        [own for part in parts for own in part.names],
        any(part.has_volume for part in parts),
        any(part.close_only for part in parts),
        next((part.adjusted for part in parts if part.adjusted is not None), None),
        all(part.from_name for part in parts),
    )


def fit_timeframe(
    series: Mapping[str, Series], wanted: Timeframe | None, timezone: str, sums: Collection[str] = ()
) -> tuple[Timeframe, dict[str, Series]]:
    """Return the common bar size and the bars in it, resampled if a coarser one is wanted; refuse what cannot be."""
    check_sums(sums, series)
    sizes = {symbol: infer_timeframe(bars.time) for symbol, bars in series.items()}
    if wanted is None:
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{symbol} {size}" for symbol, size in sizes.items())
            raise DataError(
                f"the symbols have different bar sizes: {listed}. Pass timeframe='{max(sizes.values())}' to bring them "
                f"to one, or choose symbols of one size."
            )
        return next(iter(sizes.values())), dict(series)
    fitted = {}
    for symbol, bars in series.items():
        size = sizes[symbol]
        # Bars with many gaps may be finer than their most common distance: one distance of the size wanted proves it.
        if wanted == size or (wanted < size and np.any(np.diff(bars.time) == wanted.nanoseconds)):
            fitted[symbol] = bars
            continue
        if wanted < size:
            raise DataError(
                f"timeframe={wanted.text!r} is finer than the bars of {symbol}, which are {size}. "
                f"Bars can only be made coarser: pass {size.text!r} or more, or get finer data."
            )
        if not size.divides(wanted):
            raise DataError(
                f"timeframe={wanted.text!r} is no multiple of {symbol}'s bar size {size}: bars would cross its bins. "
                f"Pass a multiple of {size.text!r}."
            )
        fitted[symbol], _ = resample(bars, wanted, timezone, sums)
        if len(fitted[symbol]) < 2:
            raise DataError(
                f"{symbol} has {len(fitted[symbol])} bar at timeframe={wanted.text!r}; at least 2 are needed. "
                f"Pass a finer timeframe or more data."
            )
    return wanted, fitted
