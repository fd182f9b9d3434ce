"""From choices to tables: timeframes, features and the alignment of windows, one instrument at a time.

A table is a function of the bars alone, so that `leaks` can make it again from fewer bars and compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars, Series
from velodrome.bars.timeframe import Timeframe, bin_edges, describe_time, parse_timeframe, resample
from velodrome.errors import ConfigError, DataError
from velodrome.tables.features.families import DEFAULT_FEATURES
from velodrome.tables.features.features import (
    Feature,
    FeatureSpec,
    compute_features,
    features_by_timeframe,
    parse_features,
)


@dataclass(frozen=True)
class WindowChoice:
    """One window: the last `length` bars of a timeframe, each shown as its features."""

    timeframe: Timeframe
    length: int
    features: tuple[Feature, ...]


@dataclass(frozen=True)
class Recipe:
    """What to compute of the bars."""

    source: Timeframe
    execution: Timeframe
    windows: tuple[WindowChoice, ...]
    timezone: str
    columns: tuple[str, ...]  # further columns that every instrument has


class Timeline(NamedTuple):
    """One instrument's bars of one timeframe, and when each was known."""

    series: Series
    close_time: NDArray[np.int64]  # [bars] nanoseconds UTC
    last_source: NDArray[np.int64]  # [bars] row of the last source bar in each


class WindowTable(NamedTuple):
    """One instrument's rows for one window, unscaled."""

    timeline: Timeline
    values: NDArray[np.float64]  # [bars, features]
    names: tuple[str, ...]
    last_row: NDArray[np.int64]  # [execution bars] last bar that had closed; −1 while there is none


class Instrument(NamedTuple):
    """One instrument's execution bars and window rows."""

    execution: Timeline
    windows: tuple[WindowTable, ...]


def make_recipe(
    bars: Bars,
    features: Sequence[FeatureSpec] | Mapping[str, Sequence[FeatureSpec]] | None,
    windows: int | Mapping[str, int],
    timeframe: str | None,
) -> Recipe:
    """Check the choices against the bars and parse them."""
    if not bars.symbols or any(len(bars[symbol]) == 0 for symbol in bars):
        raise DataError(f"there are no bars to build a market of ({bars.source or 'no source'}); read some first.")
    source = parse_timeframe(bars.timeframe)
    execution = _usable(parse_timeframe(timeframe or bars.timeframe), source, "execution")
    if isinstance(windows, Mapping):
        lengths = [(_usable(parse_timeframe(key), source, "a window's"), length) for key, length in windows.items()]
    else:
        lengths = [(execution, windows)]
    for size, length in lengths:
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
            raise ConfigError(f"the window of {size} is {length!r} bars long; it must be a whole number of at least 1.")
    texts = [size.text for size, _ in lengths]
    if len(set(texts)) < len(texts):
        raise ConfigError(f"windows has a timeframe twice: {', '.join(map(str, windows))} are {', '.join(texts)}.")  # type: ignore[arg-type]
    shared = set.intersection(*(set(bars[symbol].extra) for symbol in bars))
    columns = tuple(name for name in bars[bars.symbols[0]].extra if name in shared)
    chosen = features_by_timeframe(
        DEFAULT_FEATURES if features is None else features, texts, lambda key: parse_timeframe(key).text
    )
    choices = tuple(
        WindowChoice(size, int(length), parse_features(chosen[size.text], columns)) for size, length in lengths
    )
    return Recipe(source, execution, choices, bars.timezone, columns)


def _usable(timeframe: Timeframe, source: Timeframe, role: str) -> Timeframe:
    if timeframe < source:
        raise ConfigError(
            f"{role} timeframe {timeframe} is finer than the bars, which are {source}; "
            f"take {source} or coarser, or read finer bars."
        )
    if not source.divides(timeframe):
        raise ConfigError(
            f"{role} timeframe {timeframe} is not a multiple of the bars' {source}, so bars would lie across its edges."
        )
    return timeframe


def source_close_time(time: NDArray[np.int64], timeframe: Timeframe, timezone: str) -> NDArray[np.int64]:
    """Return when each source bar closed; days, weeks and months that begin at a local midnight end at one."""
    after = time + timeframe.typical_nanoseconds
    if not timeframe.is_calendar:
        return after
    start, end = bin_edges(time, timeframe, timezone)
    return np.where(time == start, end, after)


def make_timeline(source: Series, recipe: Recipe, timeframe: Timeframe, until: int | None = None) -> Timeline:
    """Return the bars of a timeframe; one whose bin had not ended when the data did is left out, as it could change.

    The data ends with its last bar or, where other instruments go on, at the moment `until`.
    """
    source_close = source_close_time(source.time, recipe.source, recipe.timezone)
    if timeframe == recipe.source:
        return Timeline(source, source_close, np.arange(len(source)))
    series, close_time = resample(source, timeframe, recipe.timezone)
    complete = 0
    if len(source):
        complete = int(np.searchsorted(close_time, source_close[-1] if until is None else until, side="right"))
    close_time = close_time[:complete]
    return Timeline(series.slice(0, complete), close_time, np.searchsorted(source.time, close_time) - 1)


