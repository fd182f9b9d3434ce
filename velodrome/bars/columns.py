"""Which column of a file is which: the spellings of time, prices, volume and symbol that exports use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from velodrome.errors import ConfigError, DataError, did_you_mean

# Spellings are compared in lower case, without spaces, underscores, brackets and other signs; earlier ones win.
PRICE_SPELLINGS = {
    "open": ("open", "o", "openprice", "openbid", "bidopen"),
    "high": ("high", "h", "highprice", "highbid", "bidhigh"),
    "low": ("low", "l", "lowprice", "lowbid", "bidlow"),
    "close": (
        *("close", "c", "closeprice", "closelast", "closebid", "bidclose", "closingprice", "price", "last"),
        *("lastprice", "settle", "settlement"),
    ),
}
ADJUSTED_SPELLINGS = ("adjclose", "adjustedclose", "closeadj", "closeadjusted", "adjustedcloseprice", "adjcloseprice")
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
A_FRAME = "the frame"  # how the origin of a table that is no file begins
ROLES = ("time", *PRICE_SPELLINGS, "volume", "symbol", "adj_close")  # what `columns` may name a column for
# A name that no spelling knows and that can only mean one of these prices; a 52-week high or open interest is none.
LIKE_A_PRICE = re.compile(
    r"(?:(?:day|daily|session|price|bid|ask|mid|adj)_)?(?:open|opening|high|highest|low|lowest)(?:_(?:price|bid|ask|mid|usd))?"
)
VOLUME_WITH_UNIT = re.compile(r"(?:volume|vol)_[a-z0-9]{2,8}")  # "Volume BTC", "Volume (USDT)"


@dataclass(frozen=True)
class ColumnMap:
    """The file's own column names by what they hold."""

    time: str
    clock: str | None  # candidate for the time of day, where `time` may be only a date
    time_is_utc: bool  # the column's name says so ("Gmt time"), whatever time zone the caller gives
    prices: dict[str, str]  # open, high, low, close → column; close alone: there is no other price
    adjusted: str | None  # name in `extra` of the close adjusted for splits and dividends
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


def check_roles(chosen: Mapping[str, str] | None) -> dict[str, str]:
    """Return a user's choice of columns; refuse a role that does not exist."""
    if chosen is None:
        return {}
    if not isinstance(chosen, Mapping):
        raise ConfigError(f"columns is {chosen!r}; give a mapping such as {{'close': 'Adj Close', 'time': 'Day'}}.")
    for role, column in chosen.items():
        if role not in ROLES:
            raise ConfigError(
                f"columns names a column for {role!r}; there are {', '.join(ROLES)}.{did_you_mean(str(role), ROLES)}"
            )
        if not isinstance(column, str):
            raise ConfigError(f"columns[{role!r}] is {column!r}; give the column's name as a text.")
    return dict(chosen)


