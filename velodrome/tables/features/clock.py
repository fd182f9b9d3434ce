"""Local time of bars: minute of the day, day of the week, and where sessions end."""

from __future__ import annotations

import datetime
import math
import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.timeframe import DAY, HOUR, MINUTE, SECOND, Timeframe, bin_edges
from velodrome.errors import ConfigError

ONE_DAY, ONE_WEEK = Timeframe(1, "d"), Timeframe(1, "w")


def minute_of_day(time: NDArray[np.int64], timezone: str) -> NDArray[np.int64]:
    """Minute by the local clock, 0 … 1439."""
    if timezone == "UTC":
        return time % DAY // MINUTE
    start, end = bin_edges(time, ONE_DAY, timezone)
    clock = (time - start) // MINUTE
    # The time since midnight differs from the clock's only on days on which the clocks change.
    for row in np.flatnonzero(end - start != DAY):
        moment = datetime.datetime.fromtimestamp(int(time[row]) // SECOND, time_zone(timezone))
        clock[row] = moment.hour * 60 + moment.minute
    return clock


def hour_of_day(time: NDArray[np.int64], timezone: str) -> NDArray[np.int64]:
    """Hour by the local clock, 0 … 23."""
    return minute_of_day(time, timezone) // 60


def time_zone(timezone: str) -> ZoneInfo:
    """Return the rules of a time zone, which Python takes from the machine."""
    try:
        return ZoneInfo(timezone)
    except ZoneInfoNotFoundError as error:
        raise ConfigError(
            f"no rules for the time zone {timezone!r} on this machine; install the package tzdata, or use UTC."
        ) from error


def day_of_week(time: NDArray[np.int64], timezone: str) -> NDArray[np.int64]:
    """Day by the local calendar; Monday is 0."""
    day, _ = bin_edges(time, ONE_DAY, timezone)
    week, _ = bin_edges(time, ONE_WEEK, timezone)
    return (day - week + DAY // 2) // DAY


def cycle(position: NDArray[np.int64], length: int, wave: str) -> NDArray[np.float64]:
    """Return a position 0 … length − 1 on a cycle as a fraction of the cycle, or as the sine or cosine of its angle."""
    if wave == "fraction":
        return position / length
    function = math.sin if wave == "sin" else math.cos
    # Rounded, because libraries disagree about the last bit of a sine and the content hash must not.
    table = np.array([round(function(2.0 * math.pi * step / length), 12) for step in range(length)])
    return table[position]


def session_ends(
    time: NDArray[np.int64], close_time: NDArray[np.int64], session: str, timezone: str
) -> NDArray[np.uint8]:
    """Return 1 on the last bar of each session of one instrument; the last bar of the data always ends one.

    A session is a calendar day in the time zone of the bars ("day"), or ends at a pause of more than a length ("6h").
    """
    last = np.ones(len(time), np.uint8)
    gap = session_gap(session)
    if len(time) > 1:
        if gap is None:
            day, _ = bin_edges(time, ONE_DAY, timezone)
            last[:-1] = day[1:] != day[:-1]
        else:
            last[:-1] = time[1:] - close_time[:-1] > gap
    return last


def session_gap(session: str) -> int | None:
    """Return the pause in nanoseconds that ends a session, None for calendar days."""
    if session == "day":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(h|m|d)", session) if isinstance(session, str) else None
    if match is None or float(match[1]) <= 0:
        raise ConfigError(
            f"session is {session!r}; write 'day' (calendar days in the bars' time zone) or the pause that ends a "
            "session: '6h', '30m', '2d'."
        )
    return round(float(match[1]) * {"h": HOUR, "m": MINUTE, "d": DAY}[match[2]])
