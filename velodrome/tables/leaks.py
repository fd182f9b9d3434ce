"""The leak check: what was known at a bar must not change, to the bit, when everything after it is taken away.

Three ways of taking the future away, each at places chosen to be awkward:

1. Prefixes of the source bars (the middle of a coarse bar, its close, the edges of the largest gap, all but the last
   bar, listings, random places): timeframes, features and windows are made again and compared with those of all bars.
2. For features that are a user's function: short stretches of bars around unusual ones, cut after every single bar,
   so that a leak on a few rows only is met there.
3. All bars after the training split altered: features up to there and the fit of the scalers must stay as they were.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars, Series
from velodrome.bars.read import as_bars
from velodrome.bars.timeframe import describe_time
from velodrome.errors import LeakError
from velodrome.tables.choices import Alone, Choices, FeatureChoice, WindowLengths, shows_options
from velodrome.tables.cuts import Source, function_cuts
from velodrome.tables.features.features import Feature, column_names, compute_feature
from velodrome.tables.prepare import Prepared, fit_scalers, prepare
from velodrome.tables.scaling import TRAIN, same_column
from velodrome.tables.stretches import Stretch, make_stretch

if TYPE_CHECKING:
    from velodrome.bars.inspection import Source as BarsSource

Where: TypeAlias = tuple[str, str, str]  # feature, timeframe, symbol
DENSE_INSTRUMENTS = 3
ROUNDING = 1e-9  # relative difference below which the cause is the order of additions, not information
LISTED = 8  # findings that an error shows


@dataclass(frozen=True)
class Leak:
    """One difference between what was known at a bar and what follows from all bars."""

    kind: str  # "feature", "window", "scaler"; of a function also "random" (disagrees with itself) and "unchecked"
    feature: str  # or the window's name
    timeframe: str
    symbol: str
    detail: str
    cut: int = 0  # bars that were left
    row: int = 0  # first differing row of the timeframe
    time: str = ""  # its open time, UTC


@dataclass(frozen=True)
class LeakReport:
    """What the check compared and what it found: at most one finding for each feature, timeframe and instrument."""

    findings: tuple[Leak, ...]
    comparisons: int  # tables compared
    skipped: tuple[str, ...]  # features whose function refused short data, so that only longer cuts checked them

    @property
    def passed(self) -> bool:
        return not self.findings

    def raise_if_any(self) -> None:
        """Raise `LeakError` that names what leaks and says what to do."""
        if self.passed:
            return
        shown = "\n".join(
            f"- {leak.kind} {leak.feature!r} of {leak.timeframe}, {leak.symbol}, row {leak.row} ({leak.time} UTC): "
            f"{leak.detail}"
            for leak in self.findings[:LISTED]
        )
        more = f"\n… and {len(self.findings) - LISTED} more" if len(self.findings) > LISTED else ""
        raise LeakError(
            f"{', '.join(dict.fromkeys(leak.feature for leak in self.findings))}: not the same when later bars are "
            f"taken away.\n{shown}{more}\nLet row t of a feature depend on rows up to t only: no shift(-1), no centred "
            "window, no statistic of the whole column, no bar before it has closed. If the value is right all the "
            "same, build with check_leaks=False."
        )


@shows_options
def check_leaks(
    bars: Bars | BarsSource,
    features: FeatureChoice = None,
    windows: WindowLengths = 32,
    timeframe: str | None = None,
    **options: Any,
) -> LeakReport:
    """Check the market that `build_market` would make with these options, and report instead of raising."""
    return find_leaks(prepare(Choices(as_bars(bars), Alone(), features, windows, timeframe, **options)))


class Check:
    """Findings as they come, the first of each feature, timeframe and instrument."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.found: dict[Where, Leak] = {}
        self.comparisons = 0
        self.checked: set[str] = set()  # functions that have worked on fewer bars at least once
        self.skipped: dict[str, None] = {}  # functions that have refused fewer bars at least once, in order
        # Features that are a user's function, each with the number of its window.
        self.functions = [
            (place, feature)
            for place, window in enumerate(choices.windows)
            for feature in window.features
            if feature.function is not None
        ]

    def add(
        self, kind: str, where: Where, detail: str, cut: int = 0, row: int = 0, times: NDArray | None = None
    ) -> None:
        """Keep a finding about a row, of whose table `times` has the open times."""
        time = "" if times is None else describe_time(times[row])
        self.found.setdefault(where, Leak(kind, *where, detail, cut, row, time))

    def add_difference(
        self, where: Where, full: NDArray, part: NDArray, cut: int, times: NDArray, first: int = 0
    ) -> None:
        """Keep the finding that a feature's values differ; `first` is the row at which they begin."""
        rows = np.flatnonzero(different(full, part))
        mine, theirs = full[rows], part[rows]
        detail = f"is {mine[0]:.17g} with all bars and {theirs[0]:.17g} when {cut} are left ({len(rows)} rows differ)"
        if np.all(np.abs(mine - theirs) <= ROUNDING * np.maximum(np.abs(mine), np.abs(theirs))):
            detail += "; so little that it is rounding: add up in an order that does not depend on the number of bars"
        self.add("feature", where, detail, cut, first + int(rows[0]), times)

    def made_of_less(self, series: Mapping[str, Series], until: int) -> Stretch | None:
        """Return a stretch made of fewer bars, or None: a user's function that works on all bars may refuse a few."""
        names = [feature.name for _, feature in self.functions]
        try:
            made = make_stretch(series, self.choices, until)
        except Exception:
            if not names:
                raise
            self.skipped.update(dict.fromkeys(names))
            return None
        self.checked.update(names)
        return made

    def report(self) -> LeakReport:
        """Return what was found, functions that could not be checked at all included."""
        for place, feature in self.functions:
            if feature.name not in self.checked:
                timeframe = self.choices.windows[place].timeframe.text
                detail = "raised an error whenever bars were taken away; let it return NaN where it has too few"
                self.add("unchecked", (feature.name, timeframe, "all"), detail)
        return LeakReport(tuple(self.found.values()), self.comparisons, tuple(self.skipped))


