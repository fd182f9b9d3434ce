"""The leak check of a basket: the grid made again from what had closed by some moment must not differ, to the bit."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.bars.timeframe import describe_time
from velodrome.tables import scaling
from velodrome.tables.basket_build import BasketDraft, fit_scalers, last_moment
from velodrome.tables.grid import Grid, make_grid
from velodrome.tables.leaks import (
    DENSE_INSTRUMENTS,
    PREFIX_COST,
    SEED,
    Check,
    Leak,
    LeakReport,
    altered_after,
    check_functions,
    different,
)
from velodrome.tables.recipe import source_close_time
from velodrome.tables.scaling import TRAIN

FEWEST_PREFIX_ROWS = 20_000  # rows of the grid, times instruments, that prefixes may take in all
RANDOM_CUTS = 6


def find_basket_leaks(draft: BasketDraft) -> LeakReport:
    """Take the future away in the three ways of `leaks`, of all instruments at once."""
    check = Check()
    recipe = draft.choices.recipe
    for symbol, instrument in list(zip(draft.bars, draft.instruments, strict=True))[:DENSE_INSTRUMENTS]:
        check_functions(check, instrument, recipe, symbol)
    for row in cut_rows(draft.grid):
        again = check.made_of_less(partial(_grid_until, draft, int(draft.grid.close_time[row])), recipe)
        if again is not None:
            compare_grids(check, draft, again, row + 1)
    if TRAIN in draft.splits:
        _check_training(check, draft)
    return check.report(recipe)


def cut_rows(grid: Grid) -> list[int]:
    """Return the last rows that are left: awkward places first, then random ones, until the cost is reached."""
    rows, instruments = grid.tradable.shape
    generator = np.random.default_rng(SEED + rows)
    absent = np.flatnonzero(grid.tradable.min(axis=1) == 0)
    latest = int(np.argmax(grid.tradable, axis=0).max())  # the first bar of the instrument that was listed last
    wanted = [rows - 2, latest, latest - 1]
    wanted += [int(absent[-1]), int(absent[len(absent) // 2])] if len(absent) else []
    if rows > 2:
        gap = int(np.argmax(np.diff(grid.time)))
        wanted += [gap, gap + 1]
    # Squared, so that most cuts are early and cheap.
    wanted += [int(share**2 * rows) for share in generator.random(RANDOM_CUTS)]
    budget = max(PREFIX_COST * rows, FEWEST_PREFIX_ROWS / instruments)
    cuts: list[int] = []
    for row in wanted:
        if 0 <= row < rows - 1 and row not in cuts and sum(cuts) + row <= budget:
            cuts.append(row)
    return cuts


def _closed_by(draft: BasketDraft, symbol: str, moment: int) -> int:
    """Return how many source bars of an instrument had closed by a moment."""
    recipe = draft.choices.recipe
    closes = source_close_time(draft.bars[symbol].time, recipe.source, recipe.timezone)
    return int(np.searchsorted(closes, moment, side="right"))


def _until(draft: BasketDraft, moment: int) -> dict[str, Series]:
    return {symbol: draft.bars[symbol].slice(0, _closed_by(draft, symbol, moment)) for symbol in draft.bars}


def _grid_until(draft: BasketDraft, moment: int) -> Grid:
    return make_grid(_until(draft, moment), draft.choices, moment)[0]


def compare_grids(check: Check, draft: BasketDraft, again: Grid, rows: int) -> None:
    """Compare the first rows of the draft's grid with those of one that was made without what came after them."""
    full = draft.grid
    symbols = draft.bars.symbols

    def leak(kind: str, feature: str, timeframe: str, symbol: str, row: int, time: NDArray, detail: str) -> None:
        check.add(Leak(kind, feature, timeframe, symbol, rows, row, describe_time(time[row]), detail))

    execution = draft.choices.recipe.execution.text
    for name in ("time", "open", "close", "tradable"):
        check.comparisons += 1
        mine, theirs = getattr(full, name)[:rows], getattr(again, name)[:rows]
        if mine.shape != theirs.shape or not np.array_equal(mine, theirs):
            leak("window", f"grid {name}", execution, "all", 0, full.time, f"differs when {rows} rows are left")
            return
    for choice, mine, theirs in zip(draft.choices.recipe.windows, full.windows, again.windows, strict=True):
        check.comparisons += 1
        timeframe = choice.timeframe.text
        moved = np.flatnonzero(mine.last_row[:rows] != theirs.last_row[:rows])
        if len(moved):
            row = int(moved[0])
            detail = f"ends at row {mine.last_row[row]}, and at row {theirs.last_row[row]} when {rows} rows are left"
            leak("window", f"window {timeframe}", timeframe, "all", row, full.time, detail)
        if mine.names != theirs.names:
            leak("feature", "columns", timeframe, "all", 0, full.time, f"are {mine.names}, and then {theirs.names}")
            continue
        known = int(mine.last_row[rows - 1]) + 1
        differing = different(mine.values[:known], theirs.values[:known])
        for column, feature in zip(*np.nonzero(differing.any(axis=0)), strict=True):
            row = int(np.argmax(differing[:, column, feature]))
            pair = (values[row, column, feature] for values in (mine.values, theirs.values))
            detail = "is {:.17g} with all bars and {:.17g} when {} rows are left".format(*pair, rows)
            leak("feature", mine.names[feature], timeframe, symbols[column], row, mine.time, detail)


def _check_training(check: Check, draft: BasketDraft) -> None:
    """Alter all that came after the training split: the grid until then, and the scalers' fit, must stay."""
    train = draft.splits[TRAIN][0]
    moment = int(draft.grid.close_time[train[1] - 1])
    altered = {
        symbol: altered_after(draft.bars[symbol], _closed_by(draft, symbol, moment)) for symbol in draft.bars
    }  # fmt: skip
    again, _ = make_grid(altered, draft.choices, last_moment(draft.bars, draft.choices))
    compare_grids(check, draft, again, train[1])
    if not draft.fitted or not draft.scalers:
        return
    first = draft.scalers[0]
    fitted = fit_scalers(
        draft.bars.symbols, draft.choices, again, train, first.kind, first.clip, draft.per_instrument
    )  # fmt: skip
    for mine, theirs in zip(draft.scalers, fitted, strict=True):
        check.comparisons += 1
        for column, name in enumerate(mine.features):
            same = scaling.same_column(mine, theirs, column)
            leaks_itself = any(key[:2] == (name, mine.timeframe) for key in check.found)
            if not same and not leaks_itself:
                detail = "is fitted to other numbers when the bars after the training split are altered"
                check.add(Leak("scaler", name, mine.timeframe, "all", 0, 0, "", detail))
