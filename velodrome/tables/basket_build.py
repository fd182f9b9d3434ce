"""`build_basket`: bars of several instruments in, a frozen `Basket` out, with a proof of no look-ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars
from velodrome.bars.read import read_bars
from velodrome.bars.timeframe import describe_time, parse_timeframe
from velodrome.errors import ConfigError, DataError
from velodrome.tables import scaling
from velodrome.tables.basket import Basket
from velodrome.tables.build import frozen
from velodrome.tables.features.cross_section import split_features
from velodrome.tables.features.families import DEFAULT_FEATURES
from velodrome.tables.features.features import FeatureSpec
from velodrome.tables.grid import Choices, Grid, GridWindow, make_grid
from velodrome.tables.hashing import content_hash
from velodrome.tables.recipe import Instrument, check_same_columns, first_known_row, make_recipe, source_close_time
from velodrome.tables.scaling import TRAIN, Scaler
from velodrome.tables.splits import DEFAULT_SPLITS, FEWEST_ROWS, Rows, SplitChoice, make_splits
from velodrome.tables.windows import WindowPart, WindowTables, no_windows, stack_windows

ALLOWED_OVERLAP = 4  # of a bar, the part by which two rows may overlap: one in so many

FeatureChoice = Sequence[FeatureSpec] | Mapping[str, Sequence[FeatureSpec]] | None


@dataclass(frozen=True)
class BasketDraft:
    """The grid of all instruments with the rows and scalers that go with it; nothing is scaled or stacked yet."""

    bars: Bars
    choices: Choices
    grid: Grid
    instruments: tuple[Instrument, ...]
    begin: int  # first row on which a decision may be taken
    splits: dict[str, Rows]
    scalers: tuple[Scaler, ...]
    fitted: bool  # whether the scalers were fitted on these bars rather than given
    per_instrument: bool


def build_basket(
    bars: Bars | str | Path,
    features: FeatureChoice = None,
    windows: int | Mapping[str, int] = 32,
    timeframe: str | None = None,
    splits: SplitChoice | None = None,
    embargo: int = 0,
    scaler: str = "standard",
    scalers: Sequence[Scaler] | None = None,
    check_leaks: bool = True,
    name: str | None = None,
    clip: float | None = None,
    per_instrument: bool = False,
    min_instruments: int = 1,
) -> Basket:
    """Lay several instruments on one time grid and freeze what environments read of them.

    bars: of several symbols, or a folder of their files. They may begin and end at different times and have gaps.
    features: as for `build_market`, and comparisons of instruments: "rank:log_return_5", "zscore:rsi_14",
        "mean:log_return", "market_return".
    windows, timeframe, splits, embargo, scaler, scalers, clip, per_instrument, check_leaks: as for `build_market`; a
        window shows every instrument's features in each row, and 0 for an instrument that has none yet.
    min_instruments: decisions begin when so many instruments have complete windows.
    """
    from velodrome.tables.basket_leaks import find_basket_leaks

    if isinstance(bars, str | Path):
        bars = read_bars(bars)
    draft = make_basket_draft(
        bars, features, windows, timeframe, DEFAULT_SPLITS if splits is None else splits, embargo, scaler, scalers,
        clip, per_instrument, min_instruments,
    )  # fmt: skip
    if check_leaks:
        find_basket_leaks(draft).raise_if_any()
    return _assemble(draft, name)


def make_basket_draft(
    bars: Bars, features: FeatureChoice, windows: int | Mapping[str, int], timeframe: str | None, splits: SplitChoice,
    embargo: int, scaler: str, scalers: Sequence[Scaler] | None, clip: float | None, per_instrument: bool,
    min_instruments: int,
) -> BasketDraft:  # fmt: skip
    """Check the choices and compute what they ask for."""
    scaling.check_kind(scaler, clip)
    choices = make_choices(bars, features, windows, timeframe)
    grid, made = make_grid(bars.series, choices, last_moment(bars, choices))
    instruments = tuple(instrument for instrument in made if instrument is not None)
    check_same_columns(bars, instruments)
    _check_that_rows_follow(grid, choices)
    begin = _first_decision(bars, choices, grid, instruments, min_instruments)
    end = len(grid.time)
    row = [np.array([number]) for number in (begin, end, 0)]
    cut = make_splits(splits, grid.time, row[0], row[1], row[2], ("the grid",), bars.timezone, embargo)
    named = [
        (choice.timeframe.text, window.names)
        for choice, window in zip(choices.recipe.windows, grid.windows, strict=True)
    ]
    if scalers is not None:
        ready = scaling.check_given(scalers, named, bars.symbols)
    else:
        scaling.check_training_split(scaler, cut)
        train = cut.get(TRAIN, ((begin, end),))[0]
        ready = fit_scalers(bars.symbols, choices, grid, train, scaler, clip, per_instrument)
    return BasketDraft(bars, choices, grid, instruments, begin, cut, ready, scalers is None, per_instrument)


def _check_that_rows_follow(grid: Grid, choices: Choices) -> None:
    """Refuse rows that open before the one before them has closed: an order would fill before it was decided on."""
    timeframe = choices.recipe.execution
    overlap = grid.last_close[:-1] - grid.time[1:]
    # Days that are an hour longer or shorter, and sessions that end a little late, are no reason.
    late = np.flatnonzero(overlap > timeframe.typical_nanoseconds // ALLOWED_OVERLAP)
    if len(late):
        row = int(late[0])
        raise DataError(
            f"the bars of the instruments begin at different times: one opens at {describe_time(grid.time[row + 1])} "
            f"UTC, before the bar of {describe_time(grid.time[row])} has closed ({len(late)} rows in all). Orders "
            "would fill at prices from before the decision. Shift the times so that they agree, or give finer bars and "
            "a timeframe=… into which those of every instrument fit."
        )


def make_choices(
    bars: Bars, features: FeatureChoice, windows: int | Mapping[str, int], timeframe: str | None
) -> Choices:
    """Tell comparisons of instruments from features of one, and check all of them."""
    given = DEFAULT_FEATURES if features is None else features
    if isinstance(given, Mapping):
        apart = {parse_timeframe(key).text: split_features(specs) for key, specs in given.items()}
        recipe = make_recipe(bars, {key: own for key, (own, _) in apart.items()}, windows, timeframe)
        lists = {parse_timeframe(key).text: specs for key, specs in given.items()}
    else:
        own, crosses = split_features(given)
        recipe = make_recipe(bars, own, windows, timeframe)
        texts = [choice.timeframe.text for choice in recipe.windows]
        apart, lists = dict.fromkeys(texts, (own, crosses)), dict.fromkeys(texts, given)
    texts = [choice.timeframe.text for choice in recipe.windows]
    return Choices(
        recipe,
        tuple(apart[text][1] for text in texts),
        # Comparisons and features that are asked for make up the list; the rest of the features serve comparisons.
        tuple(len(apart[text][0]) + len(apart[text][1]) - len(lists[text]) for text in texts),
    )


def last_moment(bars: Bars, choices: Choices) -> int:
    """Return when the last bar of any instrument closed."""
    recipe = choices.recipe
    return max(int(source_close_time(bars[s].time[-1:], recipe.source, recipe.timezone)[0]) for s in bars)


def _first_decision(
    bars: Bars, choices: Choices, grid: Grid, instruments: Sequence[Instrument], min_instruments: int
) -> int:
    """Return the first row on which enough instruments have complete windows."""
    count = len(instruments)
    is_whole = isinstance(min_instruments, int) and not isinstance(min_instruments, bool)
    if not is_whole or not 1 <= min_instruments <= count:
        raise ConfigError(f"min_instruments is {min_instruments!r}; legal: 1 … {count}, the number of instruments.")
    begins, ends = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for column, (symbol, instrument) in enumerate(zip(bars, instruments, strict=True)):
        begins[column] = int(np.argmax(grid.tradable[:, column]))
        ends[column] = int(np.flatnonzero(grid.tradable[:, column])[-1])
        for choice, table, window in zip(choices.recipe.windows, instrument.windows, grid.windows, strict=True):
            known = first_known_row(table, choice, symbol)
            row = int(np.searchsorted(window.time, table.timeline.series.time[known])) + choice.length - 1
            begins[column] = max(begins[column], int(np.searchsorted(window.last_row, row)))
    enough = [row for row in np.sort(begins) if ((begins <= row) & (row <= ends)).sum() >= min_instruments]
    if not enough:
        raise ConfigError(
            f"there is no row on which {min_instruments} of {count} instruments have complete windows: some end before "
            "others begin. Give other data, shorter windows or a smaller min_instruments."
        )
    begin = int(enough[0])
    if begin + FEWEST_ROWS > len(grid.time):
        raise ConfigError(
            f"windows are complete for {min_instruments} of {count} instruments on the last "
            f"{max(len(grid.time) - begin, 0)} of {len(grid.time)} rows only, and {FEWEST_ROWS} are needed. Give more "
            "data, shorter windows or a smaller min_instruments."
        )
    return begin


def fit_scalers(
    symbols: Sequence[str], choices: Choices, grid: Grid, train: tuple[int, int], kind: str, clip: float | None,
    per_instrument: bool,
) -> tuple[Scaler, ...]:  # fmt: skip
    """Fit on the bars that an observation of the training split can show; what is carried forward counts once."""
    fitted = []
    for choice, window in zip(choices.recipe.windows, grid.windows, strict=True):
        rows = _training_rows(window, choice.length, train)
        empty = [symbol for symbol, part in zip(symbols, rows, strict=True) if len(part) == 0]
        if kind != "none" and (len(empty) == len(symbols) or (per_instrument and empty)):
            raise ConfigError(
                f"{', '.join(empty)} has no bar with every feature in the split {TRAIN!r} that scalers are fitted to; "
                "leave it out, take per_instrument=False, or give the split more data."
            )
        fitted.append(
            scaling.fit(kind, choice.timeframe.text, window.names, symbols, rows, clip, per_instrument)
        )  # fmt: skip
    return tuple(fitted)


def _training_rows(window: GridWindow, length: int, train: tuple[int, int]) -> list[NDArray[np.float64]]:
    oldest = max(0, int(window.last_row[train[0]]) - length + 1)
    newest = int(window.last_row[train[1] - 1]) + 1
    values, present = window.values[oldest:newest], window.present[oldest:newest]
    known = present & ~np.isnan(values).any(axis=2)
    return [values[known[:, column], column] for column in range(values.shape[1])]


def _assemble(draft: BasketDraft, name: str | None) -> Basket:
    """Lay the draft out as a basket."""
    bars, grid, recipe = draft.bars, draft.grid, draft.choices.recipe
    arrays: dict[str, NDArray] = {
        "time": grid.time,
        "open": grid.open,
        "close": grid.close,
        "tradable": grid.tradable,
        "begin": np.array([draft.begin]),
        "end": np.array([len(grid.time)]),
    }
    arrays = {key: frozen(array) for key, array in arrays.items()}
    tables = _stack(draft)
    record = {
        "symbols": bars.symbols,
        "source": recipe.source.text,
        "execution": recipe.execution.text,
        "timezone": recipe.timezone,
        "windows": [
            (
                choice.timeframe.text,
                choice.length,
                [(feature.name, feature.function) for feature in choice.features],
                [cross.name for cross in crosses],
            )
            for choice, crosses in zip(recipe.windows, draft.choices.crosses, strict=True)
        ],
        "splits": draft.splits,
        "scalers": [scaler.to_dict() for scaler in draft.scalers],
    }
    known = bars.optimum_of == "portfolio" and recipe.execution == recipe.source
    return Basket(
        symbols=bars.symbols,
        timeframe=recipe.execution.text,
        timezone=recipe.timezone,
        **arrays,
        windows=tables,
        window_names=tuple(choice.timeframe.text for choice in recipe.windows),
        feature_names=tuple(
            tuple(f"{symbol} {feature}" for symbol in bars for feature in window.names) for window in grid.windows
        ),
        splits=draft.splits,
        content_hash=content_hash({"choices": record, "arrays": arrays, "windows": tuple(tables)}),
        name=name or "basket",
        scalers=draft.scalers,
        # That of one instrument alone says nothing about an account that holds all of them.
        optimum=bars.optimum if known else None,
    )


def _stack(draft: BasketDraft) -> WindowTables:
    """Scale the rows of every window, instrument after instrument, and lay them out for the kernels."""
    windows = []
    for choice, window, scaler in zip(draft.choices.recipe.windows, draft.grid.windows, draft.scalers, strict=True):
        scaled = np.empty(window.values.shape, np.float32)
        for column, symbol in enumerate(draft.bars):
            scaled[:, column] = scaler.apply(window.values[:, column], symbol)
        windows.append((choice.length, [WindowPart(scaled.reshape(len(scaled), -1), window.last_row)]))
    if windows:
        return stack_windows(windows)
    tables = no_windows(len(draft.grid.time))
    for array in tables:
        array.flags.writeable = False
    return tables
