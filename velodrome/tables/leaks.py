"""The leak check: what was known at a bar must not change, to the bit, when everything after it is taken away.

Three ways of taking the future away, each with places chosen to be awkward:

1. Prefixes of the source bars (the middle of a coarse bar, its close, the edges of the largest gap, all but the last
   bar, random places): timeframes, features and windows are made again and compared with the full computation.
2. For features that are a user's function: short stretches of bars around unusual ones, cut after every single bar,
   so that a leak on a few rows only is met there.
3. All bars after the training split altered: features up to there and the fit of the scalers must stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Bars, Series
from velodrome.bars.timeframe import describe_time
from velodrome.errors import LeakError
from velodrome.tables import scaling
from velodrome.tables.draft import Draft, make_draft, training_rows
from velodrome.tables.features.features import Feature, FeatureSpec, column_names, compute_feature
from velodrome.tables.recipe import Instrument, Recipe, Timeline, make_instrument
from velodrome.tables.scaling import TRAIN
from velodrome.tables.splits import DEFAULT_SPLITS, SplitChoice

if TYPE_CHECKING:
    from rich.table import Table

SEED = 20_240_229  # cuts are pseudo-random and always the same
PREFIX_COST = 2.5  # prefixes may take so many times the bars of the instrument in all …
FEWEST_PREFIX_BARS = 40_000  # … or so many bars, whichever is more
DENSE_CUTS = 48  # cuts in one stretch of bars
DENSE_BARS = 100_000  # bars that all stretches of one function may take, unless the data is longer
DENSE_INSTRUMENTS = 3
ROUNDING = 1e-9  # relative difference below which the cause is the order of additions, not information

Made = TypeVar("Made")


@dataclass(frozen=True)
class Leak:
    """One difference between what was known at a bar and what the full data made of it."""

    kind: str  # "feature", "window", "scaler"; of a function also "random" (disagrees with itself) and "unchecked"
    feature: str  # or the window's name
    timeframe: str
    symbol: str
    cut: int  # bars that were left
    row: int  # first differing row of the timeframe
    time: str  # its open time, UTC
    detail: str


@dataclass(frozen=True)
class LeakReport:
    """What the check compared and what it found: at most one finding for each feature, timeframe and instrument."""

    findings: tuple[Leak, ...]
    comparisons: int  # tables compared
    skipped: tuple[str, ...]  # features whose function refused short data and that only longer cuts have checked

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
            for leak in self.findings[:8]
        )
        more = f"\n… and {len(self.findings) - 8} more" if len(self.findings) > 8 else ""
        raise LeakError(
            f"{', '.join(dict.fromkeys(leak.feature for leak in self.findings))}: not the same when later bars are "
            f"taken away.\n{shown}{more}\nLet row t of a feature depend on rows up to t only: no shift(-1), no centred "
            "window, no statistic of the whole column, no bar before it has closed. If the value is right all the "
            "same, build with check_leaks=False."
        )


def check_leaks(
    bars: Bars,
    features: Sequence[FeatureSpec] | Mapping[str, Sequence[FeatureSpec]] | None = None,
    windows: int | Mapping[str, int] = 32,
    timeframe: str | None = None,
    splits: SplitChoice | None = None,
    embargo: int = 0,
    scaler: str = "standard",
    per_instrument: bool = False,
) -> LeakReport:
    """Check the market that `build_market` would make of these choices, and report instead of raising."""
    chosen = DEFAULT_SPLITS if splits is None else splits
    return find_leaks(
        make_draft(bars, features, windows, timeframe, chosen, embargo, scaler, None, None, per_instrument)
    )


class Check:
    """Findings as they come, the first of each feature, timeframe and instrument."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str], Leak] = {}
        self.comparisons = 0
        self.checked: set[str] = set()  # functions that have worked on fewer bars at least once
        self.skipped: dict[str, None] = {}  # functions that have not, at least once, in order

    def add(self, leak: Leak) -> None:
        self.found.setdefault((leak.feature, leak.timeframe, leak.symbol), leak)

    def made_of_less(self, make: Callable[[], Made], recipe: Recipe) -> Made | None:
        """Return what is made of fewer bars, or None: a user's function may refuse so few, it has worked on all."""
        functions = [feature.name for _, feature in own_functions(recipe)]
        try:
            made = make()
        except Exception:
            if not functions:
                raise
            self.skipped.update(dict.fromkeys(functions))
            return None
        self.checked.update(functions)
        return made

    def report(self, recipe: Recipe) -> LeakReport:
        """Say what was found, functions that could not be checked at all included."""
        for place, feature in own_functions(recipe):
            if feature.name not in self.checked:
                timeframe = recipe.windows[place].timeframe.text
                detail = "raised an error whenever bars were taken away; let it return NaN where it has too few"
                self.add(Leak("unchecked", feature.name, timeframe, "all", 0, 0, "", detail))
        return LeakReport(tuple(self.found.values()), self.comparisons, tuple(self.skipped))


