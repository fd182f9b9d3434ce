"""From a path to findings and bars: the steps that `read_bars` and `check_bars` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.bars.columns import ColumnMap, map_columns
from velodrome.bars.files import Table, find_files, read_table
from velodrome.bars.frame import Bars, Series
from velodrome.bars.rules import NOTE, REFUSED, Finding, SymbolRows, clean_series, judge_rows
from velodrome.bars.timeframe import Timeframe, check_timezone, infer_timeframe, parse_timeframe, resample
from velodrome.bars.values import join_date_and_clock, parse_numbers, parse_times
from velodrome.errors import ConfigError, DataError, did_you_mean


@dataclass(frozen=True)
class Inspection:
    """What was found at a path, and the bars if nothing is refused."""

    findings: tuple[Finding, ...]
    rows: Mapping[str, SymbolRows]  # by symbol, as the files hold them
    series: Mapping[str, Series]  # by symbol, cleaned as far as the faults allow, before resampling
    bars: Bars | None  # None: at least one finding is a refusal


def inspect_bars(
    path: str | Path, symbols: str | Sequence[str] | None, timeframe: str | None, timezone: str, day_first: bool | None
) -> Inspection:
    """Read everything at the path and judge it. Only a wrong argument raises (`ConfigError`); data never does."""
    wanted = parse_timeframe(timeframe) if timeframe is not None else None
    check_timezone(timezone)
    requested = (symbols,) if isinstance(symbols, str) else tuple(symbols) if symbols is not None else None
    if requested == ():
        raise ConfigError("symbols is empty. Name at least one symbol, or pass None for all of them.")
    try:
        files = find_files(path)
    except DataError as error:
        return Inspection((file_refusal(error, str(path)),), {}, {}, None)

    findings: list[Finding] = []
    parts: dict[str, list[SymbolRows]] = {}
    for file in files:
        try:
            for part in read_rows(file, timezone, day_first, findings):
                parts.setdefault(part.symbol, []).append(part)
        except DataError as error:
            findings.append(file_refusal(error, str(file)))
    if requested is not None:
        unknown = [symbol for symbol in requested if symbol not in parts]
        if unknown and not any(finding.severity == REFUSED for finding in findings):
            raise ConfigError(
                f"no symbol {unknown[0]!r} in {path}; there are {', '.join(sorted(parts))}."
                f"{did_you_mean(unknown[0], parts)}"
            )
        if not unknown:  # faults elsewhere in the folder do not concern these symbols
            findings = [finding for finding in findings if finding.symbol in requested]
        parts = {symbol: parts[symbol] for symbol in requested if symbol in parts}

    rows = {symbol: joined(parts[symbol]) for symbol in (requested or sorted(parts)) if symbol in parts}
    for symbol_rows in rows.values():
        findings.extend(judge_rows(symbol_rows))
    series = {symbol: clean_series(symbol_rows) for symbol, symbol_rows in rows.items()}
    for symbol, own in series.items():
        if len(own) < 2 and rows[symbol].timed.all():  # unreadable times are a finding already
            findings.append(too_short(symbol, own, rows[symbol]))
    bars = None
    if not any(finding.severity == REFUSED for finding in findings):
        try:
            common, sized = fit_timeframe(series, wanted, timezone)
            bars = Bars(sized, common.text, timezone, str(path))
        except DataError as error:
            findings.append(file_refusal(error, "", rule="bar size"))
    return Inspection(tuple(findings), rows, series, bars)


def file_refusal(error: DataError, file: str, rule: str = "unreadable file") -> Finding:
    """Return the error as a finding; its message already names the file."""
    return Finding(REFUSED, rule, "", 1, message=str(error).removeprefix(f"{file}: ").rstrip("."), file=file)


def too_short(symbol: str, series: Series, rows: SymbolRows) -> Finding:
    file = str(rows.tables[0].file)
    message = f"{symbol} has {len(series)} bar{'' if len(series) == 1 else 's'}; at least 2 are needed"
    advice = "Add bars or leave the symbol out."
    return Finding(REFUSED, "too few bars", symbol, 1, file, message=message, advice=advice)


def read_rows(file: Path, timezone: str, day_first: bool | None, findings: list[Finding]) -> list[SymbolRows]:
    """Return the file's rows by symbol; notes on the file's columns are added to the findings."""
    table = read_table(file)
    columns = map_columns(table.frame.columns, str(file))
    names = {"time": columns.time, **columns.prices}
    volume_column, extra = choose_volume(table, columns)
    if volume_column is not None:
        names["volume"] = volume_column
    numbers = {name: parse_numbers(table.frame[names[name]], table.separator).value for name in names if name != "time"}
    numbers.setdefault("volume", np.zeros(len(table.frame)))
    for name, column in extra.items():
        parsed = parse_numbers(table.frame[column], table.separator)
        if parsed.unreadable.any() or np.isnan(parsed.value).all():
            message, advice = "the column holds no numbers and is left out", "Nothing to do unless you need it."
            findings.append(Finding(NOTE, "text column", table.stem, 1, str(file), "", column, message, advice))
            continue
        names[name], numbers[name] = column, parsed.value

    moments = table.frame[columns.time]
    if columns.clock is not None:
        together = join_date_and_clock(moments, table.frame[columns.clock])
        if together is None:
            names["time"], moments = columns.clock, table.frame[columns.clock]
        else:
            moments = together
    times = parse_times(moments, "UTC" if columns.time_is_utc else timezone, day_first)

    everything = SymbolRows(
        table.stem,
        [table],
        np.zeros(len(table.frame), np.int64),
        np.arange(len(table.frame)),
        times.time,
        times.faults,
        numbers,
        [names],
        volume_column is not None,
    )
    return split_symbols(everything, table, columns)


def choose_volume(table: Table, columns: ColumnMap) -> tuple[str | None, dict[str, str]]:
    """Return the volume column, None if it is empty throughout, and the extra columns.

    Tick volume takes the place of a volume that is always zero.
    """
    if columns.volume is None:
        return None, columns.extra
    traded = parse_numbers(table.frame[columns.volume], table.separator)
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
    symbol = table.frame[columns.symbol].cast(pl.String).str.strip_chars()
    nameless = (symbol.is_null() | (symbol == "")).to_numpy()
    if nameless.any():
        place = table.place(int(np.argmax(nameless)))
        raise DataError(f"{table.file}: {place}, column {columns.symbol!r}: no symbol. Fill it in or delete the row.")
    values = symbol.to_numpy()
    unique = sorted(symbol.unique().to_list())
    if len(unique) == 1:
        return [replace(rows, symbol=unique[0])]
    return [replace(chosen(rows, np.flatnonzero(values == name)), symbol=name) for name in unique]


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
    """Return one symbol's rows of several files together; a column that one of them lacks is NaN there."""
    if len(parts) == 1:
        return parts[0]

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
    )


def fit_timeframe(
    series: Mapping[str, Series], wanted: Timeframe | None, timezone: str
) -> tuple[Timeframe, dict[str, Series]]:
    """Return the common bar size and the bars in it, resampled if a coarser one is wanted; refuse what cannot be."""
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
        fitted[symbol], _ = resample(bars, wanted, timezone)
        if len(fitted[symbol]) < 2:
            raise DataError(
                f"{symbol} has {len(fitted[symbol])} bar at timeframe={wanted.text!r}; at least 2 are needed. "
                f"Pass a finer timeframe or more data."
            )
    return wanted, fitted
