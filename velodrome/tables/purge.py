"""Purging: how far training must keep from what is played so that neither side shows a bar of the other.

What a decision is made of are its windows and the bars that their features look back on, as far as their warm-up tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.tables.market import OWN, WindowedRows
from velodrome.tables.scaling import TRAIN
from velodrome.tables.splits import FEWEST_ROWS, RowRanges, Span, ranges_in

BARS_TO_FILL = 1  # an order is filled with the bar after the decision at the latest


class Reach(NamedTuple):
    """What tells which bars a decision is made of: T rows in S stretches, w windows."""

    time: NDArray[np.int64]  # [T]
    end: NDArray[np.int64]  # [S] one past the last row of each stretch
    length: NDArray[np.int64]  # [w]
    rows: NDArray[np.integer]  # [w, T] last row of the window's table that is shown
    look_back: tuple[int, ...]  # [w] bars before its own that a row of the table is made of; (): none are known
    own: tuple[NDArray[np.bool_], ...]  # [w] of [rows, instruments] on a grid: which have a bar of their own; else ()


def reach_of(market: WindowedRows) -> Reach:
    """Return how far the decisions of a market reach back."""
    own = tuple((origin == OWN).any(axis=2) for origin in market.origins)
    windows = market.windows
    return Reach(market.time, market.end, windows.length, windows.rows, market.look_back, own)


class Purge:
    """Says how far from a moment training must keep so that neither side shows a bar of the other."""

    def __init__(self, reach: Reach) -> None:
        self.reach, self.time = reach, reach.time
        self.first, self.end = np.r_[0, reach.end[:-1]], reach.end  # [S] the rows of each stretch
        # [T] the first row with a bar that a decision on a row, or on any later one, is made of.
        self.oldest = np.arange(len(reach.time))
        for first, end in zip(self.first, self.end, strict=True):
            own = self.oldest[first:end]
            for index in range(len(reach.length)):
                rows = reach.rows[index, first:end]
                top = self._oldest_in(index, rows)
                # A longer bar begins with the row after the end of the bar before it; shorter ones lie within a row.
                begun = np.minimum(np.searchsorted(rows, top - 1) + 1, np.searchsorted(rows, top))
                np.minimum(own, first + begun, out=own)
            own[:] = np.minimum.accumulate(own[::-1])[::-1]

    def _oldest_in(self, index: int, rows: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the oldest row of a window's table that windows which end at some rows are made of."""
        reach = self.reach
        top = rows.astype(np.int64) - int(reach.length[index]) + 1
        before = reach.look_back[index] if reach.look_back else 0
        if not reach.own:
            return top - before
        # On a grid features look back over an instrument's own bars, and what it shows may be carried forward to the
        # window's first row. One without a bar in the window stands still, and tells nothing.
        oldest = top.copy()
        for own in (np.flatnonzero(column) for column in reach.own[index].T):
            if len(own):
                first, last = (np.searchsorted(own, ends, side="right") - 1 for ends in (top, rows))
                made_of = np.where(first >= before, own[np.maximum(first - before, 0)], own[0] - before)
                oldest = np.where(last > first, np.minimum(oldest, made_of), oldest)
        return oldest

    def before(self, moment: int) -> int:
        """Return where training must end, at the latest, if what is played begins at a moment."""
        ends = [moment]
        for first, end in zip(self.first.tolist(), self.end.tolist(), strict=True):
            row = first + int(np.searchsorted(self.time[first:end], moment))
            if row < end:
                ends.append(int(self.time[max(int(self.oldest[row]) - BARS_TO_FILL, first)]))
        return min(ends)

    def after(self, moment: int, embargo: int = 0) -> int:
        """Return where training may begin, at the earliest, if what is played ends before a moment."""
        begins = [moment]
        for first, end in zip(self.first.tolist(), self.end.tolist(), strict=True):
            played = first + int(np.searchsorted(self.time[first:end], moment))  # one past its last row
            if played > first:
                row = first + int(np.searchsorted(self.oldest[first:end], played + BARS_TO_FILL)) + embargo
                begins.append(int(self.time[row] if row < end else self.time[end - 1] + 1))
        return max(begins)


# Splits that somebody named


def ends_before(splits: Mapping[str, RowRanges], time: NDArray[np.int64], begin: int) -> int | None:
    """Return the moment after the last bar of other splits that came before a row of training; None if none did."""
    others = [high - 1 for name, ranges in splits.items() if name != TRAIN for _, high in ranges]
    ended = [int(time[row]) for row in others if time[row] < time[begin]]
    return max(ended) + 1 if ended else None


def purged_training(
    splits: Mapping[str, RowRanges], reach: Reach, spans: Sequence[Span], embargo: int
) -> tuple[dict[str, RowRanges], tuple[str, ...]]:
    """Return the splits, training begun so late after others that it shows none of their bars, and a note about it.

    The embargo comes on top of what is purged. Where nothing lies before training, as usual, all stays as it is.
    """
    train, time = splits.get(TRAIN, ()), reach.time
    moments = [ends_before(splits, time, low) for low, _ in train]
    if all(moment is None for moment in moments):
        return dict(splits), ()
    purge, kept, left_out = Purge(reach), list[tuple[int, int]](), 0
    begins = {moment: purge.after(moment, embargo) for moment in moments if moment is not None}
    for span in spans:
        own, lost = list[tuple[int, int]](), 0
        for low, high in ranges_in(train, span):
            moment = moments[train.index((low, high))]
            free = low if moment is None else span.first + int(np.searchsorted(span.time, begins[moment]))
            begin = min(max(low, free), high)
            own, lost = [*own, (begin, high)], lost + begin - low
        enough = [piece for piece in own if piece[1] - piece[0] >= FEWEST_ROWS]
        if not enough:
            raise ConfigError(
                f"split {TRAIN!r} is empty for {span.name}: all of its {lost:,} bars follow another split so closely "
                "that windows, or what their features are made of, would show bars of it. Let training begin before "
                "the other splits or end later, or take shorter windows or features with a shorter warm-up."
            )
        kept, left_out = [*kept, *enough], max(left_out, lost)
    note = (
        f"{left_out:,} bars of training that follow another split were left out (purged): windows, or what their "
        "features are made of, would show bars of it"
    )
    return {**splits, TRAIN: tuple(kept)}, (note,) if left_out else ()
