"""`Choices`: everything a user chose, checked against the bars, in one frozen object.

It goes through the build, the leak check and every fit. `Alone` and `OnGrid` are the one point at which building a
market and building a basket differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from velodrome.bars.frame import Bars
from velodrome.bars.timeframe import Timeframe, parse_timeframe
from velodrome.errors import ConfigError, DataError
from velodrome.tables.features.clock import session_gap
from velodrome.tables.features.cross_section import CrossFeature, split_features
from velodrome.tables.features.families import DEFAULT_FEATURES
from velodrome.tables.features.features import Feature, FeatureSpec, features_by_timeframe, parse_features
from velodrome.tables.scaling import Scaler, check_kind
from velodrome.tables.splits import DEFAULT_SPLITS, SplitChoice

FeatureChoice: TypeAlias = "Sequence[FeatureSpec] | Mapping[str, Sequence[FeatureSpec]] | None"
WindowLengths: TypeAlias = "int | Mapping[str, int]"


@dataclass(frozen=True)
class Alone:
    """Each instrument by itself, one after another: a `Market`."""

    session: str = "day"


@dataclass(frozen=True)
class OnGrid:
    """All instruments side by side on one time grid: a `Basket`."""

    min_instruments: int = 1


@dataclass(frozen=True)
class WindowChoice:
    """One window: the last `length` bars of a timeframe, each shown as its features."""

    timeframe: Timeframe
    length: int
    features: tuple[Feature, ...]  # of each instrument
    comparisons: tuple[CrossFeature, ...]  # between instruments, shown after the features
    helpers: int  # features, the last ones, that are computed for comparisons only and not shown


@dataclass(frozen=True)
class Choices:
    """What to make of the bars; `build_market` explains the options."""

    layout: Alone | OnGrid
    source: Timeframe  # of the bars that were read
    execution: Timeframe  # of the bars that are traded
    timezone: str
    columns: tuple[str, ...]  # further columns that every instrument has
    windows: tuple[WindowChoice, ...]
    splits: SplitChoice
    embargo: int
    scaler: str
    clip: float | None
    per_instrument: bool
    scalers: tuple[Scaler, ...] | None  # given ones, which are applied instead of fitting any


def make_choices(
    bars: Bars,
    layout: Alone | OnGrid,
    features: FeatureChoice = None,
    windows: WindowLengths = 32,
    timeframe: str | None = None,
    splits: SplitChoice | None = None,
    embargo: int = 0,
    scaler: str = "standard",
    scalers: Sequence[Scaler] | None = None,
    clip: float | None = None,
    per_instrument: bool = False,
) -> Choices:
    """Check the options against the bars and parse them; `build_market` explains each."""
    check_kind(scaler, clip)
    if isinstance(layout, Alone):
        session_gap(layout.session)
    if not bars.symbols or any(len(bars[symbol]) == 0 for symbol in bars):
        raise DataError(f"there are no bars to build a market of ({bars.source or 'no source'}); read some first.")
    source = parse_timeframe(bars.timeframe)
    execution = _usable(parse_timeframe(timeframe or bars.timeframe), source, "execution")
    shared = set.intersection(*(set(bars[symbol].extra) for symbol in bars))
    columns = tuple(name for name in bars[bars.symbols[0]].extra if name in shared)
    return Choices(
        layout=layout,
        source=source,
        execution=execution,
        timezone=bars.timezone,
        columns=columns,
        windows=_windows(features, _lengths(windows, source, execution), columns, isinstance(layout, OnGrid)),
        splits=DEFAULT_SPLITS if splits is None else splits,
        embargo=embargo,
        scaler=scaler,
        clip=clip,
        per_instrument=per_instrument,
        scalers=None if scalers is None else tuple(scalers),
    )


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


def _lengths(windows: WindowLengths, source: Timeframe, execution: Timeframe) -> dict[Timeframe, int]:
    """Return the length of each window by its timeframe."""
    if not isinstance(windows, Mapping):
        windows = {execution.text: windows}
    lengths: dict[Timeframe, int] = {}
    for key, length in windows.items():
        size = _usable(parse_timeframe(key), source, "a window's")
        if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
            raise ConfigError(f"the window of {size} is {length!r} bars long; it must be a whole number of at least 1.")
        if size in lengths:
            texts = [parse_timeframe(key).text for key in windows]
            raise ConfigError(f"windows has a timeframe twice: {', '.join(windows)} are {', '.join(texts)}.")
        lengths[size] = int(length)
    return lengths


def _windows(
    features: FeatureChoice, lengths: Mapping[Timeframe, int], columns: Sequence[str], compare: bool
) -> tuple[WindowChoice, ...]:
    """Parse the features of each window; `compare` allows comparisons between instruments among them."""
    texts = [size.text for size in lengths]
    chosen = features_by_timeframe(DEFAULT_FEATURES if features is None else features, texts)
    windows = []
    for size, length in lengths.items():
        specs = chosen[size.text]
        own, comparisons = split_features(specs) if compare else (specs, ())
        # Together they make up the list. What goes beyond it was added for the comparisons.
        helpers = len(own) + len(comparisons) - len(specs)
        windows.append(WindowChoice(size, length, parse_features(own, columns), comparisons, helpers))
    return tuple(windows)
