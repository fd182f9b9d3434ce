"""A user's functions, each on every instrument: from the cheapest look to the last row, in turns, until time is up."""

from __future__ import annotations

import heapq
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter as clock
from typing import Any

import numpy as np

from velodrome.tables.features.features import Feature
from velodrome.tables.leaks.alterations import Alterations
from velodrome.tables.leaks.cuts import DENSE_CUTS, even_rows, short_runs, spread, suspicious_rows
from velodrome.tables.leaks.fitted import check_fit
from velodrome.tables.leaks.memory import recall, recognise
from velodrome.tables.leaks.probe import Probe, different
from velodrome.tables.leaks.reach import NARROW, WIDE, measure, prove
from velodrome.tables.leaks.report import Coverage, Leak
from velodrome.tables.leaks.signs import screen
from velodrome.tables.prepare import Prepared
from velodrome.tables.scaling import TRAIN
from velodrome.tables.splits import ranges_in

LONG = 400  # look-back in bars from which every row is screened before it is proven
APART = {True: WIDE, False: 128}  # rows between cuts, for features with and without a bound
FIRST_CUTS = 48
SAMPLE = 2000  # bars by which a function's speed is measured
SLOW = 1 / 60  # of the time for a function on an instrument: one call on all bars takes more
PATIENCE = 1.0  # seconds after which a bar is shown


