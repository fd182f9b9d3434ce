"""`Choices`: the bars and everything a user chose for them, in one frozen object.

It goes through the build, the leak check and the fits. `Alone` and `OnGrid` are the one point at which building a
market and building a basket differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import Parameter, signature
from typing import Any, TypeAlias, TypeVar

import numpy as np

from velodrome.bars.frame import Bars, check_sums
from velodrome.bars.timeframe import Timeframe, parse_timeframe
from velodrome.errors import ConfigError, DataError
from velodrome.tables.features.clock import session_gap
from velodrome.tables.features.cross_section import CrossFeature, split_features
from velodrome.tables.features.families import DEFAULT_FEATURES
from velodrome.tables.features.features import Feature, FeatureSpec, features_by_timeframe, parse_features
from velodrome.tables.scaling import Scaler, check_kind
from velodrome.tables.splits import SplitChoice

FeatureChoice: TypeAlias = "Sequence[FeatureSpec] | Mapping[str, Sequence[FeatureSpec]] | None"
WindowLengths: TypeAlias = "int | Mapping[str, int]"
GIVEN_BY_PLACE = ("bars", "layout", "features", "window_lengths", "timeframe")  # not among the further options
AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


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
    """What was chosen for some bars; `build_market` explains the options."""

    bars: Bars
    layout: Alone | OnGrid
    features: FeatureChoice = None
    window_lengths: WindowLengths = 32
    timeframe: str | None = None
    splits: SplitChoice | None = None
    embargo: int = 0
    scaler: str = "standard"
    scalers: Sequence[Scaler] | None = None
    clip: float | None = None
    per_instrument: bool = False
    leak_seconds: float = 20.0
    sums: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_kind(self.scaler, self.clip)
        seconds = self.leak_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float | np.number) or not seconds >= 0:
            raise ConfigError(f"leak_seconds is {seconds!r}; it must be a number of seconds, 0 or more.")
        if isinstance(self.layout, Alone):
            session_gap(self.layout.session)
        if not self.bars.symbols or any(len(series) == 0 for series in self.bars.series.values()):
            where = self.bars.source or "no source"
            raise DataError(f"there are no bars to build a market of ({where}); read some first.")
        check_sums(self.sums or (), self.bars.series)

    @property
    def on_grid(self) -> bool:
        """Whether the instruments share a grid."""
        return isinstance(self.layout, OnGrid)

    @cached_property
    def source(self) -> Timeframe:
        """The size of the bars that were read."""
        return parse_timeframe(self.bars.timeframe)

    @cached_property
    def execution(self) -> Timeframe:
        """The size of the bars that are traded."""
        return _usable(parse_timeframe(self.timeframe or self.bars.timeframe), self.source, "execution")

    @property
    def columns(self) -> tuple[str, ...]:
        """Further columns that every instrument has."""
        first, *others = self.bars.series.values()
        return tuple(name for name in first.extra if all(name in series.extra for series in others))

    @cached_property
    def windows(self) -> tuple[WindowChoice, ...]:
        """The windows with their features parsed; comparisons between instruments need a grid."""
        lengths = _lengths(self.window_lengths, self.source, self.execution)
        features = DEFAULT_FEATURES if self.features is None else self.features
        chosen = features_by_timeframe(features, [size.text for size in lengths])
        windows = []
        for size, length in lengths.items():
            specs = chosen[size.text]
            own, comparisons = split_features(specs) if self.on_grid else (specs, ())
            # Together they make up the list. What goes beyond it was added for the comparisons.
            helpers = len(own) + len(comparisons) - len(specs)
            windows.append(WindowChoice(size, length, parse_features(own, self.columns), comparisons, helpers))
        return tuple(windows)


def shows_options(function: AnyFunction) -> AnyFunction:
    """Let a function's signature, in `help` and editors, list the options that it hands on to `Choices`."""
    shown = [one for one in signature(function).parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    for option in (one for one in fields(Choices) if one.name not in GIVEN_BY_PLACE):
        shown.append(Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type))
    vars(function)["__signature__"] = signature(function).replace(parameters=shown)
    return function


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
