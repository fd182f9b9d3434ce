"""Bar sizes: reading their spellings, inferring them from times, and resampling to a coarser one.

Sizes below a day are fixed lengths, and their bins are counted from 1970-01-01 00:00 UTC. Days, weeks (from Monday)
and months are calendar bins: they begin at local midnight in the time zone of the bars, so that a day in which the
clocks change has 23 or 25 hours.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import total_ordering
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import polars as pl

MILLISECOND = 1_000_000  # nanoseconds, as are the next four
SECOND = 1_000 * MILLISECOND
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
MEAN_MONTH = 2_629_746 * SECOND  # a twelfth of the Gregorian year; only ever used to order sizes

UNIT_NANOSECONDS = {"ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY, "mo": MEAN_MONTH}
CALENDAR_UNITS = ("d", "w", "mo")
UNIT_SPELLINGS = {
    "ms": ("ms", "l", "milli", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "t", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "wk", "week", "weeks"),
    "mo": ("mo", "mon", "mn", "month", "months", "me"),
}
UNIT_OF_SPELLING = {spelling: unit for unit, spellings in UNIT_SPELLINGS.items() for spelling in spellings}
LARGER_UNIT = {"ms": (1_000, "s"), "s": (60, "m"), "m": (60, "h"), "h": (24, "d"), "d": (7, "w")}
META_TRADER = re.compile(r"(M|H|D|W|MN)(\d+)")  # "M5", "H1", "MN1": in this order an upper-case M is a minute
LEGAL = "Write it as '1m', '5m', '15m', '1h', '4h', '1d', '1w' or '1mo'."


@total_ordering
@dataclass(frozen=True)
class Timeframe:
    """A bar size: a count of milliseconds, seconds, minutes, hours, days, weeks or months."""

    count: int
    unit: str  # "ms", "s", "m", "h", "d", "w" or "mo"

    @property
    def text(self) -> str:
        """The size as Polars writes durations: '5m', '1d', '1mo'."""
        return f"{self.count}{self.unit}"

    @property
    def nanoseconds(self) -> int | None:
        """Length of a bar; a day counts as 24 hours, and months, which have no one length, give None."""
        return None if self.unit == "mo" else self.count * UNIT_NANOSECONDS[self.unit]

    @property
    def typical_nanoseconds(self) -> int:
        """Length of a bar, with the mean length of a month: for ordering and for rough shares, not for bin ends."""
        return self.count * UNIT_NANOSECONDS[self.unit]

    @property
    def is_calendar(self) -> bool:
        """Whether bins begin at local midnight (days and longer) rather than at multiples of a fixed length."""
        return self.unit in CALENDAR_UNITS

    def divides(self, coarser: Timeframe) -> bool:
        """Return whether bars of this size fill a coarser bin without crossing its edges."""
        if coarser.unit == "mo":
            return (self.unit == "mo" and coarser.count % self.count == 0) or DAY % self.typical_nanoseconds == 0
        return self.unit != "mo" and coarser.typical_nanoseconds % self.typical_nanoseconds == 0

    def __lt__(self, other: Timeframe) -> bool:
        return self.typical_nanoseconds < other.typical_nanoseconds

    def __str__(self) -> str:
        return self.text


def parse_timeframe(text: str | Timeframe) -> Timeframe:
    """Return the bar size that the text names: '5m', '5min', '5T', '1H', '1hour', 'M5', '1D', '1mo' …

    Sixty minutes are '1h', 24 hours '1d' and seven days '1w'. An upper-case 'M' after the count is refused, because
    exchanges and pandas mean a month by it and many people a minute.
    """
    if isinstance(text, Timeframe):
        return text
    if not isinstance(text, str):
        raise ConfigError(f"timeframe is {text!r}, a {type(text).__name__}; a text is needed. {LEGAL}")
    spelled = text.strip()
    meta_trader = META_TRADER.fullmatch(spelled)
    if meta_trader:
        return canonical(int(meta_trader[2]), UNIT_OF_SPELLING[meta_trader[1].lower()], text)
    match = re.fullmatch(r"(\d*)\s*([A-Za-z]+)", spelled)
    if match is None:
        raise ConfigError(f"timeframe {text!r} is not a count and a unit. {LEGAL}")
    count, unit = int(match[1] or 1), match[2]
    if unit == "M":
        raise ConfigError(f"timeframe {text!r} may mean minutes or months. Write '{count}m' or '{count}mo'.")
    if unit == "MS":  # pandas: month start; lower-case "ms" is a millisecond
        return canonical(count, "mo", text)
    known = UNIT_OF_SPELLING.get(unit.lower())
    if known is None:
        raise ConfigError(
            f"timeframe {text!r} has the unknown unit {unit!r}.{did_you_mean(unit.lower(), UNIT_OF_SPELLING)} {LEGAL}"
        )
    return canonical(count, known, text)


def canonical(count: int, unit: str, received: str) -> Timeframe:
    """Return the size in the largest unit that gives a whole count."""
    if count < 1:
        raise ConfigError(f"timeframe {received!r} is not positive. {LEGAL}")
    while unit in LARGER_UNIT and count % LARGER_UNIT[unit][0] == 0:
        step, larger = LARGER_UNIT[unit]
        count, unit = count // step, larger
    return Timeframe(count, unit)


def infer_timeframe(time: NDArray[np.int64]) -> Timeframe:
    """Return the bar size of strictly increasing times: their most common difference, the smaller one of a tie.

    Differences of 28 to 31 days are months (28 throughout: four weeks), of 89 to 92 quarters, of 365 or 366 years.
    """
    differences, counts = np.unique(np.diff(time), return_counts=True)
    most_common = int(differences[np.argmax(counts)])
    # Local midnights lie 23 to 25 hours apart, so calendar sizes are judged in rounded days.
    days = round(most_common / DAY)
    if days >= 1 and abs(most_common - days * DAY) <= HOUR:
        for months, low, high in ((1, 28, 31), (3, 89, 92), (12, 365, 366)):
            if low <= days <= high and not (days == 28 and len(differences) == 1):
                return Timeframe(months, "mo")
        return canonical(days, "d", f"{days}d")
    if most_common % MILLISECOND:
        most_common = max(MILLISECOND, round(most_common / MILLISECOND) * MILLISECOND)
    return canonical(most_common // MILLISECOND, "ms", str(most_common))


def check_timezone(timezone: str) -> str:
    """Return the IANA zone name, or refuse it."""
    import polars as pl

    try:
        pl.Series([0]).cast(pl.Datetime("ns")).dt.replace_time_zone(timezone)
    except (pl.exceptions.PolarsError, TypeError, AttributeError) as error:
        from zoneinfo import available_timezones

        close = did_you_mean(str(timezone), available_timezones())
        raise ConfigError(
            f"timezone {timezone!r} is not an IANA time zone.{close} Write it as 'UTC' or 'America/New_York'."
        ) from error
    return timezone


def start_of_local_day(local: pl.Series, timezone: str) -> NDArray[np.int64]:
    """Return the UTC nanoseconds of naive local midnights.

    Of a midnight that occurs twice the first counts; for one that the clocks skip, the first moment after it.
    """
    aware = local.dt.replace_time_zone(timezone, ambiguous="earliest", non_existent="null")
    if aware.null_count():
        # Clocks that skip midnight skip to 01:00 (Beirut, Cairo, São Paulo): an hour on is the first moment.
        after = local.dt.offset_by("1h").dt.replace_time_zone(timezone, ambiguous="earliest", non_existent="null")
        aware = aware.zip_with(aware.is_not_null(), after)
    return aware.dt.epoch("ns").to_numpy().astype(np.int64, copy=False)


def bin_edges(
    time: NDArray[np.int64], timeframe: Timeframe, timezone: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return start and end of the bin [start, end) that each time falls in, as UTC nanoseconds."""
    if not timeframe.is_calendar:
        length = timeframe.typical_nanoseconds
        start = time // length * length
        return start, start + length
    import polars as pl

    moments = pl.Series(time).cast(pl.Datetime("ns")).dt.replace_time_zone("UTC").dt.convert_time_zone(timezone)
    local_start = moments.dt.replace_time_zone(None).dt.truncate(timeframe.text)
    local_end = local_start.dt.offset_by(timeframe.text)
    return start_of_local_day(local_start, timezone), start_of_local_day(local_end, timezone)


