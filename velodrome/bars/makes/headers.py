"""Headers that are none, and headers of three lines: Binance's klines, and what yfinance's frames become as CSV.

A line is given as its fields, and a file as its first lines.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from velodrome.bars.columns import TIME_SPELLINGS, count_price_names, spelling_key

# As Binance names them in the files that have a header.
KLINES = (
    *("open_time", "open", "high", "low", "close", "volume", "close_time", "quote_volume", "count"),
    *("taker_buy_volume", "taker_buy_quote_volume", "ignore"),
)
WHOLE = re.compile(r"\d+")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
MOMENT = re.compile(r"\d[\d/.:+-]*(?:[T ]\d[\d:.,+-]*)?(?: ?(?:Z|UTC))?")  # a date or a time, in figures
SHOWN = 60  # characters of a line in a message
TICKER_LEVELS = ("ticker", "tickers", "symbol", "symbols")
PRICE_LEVELS = ("price", "attributes", "")


def is_headless(fields: Sequence[str]) -> bool:
    """Return whether a line is one of data: numbers throughout, but for a date."""
    stripped = [field.strip() for field in fields]
    numbers = sum(NUMBER.fullmatch(field) is not None for field in stripped)
    return numbers >= 2 and all(NUMBER.fullmatch(field) or MOMENT.fullmatch(field) for field in stripped)


def about_headless(line: str) -> str:
    """Return what to say of a file whose first line is one of data."""
    shown = line.strip() if len(line.strip()) <= SHOWN else f"{line.strip()[:SHOWN]}…"
    return (
        f"there is no header: the first line is {shown!r}, which names no columns. Put a header line above the data, "
        "with a name for each column, such as time,open,high,low,close,volume"
    )


def are_klines(lines: Sequence[Sequence[str]]) -> bool:
    """Return whether the first lines of a file without a header can only be Binance's twelve columns.

    Then a bar's open and close times are epochs that go on from line to line, and its prices fit each other.
    """
    rows = [[field.strip() for field in fields] for fields in lines]
    if not rows or not all(len(row) == len(KLINES) and all(map(NUMBER.fullmatch, row)) for row in rows):
        return False
    for row in rows:
        opened, closed, count = row[0], row[6], row[8]
        epochs = all(WHOLE.fullmatch(text) and len(text) in (13, 16) for text in (opened, closed))  # ms or µs
        if not (epochs and len(opened) == len(closed) and int(opened) < int(closed) and WHOLE.fullmatch(count)):
            return False
        first, high, low, last, volume = map(float, row[1:6])
        if not (0 < low <= min(first, last) and max(first, last) <= high and volume >= 0):
            return False
    return all(int(before[0]) < int(after[0]) for before, after in pairwise(rows) if len(before[0]) == len(after[0]))


def ticker_rows(lines: Sequence[Sequence[str]]) -> tuple[list[str], list[str]] | None:
    """Return price and ticker of each column but the first, where three lines stand above the data; else None.

    That is how pandas writes columns of two levels, as yfinance has them: prices and tickers in either order, then the
    name of the index and nothing else.
    """
    if len(lines) < 3 or len({len(fields) for fields in lines[:3]}) > 1 or len(lines[0]) < 2:
        return None
    titles = [fields[0].strip().lower() for fields in lines[:3]]
    upper, lower, blank = ([field.strip() for field in fields[1:]] for fields in lines[:3])
    if any(blank) or spelling_key(titles[2]) not in TIME_SPELLINGS:
        return None
    if titles[0] in PRICE_LEVELS and titles[1] in TICKER_LEVELS:
        prices, tickers = upper, lower
    elif titles[0] in TICKER_LEVELS and titles[1] in PRICE_LEVELS:
        prices, tickers = lower, upper
    else:
        return None
    return (prices, tickers) if all(tickers) and count_price_names(prices) else None
