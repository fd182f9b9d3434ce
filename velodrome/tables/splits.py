"""Chronological splits: the same moments cut every instrument, and an embargo keeps neighbours apart."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.tables.features.clock import time_zone
from velodrome.tables.hashing import content_hash
from velodrome.tables.market import Market, WindowedRows
from velodrome.tables.scaling import refit

Moment: TypeAlias = "str | datetime.date | datetime.datetime | np.datetime64 | None"
SplitChoice: TypeAlias = "Mapping[str, float] | Mapping[str, tuple[Moment, Moment]]"
Rows: TypeAlias = tuple[tuple[int, int], ...]  # begin, end by instrument

DEFAULT_SPLITS: Mapping[str, float] = {"train": 0.7, "validation": 0.15, "test": 0.15}
FEWEST_ROWS = 2  # a decision needs a bar to be taken on and one to play out


def make_splits(
    choice: SplitChoice,
    time: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    first: NDArray[np.int64],
    symbols: Sequence[str],
    timezone: str,
    embargo: int,
) -> dict[str, Rows]:
    """Return begin and end row of each split for each instrument.

    An instrument's bars are rows first … end − 1 of `time`, and those from `begin` on may be traded. Fractions are of
    the distinct times of all bars, so that they do not move when windows get longer.
    """
    if not isinstance(embargo, int | np.integer) or embargo < 0:
        raise ConfigError(f"embargo is {embargo!r}; give a number of bars, 0 or more.")
    if not isinstance(choice, Mapping):
        raise ConfigError(f"splits is {choice!r}; give fractions {{'train': 0.7, 'test': 0.3}} or dates, or {{}}.")
    if not choice:
        return {}
    by_fraction = [isinstance(value, int | float) and not isinstance(value, bool) for value in choice.values()]
    if all(by_fraction):
        moments = _fraction_moments(choice, _distinct(time, first, end))  # type: ignore[arg-type]
    elif any(by_fraction):
        raise ConfigError(f"splits mixes fractions and dates: {dict(choice)!r}; use one or the other.")
    else:
        moments = _date_moments(choice, timezone)  # type: ignore[arg-type]
    return rows_between(moments, time, begin, end, first, symbols, embargo)


def rows_between(
    moments: Mapping[str, tuple[int, int]],
    time: NDArray[np.int64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    first: NDArray[np.int64],
    symbols: Sequence[str],
    embargo: int,
) -> dict[str, Rows]:
    """Return the tradable rows whose bar opens in [from, to) of each split, less the embargo after the earliest."""
    earliest = min(moment[0] for moment in moments.values())
    splits: dict[str, Rows] = {}
    for name, (since, until) in moments.items():
        rows = []
        for index, symbol in enumerate(symbols):
            bars = time[first[index] : end[index]]
            low, high = (int(first[index]) + int(np.searchsorted(bars, moment)) for moment in (since, until))
            inside = high - low
            low = max(low + (embargo if since > earliest else 0), int(begin[index]))
            if high - low < FEWEST_ROWS:
                raise ConfigError(
                    f"split {name!r} is empty for {symbol}: {inside} of its {len(bars)} bars lie in it, and "
                    f"{max(high - low, 0)} are left after the warm-up of features and windows and an embargo of "
                    f"{embargo}; {FEWEST_ROWS} are needed. Give more data, a larger split, shorter windows or a "
                    "smaller embargo, or leave this instrument out."
                )
            rows.append((low, high))
        splits[name] = tuple(rows)
    return splits


def _distinct(time: NDArray[np.int64], first: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct times of all instruments in order; one instrument's already are."""
    parts = [time[low:high] for low, high in zip(first, end, strict=True)]
    return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))


def _fraction_moments(choice: Mapping[str, float], times: NDArray[np.int64]) -> dict[str, tuple[int, int]]:
    bad = {name: value for name, value in choice.items() if not 0.0 < value <= 1.0}
    if bad:
        raise ConfigError(f"splits has {bad!r}; a fraction must be above 0 and at most 1.")
    total = sum(choice.values())
    if total > 1.0 + 1e-9:
        raise ConfigError(
            f"splits {dict(choice)!r} add up to {total:g}; they must not exceed 1, because splits may not overlap."
        )
    moments: dict[str, tuple[int, int]] = {}
    share, since = 0.0, int(times[0])
    for name, value in choice.items():
        share += value
        row = int(share * len(times) + 1e-6)
        until = int(times[row]) if row < len(times) else int(times[-1]) + 1
        moments[name] = (since, until)
        since = until
    return moments


def _date_moments(choice: Mapping[str, tuple[Moment, Moment]], timezone: str) -> dict[str, tuple[int, int]]:
    limits = np.iinfo(np.int64)
    moments: dict[str, tuple[int, int]] = {}
    for name, value in choice.items():
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise ConfigError(
                f"split {name!r} is {value!r}; give a fraction, or (from, to) such as ('2020-01-01', '2022-01-01'), "
                "where to is not part of it and None leaves a side open."
            )
        since = limits.min if value[0] is None else moment_nanoseconds(value[0], timezone, name)
        until = limits.max if value[1] is None else moment_nanoseconds(value[1], timezone, name)
        if since >= until:
            raise ConfigError(
                f"split {name!r} runs from {value[0]} to {value[1]}; its end must be later than its begin."
            )
        moments[name] = (int(since), int(until))
    ordered = sorted(moments, key=lambda name: moments[name])
    for earlier, later in itertools.pairwise(ordered):
        if moments[earlier][1] > moments[later][0]:
            raise ConfigError(
                f"splits {earlier!r} and {later!r} overlap: {choice[earlier]} and {choice[later]}. "
                "An end is not part of its split, so the next may begin there."
            )
    return moments


