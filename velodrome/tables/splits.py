"""Chronological splits: the same moments cut every instrument, and an embargo keeps neighbours apart."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.tables.features.clock import time_zone

Moment: TypeAlias = "str | datetime.date | datetime.datetime | np.datetime64 | None"
SplitChoice: TypeAlias = "Mapping[str, float] | Mapping[str, tuple[Moment, Moment] | Sequence[tuple[Moment, Moment]]]"
RowRanges: TypeAlias = tuple[tuple[int, int], ...]  # begin, end in each stretch; of a split in pieces, of each in turn
Intervals: TypeAlias = Sequence[tuple[int, int]]  # from, to (not part of it), nanoseconds UTC; a split's pieces

DEFAULT_SPLITS: Mapping[str, float] = {"train": 0.7, "validation": 0.15, "test": 0.15}
FEWEST_ROWS = 2  # a decision needs a bar to be taken on and one to play out


class Span(NamedTuple):
    """The bars of one stretch of rows, and from which of them on decisions may be taken."""

    name: str  # the instrument, or "the grid"
    time: NDArray[np.int64]  # [bars] open times
    first: int  # row of the first bar
    begin: int  # row of the first decision

    @property
    def end(self) -> int:
        """One past the last row."""
        return self.first + len(self.time)


def make_splits(choice: SplitChoice, spans: Sequence[Span], timezone: str, embargo: int) -> dict[str, RowRanges]:
    """Return begin and end row of each split in each span.

    Fractions are of the distinct times of all bars, so that splits do not move when windows get longer.
    """
    if not isinstance(embargo, int | np.integer) or embargo < 0:
        raise ConfigError(f"embargo is {embargo!r}; give a number of bars, 0 or more.")
    if not isinstance(choice, Mapping):
        raise ConfigError(f"splits is {choice!r}; give fractions {{'train': 0.7, 'test': 0.3}} or dates, or {{}}.")
    if not choice:
        return {}
    by_fraction = [isinstance(value, int | float) and not isinstance(value, bool) for value in choice.values()]
    if all(by_fraction):
        moments = _fraction_moments(choice, distinct_times([span.time for span in spans]))  # type: ignore[arg-type]
    elif any(by_fraction):
        raise ConfigError(f"splits mixes fractions and dates: {dict(choice)!r}; use one or the other.")
    else:
        moments = _date_moments(choice, timezone)
    return rows_between(moments, spans, embargo)


def rows_between(moments: Mapping[str, Intervals], spans: Sequence[Span], embargo: int) -> dict[str, RowRanges]:
    """Return the tradable rows whose bar opens in [from, to) of each split, less the embargo after the earliest.

    Of a split in several pieces, those that an instrument has no bars for are left out of its rows.
    """
    earliest = min(since for pieces in moments.values() for since, _ in pieces)
    splits: dict[str, RowRanges] = {}
    for name, pieces in moments.items():
        rows: list[tuple[int, int]] = []
        for span in spans:
            inside, own = 0, []
            for since, until in pieces:
                low, high = (span.first + int(np.searchsorted(span.time, moment)) for moment in (since, until))
                inside += high - low
                own.append((max(low + (embargo if since > earliest else 0), span.begin), high))
            kept = [(low, high) for low, high in own if high - low >= FEWEST_ROWS]
            if not kept:
                raise ConfigError(
                    f"split {name!r} is empty for {span.name}: {inside} of its {len(span.time)} bars lie in it, and "
                    f"{max(0, *(high - low for low, high in own))} are left after the warm-up of features and windows "
                    f"and an embargo of {embargo}; {FEWEST_ROWS} are needed. Give more data, a larger split, shorter "
                    "windows or a smaller embargo, or leave this instrument out."
                )
            rows += kept
        splits[name] = tuple(rows)
    return splits


def ranges_in(ranges: RowRanges, span: Span) -> RowRanges:
    """Return those of a split's ranges that lie in one stretch."""
    return tuple((low, high) for low, high in ranges if span.first <= low < span.end)


