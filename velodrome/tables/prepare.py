"""From choices to tables that are ready to be laid out: features computed, splits cut, scalers fitted, nothing scaled.

The leak check looks at what is prepared here; only then is it made into a market.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.timeframe import describe_time
from velodrome.errors import ConfigError, DataError
from velodrome.tables.choices import Choices, OnGrid, WindowChoice
from velodrome.tables.purge import Reach, purged_training
from velodrome.tables.scaling import TRAIN, Scaler, check_given, check_training_split
from velodrome.tables.splits import DEFAULT_SPLITS, FEWEST_ROWS, RowRanges, Span, make_splits, ranges_in
from velodrome.tables.stretches import Stretch, WindowTable, check_that_rows_follow, make_stretches


@dataclass(frozen=True)
class Prepared:
    """Unscaled tables of all instruments, with the splits and scalers that go with them."""

    choices: Choices
    stretches: tuple[Stretch, ...]
    spans: tuple[Span, ...]  # of each stretch: its rows, counted through all stretches
    splits: dict[str, RowRanges]
    scalers: tuple[Scaler, ...]
    notes: tuple[str, ...]  # about the splits


def prepare(choices: Choices) -> Prepared:
    """Compute what was chosen."""
    stretches = make_stretches(choices)
    check_same_columns(stretches)
    spans: list[Span] = []
    for stretch in stretches:
        first = spans[-1].end if spans else 0
        name = "the grid" if choices.on_grid else stretch.symbols[0]
        spans.append(Span(name, stretch.time, first, first + first_decision(stretch, choices)))
    wanted = DEFAULT_SPLITS if choices.splits is None else choices.splits
    splits = make_splits(wanted, spans, choices.bars.timezone, choices.embargo)
    splits, notes = purged_training(splits, _reach(choices, stretches, spans), spans, choices.embargo)
    scalers = fit_scalers(choices, stretches, spans, splits)
    return Prepared(choices, stretches, tuple(spans), splits, scalers, notes)


def _reach(choices: Choices, stretches: Sequence[Stretch], spans: Sequence[Span]) -> Reach:
    """Return how far the decisions reach back."""
    shown = [[stretch.windows[index] for stretch in stretches] for index in range(len(choices.windows))]
    own = tuple(grid.present & ~np.isnan(grid.values).all(axis=2) for (grid,) in shown) if choices.on_grid else ()
    return Reach(
        time=np.concatenate([stretch.time for stretch in stretches]),
        end=np.array([span.end for span in spans]),
        length=np.array([window.length for window in choices.windows], np.int64),
        rows=np.array([np.concatenate([window.last_row for window in windows]) for windows in shown]),
        look_back=look_back(choices, stretches),
        own=own,
    )


def check_same_columns(stretches: Sequence[Stretch]) -> None:
    """Refuse feature functions that give some instruments other columns than others."""
    tables = {
        symbol: [table.names for table in instrument.windows]
        for stretch in stretches
        for symbol, instrument in zip(stretch.symbols, stretch.instruments, strict=True)
        if instrument is not None
    }
    first, expected = next(iter(tables.items()))
    for symbol, names in tables.items():
        if names != expected:
            raise ConfigError(
                f"a feature function gives other columns for {symbol} ({names}) than for {first} ({expected}); it must "
                "return the same number of columns for every instrument."
            )


def first_decision(stretch: Stretch, choices: Choices) -> int:
    """Return the first row on which enough instruments have complete windows; refuse too little data."""
    count, rows = len(stretch.symbols), len(stretch.time)
    needed, remedy = 1, "more data or shorter windows"
    if isinstance(choices.layout, OnGrid):
        check_that_rows_follow(stretch, choices)
        needed, remedy = choices.layout.min_instruments, "other data, shorter windows or a smaller min_instruments"
        if isinstance(needed, bool) or not isinstance(needed, int) or not 1 <= needed <= count:
            raise ConfigError(f"min_instruments is {needed!r}; legal: 1 … {count}, the number of instruments.")
    begins = np.array([_complete_from(stretch, choices, column) for column in range(count)])
    ends = np.array([np.flatnonzero(column)[-1] if column.any() else -1 for column in stretch.tradable.T])
    enough = [row for row in np.sort(begins) if ((begins <= row) & (row <= ends)).sum() >= needed]
    if count > 1 and not enough:
        raise ConfigError(
            f"there is no row on which {needed} of {count} instruments have complete windows: some end before others "
            f"begin. Give {remedy}."
        )
    begin = int(enough[0]) if enough else rows
    if begin + FEWEST_ROWS > rows:
        whose = f"{needed} of {count} instruments" if count > 1 else stretch.symbols[0]
        raise ConfigError(
            f"{whose}: windows are complete on the last {rows - begin} only of {rows} bars of {choices.execution}; at "
            f"least {FEWEST_ROWS} are needed. Give {remedy}."
        )
    return begin


def _complete_from(stretch: Stretch, choices: Choices, column: int) -> int:
    """Return the first row on which an instrument has a bar and every window is full and known."""
    symbol, instrument = stretch.symbols[column], stretch.instruments[column]
    assert instrument is not None
    begin = int(np.argmax(stretch.tradable[:, column])) if len(stretch.time) else 0
    for window, table, shown in zip(choices.windows, instrument.windows, stretch.windows, strict=True):
        first = first_known_row(table, window, symbol)
        last = int(np.searchsorted(shown.time, table.timeline.series.time[first])) + window.length - 1
        row = int(np.searchsorted(shown.last_row, last))
        if row >= len(stretch.time) and len(stretch.symbols) == 1:
            raise ConfigError(
                f"the window of {window.length} bars of {window.timeframe} needs {last + 1} bars for {symbol} "
                f"({first} of warm-up and {window.length} to show), of which {len(table.values)} exist and "
                f"{int(shown.last_row[-1]) + 1 if len(shown.last_row) else 0} had closed by the last execution bar. "
                "Give more data, a shorter window or features with a shorter warm-up."
            )
        begin = max(begin, row)
    return begin


def look_back(choices: Choices, stretches: Sequence[Stretch]) -> tuple[int, ...]:
    """Return of each window how many bars before its own a row is made of."""
    there = [
        (symbol, instrument)
        for stretch in stretches
        for symbol, instrument in zip(stretch.symbols, stretch.instruments, strict=True)
        if instrument is not None
    ]
    return tuple(
        max(first_known_row(instrument.windows[index], window, symbol) for symbol, instrument in there)
        for index, window in enumerate(choices.windows)
    )


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


def fit_scalers(
    choices: Choices, stretches: Sequence[Stretch], spans: Sequence[Span], splits: Mapping[str, RowRanges]
) -> tuple[Scaler, ...]:
    """Return a scaler for each window: the one that was given, or one fitted on what the training split can show."""
    symbols = tuple(symbol for stretch in stretches for symbol in stretch.symbols)
    named = [
        (window.timeframe.text, rows.names) for window, rows in zip(choices.windows, stretches[0].windows, strict=True)
    ]
    if choices.scalers is not None:
        return check_given(choices.scalers, named, symbols)
    check_training_split(choices.scaler, splits)
    train = splits.get(TRAIN) or tuple((span.begin, span.end) for span in spans)
    own = symbols if choices.per_instrument else ()
    scalers = []
    for index, (timeframe, names) in enumerate(named):
        rows = training_rows(stretches, spans, train, index, choices.windows[index].length)
        scalers.append(Scaler(timeframe, choices.scaler, names, own, clip=choices.clip).fit(rows))
    return tuple(scalers)


def training_rows(
    stretches: Sequence[Stretch], spans: Sequence[Span], train: RowRanges, index: int, length: int
) -> dict[str, NDArray[np.float64]]:
    """Return by instrument the rows of a window that training can show; a bar that is carried forward counts once."""
    found = {}
    for stretch, span in zip(stretches, spans, strict=True):
        window = stretch.windows[index]
        shown = np.zeros(len(window.values), bool)
        for begin, end in ranges_in(train, span):
            oldest = max(0, int(window.last_row[begin - span.first]) - length + 1)
            shown[oldest : int(window.last_row[end - 1 - span.first]) + 1] = True
        known = window.present & shown[:, None] & ~np.isnan(window.values).any(axis=2)
        found.update({symbol: window.values[known[:, k], k] for k, symbol in enumerate(stretch.symbols)})
    return found