def last_closed_rows(window: Timeline, execution: Timeline) -> NDArray[np.int64]:
    """Return for each execution bar the last bar of a window's timeframe that had closed when it closed, −1 for none.

    Times decide; that no source bar after the execution bar's own is part of it is required as well, so that bars
    which overlap their neighbours (odd opening hours, days of 23 hours) cannot show more than was known.
    """
    by_time = np.searchsorted(window.close_time, execution.close_time, side="right") - 1
    by_source = np.searchsorted(window.last_source, execution.last_source, side="right") - 1
    return np.minimum(by_time, by_source)


def make_instrument(source: Series, recipe: Recipe, symbol: str, until: int | None = None) -> Instrument:
    """Compute one instrument's execution bars and the rows of its windows."""
    execution = make_timeline(source, recipe, recipe.execution, until)
    tables = []
    for choice in recipe.windows:
        timeline = (
            execution
            if choice.timeframe == recipe.execution
            else make_timeline(source, recipe, choice.timeframe, until)
        )
        where = f"{symbol} {choice.timeframe}"
        values, names = compute_features(timeline.series, choice.features, recipe.timezone, where)
        tables.append(WindowTable(timeline, values, names, last_closed_rows(timeline, execution)))
    return Instrument(execution, tuple(tables))


def first_decision(instrument: Instrument, recipe: Recipe, symbol: str) -> int:
    """Return the first execution bar on which every window is full and known; refuse NaN later and too little data."""
    begin = 0
    for choice, table in zip(recipe.windows, instrument.windows, strict=True):
        first = first_known_row(table, choice, symbol)
        needed = first + choice.length
        bar = int(np.searchsorted(table.last_row, needed - 1))
        if bar >= len(table.last_row):
            raise ConfigError(
                f"the window of {choice.length} bars of {choice.timeframe} needs {needed} bars for {symbol} "
                f"({first} of warm-up and {choice.length} to show), of which {len(table.values)} exist and "
                f"{int(table.last_row[-1]) + 1 if len(table.last_row) else 0} had closed by the last execution bar. "
                "Give more data, a shorter window or features with a shorter warm-up."
            )
        begin = max(begin, bar)
    bars = len(instrument.execution.series)
    if begin + 2 > bars:
        raise ConfigError(
            f"{symbol} has {bars} bars of {recipe.execution} and windows are complete on the last "
            f"{max(bars - begin, 0)} only; at least 2 are needed. Give more data or shorter windows."
        )
    return begin


def first_known_row(table: WindowTable, choice: WindowChoice, symbol: str) -> int:
    """Return the first row on which every feature has a value; refuse a value that goes missing later."""
    first = 0
    for column, name in enumerate(table.names):
        values = table.values[:, column]
        known = ~np.isnan(values)
        if not known.any():
            raise ConfigError(
                f"feature {name!r} has no value on any of the {len(values)} bars of {choice.timeframe} of {symbol}: "
                "its warm-up is longer than the data. Give more data or a shorter period, or leave it out "
                f"(symbols= without {symbol})."
            )
        lead = int(np.argmax(known))
        bad = np.flatnonzero(~np.isfinite(values[lead:]))
        if len(bad):
            row = lead + int(bad[0])
            raise DataError(
                f"feature {name!r} of {choice.timeframe} is {values[row]} for {symbol} at "
                f"{describe_time(table.timeline.series.time[row])} UTC (row {row}, and {len(bad)} rows in all), after "
                "it had values. Fill or drop those rows of the data, or leave the feature out."
            )
        first = max(first, lead)
    return first


def make_instruments(bars: Bars, recipe: Recipe) -> tuple[tuple[Instrument, ...], list[int]]:
    """Compute every instrument, and the first bar on which each may take a decision."""
    instruments, begins = [], []
    for symbol in bars:
        instrument = make_instrument(bars[symbol], recipe, symbol)
        instruments.append(instrument)
        begins.append(first_decision(instrument, recipe, symbol))
    check_same_columns(bars, instruments)
    return tuple(instruments), begins


def check_same_columns(bars: Bars, instruments: Sequence[Instrument]) -> None:
    """Refuse feature functions that give some instruments other columns than others."""
    names: list[Any] = [[table.names for table in instrument.windows] for instrument in instruments]
    for symbol, theirs in zip(bars, names, strict=True):
        if theirs != names[0]:
            raise ConfigError(
                f"a feature function gives other columns for {symbol} ({theirs}) than for {bars.symbols[0]} "
                f"({names[0]}); it must return the same number of columns for every instrument."
            )
