"""Chronological splits: the same moments cut every instrument, and an embargo keeps neighbours apart."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.tables.features.clock import time_zone

Moment: TypeAlias = "str | datetime.date | datetime.datetime | np.datetime64 | None"
SplitChoice: TypeAlias = "Mapping[str, float] | Mapping[str, tuple[Moment, Moment]]"
RowRanges: TypeAlias = tuple[tuple[int, int], ...]  # begin, end in each stretch

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
        moments = _date_moments(choice, timezone)  # type: ignore[arg-type]
    return rows_between(moments, spans, embargo)


def rows_between(moments: Mapping[str, tuple[int, int]], spans: Sequence[Span], embargo: int) -> dict[str, RowRanges]:
    """Return the tradable rows whose bar opens in [from, to) of each split, less the embargo after the earliest."""
    earliest = min(since for since, _ in moments.values())
    splits: dict[str, RowRanges] = {}
    for name, (since, until) in moments.items():
        rows = []
        for span in spans:
            low, high = (span.first + int(np.searchsorted(span.time, moment)) for moment in (since, until))
            inside = high - low
            low = max(low + (embargo if since > earliest else 0), span.begin)
            if high - low < FEWEST_ROWS:
                raise ConfigError(
                    f"split {name!r} is empty for {span.name}: {inside} of its {len(span.time)} bars lie in it, and "
                    f"{max(high - low, 0)} are left after the warm-up of features and windows and an embargo of "
                    f"{embargo}; {FEWEST_ROWS} are needed. Give more data, a larger split, shorter windows or a "
                    "smaller embargo, or leave this instrument out."
                )
            rows.append((low, high))
        splits[name] = tuple(rows)
    return splits


def distinct_times(times: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the distinct ones of several increasing columns of times, in order."""
    if len(times) == 1:
        return times[0]
    return np.unique(np.concatenate(times)) if times else np.empty(0, np.int64)


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
                f"split {name!r} runs from {value[0]} to {value[1]}; its end must be later than its beginning."
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
