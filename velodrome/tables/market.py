"""`Market`: what an environment needs of the price data, as frozen, contiguous, read-only arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.summary import Summarised, Summary, day_span
from velodrome.errors import ConfigError, did_you_mean
from velodrome.tables.scaling import Scaler
from velodrome.tables.windows import WindowTables

NOTHING, CARRIED, OWN = 0, 1, 2  # a window's value: none yet, from an earlier bar, from a bar at that time

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # begin, end
AnyMarket = TypeVar("AnyMarket", bound="WindowedRows")


@dataclass(frozen=True, kw_only=True, repr=False)
class WindowedRows(Summarised):
    """Rows on which decisions are taken, in stretches, with the windows that an observation shows at each.

    T counts rows, S counts stretches: the instruments of a `Market` one after another, the one grid of a `Basket`.
    """

    symbols: tuple[str, ...]
    timeframe: str  # of the execution bars
    timezone: str
    time: NDArray[np.int64]  # [T] open time, nanoseconds UTC
    begin: NDArray[np.int64]  # [S] first row on which a decision may be taken: every window is complete
    end: NDArray[np.int64]  # [S] one past the last row that may be traded
    windows: WindowTables
    window_names: tuple[str, ...]  # [w] the timeframe of each window
    feature_names: tuple[tuple[str, ...], ...]  # [w] the features in each row of each window
    splits: Mapping[str, Ranges] = field(default_factory=dict)  # by name: begin, end by stretch, in order of rows
    content_hash: str = ""  # of every array and every choice that made them
    name: str = "market"
    scalers: tuple[Scaler, ...] = ()  # [w] how the features of each window were scaled
    # [w] of [rows of the window's table, instruments of a stretch, F]: where each value comes from. () where windows
    # show no value that was carried forward.
    origins: tuple[NDArray[np.uint8], ...] = ()
    # Best achievable expected log return a bar without costs, where it is known: of one instrument by itself for a
    # `Market`, of long weights on all of them and cash for a `Basket`.
    optimum: float | None = None
    # In which its prices differ from those that were read, as `Bars.notes`, and how its splits from those asked for.
    notes: tuple[str, ...] = ()
    # [w] bars of its timeframe before its own that a row of the window is made of: the warm-up of its features. (): not
    # known.
    look_back: tuple[int, ...] = ()
    # [S] which instrument each stretch is of, where a split has several pieces of one; (): each instrument has its own.
    owners: tuple[int, ...] = ()
    close_only: tuple[str, ...] = ()  # instruments whose bars are made of closes: nothing is known of what lies between

    @property
    def stretches(self) -> tuple[str, ...]:
        """What each stretch of rows is called: the instruments, here."""
        return tuple(self.symbols[owner] for owner in self.owners) if self.owners else self.symbols

    @property
    def members(self) -> tuple[tuple[str, ...], ...]:
        """The instruments in each stretch: one, here."""
        return tuple((symbol,) for symbol in self.stretches)

    def stretches_of(self, ranges: Ranges) -> NDArray[np.int64]:
        """Return in which stretch each range of a split lies; a split without pieces has one for each."""
        if len(ranges) == len(self.end):
            return np.arange(len(ranges))
        first = np.array([low for low, _ in ranges], np.int64)
        return np.minimum(np.searchsorted(self.end, first, side="right"), len(self.end) - 1)

    def split(self: AnyMarket, name: str) -> AnyMarket:
        """Return the same market restricted to one split; windows may still look back before its first bar.

        Each piece of the split is a stretch of its own, which no episode leaves.
        """
        if name not in self.splits:
            legal = tuple(self.splits)
            raise ConfigError(
                f"no split {name!r} in this market; there are {', '.join(legal) or 'none'}.{did_you_mean(name, legal)}"
            )
        ranges = self.splits[name]
        of = self.stretches_of(ranges)
        begin, end = np.array(ranges, np.int64).reshape(-1, 2).T
        begin, end = np.maximum(begin, self.begin[of]), np.minimum(end, self.end[of])
        begin.flags.writeable = end.flags.writeable = False
        owners = self.owners
        if len(ranges) != len(self.end):
            owners = tuple(self.owners[k] if self.owners else int(k) for k in of)
        return replace(self, begin=begin, end=end, owners=owners, name=f"{self.name}[{name}]")

    @property
    def window_floats(self) -> int:
        """Number of floats that the windows take in one observation."""
        return int((self.windows.length * self.windows.width).sum())

    def __len__(self) -> int:
        return len(self.time)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take over what another process sent, as read-only as it was there."""
        self.__dict__.update(state)
        parts = [*state.values(), *self.windows, *self.origins, *state.get("columns", {}).values()]
        for array in (part for part in parts if isinstance(part, np.ndarray)):
            array.flags.writeable = False

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook."""
        listed = ", ".join(self.symbols[:3]) + (f" and {len(self.symbols) - 3} more" if len(self.symbols) > 3 else "")
        windows = zip(self.window_names, self.windows.length.tolist(), self.feature_names, strict=True)
        shown = ", ".join(f"{length} × {name} of {len(features)} features" for name, length, features in windows)
        line = (
            f"{type(self).__name__} {self.name!r}: {listed}; {len(self):,} bars of {self.timeframe}, "
            f"{day_span(*(self.time[low:high] for low, high in zip(self.begin, self.end, strict=True)))} "
            f"({self.timezone}); windows {shown or 'none'}; splits {', '.join(self.splits) or 'none'}"
        )
        rows = []
        for split, ranges in self.splits.items():
            times = [self.time[low:high] for low, high in ranges]
            rows.append((split, f"{sum(map(len, times)):,}", day_span(*times)))
        return Summary(line, ("split", "bars", "days (UTC)"), tuple(rows), self.notes)


@dataclass(frozen=True, kw_only=True, repr=False)
class Market(WindowedRows):
    """Execution bars of all instruments one after another, and the windows that an observation shows of them.

    T counts execution bars of all instruments together, S = K counts instruments. Row numbers are within the T rows.
    """

    ohlc: NDArray[np.float64]  # [T, 4] open, high, low, close: what fills and marks use
    volume: NDArray[np.float64]  # [T]
    atr: NDArray[np.float64]  # [T] average true range over 14 bars, in price units, known when the bar closed
    session_last: NDArray[np.uint8]  # [T] 1 on the last bar of its session
    columns: Mapping[str, NDArray[np.float64]]  # further columns of the data by name, [T] each (funding rates …)
    lasts: frozenset[str] = frozenset()  # those of them that hold the last of several values: bars were made coarser