def distinct_times(times: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the distinct ones of several increasing columns of times, in order."""
    if len(times) == 1:
        return times[0]
    return distinct(np.concatenate(times)) if times else np.empty(0, np.int64)


def distinct(times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return distinct times in order. Merging stretches that are in order takes a thirtieth of `np.unique`."""
    if (np.diff(times) > 0).all():
        return times
    ordered = np.sort(times, kind="stable")
    return ordered[np.r_[True, ordered[1:] != ordered[:-1]]]


def _fraction_moments(choice: Mapping[str, float], times: NDArray[np.int64]) -> dict[str, Intervals]:
    bad = {name: value for name, value in choice.items() if not 0.0 < value <= 1.0}
    if bad:
        raise ConfigError(f"splits has {bad!r}; a fraction must be above 0 and at most 1.")
    total = sum(choice.values())
    if total > 1.0 + 1e-9:
        raise ConfigError(
            f"splits {dict(choice)!r} add up to {total:g}; they must not exceed 1, because splits may not overlap."
        )
    moments: dict[str, Intervals] = {}
    share, since = 0.0, int(times[0])
    for name, value in choice.items():
        share += value
        row = int(share * len(times) + 1e-6)
        until = int(times[row]) if row < len(times) else int(times[-1]) + 1
        moments[name] = [(since, until)]
        since = until
    return moments


def _date_moments(choice: Mapping[str, Any], timezone: str) -> dict[str, Intervals]:
    moments = {name: sorted(_interval(name, piece, timezone) for piece in _pieces(choice[name])) for name in choice}
    ordered = sorted((*piece, name) for name, pieces in moments.items() for piece in pieces)
    for (_, end, earlier), (begin, _, later) in itertools.pairwise(ordered):
        if end > begin:
            both = f"splits {earlier!r} and {later!r} overlap" if earlier != later else f"pieces of {later!r} overlap"
            raise ConfigError(
                f"{both}: {choice[earlier]} and {choice[later]}. "
                "An end is not part of its split, so the next may begin there."
            )
    return moments  # type: ignore[return-value]


def _pieces(value: Any) -> Sequence[Any]:
    """Return the pieces of a split: it is one (from, to), or several of them."""
    several = isinstance(value, tuple | list) and len(value) > 0 and isinstance(value[0], tuple | list)
    return value if several else [value]


def _interval(name: str, value: Any, timezone: str) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ConfigError(
            f"split {name!r} is {value!r}; give a fraction, or (from, to) such as ('2020-01-01', '2022-01-01'), "
            "where to is not part of it and None leaves a side open, or a list of several such pairs."
        )
    limits = np.iinfo(np.int64)
    since = limits.min if value[0] is None else moment_nanoseconds(value[0], timezone, f"split {name!r}")
    until = limits.max if value[1] is None else moment_nanoseconds(value[1], timezone, f"split {name!r}")
    if since >= until:
        raise ConfigError(
            f"split {name!r} runs from {value[0]} to {value[1]}; its end must be later than its beginning."
        )
    return int(since), int(until)


def moment_nanoseconds(moment: Moment, timezone: str, owner: str) -> int:
    """Return a moment as nanoseconds UTC; dates and times without a zone are in that of the bars.

    owner: what the moment was given for, in words.
    """
    if isinstance(moment, np.datetime64):
        return int(moment.astype("datetime64[ns]").astype(np.int64))
    if isinstance(moment, str):
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError as error:
            raise ConfigError(f"{owner} has the date {moment!r}; write it as '2022-01-31' or with a time.") from error
    if isinstance(moment, datetime.date) and not isinstance(moment, datetime.datetime):
        moment = datetime.datetime(moment.year, moment.month, moment.day)
    if not isinstance(moment, datetime.datetime):
        raise ConfigError(f"{owner} has the date {moment!r}; give a text, a datetime or None.")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC if timezone == "UTC" else time_zone(timezone))
    since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
