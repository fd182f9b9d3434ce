"""The leak check: what was known at a bar must not change when everything after it is taken away or altered.

Everything that is built is made again from fewer bars and compared, to the bit, at places chosen to be awkward:
timeframes, features, windows, the fit of the scalers. Of a user's functions every row is suspected; `functions` looks
at them until all is proven or the time is up.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars, Series
from velodrome.bars.read import as_bars
from velodrome.bars.timeframe import describe_time
from velodrome.tables.choices import Alone, Choices, FeatureChoice, WindowLengths, shows_options
from velodrome.tables.leaks.cuts import Source
from velodrome.tables.leaks.functions import Examination, examine_functions
from velodrome.tables.leaks.probe import different, rounding_limit
from velodrome.tables.leaks.report import Leak, LeakReport
from velodrome.tables.prepare import Prepared, fit_scalers, look_back, prepare
from velodrome.tables.purge import ends_before
from velodrome.tables.scaling import TRAIN, same_column
from velodrome.tables.splits import ranges_in
from velodrome.tables.stretches import Stretch, make_stretch

if TYPE_CHECKING:
    from velodrome.bars.inspection import Source as BarsSource

FEWEST_CUTS = 3  # of everything, where a function is slow
Where: TypeAlias = tuple[str, str, str]  # feature, timeframe, symbol


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
        self.rounded: dict[tuple[str, str], None] = {}  # features and timeframes that differ by rounding only
        self.remembered: dict[tuple[str, str], None] = {}  # those that remember bars beyond their warm-up
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

    def add_difference(self, where: Where, full: NDArray, part: NDArray, cut: int, times: NDArray) -> None:
        """Keep the finding that a feature's values differ, unless they are a user's and rounding explains it."""
        rows = np.flatnonzero(different(full, part))
        mine, theirs = full[rows], part[rows]
        if self.functions and bool(np.all(np.abs(mine - theirs) <= rounding_limit(full))):
            self.rounded[where[:2]] = None
            return
        differ = f"{len(rows)} rows differ" if len(rows) > 1 else "1 row differs"
        detail = f"is {mine[0]:.17g} with all bars and {theirs[0]:.17g} when {cut} are left ({differ})"
        self.add("feature", where, detail, cut, int(rows[0]), times)

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

    def report(self, examined: Examination) -> LeakReport:
        """Return what was found, functions that could not be checked at all included."""
        for place, feature in self.functions:
            if feature.name not in self.checked:
                timeframe = self.choices.windows[place].timeframe.text
                detail = "raised an error whenever bars were taken away; let it return NaN where it has too few"
                self.add("unchecked", (feature.name, timeframe, "all"), detail)
        leaking = {where[:2] for where in self.found}
        rounding = [
            f"{name} of {timeframe} differs in its last digits when later bars are taken away. They do not follow "
            "later bars: it is rounding, and it passes"
            for name, timeframe in self.rounded
            if (name, timeframe) not in leaking
        ]
        remembered = [
            f"{name} of {timeframe} remembers bars beyond its warm-up, and faintly those of a split that training "
            "follows; an embargo keeps them further apart"
            for name, timeframe in self.remembered
        ]
        return LeakReport(
            tuple(self.found.values()),
            self.comparisons,
            tuple(self.skipped),
            examined.coverage,
            tuple(rounding),
            (*examined.notes, *remembered),
            examined.seconds,
        )


def find_leaks(prepared: Prepared) -> LeakReport:
    """Take the future away, of everything that is built and of each function by itself."""
    check = Check(prepared.choices)
    sources = [Source(prepared.choices, stretch.symbols) for stretch in prepared.stretches]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # of functions that divide by zero on bars that never were
        examined = examine_functions(prepared, check.functions)
    for leak in examined.findings:
        check.found.setdefault((leak.feature, leak.timeframe, leak.symbol), leak)
    check.comparisons += examined.comparisons
    check.checked |= examined.checked
    check.skipped.update(dict.fromkeys(examined.skipped))
    check.rounded.update(dict.fromkeys(examined.rounded))
    for stretch, source in zip(prepared.stretches, sources, strict=True):
        _check_closed(check, stretch)
        moments = source.cuts(stretch)
        for moment in moments[:FEWEST_CUTS] if examined.slow else moments:
            again = check.made_of_less(source.until(moment), moment)
            if again is not None:
                _compare(check, stretch, again, source, moment)
    if TRAIN in prepared.splits:
        _check_training(check, prepared, sources)
    return check.report(examined)


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


def _check_training(check: Check, prepared: Prepared, sources: Sequence[Source]) -> None:
    """Alter all that came after the training split: tables until then, and the scalers' fit, must stay."""
    choices = prepared.choices
    altered = []
    for stretch, source, span in zip(prepared.stretches, sources, prepared.spans, strict=True):
        _, end = ranges_in(prepared.splits[TRAIN], span)[-1]
        moment = int(stretch.decided_at[end - 1 - span.first])
        altered.append(make_stretch(source.altered_after(moment), choices, int(source.moments[-1])))
        _compare(check, stretch, altered[-1], source, moment)
    _check_scalers(check, prepared, altered, "the bars after the training split")
    _check_between(check, prepared, sources)