def find_leaks(prepared: Prepared) -> LeakReport:
    """Take the future away in all three ways."""
    check = Check(prepared.choices)
    sources = [Source(prepared.choices, stretch.symbols) for stretch in prepared.stretches]
    _check_functions(check, prepared.stretches)
    for stretch, source in zip(prepared.stretches, sources, strict=True):
        _check_closed(check, stretch)
        for moment in source.cuts(stretch):
            again = check.made_of_less(source.until(moment), moment)
            if again is not None:
                _compare(check, stretch, again, source, moment)
    if TRAIN in prepared.splits:
        _check_training(check, prepared, sources)
    return check.report()


def _check_closed(check: Check, stretch: Stretch) -> None:
    """Require of every row, and of every window at it, that its bars had closed when the decision was taken."""
    for symbol, instrument in zip(stretch.symbols, stretch.instruments, strict=True):
        if instrument is not None:
            line = instrument.execution
            rows = np.searchsorted(stretch.time, line.series.time)
            late = rows[line.known_at > stretch.decided_at[rows]]
            if len(late):
                detail = "holds a bar that closes after the row does; orders of other instruments may fill before"
                where = ("close", check.choices.execution.text, symbol)
                check.add("window", where, detail, 0, int(late[0]), stretch.time)
    for choice, window in zip(check.choices.windows, stretch.windows, strict=True):
        check.comparisons += 1
        shown = np.flatnonzero(window.last_row >= 0)
        early = window.known_at[window.last_row[shown]] > stretch.decided_at[shown]
        if early.any():
            row, where = int(shown[np.argmax(early)]), _window(stretch, choice.timeframe.text)
            check.add("window", where, "shows a bar before it closed", 0, row, stretch.time)


def _window(stretch: Stretch, timeframe: str) -> Where:
    return f"window {timeframe}", timeframe, stretch.name


def _compare(check: Check, full: Stretch, again: Stretch, source: Source, moment: int) -> None:
    """Compare everything that was known at a moment; `again` was made without what came after it."""
    cut = int(source.bars_left(moment))
    left = f"when {cut} bars are left"
    rows = int(np.searchsorted(full.decided_at, moment, side="right"))
    for name in ("time", "open", "close", "tradable"):
        if not np.array_equal(getattr(full, name)[:rows], getattr(again, name)[:rows]):
            check.add("window", (name, check.choices.execution.text, full.name), f"differs {left}", cut)
            return
    for choice, mine, theirs in zip(check.choices.windows, full.windows, again.windows, strict=True):
        check.comparisons += 1
        timeframe = choice.timeframe.text
        moved = np.flatnonzero(mine.last_row[:rows] != theirs.last_row[:rows])
        if len(moved):
            row = int(moved[0])
            detail = f"ends at row {mine.last_row[row]}, and at row {theirs.last_row[row]} {left}"
            check.add("window", _window(full, timeframe), detail, cut, row, full.time)
        if mine.names != theirs.names:
            detail = f"are {mine.names}, and {theirs.names} {left}"
            check.add("feature", ("columns", timeframe, full.name), detail, cut)
            continue
        known = min(int(np.searchsorted(mine.known_at, moment, side="right")), len(theirs.values))
        differing = different(mine.values[:known], theirs.values[:known])
        for column, feature in zip(*np.nonzero(differing.any(axis=0)), strict=True):
            pair = mine.values[:known, column, feature], theirs.values[:known, column, feature]
            where = (mine.names[feature], timeframe, full.symbols[column])
            check.add_difference(where, *pair, cut, mine.time)


