"""`Probe`: one of a user's functions on one instrument's bars, and the cut that decides whether a row knows the future.

Whatever looks for suspicious rows, the verdict is always this one: everything after the row is taken away, or altered,
and the row must stay as it was. Differences at the level of rounding count only if they follow later bars.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.bars.timeframe import describe_time
from velodrome.tables.features.features import Feature, column_names, compute_feature
from velodrome.tables.leaks.alterations import Alterations
from velodrome.tables.leaks.report import Leak

ROUNDING = 1e-9  # of a column's spread: a smaller difference comes from the order of additions …
LAST_DIGITS = 1e-12  # … and so does one of this part of its largest value
DRAWS = 24  # random futures after a row whose last digits are suspected
SUSPECTED_ROWS = 8
FUTURE = 64  # bars of such a future; long enough for a sum in another order
LEADS = 8  # bars ahead that the last digits may follow
FOLLOWS = 0.85  # correlation of the last digits with a later bar that chance does not reach


class Probe:
    """A function on the bars of one instrument."""

    def __init__(
        self,
        feature: Feature,
        values: NDArray[np.float64],
        alterations: Alterations,
        symbol: str,
        timeframe: str,
        timezone: str,
    ) -> None:
        self.feature, self.series, self.symbol, self.timeframe = feature, alterations.series, symbol, timeframe
        self.timezone = timezone
        self.values = values  # [bars, columns] on all bars, as they are in the tables
        self.alterations = alterations  # of the instrument's bars, the same for all functions
        self.draws = np.random.default_rng(len(alterations.series))
        self.leak: Leak | None = None
        self.refused = 0  # calls on fewer or other bars that raised an error
        self.shortened = 0  # calls on fewer bars that did not
        self.compared = 0
        self.cuts = 0
        self.seconds = 0.0
        self.look_back: int | None = None
        self.proven = np.zeros(len(self.series), np.uint8)  # alterations that a row has withstood: 1 and 2 of the pair
        self.screened = False
        self.slow = False  # whether only few calls on all bars fit into the time
        self.rounded: list[tuple[int, int]] = []  # rows and columns that differ in their last digits
        self.judged_rows: set[int] = set()

    @cached_property
    def names(self) -> list[str]:
        return column_names(self.feature, self.values)

    @cached_property
    def tolerance(self) -> NDArray[np.float64]:
        """The difference by column up to which rounding explains it."""
        return np.array([rounding_limit(column) for column in self.values.T])

    @cached_property
    def fresh_answers(self) -> NDArray[np.float64] | None:
        """What it gives on bars that have nothing to do with the true ones."""
        return self.call(self.alterations.fresh)

    def call(self, series: Series) -> NDArray[np.float64] | None:
        """Return the function's values on other bars; None if it refuses them."""
        try:
            block = compute_feature(series, self.feature, self.timezone, self.symbol)
        except Exception:
            block = None
        if block is None or block.shape[1] != len(self.names):
            self.refused += 1
            return None
        self.shortened += len(series) < len(self.series)
        return block

    def cut(self, row: int) -> None:
        """Take away all that follows a row and compare everything up to it."""
        self.cuts += 1
        part = self.call(self.series.slice(0, row + 1))
        if part is not None:
            self.judge(self.values[: row + 1], part, row + 1, "when {cut} are left")
        if part is None or row + 1 == len(self.series):
            self.alter_after(row, 0)

    def alter_after(self, row: int, which: int) -> None:
        """Alter all that follows a row and compare everything up to it."""
        altered = self.call(self.alterations.put(slice(row + 1, None), self.alterations.pair[which]))
        if altered is not None:
            self.judge(self.values[: row + 1], altered[: row + 1], row + 1, "when those after {cut} are altered")

    def confirm(self, row: int) -> bool:
        """Decide about a suspected row."""
        for attempt in (lambda: self.cut(row), lambda: self.alter_after(row, 0), lambda: self.alter_after(row, 1)):
            if self.leak is None:
                attempt()
        return self.leak is not None

    def judge(self, full: NDArray, part: NDArray, cut: int, when: str, begin: int = 0) -> None:
        """Keep a finding if rows (the first is `begin`) differ by more than rounding, or in digits that tell more."""
        self.compared += 1
        differing = different(full, part)
        if not differing.any():
            return
        large = self.beyond_rounding(full, part, differing)
        if not large.any():
            rows = np.unique(np.nonzero(differing)[0])[-SUSPECTED_ROWS:]
            for row in rows.tolist():
                self.rounded.append((begin + row, int(np.argmax(differing[row]))))
            return
        column = int(np.argmax(large.any(axis=0)))
        rows = np.flatnonzero(large[:, column])
        mine, theirs = full[rows[0], column], part[rows[0], column]
        differ = f"{len(rows)} rows differ" if len(rows) > 1 else "1 row differs"
        detail = f"is {mine:.17g} with all bars and {theirs:.17g} {when.format(cut=cut)} ({differ})"
        self.found("feature", detail, cut, begin + int(rows[0]), column)

    def beyond_rounding(self, full: NDArray, part: NDArray, differing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which of the differing values differ by more than rounding."""
        return differing & ~(np.abs(full - part) <= self.tolerance)

    def found(self, kind: str, detail: str, cut: int = 0, row: int = 0, column: int | None = None) -> None:
        """Keep the first finding."""
        name = self.feature.name if column is None else self.names[column]
        when = describe_time(self.series.time[row]) if len(self.series) else ""
        self.leak = self.leak or Leak(kind, name, self.timeframe, self.symbol, detail, cut, row, when)

    def judge_last_digits(self) -> Iterator[None]:
        """Draw random futures after rows that differ by rounding only: do their last digits follow later bars?"""
        rows = sorted({row for row, _ in self.rounded} - self.judged_rows)
        for row in rows[:: max(1, -(-len(rows) // SUSPECTED_ROWS))]:
            yield
            self.judged_rows.add(row)
            length = min(FUTURE, len(self.series) - row - 1)
            if length < 2:
                continue
            signs = self.draws.random((DRAWS, length)) < 0.5
            drawn = [self.call(self.alterations.mixed(one, row + 1)) for one in signs]
            answers = [block[row] for block in drawn if block is not None]
            if len(answers) < DRAWS:
                continue
            matrix, later = np.stack(answers), signs[:, :LEADS].astype(float)
            following = np.abs(correlations(matrix, later))
            column, lead = np.unravel_index(int(np.argmax(following)), following.shape)
            if following[column, lead] > FOLLOWS:
                detail = (
                    f"has last digits that follow the bar {lead + 1} later (correlation "
                    f"{following[column, lead]:.2f} over {DRAWS} random futures)"
                )
                self.found("feature", detail, row + 1, row, int(column))
                return


def correlations(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the correlation of each column of one matrix with each of another; 0 where a column does not vary."""

    def normed(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        # Subtracting an entry first keeps digits that a mean of large numbers would round away.
        centred = matrix - matrix[:1]
        centred = centred - centred.mean(axis=0)
        length = np.sqrt((centred**2).sum(axis=0))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.nan_to_num(centred / length)

    return normed(left).T @ normed(right)


def rounding_limit(column: NDArray[np.float64]) -> float:
    """Return the difference up to which rounding explains it: small beside what the column tells apart."""
    known = column[np.isfinite(column)]
    if not len(known):
        return 0.0
    low, high = np.quantile(known, [0.25, 0.75])
    return float(max(ROUNDING * ((high - low) or known.std()), LAST_DIGITS * np.abs(known).max()))


def different(full: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return where two arrays differ in any bit; one NaN is as good as another."""
    bits = np.ascontiguousarray(full).view(np.int64) != np.ascontiguousarray(part).view(np.int64)
    return bits & ~(np.isnan(full) & np.isnan(part)) if bits.any() else bits