def moment_nanoseconds(moment: Moment, timezone: str, name: str) -> int:
    """Return a moment as nanoseconds UTC; dates and times without a zone are in that of the bars."""
    if isinstance(moment, np.datetime64):
        return int(moment.astype("datetime64[ns]").astype(np.int64))
    if isinstance(moment, str):
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError as error:
            raise ConfigError(
                f"split {name!r} has the date {moment!r}; write it as '2022-01-31' or with a time."
            ) from error
    if isinstance(moment, datetime.date) and not isinstance(moment, datetime.datetime):
        moment = datetime.datetime(moment.year, moment.month, moment.day)
    if not isinstance(moment, datetime.datetime):
        raise ConfigError(f"split {name!r} has the date {moment!r}; give a text, a datetime or None.")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC if timezone == "UTC" else time_zone(timezone))
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000


def walk_forward(
    market: Market,
    folds: int | None = None,
    train: int | float | None = None,
    test: int | float | None = None,
    embargo: int = 0,
    anchored: bool = False,
    clip: float | None = None,
) -> list[Market]:
    """Return one market for each fold, with the splits "train" and "test"; tests follow one another to the data's end.

    train, test: bars (whole numbers) or fractions of the tradable times. Without them the data is cut into folds + 1
        equal parts, each tested after the one before it. Without folds there are as many as fit.
    anchored: every fold trains from the first bar on, and `train` is what the first fold has.
    Scalers are fitted again on each fold's training split, in the way the market's were; `clip` bounds the result.
    """
    if not isinstance(market, Market):
        raise ConfigError(
            f"market is a {type(market).__name__}: the features of a basket are carried over gaps, which cannot be "
            "scaled anew; build one for each fold with build_basket(splits={'train': (from, to), …}), or let "
            "`velodrome eval RUN --walk-forward` do so."
        )
    plan = fold_splits(market, folds, train, test, embargo, anchored)
    markets = []
    for fold, splits in enumerate(plan):
        windows, scalers = refit(
            market.windows, market.scalers, market.symbols, market.begin, market.end, splits["train"], clip
        )  # fmt: skip
        record = {"of": market.content_hash, "splits": splits, "scalers": [scaler.to_dict() for scaler in scalers]}
        markets.append(
            replace(
                market,
                windows=windows,
                scalers=scalers,
                splits=splits,
                content_hash=content_hash(record),
                name=f"{market.name}[fold {fold + 1} of {len(plan)}]",
            )
        )
    return markets


def fold_splits(
    market: WindowedRows,
    folds: int | None = None,
    train: int | float | None = None,
    test: int | float | None = None,
    embargo: int = 0,
    anchored: bool = False,
) -> list[dict[str, Rows]]:
    """Return the splits "train" and "test" of each fold, as `walk_forward` has them, of a market or a basket."""
    time = market.time
    times = _distinct(time, market.begin, market.end)
    count = len(times)
    if folds is not None and (isinstance(folds, bool) or not isinstance(folds, int) or folds < 1):
        raise ConfigError(f"folds is {folds!r}; give a whole number of at least 1.")
    if folds is None and (train is None or test is None):
        raise ConfigError("walk_forward needs folds, or both train and test, to know how many folds there are.")
    equal = count // ((folds or 1) + 1)
    test_bars = equal if test is None else _bars("test", test, count)
    train_bars = (
        (count - (folds or 1) * test_bars if anchored else equal) if train is None else _bars("train", train, count)
    )
    folds = max((count - train_bars) // max(test_bars, 1), 1) if folds is None else folds
    if train_bars < FEWEST_ROWS or train_bars + folds * test_bars > count:
        raise ConfigError(
            f"{folds} folds of {test_bars} test bars after {train_bars} training bars need "
            f"{train_bars + folds * test_bars} bars, and {count} may be traded; take fewer folds or shorter parts."
        )
    found = []
    for fold in range(folds):
        middle = count - (folds - fold) * test_bars
        stop = middle + test_bars
        moments = {
            "train": (int(times[0 if anchored else middle - train_bars]), int(times[middle])),
            "test": (int(times[middle]), int(times[stop]) if stop < count else int(times[-1]) + 1),
        }
        found.append(rows_between(moments, time, market.begin, market.end, market.begin, market.stretches, embargo))
    return found


def _bars(name: str, value: int | float, count: int) -> int:
    """Return a length given in bars or as a fraction of all of them."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{name} is {value!r}; give a number of bars, or a fraction between 0 and 1.")
    if isinstance(value, int):
        return value
    if value >= 1.0:
        raise ConfigError(f"{name} is {value!r}; a fraction must be below 1. Write bars as a whole number.")
    return int(value * count + 1e-6)
