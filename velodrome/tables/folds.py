"""Folds in time: walking forward, and blocks that are left out in turn; scalers are fitted again on what is trained on.

A fold of cross-validation trains on both sides of the block that it leaves out. Purging keeps the sides apart from it:
no decision in training shows a bar of the block, or the other way round, neither in a window nor through the bars that
a window's features are made of, as far as their warm-up tells.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.tables.hashing import content_hash
from velodrome.tables.market import NOTHING, OWN, AnyMarket, WindowedRows
from velodrome.tables.purge import Purge, reach_of
from velodrome.tables.scaling import TRAIN, Scaler, check_kind
from velodrome.tables.splits import FEWEST_ROWS, RowRanges, Span, distinct_times, rows_between
from velodrome.tables.windows import WindowTables

Place: TypeAlias = tuple[NDArray[np.int64], int]  # rows of a table, and the column of an instrument


def walk_forward(
    market: AnyMarket,
    folds: int | None = None,
    train: int | float | None = None,
    test: int | float | None = None,
    embargo: int = 0,
    anchored: bool = False,
    clip: float | None = None,
) -> list[AnyMarket]:
    """Return one market or basket for each fold, with the splits "train" and "test"; the tests follow one another.

    train, test: bars (whole numbers) or fractions of the tradable times. Without them the data is cut into folds + 1
        equal parts, each tested after the one before it. Without folds there are as many as fit.
    anchored: every fold trains from the first bar on, and `train` is what the first fold has.
    Scalers are fitted again on each fold's training split, in the way the market's were; `clip` bounds the result.
    """
    plan = fold_splits(market, folds, train, test, embargo, anchored)
    return [
        replace(with_splits(market, splits, clip), name=f"{market.name}[fold {fold} of {len(plan)}]")
        for fold, splits in enumerate(plan, 1)
    ]


def with_splits(market: AnyMarket, splits: Mapping[str, RowRanges], clip: float | None = None) -> AnyMarket:
    """Return the market with other splits, its scalers fitted again on the new training split."""
    windows, scalers = refit(market, splits[TRAIN], clip)
    record = {"of": market.content_hash, "splits": splits, "scalers": [scaler.to_dict() for scaler in scalers]}
    return replace(market, windows=windows, scalers=scalers, splits=splits, content_hash=content_hash(record))


def refit(market: WindowedRows, train: RowRanges, clip: float | None = None) -> tuple[WindowTables, tuple[Scaler, ...]]:
    """Undo the scaling of a market's windows and fit it again on what another training split shows.

    The tables are float32, so that the undone values are good to about seven digits. Rows that no decision shows
    become 0, as does what has no value yet.
    """
    check_kind("none", clip)
    clipped = [scaler for scaler in market.scalers if scaler.clip is not None]
    if clipped:
        raise ConfigError(
            f"the market's features of {clipped[0].timeframe} are clipped at {clipped[0].clip}, which cannot be undone "
            "to scale them anew for other splits. Build it with clip=None. To clip the folds' features, give clip to "
            "vd.walk_forward, or the data in place of the market and market.clip to a training."
        )
    if clip is None and all(scaler.kind == "none" for scaler in market.scalers):
        return market.windows, market.scalers
    windows = market.windows
    values = np.zeros_like(windows.values)
    fitted = []
    for index, scaler in enumerate(market.scalers):
        base, features = int(windows.base[index]), len(scaler.features)
        stop = int(windows.base[index + 1]) if index + 1 < len(windows.base) else len(values)
        shape = (-1, int(windows.width[index]) // features, features)  # rows, instruments of a stretch, features
        table, target = (array[base:stop].reshape(shape) for array in (windows.values, values))
        origin = market.origins[index] if market.origins else np.broadcast_to(np.uint8(OWN), table.shape)
        learnt = {}
        for symbol, place in _shown(market, index, train):
            own = (origin[place] == OWN).all(axis=1)
            learnt[symbol] = scaler.undo(table[place][own], symbol)
        new = replace(scaler, clip=clip).fit(learnt)
        for symbol, place in _shown(market, index, tuple(zip(market.begin, market.end, strict=True))):
            scaled = new.apply(scaler.undo(table[place], symbol), symbol)
            target[place] = np.where(origin[place] == NOTHING, np.float32(0.0), scaled)
        fitted.append(new)
    values.flags.writeable = False
    return windows._replace(values=values), tuple(fitted)


def _shown(market: WindowedRows, index: int, ranges: RowRanges) -> Iterator[tuple[str, Place]]:
    """Yield each instrument, and where the rows that its decisions show lie in the table of a window."""
    length, row_of = int(market.windows.length[index]), market.windows.rows[index]
    of = market.stretches_of(ranges)
    for stretch, members in enumerate(market.members):
        own = [ranges[place] for place in np.flatnonzero(of == stretch)]
        shown = [np.arange(int(row_of[low]) - length + 1, int(row_of[high - 1]) + 1) for low, high in own]
        rows = np.unique(np.concatenate(shown))  # pieces that lie close together show some rows twice
        yield from ((symbol, (rows, column)) for column, symbol in enumerate(members))


def spans_of(market: WindowedRows) -> list[Span]:
    """Return the rows of a market's stretches on which decisions may be taken."""
    edges = zip(market.stretches, market.begin.tolist(), market.end.tolist(), strict=True)
    return [Span(name, market.time[begin:end], begin, begin) for name, begin, end in edges]


