"""Values as files write them: text to float64 numbers and to times in nanoseconds UTC.

Numbers may have decimal commas, thousands separators and one of many spellings of a missing one; volumes may be short
for thousands, millions, billions and trillions (587.78K, 1.2M).

Times that are numbers are epochs, whose unit follows from their magnitude, or dates such as 20200131. Text is year
first (2020-01-31, 2020.01.31, 20200131) or year last (31.01.2020, 31/01/2020, 01/31/2020), with or without a time of
day and a zone. A time without a zone is read in the caller's time zone. One that occurs twice when clocks go back is
taken as the first of the two; one that clocks skip does not exist and is refused, except midnight in a column of dates,
which means the day's first moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.bars.rules import DAY_OR_MONTH, ROW_NUMBER, SKIPPED_HOUR, UNREADABLE
from velodrome.bars.timeframe import start_of_local_day

MISSING_SPELLINGS = ("", "nan", "null", "none", "na", "n/a", "#n/a", "<na>", "-", ".")
THOUSANDS_COMMAS = r"^[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?$"  # 1,234,567.89
THOUSANDS_POINTS = r"^[+-]?\d{1,3}(?:\.\d{3})+(?:,\d+)?$"  # 1.234.567,89
SHORT = r"(?i)^(.*\d)\s?([kmbt])$"  # 587.78K
SHORT_UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
NUMBER = r"^[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?$"
YEAR_FIRST = r"^(\d{4})[-./](\d{1,2})[-./](\d{1,2})"
YEAR_LAST = r"^(\d{1,2})([-./])(\d{1,2})[-./](\d{4})"
COMPACT_DATE = r"^(\d{4})(\d{2})(\d{2})([T ].*)?$"
COMPACT_DATE_TIME = r"^(\d{4})(\d{2})(\d{2})(\d{2})(\d{2})(\d{2})?$"
UTC_SUFFIX = r"(?i)^(.*\d)\s*(?:Z|UTC|GMT)$"
OFFSET_SUFFIX = r"(?i)^(.*\d:\d{2}(?::\d{2}(?:[.,]\d+)?)?)\s*(?:UTC|GMT)?([+-])(\d{2}):?(\d{2})?$"
CLOCK = r"(?i)^(?:\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AP]M)?|\d{1,6})$"
FORMATS = (
    *("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d", "%Y-%m-%d %I:%M:%S %p", "%Y-%m-%d %I:%M %p"),
    *("%Y-%m-%d %H%M%S", "%Y-%m-%d %H%M", "%d-%b-%Y", "%d %b %Y", "%b %d, %Y"),
)
# Largest absolute epoch in each unit: seconds up to the year 5138, milliseconds from March 1973 …
EPOCH_UNITS = ((1e11, 1_000_000_000), (1e14, 1_000_000), (1e17, 1_000), (np.inf, 1))
SMALLEST_EPOCH = 1e8  # 1973-03-03 in seconds: a column that stays below it holds row numbers, not times
LARGEST_NANOSECONDS = 9.2e18  # the year 2261: the end of 64-bit nanoseconds
COMPACT_RANGES = (
    (19_000_101, 21_001_231),
    (190_001_010_000, 210_012_312_359),
    (19_000_101_000_000, 21_001_231_235_959),
)


# Numbers


@dataclass(frozen=True)
class ParsedNumbers:
    """A column's values, and which rows hold text that is not a number."""

    value: NDArray[np.float64]  # NaN where missing or unreadable
    unreadable: NDArray[np.bool_]


