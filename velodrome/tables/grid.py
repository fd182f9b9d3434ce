"""Several instruments on one time grid: bars side by side, what is missing carried forward, and compared.

Features are computed on each instrument's own bars, without the holes; only then are their rows laid on the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.errors import ConfigError
from velodrome.tables.features.cross_section import CrossFeature
from velodrome.tables.recipe import Instrument, Recipe, Timeline, make_instrument, source_close_time


class GridWindow(NamedTuple):
    """The rows of one window of all K instruments, unscaled; R counts the rows of its timeframe."""

    time: NDArray[np.int64]  # [R]
    values: NDArray[np.float64]  # [R, K, F] what was known last; NaN before anything was
    present: NDArray[np.bool_]  # [R, K] where the instrument has a bar of its own
    names: tuple[str, ...]  # [F]
    last_row: NDArray[np.int64]  # [T] last row that had closed when the execution bar closed; −1 while there is none


class Grid(NamedTuple):
    """Execution bars of K instruments side by side."""

    time: NDArray[np.int64]  # [T]
    close_time: NDArray[np.int64]  # [T] when the first of its bars closes
    last_close: NDArray[np.int64]  # [T] when the last one does
    open: NDArray[np.float64]  # [T, K] the last close where there is no bar; 0 before the first
    close: NDArray[np.float64]  # [T, K] likewise
    tradable: NDArray[np.uint8]  # [T, K]
    windows: tuple[GridWindow, ...]


class Choices(NamedTuple):
    """What to compute of each instrument, and how to compare the instruments."""

    recipe: Recipe
    crosses: tuple[tuple[CrossFeature, ...], ...]  # [w] comparisons of each window
    hidden: tuple[int, ...]  # [w] features of each window, at its end, that only serve comparisons


def make_grid(series: Mapping[str, Series], choices: Choices, until: int) -> tuple[Grid, list[Instrument | None]]:
    """Lay instruments on one grid; one without bars has a column all the same. `until` is when the data ends."""
    recipe = choices.recipe
    instruments = [
        make_instrument(source, recipe, symbol, until) if len(source) else None for symbol, source in series.items()
    ]
    lines = [instrument.execution if instrument else None for instrument in instruments]
    time = _union(lines)
    close_time = np.full(len(time), np.iinfo(np.int64).max)
    last_close = np.zeros(len(time), np.int64)
    shape = (len(time), len(lines))
    opened, closed = np.zeros(shape), np.zeros(shape)
    tradable = np.zeros(shape, np.uint8)
    for column, line in enumerate(lines):
        if line is None:
            continue
        rows = np.searchsorted(time, line.series.time)
        close_time[rows] = np.minimum(close_time[rows], line.close_time)
        last_close[rows] = np.maximum(last_close[rows], line.close_time)
        tradable[rows, column] = 1
        last = carried_rows(tradable[:, column])
        known = last >= 0
        position = np.searchsorted(rows, last[known])
        closed[known, column] = line.series.close[position]
        opened[:, column] = closed[:, column]
        opened[rows, column] = line.series.open
    windows = tuple(
        _window(index, instruments, series, choices, time, close_time) for index in range(len(recipe.windows))
    )
    return Grid(time, close_time, last_close, opened, closed, tradable, windows), instruments


def carried_rows(present: NDArray) -> NDArray[np.int64]:
    """Return for each row the last one up to it that is present, −1 while there is none."""
    return np.maximum.accumulate(np.where(present, np.arange(len(present)), -1))


def _union(lines: Sequence[Timeline | None]) -> NDArray[np.int64]:
    times = [line.series.time for line in lines if line is not None]
    return np.unique(np.concatenate(times)) if times else np.empty(0, np.int64)


def _window(
    index: int, instruments: Sequence[Instrument | None], series: Mapping[str, Series], choices: Choices,
    time: NDArray[np.int64], close_time: NDArray[np.int64],
) -> GridWindow:  # fmt: skip
    recipe = choices.recipe
    tables = [instrument.windows[index] if instrument else None for instrument in instruments]
    names = next(table.names for table in tables if table is not None)
    rows_time = _union([table.timeline if table else None for table in tables])
    own = np.full((len(rows_time), len(tables), len(names)), np.nan)
    present = np.zeros(own.shape[:2], bool)
    known_at = np.zeros(len(rows_time), np.int64)
    for column, (table, source) in enumerate(zip(tables, series.values(), strict=True)):
        if table is None:
            continue
        rows = np.searchsorted(rows_time, table.timeline.series.time)
        own[rows, column] = table.values
        present[rows, column] = True
        # A bar that reaches beyond its bin (odd opening hours, days of 23 hours) is known when its last part is.
        source_close = source_close_time(source.time, recipe.source, recipe.timezone)
        closes = np.maximum(table.timeline.close_time, source_close[table.timeline.last_source])
        known_at[rows] = np.maximum(known_at[rows], closes)
    own, names = _compare(own, present, names, choices.crosses[index], choices.hidden[index])
    carried = np.full(own.shape, np.nan)
    for column in range(own.shape[1]):
        last = carried_rows(present[:, column])
        carried[last >= 0, column] = own[last[last >= 0], column]
    for place, cross in enumerate(choices.crosses[index]):
        if cross.comparison.for_all:
            feature = own.shape[2] - len(choices.crosses[index]) + place
            carried[..., feature] = own[..., feature]
    if recipe.windows[index].timeframe == recipe.execution:
        last_row = np.arange(len(time))
    else:
        last_row = np.searchsorted(np.maximum.accumulate(known_at), close_time, side="right") - 1
    return GridWindow(rows_time, carried, present, names, last_row)


def _compare(
    own: NDArray[np.float64], present: NDArray[np.bool_], names: tuple[str, ...], crosses: Sequence[CrossFeature],
    hidden: int,
) -> tuple[NDArray[np.float64], tuple[str, ...]]:  # fmt: skip
    """Add the comparisons to the features, and take away those that only served them."""
    compared = []
    for cross in crosses:
        if cross.of not in names:
            raise ConfigError(
                f"feature {cross.name!r} compares {cross.of!r}, which is not one column; there are the columns "
                f"{', '.join(names)}. A function that is compared returns one number a bar: write one for each column."
            )
        values = np.where(present, own[..., names.index(cross.of)], np.nan)
        compared.append(cross.comparison.compute(values)[..., None])
    shown = len(names) - hidden
    return np.concatenate([own[..., :shown], *compared], axis=2), (*names[:shown], *(cross.name for cross in crosses))
