"""What the name of a price file says besides the symbol: the size of its bars, a date, the number of a part."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from velodrome.bars.timeframe import DAY

INTERVAL = r"(?:1s|[1-9]\d?[mhd]|[1-4]w|1mo|M[1-9]\d?|H[1-9]\d?|D1|W1|MN1?)"  # Binance's and MetaTrader's
DATE = r"(?:19|20)\d\d(?:[-_.]?Q[1-4]|[-_.]?(?:0[1-9]|1[0-2])(?:[-_.]?(?:0[1-9]|[12]\d|3[01]))?)?"
SEPARATOR = r"[-_. ]"
# SYMBOL-INTERVAL-YYYY-MM or -YYYY-MM-DD, as on data.binance.vision: the symbol is certain.
BINANCE = re.compile(rf"(?P<symbol>[A-Z0-9_]+)-(?P<interval>{INTERVAL})-(?P<date>\d{{4}}-\d\d(?:-\d\d)?)")
# SYMBOL_PERIOD_FROM_TO, times to the minute, as MetaTrader 5 exports bars: the symbol is certain, too.
METATRADER = re.compile(
    r"(?P<symbol>.+?)_(?P<interval>M[1-9]\d?|H[1-9]\d?|Daily|Weekly|Monthly)_(?P<date>(?:19|20)\d{10})_(?:19|20)\d{10}"
)
BEFORE = rf"(?P<symbol>.+?)(?:{SEPARATOR}(?P<interval>{INTERVAL}))?{SEPARATOR}"
DATED = re.compile(rf"{BEFORE}(?P<date>{DATE})(?:{SEPARATOR}+(?:to{SEPARATOR}+)?{DATE})?")
NUMBERED = re.compile(rf"{BEFORE}(?:(?P<word>[Pp]art|[Cc]hunk){SEPARATOR}?)?(?P<part>\d{{1,5}})")


class NameSeries(NamedTuple):
    """What names have in common that differ only at their end."""

    symbol: str
    interval: str
    differ_in: str
    certain: bool


class FileName(NamedTuple):
    """A name taken apart."""

    symbol: str
    interval: str  # "1m", or ""
    date: str = ""  # the first one of a span: "2023-05", "20230501", "2023", "2023Q2"
    part: int | None = None
    certain: bool = False  # the form is one maker's own: the symbol is known from the name alone
    worded: bool = False  # it says that the number is that of a part

    @property
    def series(self) -> NameSeries:
        """What the files of one instrument have in common."""
        return NameSeries(self.symbol, self.interval, "dates" if self.date else "numbers", self.certain)


def parse_name(stem: str) -> FileName | None:
    """Return the parts of a file's name without its ending, or None where it ends in no date and no number."""
    if found := BINANCE.fullmatch(stem) or METATRADER.fullmatch(stem):
        return FileName(found["symbol"], found["interval"], found["date"], certain=True)
    found = DATED.fullmatch(stem) or NUMBERED.fullmatch(stem)
    if found is None or not any(map(str.isalpha, found["symbol"])):
        return None
    told, interval = found.groupdict(), found["interval"] or ""
    if "date" in told:
        return FileName(found["symbol"], interval, told["date"])
    return FileName(found["symbol"], interval, part=int(told["part"]), worded=told["word"] is not None)


def period_of(date: str) -> tuple[int, int]:
    """Return begin and end, in nanoseconds UTC, of the day, month, quarter or year that a name says."""
    figures = re.sub(r"\D", "", date)
    year, rest = int(figures[:4]), figures[4:]
    if "Q" in date:
        first, months = 3 * int(rest) - 2, 3
    else:
        first, months = int(rest[:2] or 1), 1 if rest else 12
    begin = (year - 1970) * 12 + first - 1
    edges = np.array([begin, begin + months]).astype("datetime64[M]").astype("datetime64[ns]").astype(np.int64)
    if len(rest) == 4:
        day = int(edges[0]) + (int(rest[2:]) - 1) * DAY
        return day, day + DAY
    return int(edges[0]), int(edges[1])