def parse_numbers(column: pl.Series, separator: str | None, short: bool = False) -> ParsedNumbers:
    """Return the column as float64. In a file with semicolons between the fields a comma is the decimal sign.

    short: numbers may end in a letter that stands for their unit.
    """
    dtype = column.dtype
    if dtype.is_numeric() or dtype == pl.Boolean:
        value = column.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return ParsedNumbers(value, np.zeros(len(value), np.bool_))
    if dtype.is_temporal() or dtype.is_nested():
        return ParsedNumbers(np.full(len(column), np.nan), column.is_not_null().to_numpy())
    text = column.cast(pl.String).str.strip_chars()
    number = text.cast(pl.Float64, strict=False)
    if number.null_count() > text.null_count():
        text = text.str.strip_prefix("$")
        missing = text.is_null() | text.str.to_lowercase().is_in(MISSING_SPELLINGS)
        parts = text.str.extract_groups(SHORT).struct.unnest() if short else None
        if parts is not None:
            text = parts["1"].fill_null(text)
        number = plain_decimals(text, separator).cast(pl.Float64, strict=False)
        if parts is not None:
            unit = parts["2"].str.to_lowercase().replace_strict(SHORT_UNITS, default=1.0, return_dtype=pl.Float64)
            number = number * unit
        unreadable = (number.is_null() & ~missing).to_numpy()
    else:
        unreadable = np.zeros(len(number), np.bool_)
    return ParsedNumbers(number.fill_null(float("nan")).to_numpy(), unreadable)


def plain_decimals(text: pl.Series, separator: str | None) -> pl.Series:
    """Return the numbers with a decimal point and without thousands separators."""
    if not text.str.contains(",", literal=True).any():
        return text
    without_commas = text.str.replace_all(",", "", literal=True)
    if separator == ";":
        # A comma after which a point follows is a thousands separator even here: 1,234.56.
        english = text.str.contains(r",\d{3}.*\.")
        pointless = text.str.replace_all(".", "", literal=True).zip_with(text.str.contains(THOUSANDS_POINTS), text)
        return without_commas.zip_with(english, pointless.str.replace(",", ".", literal=True))
    if separator == ",":
        return without_commas.zip_with(text.str.contains(THOUSANDS_COMMAS), text)
    return text


def decimal_marks(column: pl.Series, separator: str | None) -> dict[str, NDArray[np.int64]]:
    """Return the rows of a text column whose decimal sign is surely a comma, and those where it is a point."""
    text = column.cast(pl.String).str.strip_chars().str.strip_prefix("$")
    comma = text.str.contains(r"^[+-]?[\d.]*\d,\d+$")
    if separator != ";":  # 1,234 is a whole number there
        comma &= ~text.str.contains(THOUSANDS_COMMAS)
    point = text.str.contains(r"^[+-]?[\d,]*\d\.\d+$") & ~text.str.contains(THOUSANDS_POINTS)
    return {mark: np.flatnonzero(rows.fill_null(False).to_numpy()) for mark, rows in ((",", comma), (".", point))}


# Times


@dataclass(frozen=True)
class ParsedTimes:
    """Times of a column and the rows that have none, by the reason."""

    time: NDArray[np.int64]  # nanoseconds UTC; 0 in faulty rows
    faults: dict[str, NDArray[np.bool_]]  # reason, a key of TIME_ADVICE → rows


def parse_times(column: pl.Series, timezone: str, day_first: bool | None) -> ParsedTimes:
    """Return the column's times. `timezone` is where naive ones are."""
    dtype = column.dtype
    if dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if isinstance(column.dtype, pl.Datetime):
        return from_datetimes(column, timezone)
    if dtype.is_numeric():
        return from_numbers(column, timezone, day_first)
    text = column.cast(pl.String).str.strip_chars()
    text = blank(text, text == "")
    present = text.drop_nulls()
    if len(present) and present.str.contains(NUMBER).all():
        whole = text.cast(pl.Int64, strict=False)
        return from_numbers(whole if whole.null_count() == text.null_count() else text.cast(pl.Float64), timezone, None)
    return from_text(text, timezone, day_first)


def join_date_and_clock(date: pl.Series, clock: pl.Series) -> pl.Series | None:
    """Return 'date clock' as text, the date where it has a time of day itself, or None where the clock is no clock."""
    if isinstance(date.dtype, pl.Datetime):
        if date.dtype.time_zone is not None or not (date == date.dt.truncate("1d")).all():
            return date
        date = date.dt.date()
    clock_text = clock.cast(pl.String).str.strip_chars()
    present = clock_text.drop_nulls()
    if len(present) == 0 or not present.str.contains(CLOCK).all():
        return None
    if present.str.contains(r"^\d+$").all():  # 93000 is 09:30:00 and 930 is 09:30
        clock_text = clock_text.str.zfill(6 if (present.str.len_chars() > 4).any() else 4)
    date_text = date.cast(pl.String).str.strip_chars()
    return date_text if date_text.str.contains(":", literal=True).any() else date_text + " " + clock_text