def find_leaks(draft: Draft) -> LeakReport:
    """Run all three comparisons on a draft of a market."""
    check = Check()
    recipe = draft.recipe
    for index, (symbol, instrument) in enumerate(zip(draft.bars, draft.instruments, strict=True)):
        _check_closed(check, instrument, recipe, symbol)
        if index < DENSE_INSTRUMENTS:
            check_functions(check, instrument, recipe, symbol)
        for cut in source_cuts(draft.bars[symbol], instrument):
            _compare_prefix(check, draft.bars[symbol], cut, instrument, recipe, symbol)
    if TRAIN in draft.splits:
        _check_training(check, draft)
    return check.report(recipe)


def own_functions(recipe: Recipe) -> list[tuple[int, Feature]]:
    """Return the features that are a user's functions, each with the number of its window."""
    return [
        (place, feature)
        for place, choice in enumerate(recipe.windows)
        for feature in choice.features
        if feature.function is not None
    ]


def check_functions(check: Check, instrument: Instrument, recipe: Recipe, symbol: str) -> None:
    """Cut short stretches of one instrument's bars after every bar, for each of the user's functions."""
    for place, feature in own_functions(recipe):
        timeframe = recipe.windows[place].timeframe.text
        check_stretches(check, feature, instrument.windows[place].timeline, symbol, timeframe, recipe.timezone)


