"""Other histories made from a market's training split: its bars in other orders, or with other returns.

Bars are taken in blocks, which keep what bars within them have to do with one another, and joined by their returns, so
that no seam shows as a jump. Features are computed anew from the bars that result, by the same pipeline, and scaled by
the market's own scalers: what a row shows comes from bars before it, and from no bar outside the training split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars, Series
from velodrome.errors import ConfigError
from velodrome.tables.build import build_market
from velodrome.tables.choices import FeatureChoice
from velodrome.tables.market import Market
from velodrome.tables.scaling import TRAIN
from velodrome.tables.windows import WindowTables, no_windows

DAY = 86_400_000_000_000  # nanoseconds
FEWEST_DAYS = 10
STREAM = 0x72657361  # sets these random numbers apart from others of the same seed


class Resampling(NamedTuple):
    """How other histories are made."""

    copies: int
    block: int | None  # bars that stay together; None: all, in their order
    noise: float  # deviation of what is added to each bar's log return, unit: the returns' own deviation


def with_resampled(
    market: Market,
    how: Resampling,
    seed: int,
    features: FeatureChoice = None,
    session: str = "day",
    check_leaks: bool = True,
) -> Market:
    """Return the training split with resampled copies of it as further stretches of rows, and no splits.

    features, session: those that the market was built with. check_leaks: look at the first copy; others are like it.
    """
    true = market.split(TRAIN) if TRAIN in market.splits else market
    choices: dict[str, Any] = {"features": features, "session": session}
    copies = (
        _copy(own, how, (seed, STREAM, number, *turn), check_leaks=check_leaks and number == 0, **choices)
        for number in range(how.copies)
        for turn, own in _turns(true)
    )
    return _joined([true, *copies])


def _turns(true: Market) -> Iterator[tuple[tuple[int, ...], Market]]:
    """Yield the market if each instrument has one stretch; else the first stretch of each, the second of each, …."""
    if not true.owners:
        yield (), true
        return
    places = [np.flatnonzero(np.array(true.owners) == owner) for owner in range(len(true.symbols))]
    for turn in range(max(map(len, places))):
        there = [owner for owner, own in enumerate(places) if turn < len(own)]
        rows = [places[owner][turn] for owner in there]
        named = tuple(true.symbols[owner] for owner in there)
        yield (turn,), replace(true, symbols=named, begin=true.begin[rows], end=true.end[rows], owners=())


def _copy(true: Market, how: Resampling, seed: Sequence[int], **choices: Any) -> Market:
    series = {}
    for k, symbol in enumerate(true.symbols):
        rng = np.random.default_rng((*seed, k))
        series[symbol] = resampled_series(_training_bars(true, k), how, rng)
    lengths = dict(zip(true.window_names, true.windows.length.tolist(), strict=True))
    try:
        bars = Bars(series, true.timeframe, true.timezone)
        return build_market(bars, windows=lengths, splits={}, scalers=true.scalers, **choices)
    except ConfigError as error:
        raise ConfigError(
            f"augment.copies makes the features anew from resampled bars of {true.name}, which cannot be done: {error} "
            "It needs features by name (market.features), windows of the traded timeframe or longer ones, and a "
            "training split that is longer than they look back. Use augment.noise, or leave augment.copies out."
        ) from error


def _training_bars(true: Market, k: int) -> Series:
    """Return the bars of an instrument that belong to the training split."""
    rows = slice(int(true.begin[k]), int(true.end[k]))
    opened, high, low, close = true.ohlc[rows].T
    extra = {name: column[rows] for name, column in true.columns.items()}
    only_closes = true.symbols[k] in true.close_only
    return Series(true.time[rows], opened, high, low, close, true.volume[rows], extra, only_closes)


def resampled_series(bars: Series, how: Resampling, rng: np.random.Generator) -> Series:
    """Return as many bars, at the same times, made of blocks of these.

    A block comes from the same time of day as it goes to, so that what hangs on the hour stays where it was; from
    anywhere if the bars have fewer than FEWEST_DAYS days to choose from.
    """
    source = np.arange(len(bars)) if how.block is None else _blocks(bars.time, how.block, rng)
    before = np.concatenate([bars.open[:1], bars.close[:-1]])  # the last close
    returns = np.log(bars.close / before)
    noise = how.noise * returns.std() * rng.standard_normal(len(bars))
    # Each bar as it lies over the close before it, on the way from there to a close that noise has moved.
    level = bars.open[0] * np.exp(np.cumsum(returns[source] + noise))
    last = np.concatenate([bars.open[:1], level[:-1]])
    opened, high, low = (last * (column / before)[source] for column in (bars.open, bars.high, bars.low))
    high, low = np.maximum(high, np.maximum(opened, level)), np.minimum(low, np.minimum(opened, level))
    if bars.close_only:
        opened = high = low = level
    extra = {name: column[source] for name, column in bars.extra.items()}
    return Series(bars.time, opened, high, low, level, bars.volume[source], extra, bars.close_only)


def _blocks(time: NDArray[np.int64], block: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return for each bar the one that takes its place."""
    hours = time % DAY
    if len(hours) < FEWEST_DAYS * len(np.unique(hours)):
        hours[:] = 0
    places = {hour: np.flatnonzero(hours == hour) for hour in np.unique(hours).tolist()}
    source = np.empty(len(time), np.int64)
    at = 0
    while at < len(time):
        first = int(rng.choice(places[int(hours[at])]))
        count = min(block, len(time) - at, len(time) - first)
        source[at : at + count] = np.arange(first, first + count)
        at += count
    return source


def _joined(parts: Sequence[Market]) -> Market:
    """Return markets of the same windows one after another, the first one's facts for all."""
    first = parts[0]
    offsets = np.cumsum([0, *(len(part) for part in parts)])
    moved: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) + offset for part, offset in zip(parts, offsets, strict=False)])
        for name in ("begin", "end")
    }
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("time", "ohlc", "volume", "atr", "session_last")
    }
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns}
    symbols = tuple(f"{symbol}~{k}" if k else symbol for k, part in enumerate(parts) for symbol in part.stretches)
    windows = _joined_windows([part.windows for part in parts]) if first.window_names else no_windows(int(offsets[-1]))
    for array in (*moved.values(), *arrays.values(), *columns.values(), *windows):
        array.flags.writeable = False
    further: dict[str, Any] = {"columns": columns, "symbols": symbols, "windows": windows, "splits": {}}
    further["owners"] = ()
    return replace(first, **moved, **arrays, **further, name=f"{first.name}, resampled")


def _joined_windows(parts: Sequence[WindowTables]) -> WindowTables:
    """Return tables one after another, window by window."""
    values, rows, bases = [], [], []
    floats = 0
    for w, width in enumerate(parts[0].width.tolist()):
        above, last_rows = 0, []
        bases.append(floats)
        for part in parts:
            end = part.base[w + 1] if w + 1 < len(part.base) else len(part.values)
            values.append(part.values[part.base[w] : end])
            last_rows.append(part.rows[w] + np.int32(above))
            above += len(values[-1]) // width
        rows.append(np.concatenate(last_rows))
        floats += above * width
    return parts[0]._replace(values=np.concatenate(values), base=np.array(bases, np.int64), rows=np.stack(rows))
