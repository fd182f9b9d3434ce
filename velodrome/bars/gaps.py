"""Pauses between bars: which are nights and weekends, which are holes, and which holes are too long to be let pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.bars.rules import REFUSED, Finding, SymbolRows
from velodrome.bars.timeframe import DAY, HOUR, MINUTE, Timeframe, bin_edges, describe_time, parse_timeframe
from velodrome.errors import ConfigError

LONGEST_BREAK = 5 * DAY  # weekend and holidays together; a longer pause is a gap even if its hours repeat
FEWEST_REPETITIONS = 3
WEEK = 7 * DAY
AUTO = "auto"
AUTO_DAYS = 90  # what max_gap="auto" lets pass: a suspension of a quarter, …
AUTO_BARS = 10  # … or this many bars, if they are longer
LEGAL = f"Write a length such as '30d' or '12h', {AUTO!r} ({AUTO_DAYS} days or {AUTO_BARS} bars), or None for any."


def check_max_gap(max_gap: str | None) -> str | None:
    """Return the longest gap that is let pass as it was given, or refuse it."""
    if max_gap is None or max_gap == AUTO:
        return max_gap
    try:
        parse_timeframe(max_gap)
    except ConfigError as error:
        raise ConfigError(f"max_gap is {max_gap!r}, which is no length of time. {LEGAL}") from error
    return max_gap


def longest_allowed(max_gap: str | None, size: Timeframe) -> int | None:
    """Return the longest gap that is let pass, in nanoseconds."""
    if max_gap is None:
        return None
    if max_gap == AUTO:
        return max(AUTO_DAYS * DAY, AUTO_BARS * size.typical_nanoseconds)
    return parse_timeframe(max_gap).typical_nanoseconds


@dataclass(frozen=True)
class Gaps:
    """Pauses between bars, in order of time."""

    before: NDArray[np.int64]  # index of the last bar before each gap
    missing: NDArray[np.int64]  # bars missing in each gap
    length: NDArray[np.int64]  # nanoseconds from the bar before to the bar after
    session_breaks: int  # pauses that are nights, weekends or holidays


def find_gaps(time: NDArray[np.int64], size: Timeframe, timezone: str) -> Gaps:
    """Return the gaps of increasing times.

    A pause is a session break if it contains a Saturday and no bar ever falls on one, or if pauses between the same two
    times of day occur in at least half of the weeks (three times or more), and if it lasts five days at most. Times of
    day and Saturdays are those of the time zone.
    """
    step = np.diff(time)
    # Rounding takes days of 23 and 25 hours, and months of 28 to 31 days, as one.
    missing = np.rint(step / size.typical_nanoseconds).astype(np.int64) - 1
    pauses = np.flatnonzero(missing > 0)
    if len(pauses) == 0:
        return Gaps(pauses, missing[pauses], step[pauses], 0)

    midnight, _ = bin_edges(time, Timeframe(1, "d"), timezone)
    # 13 hours after local midnight the date in UTC is the local one, for zones from −10 to +13 hours.
    weekday = ((midnight + 13 * HOUR) // DAY + 3) % 7  # Monday is 0
    begin, end = pauses, pauses + 1
    days_to_saturday = (5 - weekday[begin] - 1) % 7 + 1
    weekend = (midnight[end] - midnight[begin] > days_to_saturday * DAY - HOUR) & (not np.any(weekday == 5))
    if size.typical_nanoseconds < DAY:
        clock = np.stack([time[begin] - midnight[begin], time[end] - midnight[end]], axis=1)
        _, kind, count = np.unique(clock, axis=0, return_inverse=True, return_counts=True)
        weeks = (time[-1] - time[0]) / WEEK
        repeats = count[kind.ravel()] >= max(FEWEST_REPETITIONS, weeks / 2)
    else:
        repeats = np.zeros(len(pauses), np.bool_)
    closed = (weekend | repeats) & (step[pauses] <= LONGEST_BREAK) & (size.typical_nanoseconds <= DAY)
    gaps = pauses[~closed]
    lost = missing[gaps]
    if closed.any():
        # In a gap of days the market would have been open only part of the time.
        open_share = len(time) / (1 + (time[-1] - time[0]) / size.typical_nanoseconds)
        lost = np.where(step[gaps] > DAY, np.maximum(1, np.rint(lost * open_share)), lost).astype(np.int64)
    return Gaps(gaps, lost, step[gaps], int(closed.sum()))


def judge_gaps(rows: SymbolRows, series: Series, size: Timeframe, timezone: str, max_gap: str | None) -> list[Finding]:
    """A hole longer than is allowed is refused: prices before and after it are not one history."""
    allowed = longest_allowed(max_gap, size)
    gaps = find_gaps(series.time, size, timezone)
    too_long = np.flatnonzero(gaps.length > allowed) if allowed is not None else np.empty(0, np.int64)
    if allowed is None or len(too_long) == 0:
        return []
    longest = int(too_long[np.argmax(gaps.length[too_long])])
    before, length = int(gaps.before[longest]), int(gaps.length[longest])
    last, first = series.time[before], series.time[before + 1]
    message = (
        f"there is no bar between {describe_time(last)} and {describe_time(first)} UTC, {describe_length(length)}; "
        f"max_gap lets {describe_length(allowed)} pass"
    )
    advice = (
        "Get the missing bars, or keep one side of the hole. If it is to be traded across, say so: "
        f"max_gap='{-(-length // DAY)}d'."
    )
    return [rows.finding(REFUSED, "long gap", rows.row_at(last), "time", message, advice, len(too_long))]


def describe_length(nanoseconds: int) -> str:
    """Return a length as '3d 4h' or '25m'."""
    parts = []
    for unit, length in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        if nanoseconds >= length:
            parts.append(f"{nanoseconds // length}{unit}")
            nanoseconds %= length
    return " ".join(parts[:2]) or f"{nanoseconds / 1e9:g}s"
