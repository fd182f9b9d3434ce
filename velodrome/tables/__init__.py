"""Bars become frozen, contiguous, read-only arrays here, and a check proves that nothing in them knows the future.

There is one pipeline, for instruments that stand alone (`Market`) and for instruments on one time grid (`Basket`).
Read what is made first: `windows`, `scaling`, `market`, `basket`. Then the parts, `logarithm`, `hashing`, the folder
`features`, `splits` and `purge`. Then the pipeline in its order: `choices`, `stretches`, `prepare`, the folder `leaks`,
`build`; `folds`, which cuts and scales again what was built; `resampled`, other histories made from the training split.
"""

from velodrome.tables.basket import Basket, per_instrument
from velodrome.tables.build import build_basket, build_market
from velodrome.tables.features.features import describe_features
from velodrome.tables.folds import walk_forward
from velodrome.tables.leaks import check_leaks
from velodrome.tables.market import Market
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