@dataclass
class Examination:
    """What came out of looking at the functions."""

    findings: list[Leak] = field(default_factory=list)
    comparisons: int = 0
    checked: set[str] = field(default_factory=set)
    skipped: list[str] = field(default_factory=list)
    rounded: list[tuple[str, str]] = field(default_factory=list)
    coverage: tuple[Coverage, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    slow: bool = False  # whether a function is so slow that it is made again a few times only


@dataclass
class Subject:
    """One function of one window, with a probe for each instrument."""

    place: int
    feature: Feature
    probes: list[Probe] = field(default_factory=list)
    train: list[int] = field(default_factory=list)  # rows up to the end of the training split, by probe
    ends: list[list[int]] = field(default_factory=list)  # and up to the ends of the splits after it


def examine_functions(prepared: Prepared, functions: Sequence[tuple[int, Feature]]) -> Examination:
    """Look at each function on each instrument, the one that has had least time first."""
    result = Examination()
    variants: dict[tuple[int, str], Alterations] = {}
    subjects = [_subject(prepared, place, feature, variants) for place, feature in functions]
    begin, allowed = clock(), prepared.choices.leak_seconds
    total = sum(len(subject.probes) for subject in subjects)
    # Functions by the time they have had; the instruments of one by turns, so that the same one is found each time.
    turns: list[tuple[float, int, deque[tuple[Probe, Iterator[None]]]]] = [
        (0.0, place, deque((probe, _steps(subject, probe, allowed / total)) for probe in subject.probes))
        for place, subject in enumerate(subjects)
    ]
    with _shown(allowed) as tell:
        while turns and (used := clock() - begin) < allowed:
            tell(max(used / allowed, 1.0 - sum(len(queue) for *_, queue in turns) / total))
            spent, place, queue = heapq.heappop(turns)
            started = clock()
            probe, steps = queue.popleft()
            if next(steps, turns) is not turns:
                queue.append((probe, steps))
            seconds = clock() - started
            probe.seconds += seconds
            if queue and probe.leak is None:
                heapq.heappush(turns, (spent + seconds, place, queue))
    unfinished = sum(len(queue) for *_, queue in turns)
    result.seconds = clock() - begin
    if unfinished:
        result.notes = (
            f"time was up after {allowed:g} s (leak_seconds) with {unfinished} of {total} functions × instruments not "
            "through; the coverage says how far each was looked at",
        )
    for subject in subjects:
        _collect(result, subject, prepared.choices.windows[subject.place].timeframe.text)
    return result


def _subject(prepared: Prepared, place: int, feature: Feature, variants: dict[tuple[int, str], Alterations]) -> Subject:
    subject = Subject(place, feature)
    choices = prepared.choices
    for stretch, span in zip(prepared.stretches, prepared.spans, strict=True):
        ends = {name: ranges_in(ranges, span)[-1][1] for name, ranges in prepared.splits.items()}
        moments = sorted({int(stretch.decided_at[end - 1 - span.first]) for end in ends.values()})
        trained = ends[TRAIN] - 1 - span.first if TRAIN in ends else -1
        for symbol, instrument in zip(stretch.symbols, stretch.instruments, strict=True):
            if instrument is None:
                continue
            table = instrument.windows[place]
            line, timeframe = table.timeline, choices.windows[place].timeframe.text
            values = np.ascontiguousarray(table.values[:, _columns(table.names, feature)])
            alterations = variants.setdefault((place, symbol), Alterations(line.series))
            subject.probes.append(Probe(feature, values, alterations, symbol, timeframe, choices.bars.timezone))
            last = int(stretch.decided_at[trained]) if trained >= 0 else line.known_at[-1] if len(line.series) else 0
            subject.train.append(int(np.searchsorted(line.known_at, last, side="right")))
            rows = [int(np.searchsorted(line.known_at, moment, side="right")) for moment in moments if moment > last]
            subject.ends.append(rows)
    return subject


def _columns(names: Sequence[str], feature: Feature) -> list[int]:
    """Return the columns of a table that belong to a function."""
    if feature.name in names:
        return [names.index(feature.name)]
    numbered = re.compile(re.escape(feature.name) + r"_\d+")
    return [column for column, name in enumerate(names) if numbered.fullmatch(name)]


def _steps(subject: Subject, probe: Probe, allowed: float) -> Iterator[None]:
    """Yield after each small step of looking at one function on one instrument, the most telling steps first.

    allowed: seconds that it may expect.
    """
    probe.slow = _is_slow(probe, allowed)
    for stage in _stages(subject, probe):
        for _ in stage:
            yield
            if probe.leak is not None:
                return
        if probe.leak is not None:
            return


def _is_slow(probe: Probe, allowed: float) -> bool:
    """Return whether only few calls on all bars fit into the time."""
    part = probe.series.slice(0, min(len(probe.series), SAMPLE))
    started = clock()
    probe.call(part)
    return (clock() - started) * len(probe.series) / max(len(part), 1) > SLOW * allowed


def _repeat(probe: Probe, when: str) -> Iterator[None]:
    """Call the function again on the same bars: it must give the same."""
    yield
    again = probe.call(probe.series)
    if probe.leak is None and (again is None or different(again, probe.values).any()):
        probe.found("random", f"gives other values {when}", len(probe.series))


def _stages(subject: Subject, probe: Probe) -> Iterator[Iterator[None]]:
    """Yield the ways of looking at a function, one after another."""
    if probe.slow:
        # Short runs cost little, and they are cut wherever time allows.
        yield _cut_short_runs(probe)
        yield _fit(subject, probe)
        yield recall(probe)
        yield _cut_short_runs(probe, spread(len(probe.series) // DENSE_CUTS))
        yield measure(probe)
    else:
        yield _repeat(probe, "when it is called again on the same bars; draw nothing at random in a feature")
        yield measure(probe)
        yield _cut_short_runs(probe)
        yield _fit(subject, probe)
        yield recall(probe)
    probe.alterations.forget("fresh")
    rows = even_rows(len(probe.series), APART[probe.look_back is not None])
    bounded = probe.look_back is not None and probe.look_back <= LONG
    yield prove(probe, 0, NARROW) if bounded else screen(probe)
    yield _cut(probe, suspicious_rows(probe.series, probe.values))
    yield _cut(probe, rows, FIRST_CUTS)
    yield probe.judge_last_digits()
    yield recognise(probe)
    probe.alterations.forget("shaken")
    if bounded:
        yield prove(probe, 1, NARROW)
        yield prove(probe, 0, WIDE)
        if probe.look_back is None:
            yield screen(probe)
    yield _cut(probe, rows)
    yield probe.judge_last_digits()
    if not bounded:
        yield prove(probe, 0, NARROW)
        yield prove(probe, 1, NARROW)
    yield _repeat(probe, "after it has seen other bars; keep nothing from one call for the next")


def _fit(subject: Subject, probe: Probe) -> Iterator[None]:
    """Look for what was fitted on all bars, once for all instruments and if there are bars besides the training's."""
    if probe is subject.probes[0] and subject.train[0] < len(probe.series):
        check_fit(subject.probes, subject.train, subject.ends)
    yield


def _cut(probe: Probe, rows: Iterator[int], count: int | None = None) -> Iterator[None]:
    for number, row in enumerate(rows, 1):
        yield
        probe.cut(row)
        if number == count:
            return


def _cut_short_runs(probe: Probe, places: Iterator[int] | None = None) -> Iterator[None]:
    """Cut short runs of bars after every bar, at awkward places or at these.

    A function must be causal on any bars, wherever they begin.
    """
    known = ~np.isnan(probe.values).any(axis=1)
    warm_up = int(np.argmax(known)) if known.any() else 0
    for begin, end, step in short_runs(probe.series, warm_up, places):
        yield
        full = probe.call(probe.series.slice(begin, end))
        if full is None:
            continue
        for cut in range(begin + warm_up + 1, end, step):
            yield
            part = probe.call(probe.series.slice(begin, cut))
            if part is not None:
                probe.judge(full[: cut - begin], part, cut, "when {cut} are left", begin)


def _collect(result: Examination, subject: Subject, timeframe: str) -> None:
    """Add what was found about one function."""
    probes = subject.probes
    result.findings += [probe.leak for probe in probes if probe.leak is not None]
    result.slow = result.slow or any(probe.slow for probe in probes)
    result.comparisons += sum(probe.compared for probe in probes)
    if any(probe.shortened for probe in probes):
        result.checked.add(subject.feature.name)
    if any(probe.refused for probe in probes):
        result.skipped.append(subject.feature.name)
    result.rounded += [(name, timeframe) for probe in probes if probe.rounded for name in probe.names]
    rows = sum(len(probe.series) for probe in probes)
    look_back = [probe.look_back for probe in probes]
    result.coverage += (
        Coverage(
            subject.feature.name,
            timeframe,
            rows,
            None if None in look_back else max(bound for bound in look_back if bound is not None),
            sum(int((probe.proven == 3).sum()) for probe in probes) / max(rows, 1),
            sum(len(probe.series) for probe in probes if probe.screened) / max(rows, 1),
            sum(probe.cuts for probe in probes),
            sum(probe.seconds for probe in probes),
        ),
    )


@contextmanager
def _shown(allowed: float) -> Iterator[Callable[[float], None]]:
    """Show how far the check is, once it takes long and if there is a terminal."""
    begin = clock()
    shown: list[Any] = []

    def tell(share: float) -> None:
        if not shown and clock() - begin > PATIENCE and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            progress = Progress(console=Console(stderr=True), transient=True)
            progress.start()
            task = progress.add_task(f"looking for leaks, {allowed:g} s at most", total=1.0)
            shown.extend((progress, task))
        if shown:
            shown[0].update(shown[1], completed=share)

    try:
        yield tell
    finally:
        if shown:
            shown[0].stop()
