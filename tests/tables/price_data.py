"""Bars for the tests of tables: seeded, with gaps inside bars, pauses overnight and further columns."""

from __future__ import annotations

import numpy as np

from velodrome.bars.frame import Bars, Series

MINUTE = 60_000_000_000
START = int(np.datetime64("2024-03-04T00:00", "ns").astype(np.int64))  # a Monday


def gappy_series(
    rows: int, seed: int, minutes: int = 1, missing: float = 0.15, hours: tuple[int, int] = (0, 24)
) -> Series:
    """Return bars of so many minutes within the hours of each day, some of them missing."""
    generator = np.random.default_rng(seed)
    slots = np.arange(rows * 8) * minutes * MINUTE + START
    of_day = slots // (60 * MINUTE) % 24
    slots = slots[(of_day >= hours[0]) & (of_day < hours[1])]
    slots = slots[generator.random(len(slots)) >= missing][:rows]
    assert len(slots) == rows
    close = 100.0 * np.exp(np.cumsum(generator.normal(0, 0.002, rows)))
    open_ = close * np.exp(generator.normal(0, 0.001, rows))
    high = np.maximum(open_, close) * (1 + generator.uniform(0, 0.001, rows))
    low = np.minimum(open_, close) * (1 - generator.uniform(0, 0.001, rows))
    volume = np.round(generator.lognormal(6, 1, rows))
    return Series(slots, open_, high, low, close, volume, {"funding_rate": generator.normal(0, 1e-4, rows)})


def gappy_bars(
    rows: int = 600, seed: int = 0, symbols: tuple[str, ...] = ("AAA",), timezone: str = "UTC", **choices
) -> Bars:
    series = {symbol: gappy_series(rows + 37 * index, seed + index, **choices) for index, symbol in enumerate(symbols)}
    return Bars(series, f"{choices.get('minutes', 1)}m", timezone)


def with_series(bars: Bars, **series: Series) -> Bars:
    return Bars({**bars.series, **series}, bars.timeframe, bars.timezone)