def blank(column: pl.Series, where: pl.Series) -> pl.Series:
    """Return the column with nulls in the rows marked."""
    return pl.select(pl.when(where).then(None).otherwise(column)).to_series()


def in_nanoseconds(moments: pl.Series) -> pl.Series:
    """Return datetimes in nanoseconds; null outside 1678 … 2261, where Polars would wrap them around silently."""
    return blank(moments, ~moments.dt.year().is_between(1678, 2261)).dt.cast_time_unit("ns")


def to_nanoseconds(moments: pl.Series) -> NDArray[np.int64]:
    """Return a UTC or naive datetime column as nanoseconds, 0 where it is null."""
    return moments.dt.epoch("ns").fill_null(0).to_numpy().astype(np.int64, copy=False)


def from_datetimes(column: pl.Series, timezone: str) -> ParsedTimes:
    column = in_nanoseconds(column)
    missing = column.is_null().to_numpy()
    assert isinstance(column.dtype, pl.Datetime)
    if column.dtype.time_zone is not None:
        return ParsedTimes(to_nanoseconds(column), {UNREADABLE: missing})
    time, skipped = localise(column, timezone)
    return ParsedTimes(time, {UNREADABLE: missing, SKIPPED_HOUR: skipped})


def localise(naive: pl.Series, timezone: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return naive local times in UTC, and which of them the clocks skip."""
    aware = naive.dt.replace_time_zone(timezone, ambiguous="earliest", non_existent="null")
    skipped = (aware.is_null() & naive.is_not_null()).to_numpy()
    if skipped.any() and (naive.drop_nulls().dt.truncate("1d") == naive.drop_nulls()).all():
        return start_of_local_day(naive.fill_null(strategy="zero"), timezone), np.zeros_like(skipped)
    return to_nanoseconds(aware), skipped


def from_numbers(column: pl.Series, timezone: str, day_first: bool | None) -> ParsedTimes:
    missing = column.is_null().to_numpy()
    values = column.fill_null(0).to_numpy()
    if values.dtype.kind == "f":
        missing = missing | ~np.isfinite(values)
        values = np.where(missing, 0, values)
    present = values[~missing]
    for smallest, largest in COMPACT_RANGES:
        if len(present) and np.all((present >= smallest) & (present <= largest)):
            text = pl.Series(values.astype(np.int64)).cast(pl.String)
            return from_text(blank(text, pl.Series(missing)), timezone, day_first)
    largest_seen = np.abs(present).max(initial=0)
    if len(present) and largest_seen < SMALLEST_EPOCH:
        return ParsedTimes(np.zeros(len(values), np.int64), {UNREADABLE: missing, ROW_NUMBER: ~missing})
    # Files glued together may change the unit midway (Binance went from milliseconds to microseconds in 2025). Rows are
    # judged one by one only where none can be a moment near 1970.
    by_row = bool(np.all(np.abs(present) >= EPOCH_UNITS[0][0]))
    magnitude = np.abs(values) if by_row else np.full(len(values), largest_seen)
    scale = np.select([magnitude < limit for limit, _ in EPOCH_UNITS], [unit for _, unit in EPOCH_UNITS])
    missing = missing | (np.abs(values.astype(np.float64)) * scale > LARGEST_NANOSECONDS)
    values = np.where(missing, 0, values)
    if values.dtype.kind == "f":
        # A float has no nanoseconds to give at this magnitude: microseconds are exact until the year 2255.
        time = np.rint(values * (scale / 1_000)).astype(np.int64) * 1_000
    else:
        time = values.astype(np.int64) * scale.astype(np.int64)
    return ParsedTimes(time, {UNREADABLE: missing})


def from_text(text: pl.Series, timezone: str, day_first: bool | None) -> ParsedTimes:
    present = text.is_not_null().to_numpy()
    naive = first_format(text, FORMATS[:3])
    offset = np.zeros(len(text), np.int64)
    zoned = np.zeros(len(text), np.bool_)
    faults: dict[str, NDArray[np.bool_]] = {}
    if naive.null_count() > text.null_count():
        text, offset, zoned = split_zone(text)
        text, undecided = year_to_front(text, day_first)
        faults[DAY_OR_MONTH] = undecided
        text = text.str.replace(COMPACT_DATE_TIME, "$1-$2-$3 $4:$5:${6}").str.replace(COMPACT_DATE, "$1-$2-$3$4")
        text = text.str.replace(":$", "").str.replace(r"(\d)T(\d)", "$1 $2").str.replace(r"(:\d{2}),(\d+)$", "$1.$2")
        text = text.str.replace(r"(?i) (\d{1,2})-([AP]M)$", " $1:00 $2").str.replace_all(r"\s+", " ")
        text = text.str.replace(r"(?i)(\d)([AP]M)$", "$1 $2")
        naive = first_format(text, FORMATS)
    faults[UNREADABLE] = naive.is_null().to_numpy() & ~faults.get(DAY_OR_MONTH, ~present & False)
    local_time, skipped = localise(blank(naive, pl.Series(zoned)), timezone)
    faults[SKIPPED_HOUR] = skipped
    return ParsedTimes(np.where(zoned, to_nanoseconds(naive) - offset, local_time), faults)


def first_format(text: pl.Series, formats: tuple[str, ...]) -> pl.Series:
    """Return naive datetimes, exact to microseconds: by the first format that fits, null where none does."""
    moments = text.str.to_datetime(formats[0], strict=False, time_unit="us")
    for layout in formats[1:]:
        if moments.null_count() == text.null_count():
            break
        other = blank(text, moments.is_not_null()).str.to_datetime(layout, strict=False, time_unit="us")
        moments = moments.zip_with(moments.is_not_null(), other)
    return in_nanoseconds(moments)


def split_zone(text: pl.Series) -> tuple[pl.Series, NDArray[np.int64], NDArray[np.bool_]]:
    """Return the text without its zone, the zone's offset in nanoseconds, and which rows have a zone."""
    parts = text.str.extract_groups(OFFSET_SUFFIX).struct.unnest()
    with_offset = parts["1"].is_not_null()
    hours = parts["3"].cast(pl.Int64).fill_null(0).to_numpy()
    minutes = parts["4"].cast(pl.Int64).fill_null(0).to_numpy()
    sign = np.where((parts["2"] == "-").fill_null(False).to_numpy(), -1, 1)
    offset = sign * (hours * 3600 + minutes * 60) * 1_000_000_000
    body = parts["1"].zip_with(with_offset, text)
    without_suffix = body.str.extract(UTC_SUFFIX, 1)
    zoned = (with_offset | without_suffix.is_not_null()).to_numpy()
    return without_suffix.zip_with(without_suffix.is_not_null(), body), offset, zoned


def year_to_front(text: pl.Series, day_first: bool | None) -> tuple[pl.Series, NDArray[np.bool_]]:
    """Return the text with dates as year-month-day, and the rows whose order of day and month stays undecided."""
    text = text.str.replace(YEAR_FIRST, "$1-$2-$3")
    parts = text.str.extract_groups(YEAR_LAST).struct.unnest()
    year_last = parts["1"].is_not_null()
    undecided = np.zeros(len(text), np.bool_)
    if not year_last.any():
        return text, undecided
    first = parts["1"].cast(pl.Int64).fill_null(0).to_numpy()
    second = parts["3"].cast(pl.Int64).fill_null(0).to_numpy()
    if day_first is None:
        # With points the order is always day.month.year; nobody writes 12.31.2020.
        if (parts["2"].drop_nulls() == ".").all() or (first > 12).any():
            day_first = True
        elif (second > 12).any() or np.all(first == second):
            day_first = False
        else:
            return text, year_last.to_numpy()
    return text.str.replace(YEAR_LAST, "$4-$3-$1" if day_first else "$4-$1-$3"), undecided
