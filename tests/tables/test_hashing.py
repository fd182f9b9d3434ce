"""Content hashes that runs have stored must stay: these were computed before markets and baskets had one pipeline."""

from __future__ import annotations

import numpy as np

from velodrome.bars.frame import Bars, Series
from velodrome.tables import build_basket, build_market, walk_forward

HOUR = 3_600_000_000_000
FEATURES = ["log_return", "rsi_3", "minute_of_day_sin", "rate"]


def plain_series(step: int, first: int, last: int) -> Series:
    """Bars whose prices are whole numbers and quarters, so that they are the same on every machine."""
    row = np.arange(first, last)
    close = 100.0 + (row * step) % 17 + (row % 7) * 0.25
    open_ = np.concatenate([close[:1], close[:-1]])
    high, low = np.maximum(open_, close) + 1.0, np.minimum(open_, close) - 0.5
    return Series(row * HOUR, open_, high, low, close, 10.0 + row % 11, {"rate": row % 5 - 2.0})


def plain_bars() -> Bars:
    return Bars({"AAA": plain_series(3, 0, 400), "BBB": plain_series(5, 40, 380)}, "1h", "America/New_York")


def test_a_market_and_its_folds_keep_their_hashes():
    windows = {"1h": 4, "1d": 2}
    market = build_market(plain_bars(), FEATURES, windows, embargo=2, per_instrument=True, scaler="minmax")
    assert market.content_hash == "c2306e3cf4f7e91eb8c9f864142b977d92627a91bfd26cba80ec0eb4fddaef4e"
    fold = walk_forward(market, 3, embargo=1)[1]
    assert fold.content_hash == "3855eeec880a476622a204dc079df1c186a06e938eeba900a86fd465710ade05"


def test_a_basket_keeps_its_hash():
    features = [*FEATURES, "rank:log_return", "market_return"]
    basket = build_basket(plain_bars(), features, {"2h": 3, "4h": 2}, "2h", clip=3.0)
    assert basket.content_hash == "1cb5297c8573c5661aa4d940610474f1ee3fdfa8635c6aae6f9fd07ee5fa1eaf"