def resample(
    series: Series, timeframe: str | Timeframe, timezone: str = "UTC", sums: Collection[str] = ()
) -> tuple[Series, NDArray[np.int64]]:
    """Return the bars of a coarser size, and the end of each one's bin (`close_time`, UTC nanoseconds).

    A bin [start, end) gives one bar at its start: first open, highest high, lowest low, last close, summed volume, and
    the last value of each extra column, or its sum if it is named in `sums`. A bin without a row gives no bar. The bar
    is known in full at `close_time`.
    Bars that are made of closes stay so: each has the last close of its bin and no other price.
    """
    timeframe = parse_timeframe(timeframe)
    check_timezone(timezone)
    if len(series) == 0:
        return series, np.empty(0, dtype=np.int64)
    start, end = bin_edges(series.time, timeframe, timezone)
    first = np.flatnonzero(np.r_[True, start[1:] != start[:-1]])  # row that opens each bin
    last = np.r_[first[1:], len(start)] - 1
    close = series.close[last]
    prices = (series.open[first], np.maximum.reduceat(series.high, first), np.minimum.reduceat(series.low, first))
    opened, high, low = (close, close, close) if series.close_only else prices
    extra = {
        name: np.add.reduceat(column, first) if name in sums else column[last] for name, column in series.extra.items()
    }
    several = len(first) < len(start)
    lasts = series.lasts | (frozenset(extra) - frozenset(sums) if several else frozenset())
    volume = np.add.reduceat(series.volume, first)
    return Series(start[first], opened, high, low, close, volume, extra, series.close_only, lasts), end[first]


def without_gaps(series: Series, length: int) -> Series:
    """Return bars of a fixed length (ns), one in every bin: those that were missing have the last close, no volume."""
    time = np.arange(series.time[0], series.time[-1] + length, length)
    source = np.searchsorted(series.time, time, side="right") - 1
    empty = series.time[source] != time
    opened, high, low = (
        np.where(empty, series.close[source], prices[source]) for prices in (series.open, series.high, series.low)
    )
    volume = np.where(empty, 0.0, series.volume[source])
    return Series(time, opened, high, low, series.close[source], volume, close_only=series.close_only)


def describe_time(nanoseconds: Any) -> str:
    """Return a UTC time as people read it: '2020-01-01 09:30:00', with the part of a second if there is one."""
    text = str(np.datetime64(int(nanoseconds), "ns")).replace("T", " ")
    return text.rstrip("0").rstrip(".") if int(nanoseconds) % 1_000_000_000 else text.split(".")[0]
