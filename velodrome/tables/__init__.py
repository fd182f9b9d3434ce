"""Bars become frozen, contiguous, read-only arrays here: features, timeframes, splits, the proof of no look-ahead."""

from velodrome.tables.basket import Basket, per_instrument
from velodrome.tables.basket_build import build_basket
from velodrome.tables.build import build_market
from velodrome.tables.features.features import describe_features
from velodrome.tables.leaks import check_leaks
from velodrome.tables.market import Market
from velodrome.tables.splits import walk_forward
from velodrome.tables.windows import WindowTables

__all__ = [
    "Basket",
    "Market",
    "WindowTables",
    "build_basket",
    "build_market",
    "check_leaks",
    "describe_features",
    "per_instrument",
    "walk_forward",
]
