"""Missing bars, as opposed to nights and weekends on which the market is closed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.timeframe import DAY, HOUR, Timeframe, bin_edges

LONGEST_BREAK = 5 * DAY  # weekend and holidays together; a longer pause is a gap even if its hours repeat
FEWEST_REPETITIONS = 3
WEEK = 7 * DAY


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
