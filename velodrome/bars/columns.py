"""Which column of a file is which: the spellings of time, prices, volume and symbol that exports use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from velodrome.errors import DataError

# Spellings are compared in lower case, without spaces, underscores, brackets and other signs; earlier ones win.
PRICE_SPELLINGS = {
    "open": ("open", "o", "openprice", "openbid", "bidopen"),
    "high": ("high", "h", "highprice", "highbid", "bidhigh"),
    "low": ("low", "l", "lowprice", "lowbid", "bidlow"),
    "close": ("close", "c", "closeprice", "closelast", "closebid", "bidclose"),
}
TIME_SPELLINGS = (
    *("datetime", "timestamp", "dateandtime", "opentime", "opentimestamp", "gmttime", "utctime", "timeutc", "utc"),
    *("datetimeutc", "localtime", "starttime", "timeperiodstart", "begin", "date", "time", "dateutc", "dtyyyymmdd"),
    *("day", "dt", "ts", "t", "unix", "unixtime", "unixtimestamp", "epoch"),
)
DATE_SPELLINGS = ("date", "dtyyyymmdd", "day")
SYMBOL_SPELLINGS = ("symbol", "ticker", "tic", "pair", "currencypair", "instrument", "sym", "asset", "secid", "code")
VOLUME_SPELLINGS = ("volume", "vol", "v", "volumebase", "basevolume", "realvolume")
TICK_VOLUME_SPELLINGS = ("tickvol", "tickvolume", "ticks")
INDEX_NAME = re.compile(r"unnamed(_\d+)*|index_level_\d+|")  # what pandas and others call an index without a name
VOLUME_WITH_UNIT = re.compile(r"(?:volume|vol)_[a-z0-9]{2,8}")  # "Volume BTC", "Volume (USDT)"


@dataclass(frozen=True)
class ColumnMap:
    """The file's own column names by what they hold."""

    time: str
    clock: str | None  # candidate for the time of day, where `time` may be only a date
    time_is_utc: bool  # the column's name says so ("Gmt time"), whatever time zone the caller gives
    prices: dict[str, str]  # open, high, low, close → column
    volume: str | None
    tick_volume: str | None  # stands in where `volume` is zero throughout, as in MetaTrader's currency exports
    symbol: str | None
    extra: dict[str, str]  # name in `Series.extra` → column


def plain_name(name: str) -> str:
    """Return the name in lower snake case: 'Adj Close' → 'adj_close', '<TICKVOL>' → 'tickvol', '1. open' → 'open'."""
    return re.sub(r"[^0-9a-z]+", "_", re.sub(r"^\s*\d+\.\s+", "", name.strip()).lower()).strip("_")


def spelling_key(name: str) -> str:
    """Return the name as it is compared with the accepted spellings."""
    return plain_name(name).replace("_", "")


def first_spelled(columns: dict[str, str], spellings: Sequence[str]) -> str | None:
    """Return the column with the earliest of the spellings, or None."""
    return next((columns[spelling] for spelling in spellings if spelling in columns), None)


def count_price_names(names: Sequence[str]) -> int:
    """Return how many of the four prices the names cover: what tells a header line from any other."""
    keys = {spelling_key(name) for name in names}
    return sum(any(spelling in keys for spelling in spellings) for spellings in PRICE_SPELLINGS.values())


def map_columns(names: Sequence[str], file: str) -> ColumnMap:
    """Return which column holds what, or refuse with the columns found, the missing ones and accepted spellings."""
    by_key: dict[str, str] = {}
    for name in names:
        by_key.setdefault(spelling_key(name), name)
    unnamed = [name for name in names if INDEX_NAME.fullmatch(plain_name(name))]

    # An unnamed index comes first in a text file; pandas puts it last in Parquet, as "__index_level_0__".
    index = next((name for name in unnamed if name == names[0] or "index_level" in name), None)
    time = first_spelled(by_key, TIME_SPELLINGS) or index
    found = {price: first_spelled(by_key, spellings) for price, spellings in PRICE_SPELLINGS.items()}
    accepted = {"time": TIME_SPELLINGS, **PRICE_SPELLINGS}
    missing = [name for name, column in {"time": time, **found}.items() if column is None]
    if missing or time is None:
        spellings = "; ".join(f"{name}: {', '.join(accepted[name])}" for name in missing)
        raise DataError(
            f"{file}: no column for {', '.join(missing)}; the columns found are "
            f"{', '.join(repr(name) for name in names) or 'none'}. Accepted spellings (case, spaces and signs do not "
            f"matter) are {spellings}. Rename the columns, or put a header line above the data if it has none."
        )
    clock = by_key.get("time") if spelling_key(time) in DATE_SPELLINGS else None

    tick_volume = first_spelled(by_key, TICK_VOLUME_SPELLINGS)
    with_unit = [name for name in names if VOLUME_WITH_UNIT.fullmatch(plain_name(name))]
    volume = first_spelled(by_key, VOLUME_SPELLINGS) or (with_unit[0] if with_unit else None)
    if volume is None:
        volume, tick_volume = tick_volume, None
    symbol = first_spelled(by_key, SYMBOL_SPELLINGS)

    taken = {time, clock, volume, symbol, *found.values(), *unnamed}
    extra: dict[str, str] = {}
    for name in names:
        if name in taken or spelling_key(name) in TIME_SPELLINGS:
            continue
        label, number = plain_name(name), 2
        while label in extra or label in (*PRICE_SPELLINGS, "volume", "time"):
            label, number = f"{plain_name(name)}_{number}", number + 1
        extra[label] = name
    prices = {price: column for price, column in found.items() if column is not None}
    time_is_utc = any(word in spelling_key(time) for word in ("utc", "gmt"))
    return ColumnMap(time, clock, time_is_utc, prices, volume, tick_volume, symbol, extra)
