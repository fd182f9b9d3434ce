"""`Bars`: price bars as they are after reading and checking, one `Series` per instrument."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.summary import Summarised, Summary, day_span
from velodrome.errors import ConfigError, did_you_mean

PRICE_COLUMNS = ("open", "high", "low", "close")
BAR_COLUMNS = (*PRICE_COLUMNS, "volume")  # what every bar has; a file's further columns are extra


def read_only(array: NDArray) -> NDArray:
    """Return the array C-contiguous and write-protected."""
    frozen = np.ascontiguousarray(array)
    if frozen is array and array.flags.writeable:
        frozen = array.copy()
    frozen.flags.writeable = False
    return frozen


@dataclass(frozen=True, repr=False)
class Series(Summarised):
    """One instrument's bars: strictly increasing open times and float64 columns of equal length."""

    time: NDArray[np.int64]  # open time of each bar, nanoseconds since 1970-01-01 UTC
    open: NDArray[np.float64]
    high: NDArray[np.float64]
    low: NDArray[np.float64]
    close: NDArray[np.float64]
    volume: NDArray[np.float64]
    extra: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # further numeric columns of the file
    close_only: bool = False  # there were closes and nothing else: all four prices are the close
    lasts: frozenset[str] = frozenset()  # extra columns that hold the last of several values: bars were made coarser

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", read_only(np.asarray(self.time, dtype=np.int64)))
        for name in BAR_COLUMNS:
            object.__setattr__(self, name, read_only(np.asarray(getattr(self, name), dtype=np.float64)))
        extra = {name: read_only(np.asarray(column, dtype=np.float64)) for name, column in self.extra.items()}
        object.__setattr__(self, "extra", MappingProxyType(extra))

    def __len__(self) -> int:
        return len(self.time)

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a price column, the volume, or an extra column by name."""
        legal = (*BAR_COLUMNS, *self.extra)
        if name not in legal:
            close = did_you_mean(name, legal)
            raise ConfigError(f"no column {name!r} in these bars; there are {', '.join(legal)}.{close}")
        return getattr(self, name) if name in BAR_COLUMNS else self.extra[name]

    def slice(self, begin: int, end: int) -> Series:
        """Return the bars begin … end − 1."""
        own = {name: getattr(self, name)[begin:end] for name in ("time", *BAR_COLUMNS)}
        return replace(self, **own, extra={name: column[begin:end] for name, column in self.extra.items()})

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook."""
        kind = "closes" if self.close_only else "bars"
        span = f", {day_span(self.time)}" if len(self) else ""
        shown = [*range(min(len(self), 3)), *range(max(3, len(self) - 3), len(self))]
        rows = tuple(
            (
                str(self.time[row].astype("datetime64[ns]").astype("datetime64[s]")),
                *(f"{getattr(self, name)[row]:g}" for name in BAR_COLUMNS),
            )
            for row in shown
        )
        return Summary(f"Series: {len(self):,} {kind}{span}", ("time (UTC)", *BAR_COLUMNS), rows)


@dataclass(frozen=True, repr=False)
class Bars(Summarised):
    """Bars of one or many instruments, all of the same bar size."""

    series: Mapping[str, Series]  # by symbol
    timeframe: str  # bar size as Polars writes it: "1m", "5m", "1h", "1d" …
    timezone: str = "UTC"  # where days and sessions begin; times themselves are UTC
    source: str = ""  # file, folder or generator that they came from
    optimum: float | None = None  # best achievable expected log return a bar without costs, where it is known
    optimum_of: Literal["instrument", "portfolio"] = "instrument"  # of each instrument by itself, or of one account
    notes: tuple[str, ...] = ()  # in which the prices differ from what was read: adjusted, made of closes …

    def __post_init__(self) -> None:
        object.__setattr__(self, "series", MappingProxyType(dict(self.series)))

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(self.series)

    def __getitem__(self, symbol: str) -> Series:
        if symbol not in self.series:
            raise ConfigError(
                f"no symbol {symbol!r}; there are {', '.join(self.symbols)}.{did_you_mean(symbol, self.symbols)}"
            )
        return self.series[symbol]

    def __iter__(self) -> Iterator[str]:
        return iter(self.series)

    def __len__(self) -> int:
        """Return the number of bars of all instruments together."""
        return sum(len(series) for series in self.series.values())

    def summary(self) -> Summary:
        """Return what is shown of them in a line, and in a notebook."""
        count = f"{len(self.series)} symbols" if len(self.series) > 1 else "".join(self.series)
        span = day_span(*(series.time for series in self.series.values()))
        where = f", from {self.source}" if self.source else ""
        line = f"Bars: {count}, {len(self):,} bars of {self.timeframe}, {span} ({self.timezone}){where}"
        rows = tuple(
            (symbol, f"{len(own):,}", day_span(own.time), f"{own.close[0]:g}", f"{own.close[-1]:g}")
            for symbol, own in self.series.items()
            if len(own)
        )
        return Summary(line, ("symbol", "bars", "days (UTC)", "first close", "last close"), rows, self.notes)


def check_sums(sums: Collection[str], series: Mapping[str, Series]) -> None:
    """Refuse a column to be summed in coarser bars that an instrument does not have besides prices and volume."""
    for name in sums:
        for symbol, own in series.items():
            if name not in own.extra:
                raise ConfigError(
                    f"no column {name!r} to be summed in coarser bars; besides prices and volume {symbol} has "
                    f"{', '.join(own.extra) or 'none'}.{did_you_mean(name, own.extra)}"
                )