def chosen_columns(names: Sequence[str], origin: str, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that a user chose as they are spelled here, by role.

    An adjusted close that is chosen as the close, beside a plain one, is what it is: the close before the adjustment is
    needed to adjust the other prices.
    """
    by_key = {spelling_key(name): name for name in reversed(names)}
    found = {}
    for role, wanted in chosen.items():
        column = wanted if wanted in names else by_key.get(spelling_key(wanted))
        if column is None:
            raise DataError(
                f"{origin}: no column {wanted!r}, which columns= names for {role}; the columns found are "
                f"{', '.join(map(repr, names)) or 'none'}.{did_you_mean(wanted, names)}"
            )
        found[role] = column
    plain = first_spelled(by_key, PRICE_SPELLINGS["close"])
    if spelling_key(found.get("close", "")) in ADJUSTED_SPELLINGS and plain is not None:
        found |= {"adj_close": found["close"], "close": plain}
    return found


def map_columns(names: Sequence[str], origin: str, chosen: Mapping[str, str] | None = None) -> ColumnMap:
    """Return which column holds what, or refuse with the columns found, the missing ones and accepted spellings.

    chosen: columns by what they hold (ROLES), which need not have an accepted spelling.
    """
    given = chosen_columns(names, origin, chosen or {})
    by_key: dict[str, str] = {}
    for name in names:
        if name not in given.values():
            by_key.setdefault(spelling_key(name), name)
    unnamed = [name for name in names if INDEX_NAME.fullmatch(plain_name(name)) and name not in given.values()]

    # An unnamed index comes first in a text file; pandas puts it last in Parquet, as "__index_level_0__".
    index = next((name for name in unnamed if name == names[0] or "index_level" in name), None)
    time = given.get("time") or first_spelled(by_key, TIME_SPELLINGS) or index
    found = {price: given.get(price) or first_spelled(by_key, known) for price, known in PRICE_SPELLINGS.items()}
    adjusted = given.get("adj_close") or first_spelled(by_key, ADJUSTED_SPELLINGS)
    if found["close"] is None:
        found["close"], adjusted = adjusted, None
    missing = _missing(names, time, found)
    if missing or time is None:
        raise DataError(_not_found(names, origin, missing))
    clock = by_key.get("time") if spelling_key(time) in DATE_SPELLINGS else None

    tick_volume = first_spelled(by_key, TICK_VOLUME_SPELLINGS)
    with_unit = [name for name in by_key.values() if VOLUME_WITH_UNIT.fullmatch(plain_name(name))]
    volume = given.get("volume") or first_spelled(by_key, VOLUME_SPELLINGS) or (with_unit[0] if with_unit else None)
    if volume is None:
        volume, tick_volume = tick_volume, None
    symbol = given.get("symbol") or first_spelled(by_key, SYMBOL_SPELLINGS)

    taken = {time, clock, volume, symbol, *found.values(), *unnamed}
    extra: dict[str, str] = {}
    for name in names:
        if name in taken or (spelling_key(name) in TIME_SPELLINGS and name != adjusted):
            continue
        label, number = plain_name(name) or "column", 2
        while label in extra or label in (*PRICE_SPELLINGS, "volume", "time"):
            label, number = f"{plain_name(name)}_{number}", number + 1
        extra[label] = name
    prices = {price: column for price, column in found.items() if column is not None}
    time_is_utc = any(word in spelling_key(time) for word in ("utc", "gmt"))
    adjusted_label = next((label for label, column in extra.items() if column == adjusted), None)
    return ColumnMap(time, clock, time_is_utc, prices, adjusted_label, volume, tick_volume, symbol, extra)


def _missing(names: Sequence[str], time: str | None, prices: Mapping[str, str | None]) -> list[str]:
    """Return what a table lacks. A close alone is enough if no other column looks like a price of the bar."""
    absent = [name for name, column in {"time": time, **prices}.items() if column is None]
    others = [name for name in ("open", "high", "low") if name in absent]
    unknown = [name for name in names if LIKE_A_PRICE.fullmatch(plain_name(name)) and name != time]
    close_only = len(others) == 3 and not unknown and prices["close"] is not None
    return [name for name in absent if not (close_only and name in others)]


def _not_found(names: Sequence[str], origin: str, missing: Sequence[str]) -> str:
    accepted = {"time": TIME_SPELLINGS, **PRICE_SPELLINGS}
    spellings = "; ".join(f"{name}: {', '.join(accepted[name])}" for name in missing)
    example = ", ".join(f"{name!r}: 'NAME'" for name in missing)
    wide = (
        " If each column holds the closes of one instrument, give them by name: {name: frame[name] for name in frame}."
    )
    return (
        f"{origin}: no column for {', '.join(missing)}; the columns found are "
        f"{', '.join(repr(name) for name in names) or 'none'}. Accepted spellings (case, spaces and signs do not "
        f"matter) are {spellings}. Say which column it is: columns={{{example}}}, with its name in place of NAME."
        f"{wide if origin.startswith(A_FRAME) else ''}"
    )
