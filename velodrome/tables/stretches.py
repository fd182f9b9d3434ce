"""Stretches of rows: each instrument alone, or all of them side by side on one time grid.

On a grid, features are still computed on each instrument's own bars, without the holes. Only then are their rows laid
on the grid, what is missing carried forward, and the instruments compared. A stretch is a function of the bars alone,
so that `leaks` can make it again from fewer bars and compare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.bars.timeframe import Timeframe, bin_edges, describe_time, resample
from velodrome.errors import ConfigError, DataError
from velodrome.tables.choices import Choices, WindowChoice
from velodrome.tables.features.features import compute_features
from velodrome.tables.splits import distinct_times

ALLOWED_OVERLAP = 0.25  # of a bar: by how much a grid row may reach into the next


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


class WindowRows(NamedTuple):
    """One window of the K instruments of a stretch, unscaled; R counts bars of its timeframe."""

    time: NDArray[np.int64]  # [R]
    known_at: NDArray[np.int64]  # [R] when all instruments' bars had closed; increasing
    values: NDArray[np.float64]  # [R, K, F] what was known last; NaN before anything was
    present: NDArray[np.bool_]  # [R, K] where the instrument has a bar of its own
    names: tuple[str, ...]  # [F]
    last_row: NDArray[np.int64]  # [T] last row that had closed when the execution bar closed; −1 while there is none


class Stretch(NamedTuple):
    """T execution rows of K instruments, one alone or all on a grid, and the windows at each row."""

    symbols: tuple[str, ...]  # [K]
    instruments: tuple[Instrument | None, ...]  # [K] None: no bar yet
    time: NDArray[np.int64]  # [T]
    decided_at: NDArray[np.int64]  # [T] when a decision on the row is taken; what it shows must be known by then
    open: NDArray[np.float64]  # [T, K] the last close where there is no bar; 0 before the first
    close: NDArray[np.float64]  # [T, K] likewise
    tradable: NDArray[np.uint8]  # [T, K] 1 where there is a bar
    windows: tuple[WindowRows, ...]

    @property
    def name(self) -> str:
        """The instrument, or "all"."""
        return self.symbols[0] if len(self.symbols) == 1 else "all"


def make_stretches(choices: Choices) -> tuple[Stretch, ...]:
    """Return one stretch with all instruments if they share a grid, else one for each."""
    series = choices.bars.series
    groups = [series] if choices.on_grid else [{symbol: source} for symbol, source in series.items()]
    return tuple(make_stretch(group, choices, last_moment(group, choices)) for group in groups)


def make_stretch(series: Mapping[str, Series], choices: Choices, until: int) -> Stretch:
    """Make a stretch of data that ends at the moment `until`; an instrument without bars still has its column."""
    instruments = tuple(
        make_instrument(source, choices, symbol, until) if len(source) else None for symbol, source in series.items()
    )
    lay = on_grid if choices.on_grid else alone
    return lay(tuple(series), instruments, choices)


def last_moment(series: Mapping[str, Series], choices: Choices) -> int:
    """Return when the last bar of any instrument closed."""
    last = [source.time[-1:] for source in series.values()]
    return max(int(source_close_time(time, choices.source, choices.bars.timezone)[0]) for time in last)


# One instrument alone


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
    series, close_time = resample(source, timeframe, choices.bars.timezone, choices.sums or ())
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


def alone(symbols: tuple[str, ...], instruments: Sequence[Instrument | None], choices: Choices) -> Stretch:
    """Take one instrument's tables as they are."""
    (instrument,) = instruments
    assert instrument is not None
    line = instrument.execution
    windows = []
    for table in instrument.windows:
        time, known_at = table.timeline.series.time, table.timeline.known_at
        present, last_row = np.ones((len(time), 1), bool), last_closed_rows(table.timeline, line)
        windows.append(WindowRows(time, known_at, table.values[:, None], present, table.names, last_row))
    prices = (line.series.open[:, None], line.series.close[:, None], np.ones((len(line.series), 1), np.uint8))
    return Stretch(symbols, (instrument,), line.series.time, line.known_at, *prices, tuple(windows))


def last_closed_rows(window: Timeline, execution: Timeline) -> NDArray[np.int64]:
    """Return for each execution bar the last bar of a window's timeframe that had closed when it closed, −1 for none.

    Times decide. In addition, no source bar after the execution bar's own may be part of it, so that bars which overlap
    their neighbours (odd opening hours, days of 23 hours) cannot show more than was known.
    """
    by_time = np.searchsorted(window.close_time, execution.close_time, side="right") - 1
    by_source = np.searchsorted(window.last_source, execution.last_source, side="right") - 1
    return np.minimum(by_time, by_source)


# All instruments on one grid