def fold_splits(
    market: WindowedRows,
    folds: int | None = None,
    train: int | float | None = None,
    test: int | float | None = None,
    embargo: int = 0,
    anchored: bool = False,
) -> list[dict[str, RowRanges]]:
    """Return the splits "train" and "test" of each fold of `walk_forward`."""
    spans = spans_of(market)
    times = distinct_times([span.time for span in spans])
    count = len(times)
    if folds is not None and (isinstance(folds, bool) or not isinstance(folds, int) or folds < 1):
        raise ConfigError(f"folds is {folds!r}; give a whole number of at least 1.")
    if folds is None and (train is None or test is None):
        raise ConfigError("walk_forward needs folds, or both train and test, to know how many folds there are.")
    equal = count // ((folds or 1) + 1)
    test_bars = equal if test is None else _bars("test", test, count)
    rest = count - (folds or 1) * test_bars if anchored else equal
    train_bars = rest if train is None else _bars("train", train, count)
    folds = max((count - train_bars) // max(test_bars, 1), 1) if folds is None else folds
    if train_bars < FEWEST_ROWS or train_bars + folds * test_bars > count:
        raise ConfigError(
            f"{folds} folds of {test_bars} test bars after {train_bars} training bars need "
            f"{train_bars + folds * test_bars} bars, and {count} may be traded; take fewer folds or shorter parts."
        )
    found = []
    for fold in range(folds):
        middle = count - (folds - fold) * test_bars
        stop = middle + test_bars
        moments = {
            "train": [(int(times[0 if anchored else middle - train_bars]), int(times[middle]))],
            "test": [(int(times[middle]), int(times[stop]) if stop < count else int(times[-1]) + 1)],
        }
        found.append(rows_between(moments, spans, embargo))
    return found


def _bars(name: str, value: int | float, count: int) -> int:
    """Return a length given in bars or as a fraction of all of them."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name} is {value!r}; give a number of bars, or a fraction between 0 and 1.")
    if isinstance(value, int):
        return value
    if value >= 1.0:
        raise ConfigError(f"{name} is {value!r}; a fraction must be below 1. Write bars as a whole number.")
    return int(value * count + 1e-6)


# Blocks that are left out in turn


class PurgedFold(NamedTuple):
    """A fold of cross-validation, by the open times of its bars in nanoseconds UTC; an end is not part of it."""

    held_out: tuple[int, int]
    train: tuple[tuple[int, int], ...]  # before the block, after it, or both
    validation: tuple[int, int] | None  # the last of the training bars, by which checkpoints are chosen
    purged: int  # bars that are left out because windows overlap
    embargoed: int  # further bars that are left out after the block
    bars: int  # in the block


def purged_folds(
    market: WindowedRows, folds: int, embargo: int = 0, within: tuple[int, int] | None = None, share: float = 0.0
) -> list[PurgedFold]:
    """Cut the tradable bars into blocks of time, and return for each what may be trained on when it is left out.

    within: the moments between which the bars lie; all if None. share: part of the training bars that is kept to choose
        checkpoints by, at the end of the last side.
    """
    for name, value, least in (("folds", folds, 2), ("embargo", embargo, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{name} is {value!r}; give a whole number of at least {least}.")
    times = distinct_times([span.time for span in spans_of(market)])
    since, until = within or (int(times[0]), int(times[-1]) + 1)
    times = times[(times >= since) & (times < until)]
    count, purge = len(times), Purge(reach_of(market))

    def bars(low: int, high: int) -> int:
        return max(int(np.searchsorted(times, high) - np.searchsorted(times, low)), 0)

    if count < folds * FEWEST_ROWS:
        raise ConfigError(
            f"folds = {folds:,}: {count:,} bars may be cut into blocks, and a block needs {FEWEST_ROWS}; take at most "
            f"{max(count // FEWEST_ROWS, 0):,} folds, or more data."
        )
    edges = [*times[count * np.arange(folds) // folds].tolist(), until]
    found = []
    for number, (begin, end) in enumerate(itertools.pairwise(edges), 1):
        sides = ((since, purge.before(begin)), (purge.after(end, embargo), until))
        train = [side for side in sides if bars(*side) >= FEWEST_ROWS]
        apart = bars(max(sides[0][1], since), begin), bars(end, purge.after(end))
        left_out = PurgedFold((begin, end), (), None, sum(apart), bars(purge.after(end), sides[1][0]), bars(begin, end))
        validation = None
        if train and share > 0.0:
            (low, high), wanted = train[-1], share * sum(bars(*side) for side in train)
            own = times[(times >= low) & (times < high)]
            cut = int(own[len(own) - max(min(round(wanted), len(own) // 2), 1)])
            validation = (cut, high)
            train[-1] = (low, purge.before(cut))
            train = [side for side in train if bars(*side) >= FEWEST_ROWS]
        if not train or (validation and bars(*validation) < FEWEST_ROWS):
            raise ConfigError(
                f"fold {number} of {folds:,}: of {count:,} bars a block has {left_out.bars:,}, {left_out.purged:,} "
                f"beside it are purged (windows and what their features look back on) and {left_out.embargoed:,} "
                "embargoed; too few are left to train on. Take more data, shorter windows, a smaller embargo or "
                "another number of folds."
            )
        found.append(left_out._replace(train=tuple(train), validation=validation))
    return found