def different(full: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return where two arrays differ in any bit; one NaN is as good as another."""
    bits = np.ascontiguousarray(full).view(np.int64) != np.ascontiguousarray(part).view(np.int64)
    return bits & ~(np.isnan(full) & np.isnan(part)) if bits.any() else bits


def _check_training(check: Check, prepared: Prepared, sources: Sequence[Source]) -> None:
    """Alter all that came after the training split: tables until then, and the scalers' fit, must stay."""
    choices, ends = prepared.choices, [end for _, end in prepared.splits[TRAIN]]
    altered = []
    for stretch, source, span, end in zip(prepared.stretches, sources, prepared.spans, ends, strict=True):
        moment = int(stretch.decided_at[end - 1 - span.first])
        altered.append(make_stretch(source.altered_after(moment), choices, int(source.moments[-1])))
        _compare(check, stretch, altered[-1], source, moment)
    if choices.scalers is not None:
        return
    fitted = fit_scalers(choices, altered, prepared.spans, prepared.splits)
    for mine, theirs in zip(prepared.scalers, fitted, strict=True):
        check.comparisons += 1
        for column, name in enumerate(mine.features):
            leaks_itself = any(key[:2] == (name, mine.timeframe) for key in check.found)
            if not leaks_itself and not same_column(mine, theirs, column):
                detail = "is fitted to other numbers when the bars after the training split are altered"
                check.add("scaler", (name, mine.timeframe, "all"), detail)


def _check_functions(check: Check, stretches: Sequence[Stretch]) -> None:
    """Check each of a user's functions by itself, on the bars of the first few instruments."""
    every = [pair for stretch in stretches for pair in zip(stretch.symbols, stretch.instruments, strict=True)]
    for (symbol, instrument), (place, feature) in itertools.product(every[:DENSE_INSTRUMENTS], check.functions):
        if instrument is not None:
            line = instrument.windows[place].timeline
            check_function(check, feature, line.series, symbol, check.choices.windows[place].timeframe.text)


def check_function(check: Check, feature: Feature, series: Series, symbol: str, timeframe: str) -> None:
    """Cut short runs of bars after every bar: a function must be causal on any bars, wherever they begin."""
    timezone, where = check.choices.bars.timezone, f"{symbol} {timeframe}"
    whole, repeated = (compute_feature(series, feature, timezone, where) for _ in range(2))
    if different(whole, repeated).any():
        detail = "gives other values when it is called again on the same bars; draw nothing at random in a feature"
        check.add("random", (feature.name, timeframe, symbol), detail, len(series), 0, series.time)
        return
    known = ~np.isnan(whole).any(axis=1)
    warm_up = int(np.argmax(known)) if known.any() else 0
    names = column_names(feature, whole)

    def attempt(begin: int, end: int) -> NDArray[np.float64] | None:
        try:
            block = compute_feature(series.slice(begin, end), feature, timezone, where)
        except Exception:
            block = None
        if block is None or block.shape[1] != len(names):
            check.skipped[feature.name] = None
            return None
        return block

    for begin, end, step in function_cuts(series, warm_up):
        full = attempt(begin, end)
        if full is None:
            continue
        check.comparisons += 1
        for cut in range(begin + warm_up + 1, end, step):
            part = attempt(begin, cut)
            if part is None:
                continue
            check.checked.add(feature.name)
            for column in np.flatnonzero(different(full[: cut - begin], part).any(axis=0)):
                pair = full[: cut - begin, column], part[:, column]
                check.add_difference((names[column], timeframe, symbol), *pair, cut, series.time, begin)
                return


def rich_table(report: LeakReport) -> Any:
    """Return the report as a table for the terminal."""
    from rich.table import Table

    title = "No leak found" if report.passed else f"{len(report.findings)} leaks"
    table = Table(title=f"{title} ({report.comparisons} comparisons)")
    for heading in ("kind", "feature", "timeframe", "symbol", "bars left", "row", "time (UTC)", "what"):
        table.add_column(heading)
    for leak in report.findings:
        where = (leak.kind, leak.feature, leak.timeframe, leak.symbol)
        table.add_row(*where, str(leak.cut), str(leak.row), leak.time, leak.detail)
    return table