def on_grid(symbols: tuple[str, ...], instruments: tuple[Instrument | None, ...], choices: Choices) -> Stretch:
    """Lay instruments side by side, with a row wherever one of them has a bar."""
    lines = [instrument.execution if instrument else None for instrument in instruments]
    time = distinct_times([line.series.time for line in lines if line is not None])
    closes = np.zeros(len(time), np.int64)
    shape = (len(time), len(lines))
    opened, closed = np.zeros(shape), np.zeros(shape)
    tradable = np.zeros(shape, np.uint8)
    for column, line in enumerate(lines):
        if line is None:
            continue
        rows = np.searchsorted(time, line.series.time)
        closes[rows] = line.close_time  # bars that open at one time close at one time
        tradable[rows, column] = 1
        closed[rows, column] = line.series.close
        opened[rows, column] = line.series.open
    closed = carry(closed, tradable, 0.0)
    opened = np.where(tradable, opened, closed)
    windows = []
    for index, window in enumerate(choices.windows):
        tables = [instrument.windows[index] if instrument else None for instrument in instruments]
        laid = _window_rows(tables, window)
        if window.timeframe == choices.execution:
            last_row = np.arange(len(time))
        else:
            last_row = np.searchsorted(laid.known_at, closes, side="right") - 1
        windows.append(laid._replace(last_row=last_row))
    return Stretch(symbols, instruments, time, closes, opened, closed, tradable, tuple(windows))


def carried_rows(present: NDArray) -> NDArray[np.int64]:
    """Return for each row [T, K] the last one up to it that is present, −1 while there is none."""
    return np.maximum.accumulate(np.where(present, np.arange(len(present))[:, None], -1))


def carry(values: NDArray[np.float64], present: NDArray, before: float) -> NDArray[np.float64]:
    """Repeat the last value that was present, [T, K] or [T, K, F], where none is."""
    last = carried_rows(present)
    carried = values[last, np.arange(last.shape[1])]
    carried[last < 0] = before
    return carried


def _window_rows(tables: Sequence[WindowTable | None], window: WindowChoice) -> WindowRows:
    """Lay the rows of one window side by side, compare the instruments, and carry values over holes."""
    names = next(table.names for table in tables if table is not None)
    time = distinct_times([table.timeline.series.time for table in tables if table is not None])
    own = np.full((len(time), len(tables), len(names)), np.nan)
    present = np.zeros(own.shape[:2], bool)
    known_at = np.zeros(len(time), np.int64)
    for column, table in enumerate(tables):
        if table is None:
            continue
        rows = np.searchsorted(time, table.timeline.series.time)
        own[rows, column] = table.values
        present[rows, column] = True
        known_at[rows] = np.maximum(known_at[rows], table.timeline.known_at)
    own, names = _compare(own, present, names, window)
    carried = carry(own, present, np.nan)
    for feature, cross in enumerate(window.comparisons, own.shape[2] - len(window.comparisons)):
        if cross.comparison.for_all:
            carried[..., feature] = own[..., feature]
    return WindowRows(time, np.maximum.accumulate(known_at), carried, present, names, np.empty(0, np.int64))


def _compare(
    own: NDArray[np.float64], present: NDArray[np.bool_], names: tuple[str, ...], window: WindowChoice
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Add the comparisons to the features, and take away those that only served them."""
    compared = []
    for cross in window.comparisons:
        if cross.of not in names:
            raise ConfigError(
                f"feature {cross.name!r} compares {cross.of!r}, which is not one column; there are the columns "
                f"{', '.join(names)}. A function that is compared returns one number a bar: write one for each column."
            )
        values = np.where(present, own[..., names.index(cross.of)], np.nan)
        compared.append(cross.comparison.compute(values)[..., None])
    shown = len(names) - window.helpers
    names = (*names[:shown], *(cross.name for cross in window.comparisons))
    return np.concatenate([own[..., :shown], *compared], axis=2), names


def check_that_rows_follow(stretch: Stretch, choices: Choices) -> None:
    """Refuse grid rows that open before the one before them has closed: orders would fill before they were decided."""
    overlap = stretch.decided_at[:-1] - stretch.time[1:]
    # Days that are an hour longer or shorter, and sessions that end a little late, are no reason.
    late = np.flatnonzero(overlap > ALLOWED_OVERLAP * choices.execution.typical_nanoseconds)
    if len(late):
        row = int(late[0])
        raise DataError(
            f"the bars of the instruments begin at different times: one opens at "
            f"{describe_time(stretch.time[row + 1])} UTC, before the bar of {describe_time(stretch.time[row])} has "
            f"closed ({len(late)} rows in all). Orders would fill at prices from before the decision. Shift the times "
            "so that they agree, or give finer bars and a timeframe=… into which those of every instrument fit."
        )
