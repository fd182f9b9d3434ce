"""Bars become frozen, contiguous, read-only arrays here: features, timeframes, splits, the proof of no look-ahead."""

from velodrome.tables.build import build_market
from velodrome.tables.features import describe_features
from velodrome.tables.leaks import check_leaks
from velodrome.tables.market import Market
from velodrome.tables.splits import walk_forward
from velodrome.tables.windows import WindowTables

__all__ = ["Market", "WindowTables", "build_market", "check_leaks", "describe_features", "walk_forward"]
