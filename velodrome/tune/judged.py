"""On which prices the trials of a study are judged, and whether those of another study were judged on the same.

Trials that were judged on the same prices are all part of one search, whatever windows and features they were shown,
and however the splits were cut. So studies are compared by instrument and time, not by a hash, which one bar changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from velodrome.runs.config.sections import SYNTHETIC
from velodrome.runs.folds.cross_validation import before_the_test
from velodrome.tune.study import Study

if TYPE_CHECKING:
    from velodrome.runs.config.run_config import RunConfig
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

JUDGED = "judged"  # in the space of a study; older ones do not have it

Spans = Mapping[str, list[list[int]]]  # by instrument: first and last bar of each piece, nanoseconds UTC


def judged_prices(config: RunConfig, market: Market | Basket, folds: int | None) -> dict[str, Any]:
    """Return the size of the bars, and when each instrument is judged: in the validation split, or in the folds."""
    split = None if folds is not None else config.evaluation.split
    part = market if split is None else market.split(split)
    limits = None if split is not None else before_the_test(config, market)
    spans: dict[str, list[list[int]]] = {}
    for low, high, members in zip(part.begin, part.end, part.members, strict=True):
        times = part.time[low:high]
        if limits is not None:
            times = times[(times >= limits[0]) & (times < limits[1])]
        for symbol in members if len(times) else ():
            spans.setdefault(symbol, []).append([int(times[0]), int(times[-1])])
    return {"timeframe": market.timeframe, "spans": spans}


def on_same_prices(study: Study, other: Study) -> bool:
    """Return whether the trials of two studies were judged on the same prices, or on some of them.

    A study that does not say when it was judged counts if all its data is the same, or if it reads files of the same
    name: nothing shows that its prices were others, and to count too many trials is safer than to count too few.
    """
    mine, its = (one.config.get("market", {}) for one in (study, other))  # empty where there are no prices
    may_be = bool(mine and its) and _may_be_same(mine, its)
    if JUDGED in study.space and JUDGED in other.space:
        return may_be and _overlap(study.space[JUDGED]["spans"], other.space[JUDGED]["spans"])
    same_name = may_be and PurePath(mine["source"]).name == PurePath(its["source"]).name
    return same_name or (bool(study.data_hash) and study.data_hash == other.data_hash)


def on_same_bars(study: Study, other: Study) -> bool:
    """Return whether two studies trade bars of one size, as far as they say: else ratios per bar are not comparable."""
    sizes = {_bar_size(study), _bar_size(other)} - {None}
    return len(sizes) < 2


def _bar_size(study: Study) -> str | None:
    """Return the size of a study's bars; None: that of its data, whichever it was."""
    judged = study.space.get(JUDGED) or study.config.get("market") or {}
    return judged.get("timeframe")


def _may_be_same(mine: Mapping[str, Any], its: Mapping[str, Any]) -> bool:
    """Return whether both markets are read from files, or are drawn by the same process in the same way."""
    process = {market["source"] if market["source"] in SYNTHETIC else None for market in (mine, its)}
    if len(process) > 1 or process == {None}:
        return process == {None}
    # A shorter series is the beginning of a longer one. What an older version did not know of was at its default.
    known = [key for key in SYNTHETIC[mine["source"]] if key != "length" and key in mine and key in its]
    sizes = {market.get("timeframe") or "1m" for market in (mine, its)}
    return len(sizes) == 1 and all(mine[key] == its[key] for key in known)


def _overlap(mine: Spans, its: Spans) -> bool:
    pairs = ((own, other) for symbol in mine.keys() & its.keys() for own in mine[symbol] for other in its[symbol])
    return any(own[0] <= other[1] and other[0] <= own[1] for own, other in pairs)