def source_cuts(source: Series, instrument: Instrument) -> list[int]:
    """Return how many source bars to leave: awkward places first, then random ones, until the cost is reached."""
    bars = len(source)
    generator = np.random.default_rng(SEED + bars)
    wanted = [bars - 1]
    gap = int(np.argmax(np.diff(source.time))) if bars > 1 else 0
    wanted += [gap + 1, gap + 2]
    lines = [instrument.execution, *(table.timeline for table in instrument.windows)]
    for line in lines:
        if 1 < len(line.last_source) < bars:
            # Squared, so that most cuts are early and cheap.
            row = 1 + int(generator.random() ** 2 * (len(line.last_source) - 1))
            before, last = int(line.last_source[row - 1]), int(line.last_source[row])
            wanted += [(before + last) // 2 + 1, last, last + 1]
    wanted += [int(share**2 * bars) for share in generator.random(8)]
    budget = max(PREFIX_COST * bars, FEWEST_PREFIX_BARS)
    cuts: list[int] = []
    for cut in wanted:
        if 0 < cut < bars and cut not in cuts and sum(cuts) + cut <= budget:
            cuts.append(cut)
    return cuts


def _check_closed(check: Check, instrument: Instrument, recipe: Recipe, symbol: str) -> None:
    """Require of every window of every execution bar that its last row had closed, by time and by source bar."""
    execution = instrument.execution
    for choice, table in zip(recipe.windows, instrument.windows, strict=True):
        check.comparisons += 1
        bars = np.flatnonzero(table.last_row >= 0)
        rows = table.last_row[bars]
        early = (table.timeline.close_time[rows] > execution.close_time[bars]) | (
            table.timeline.last_source[rows] > execution.last_source[bars]
        )
        if early.any():
            bar = int(bars[np.argmax(early)])
            check.add(_window_leak(choice.timeframe.text, symbol, 0, bar, execution, "shows a bar before it closed"))


def _window_leak(timeframe: str, symbol: str, cut: int, bar: int, execution: Timeline, detail: str) -> Leak:
    time = describe_time(execution.series.time[bar])
    return Leak("window", f"window {timeframe}", timeframe, symbol, cut, bar, time, detail)


def _compare_prefix(check: Check, source: Series, cut: int, full: Instrument, recipe: Recipe, symbol: str) -> None:
    """Make an instrument's tables again from the first `cut` source bars and compare."""
    again = check.made_of_less(lambda: make_instrument(source.slice(0, cut), recipe, symbol), recipe)
    if again is not None:
        _compare_tables(check, cut, full, again, recipe, symbol)


def _compare_tables(check: Check, cut: int, full: Instrument, again: Instrument, recipe: Recipe, symbol: str) -> None:
    """Compare everything that was known after `cut` source bars; `again` was made without the others."""
    bars = int(np.searchsorted(full.execution.last_source, cut))
    bars = min(bars, len(again.execution.series))
    for choice, mine, theirs in zip(recipe.windows, full.windows, again.windows, strict=True):
        check.comparisons += 1
        timeframe = choice.timeframe.text
        moved = np.flatnonzero(mine.last_row[:bars] != theirs.last_row[:bars])
        if len(moved):
            bar = int(moved[0])
            detail = f"ends at row {mine.last_row[bar]}, and at row {theirs.last_row[bar]} when {cut} bars are left"
            check.add(_window_leak(timeframe, symbol, cut, bar, full.execution, detail))
        if mine.names != theirs.names:
            detail = f"are {mine.names}, and {theirs.names} when {cut} bars are left"
            check.add(Leak("feature", "columns", timeframe, symbol, cut, 0, "", detail))
            continue
        # Rows that had closed by then: in a prefix, all that it has.
        rows = min(int(np.searchsorted(mine.timeline.last_source, cut)), len(theirs.values))
        for column in different_columns(mine.values[:rows], theirs.values[:rows]):
            pair = mine.values[:rows, column], theirs.values[:rows, column]
            check.add(feature_leak(mine.names[column], timeframe, symbol, cut, mine.timeline.series, *pair))


def different_columns(full: NDArray[np.float64], part: NDArray[np.float64]) -> list[int]:
    """Return the columns that differ in any bit; one NaN is as good as another."""
    if np.array_equal(full.view(np.int64), part.view(np.int64)):
        return []
    return [column for column in range(full.shape[1]) if different(full[:, column], part[:, column]).any()]


def different(full: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.bool_]:
    bits = np.ascontiguousarray(full).view(np.int64) != np.ascontiguousarray(part).view(np.int64)
    return bits & ~(np.isnan(full) & np.isnan(part))


def feature_leak(
    name: str, timeframe: str, symbol: str, cut: int, series: Series, full: NDArray, part: NDArray, first: int = 0
) -> Leak:
    rows = np.flatnonzero(different(full, part))
    row = int(rows[0])
    distance = np.abs(full[rows] - part[rows])
    rounding = bool(np.all(distance <= ROUNDING * np.maximum(np.abs(full[rows]), np.abs(part[rows]))))
    detail = f"is {full[row]:.17g} with all bars and {part[row]:.17g} when {cut} are left ({len(rows)} rows differ)"
    if rounding:
        detail += "; so little that it is rounding: add up in an order that does not depend on the number of bars"
    return Leak("feature", name, timeframe, symbol, cut, first + row, describe_time(series.time[first + row]), detail)


def stretches(series: Series, warm_up: int) -> Iterator[tuple[int, int, int]]:
    """Yield stretches of bars as begin, end and the step between cuts: at both ends, around odd bars, and at random."""
    bars = len(series)
    length = min(bars, warm_up + 1 + DENSE_CUTS)
    generator = np.random.default_rng(SEED - bars)
    centres = [warm_up, bars]
    if bars > 2:
        change = np.abs(np.diff(series.close))
        centres += [int(np.argmax(np.diff(series.time))) + 1, int(np.argmax(change)) + 1, int(np.argmax(series.volume))]
        days = np.flatnonzero(np.diff(series.time // 86_400_000_000_000)) + 1
        centres += [int(days[len(days) // 2])] if len(days) else []
    centres += [int(centre) for centre in generator.integers(0, bars, 3)]
    begins = {max(0, min(bars - length, centre - warm_up - DENSE_CUTS // 2)) for centre in centres}
    allowed = max(DENSE_BARS, bars) / (len(begins) * length)  # cuts in each stretch
    for begin in sorted(begins):
        yield begin, begin + length, max(1, round(DENSE_CUTS / allowed))


def check_stretches(check: Check, feature: Feature, line: Timeline, symbol: str, timeframe: str, timezone: str) -> None:
    """Cut short stretches of bars after every bar: a function must be causal on any bars, wherever they begin."""
    series = line.series
    where = f"{symbol} {timeframe}"
    whole = compute_feature(series, feature, timezone, where)
    repeated = compute_feature(series, feature, timezone, where)
    if different_columns(whole, repeated):
        detail = "gives other values when it is called again on the same bars; draw nothing at random in a feature"
        check.add(
            Leak("random", feature.name, timeframe, symbol, len(series), 0, describe_time(series.time[0]), detail)
        )
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

    for begin, end, step in stretches(series, warm_up):
        full = attempt(begin, end)
        if full is None:
            continue
        check.comparisons += 1
        for cut in range(begin + warm_up + 1, end, step):
            part = attempt(begin, cut)
            if part is None:
                continue
            check.checked.add(feature.name)
            for column in different_columns(full[: cut - begin], part):
                pair = full[: cut - begin, column], part[:, column]
                check.add(feature_leak(names[column], timeframe, symbol, cut, series, *pair, first=begin))
                return


def altered_after(source: Series, keep: int) -> Series:
    """Return the bars with everything from row `keep` on changed: prices, volume and further columns."""

    def changed(column: NDArray[np.float64], factor: float, offset: float = 0.0) -> NDArray[np.float64]:
        return np.concatenate([column[:keep], column[keep:] * factor + offset])

    prices = {name: changed(getattr(source, name), 1.375) for name in ("open", "high", "low", "close")}
    extra = {name: changed(column, -0.5, 1.0) for name, column in source.extra.items()}
    return Series(source.time, **prices, volume=changed(source.volume, 0.5, 3.0), extra=extra)


def _check_training(check: Check, draft: Draft) -> None:
    """Alter all that came after the training split: tables until then, and the scalers' fit, must stay."""
    train = draft.splits[TRAIN]
    altered = []
    for symbol, instrument, first, (_, end) in zip(draft.bars, draft.instruments, draft.first, train, strict=True):
        keep = int(instrument.execution.last_source[end - 1 - first]) + 1
        source = altered_after(draft.bars[symbol], keep)
        again = make_instrument(source, draft.recipe, symbol)
        _compare_tables(check, keep, instrument, again, draft.recipe, symbol)
        altered.append(again)
    if not draft.fitted:
        return
    shown = training_rows(altered, draft.recipe, draft.first, train)
    for scaler, rows in zip(draft.scalers, shown, strict=True):
        check.comparisons += 1
        fitted = scaling.fit(
            scaler.kind, scaler.timeframe, scaler.features, draft.bars.symbols, rows, scaler.clip, draft.per_instrument
        )
        for column, name in enumerate(scaler.features):
            same = scaling.same_column(fitted, scaler, column)
            leaks_itself = any(key[:2] == (name, scaler.timeframe) for key in check.found)
            if not same and not leaks_itself:
                detail = "is fitted to other numbers when the bars after the training split are altered"
                check.add(Leak("scaler", name, scaler.timeframe, "all", 0, 0, "", detail))


def rich_table(report: LeakReport) -> Table:
    """Return the report as a table for the terminal."""
    from rich.table import Table

    title = "No leak found" if report.passed else f"{len(report.findings)} leaks"
    table = Table(title=f"{title} ({report.comparisons} comparisons)")
    for heading in ("kind", "feature", "timeframe", "symbol", "bars left", "row", "time (UTC)", "what"):
        table.add_column(heading)
    for leak in report.findings:
        table.add_row(
            leak.kind, leak.feature, leak.timeframe, leak.symbol, str(leak.cut), str(leak.row), leak.time, leak.detail
        )
    return table
