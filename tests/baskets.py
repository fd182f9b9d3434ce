"""Small hand-made baskets for the tests of portfolios: wild prices, late listings, halts and random windows."""

from __future__ import annotations

import numpy as np

from tests.markets import MINUTE, wild_prices
from velodrome.tables.basket import Basket
from velodrome.tables.windows import WindowPart, stack_windows


def small_basket(
    bars: int = 200, instruments: int = 3, seed: int = 0, halts: float = 0.1, listed_late: bool = True,
    window: tuple[int, int] = (4, 2), **prices: float,
) -> Basket:  # fmt: skip
    """Return instruments with halts, the last listed after a fifth of the bars, and a window of random features."""
    rng = np.random.default_rng([seed, 77])
    tradable = rng.random((bars, instruments)) >= halts
    tradable[0] = True
    if listed_late and instruments > 1:
        tradable[: bars // 5, -1] = False
    opened, closed = np.zeros((bars, instruments)), np.zeros((bars, instruments))
    for k in range(instruments):
        ohlc = wild_prices(bars, seed + 10 * k, **prices) * 10.0 ** (k % 4 - 1)
        for row in range(bars):
            before = closed[row - 1, k] if row else 0.0
            opened[row, k], closed[row, k] = (ohlc[row, 0], ohlc[row, 3]) if tradable[row, k] else (before, before)
    length, features = window
    values = rng.normal(size=(bars, instruments * features)).astype(np.float32)
    symbols = tuple(f"S{k}" for k in range(instruments))
    return Basket(
        symbols=symbols,
        timeframe="1m",
        timezone="UTC",
        time=np.arange(bars) * MINUTE,
        open=opened,
        close=closed,
        tradable=tradable.astype(np.uint8),
        begin=np.array([length - 1]),
        end=np.array([bars]),
        windows=stack_windows([(length, [WindowPart(values, np.arange(bars))])]),
        window_names=("1m",),
        feature_names=(tuple(f"{symbol} f{j}" for symbol in symbols for j in range(features)),),
        name="small",
    )
