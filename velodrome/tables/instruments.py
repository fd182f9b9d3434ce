"""One instrument's tables: its bars in each timeframe, and the features of each window.

A table is a function of the bars alone, so that `leaks` can make it again from fewer bars and compare.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.bars.timeframe import Timeframe, bin_edges, describe_time, resample
from velodrome.errors import ConfigError, DataError
from velodrome.tables.choices import Choices, WindowChoice
from velodrome.tables.features.features import compute_features


class Timeline(NamedTuple):
    """One instrument's bars of one timeframe, and when each was known."""

    series: Series
    close_time: NDArray[np.int64]  # [bars] nanoseconds UTC
    last_source: NDArray[np.int64]  # [bars] row of the last source bar in each
    known_at: NDArray[np.int64]  # [bars] when the bar and the last source bar in it had closed; increasing


class WindowTable(NamedTuple):
    """One instrument's rows for one window, unscaled."""

    timeline: Timeline
    values: NDArray[np.float64]  # [bars, features]
    names: tuple[str, ...]


class Instrument(NamedTuple):
    """One instrument's execution bars and window rows."""

    execution: Timeline
    windows: tuple[WindowTable, ...]


def source_close_time(time: NDArray[np.int64], timeframe: Timeframe, timezone: str) -> NDArray[np.int64]:
    """Return when each source bar closed; days, weeks and months that begin at a local midnight end at one."""
    after = time + timeframe.typical_nanoseconds
    if not timeframe.is_calendar:
        return after
    start, end = bin_edges(time, timeframe, timezone)
    return np.where(time == start, end, after)


def make_timeline(source: Series, choices: Choices, timeframe: Timeframe, until: int) -> Timeline:
    """Return the bars of a timeframe, without one whose bin had not ended at the moment `until`: it could change."""
    closed = source_close_time(source.time, choices.source, choices.bars.timezone)
    known = np.maximum.accumulate(closed)
    if timeframe == choices.source:
        return Timeline(source, closed, np.arange(len(source)), known)
    series, close_time = resample(source, timeframe, choices.bars.timezone)
    complete = int(np.searchsorted(close_time, until, side="right"))
    close_time = close_time[:complete]
    last_source = np.searchsorted(source.time, close_time) - 1
    # A bar that reaches beyond its bin (odd opening hours, days of 23 hours) is known when its last part is.
    return Timeline(series.slice(0, complete), close_time, last_source, np.maximum(close_time, known[last_source]))


def make_instrument(source: Series, choices: Choices, symbol: str, until: int) -> Instrument:
    """Compute one instrument's execution bars and the rows of its windows from data that ends at `until`."""
    lines = {
        size: make_timeline(source, choices, size, until)
        for size in (choices.execution, *(window.timeframe for window in choices.windows))
    }
    tables = []
    for window in choices.windows:
        line, where = lines[window.timeframe], f"{symbol} {window.timeframe}"
        tables.append(WindowTable(line, *compute_features(line.series, window.features, choices.bars.timezone, where)))
    return Instrument(lines[choices.execution], tuple(tables))


def first_known_row(table: WindowTable, window: WindowChoice, symbol: str) -> int:
    """Return the first row on which every feature has a value; refuse a value that goes missing later."""
    first = 0
    for column, name in enumerate(table.names):
        values = table.values[:, column]
        known = ~np.isnan(values)
        if not known.any():
            raise ConfigError(
                f"feature {name!r} has no value on any of the {len(values)} bars of {window.timeframe} of {symbol}: "
                "its warm-up is longer than the data. Give more data or a shorter period, or leave it out "
                f"(symbols= without {symbol})."
            )
        lead = int(np.argmax(known))
        bad = np.flatnonzero(~np.isfinite(values[lead:]))
        if len(bad):
            row = lead + int(bad[0])
            raise DataError(
                f"feature {name!r} of {window.timeframe} is {values[row]} for {symbol} at "
                f"{describe_time(table.timeline.series.time[row])} UTC (row {row}, and {len(bad)} rows in all), after "
                "it had values. Fill or drop those rows of the data, or leave the feature out."
            )
        first = max(first, lead)
    return first