def _check_scalers(check: Check, prepared: Prepared, altered: Sequence[Stretch], what: str) -> None:
    """Require the same fit of scalers whose features are not known to differ."""
    if prepared.choices.scalers is not None:
        return
    fitted = fit_scalers(prepared.choices, altered, prepared.spans, prepared.splits)
    for mine, theirs in zip(prepared.scalers, fitted, strict=True):
        check.comparisons += 1
        for column, name in enumerate(mine.features):
            known = [*check.found, *check.rounded, *check.remembered]
            explained = any(key[:2] == (name, mine.timeframe) for key in known)
            if not explained and not same_column(mine, theirs, column):
                detail = f"is fitted to other numbers when {what} are altered"
                check.add("scaler", (name, mine.timeframe, "all"), detail)


def _check_between(check: Check, prepared: Prepared, sources: Sequence[Source]) -> None:
    """Alter the splits that training follows, and all between them and earlier training: nothing it shows may change.

    The bars just before a piece of training, which are purged, stay: its first windows show them.
    """
    time = np.concatenate([stretch.time for stretch in prepared.stretches])
    train = prepared.splits[TRAIN]
    ends = {piece: ends_before(prepared.splits, time, piece[0]) for piece in train}
    if all(end is None for end in ends.values()):
        return
    look_backs, altered = look_back(prepared.choices, prepared.stretches), []
    for stretch, source, span in zip(prepared.stretches, sources, prepared.spans, strict=True):
        gaps, since = [], int(source.moments[0]) - 1
        for piece in ranges_in(train, span):
            end = ends[piece]
            last = -1 if end is None else int(np.searchsorted(stretch.time, end)) - 1
            if last >= 0:
                gaps.append((since, int(stretch.decided_at[last])))
            since = int(stretch.decided_at[piece[1] - 1 - span.first])
        altered.append(make_stretch(source.altered_between(gaps), prepared.choices, int(source.moments[-1])))
        for piece in (piece for piece in ranges_in(train, span) if ends[piece] is not None):
            rows = piece[0] - span.first, piece[1] - span.first
            _compare_shown(check, (stretch, altered[-1]), rows, int(ends[piece] or 0), look_backs)
    _check_scalers(check, prepared, altered, "the bars of other splits before a part of training")


def _compare_shown(
    check: Check, both: tuple[Stretch, Stretch], rows: tuple[int, int], end: int, look_backs: Sequence[int]
) -> None:
    """Compare what a piece of training shows; both: as it is, and with altered bars before the moment `end`.

    A feature that differs although its warm-up has passed remembers for longer, as an exponential mean does.
    """
    pairs = zip(check.choices.windows, *(stretch.windows for stretch in both), look_backs, strict=True)
    for choice, mine, theirs, before in pairs:
        check.comparisons += 1
        first = max(0, int(mine.last_row[rows[0]]) - choice.length + 1)
        shown = slice(first, int(mine.last_row[rows[1] - 1]) + 1)
        differing = different(mine.values[shown], theirs.values[shown]) & mine.present[shown, :, None]
        for column, feature in zip(*np.nonzero(differing.any(axis=0)), strict=True):
            name, symbol = mine.names[feature], both[0].symbols[column]
            own = np.flatnonzero(mine.present[:, column])
            warmed = min(int(np.searchsorted(mine.time[own], end)) + before, len(own) - 1)
            row = first + int(np.argmax(differing[:, column, feature]))
            if row < own[warmed]:
                detail = "is shown in training, and is another when bars of the split before it are altered"
                check.add("window", (name, choice.timeframe.text, symbol), detail, 0, row, mine.time)
            else:
                check.remembered[name, choice.timeframe.text] = None
