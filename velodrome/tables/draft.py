"""The draft of a market: every choice checked, features computed, splits cut, scalers fitted; nothing stacked yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars
from velodrome.tables import scaling
from velodrome.tables.features.features import FeatureSpec
from velodrome.tables.recipe import Instrument, Recipe, make_instruments, make_recipe
from velodrome.tables.scaling import TRAIN, Scaler
from velodrome.tables.splits import Rows, SplitChoice, make_splits


@dataclass(frozen=True)
class Draft:
    """Unscaled tables of all instruments with the rows and scalers that go with them; rows count as in `Market`."""

    bars: Bars
    recipe: Recipe
    instruments: tuple[Instrument, ...]
    first: NDArray[np.int64]  # [K] first row of each instrument
    begin: NDArray[np.int64]  # [K] first row on which a decision may be taken
    end: NDArray[np.int64]  # [K] one past the last row
    splits: dict[str, Rows]
    scalers: tuple[Scaler, ...]
    fitted: bool  # whether the scalers were fitted on these bars rather than given
    per_instrument: bool


def make_draft(
    bars: Bars,
    features: Sequence[FeatureSpec] | Mapping[str, Sequence[FeatureSpec]] | None,
    windows: int | Mapping[str, int],
    timeframe: str | None,
    splits: SplitChoice,
    embargo: int,
    scaler: str,
    scalers: Sequence[Scaler] | None,
    clip: float | None,
    per_instrument: bool,
) -> Draft:
    """Check the choices and compute what they ask for."""
    scaling.check_kind(scaler, clip)
    recipe = make_recipe(bars, features, windows, timeframe)
    instruments, begins = make_instruments(bars, recipe)
    end = np.cumsum([len(instrument.execution.series) for instrument in instruments])
    first = np.concatenate([[0], end[:-1]])
    begin = first + np.array(begins)
    time = np.concatenate([instrument.execution.series.time for instrument in instruments])
    cut = make_splits(splits, time, begin, end, first, bars.symbols, bars.timezone, embargo)
    named = [
        (choice.timeframe.text, table.names)
        for choice, table in zip(recipe.windows, instruments[0].windows, strict=True)
    ]
    if scalers is not None:
        ready = scaling.check_given(scalers, named, bars.symbols)
    else:
        scaling.check_training_split(scaler, cut)
        everything = tuple(zip(begin.tolist(), end.tolist(), strict=True))
        shown = training_rows(instruments, recipe, first, cut.get(TRAIN, everything))
        ready = tuple(
            scaling.fit(scaler, *named[index], bars.symbols, shown[index], clip, per_instrument)
            for index in range(len(named))
        )
    return Draft(bars, recipe, instruments, first, begin, end, cut, ready, scalers is None, per_instrument)


def training_rows(
    instruments: Sequence[Instrument], recipe: Recipe, first: NDArray[np.int64], train: Rows
) -> list[list[NDArray[np.float64]]]:
    """Return for each window and instrument every row of features that an observation of the split can show."""
    shown = []
    for index, choice in enumerate(recipe.windows):
        parts = []
        for instrument, offset, (begin, end) in zip(instruments, first, train, strict=True):
            table = instrument.windows[index]
            oldest = table.last_row[begin - offset] - choice.length + 1
            newest = table.last_row[end - 1 - offset]
            parts.append(table.values[oldest : newest + 1])
        shown.append(parts)
    return shown
