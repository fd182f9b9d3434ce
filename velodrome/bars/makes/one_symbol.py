"""Which files are one instrument by their names: BTCUSDT-1m-2023-05 and -06, EURUSD_2020 and _2021, GOLD-part1, -part2.

Names of Binance's form say so by themselves. Of others the bars must bear it out: they follow each other in time, agree
where they overlap, and begin when the name says. Files that do not are kept apart, each the symbol of its own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.gaps import LONGEST_BREAK
from velodrome.bars.makes.file_names import FileName, NameSeries, parse_name, period_of
from velodrome.bars.rules import JOINED, NOTE, Finding, SymbolRows, time_order
from velodrome.bars.timeframe import DAY, describe_time, infer_timeframe

NEAR = 2 * DAY  # how far outside the period of its name a file may begin: time zones, and weekends at its edge
SEAM_BARS = 10  # longest pause between two numbered parts where bars are of a day or more
LEAST_AGREEMENT = 0.5  # of the rows that two files share; below it they are not one instrument
LISTED = 4  # files that a message names one by one


class Naming(NamedTuple):
    """The symbols of files that have no column for one."""

    symbols: dict[str, str]  # by origin, those of files that could not be read included
    findings: list[Finding]  # files with names alike that were kept apart, and why


class Part(NamedTuple):
    """A file that may be one of several."""

    origin: str
    name: FileName
    time: NDArray[np.int64]  # nanoseconds UTC, increasing
    close: NDArray[np.float64]

    @property
    def file(self) -> str:
        return Path(self.origin).name


def name_symbols(parts: Sequence[SymbolRows], unread: Mapping[str, str], taken: Iterable[str]) -> Naming:
    """Return the symbol of every file.

    parts: one for each file, whose symbol is the file's name without its ending; unread: such names by origin; taken:
    symbols that columns say.
    """
    stems = {**{part.tables[0].origin: part.symbol for part in parts}, **unread}
    names = {origin: name for origin, stem in stems.items() if (name := parse_name(stem)) is not None}
    groups: dict[NameSeries, list[Part]] = {name.series: [] for name in names.values()}
    for rows in parts:
        origin = rows.tables[0].origin
        if origin in names:
            order, repeats = time_order(rows)
            kept = order[~repeats]
            groups[names[origin].series].append(
                Part(origin, names[origin], rows.time[kept], rows.values["close"][kept])
            )
    findings, joined = [], []
    for series, group in groups.items():
        reason = "" if series.certain else why_apart(group)
        if not reason:
            joined.append(series)
        elif len(group) > 1 and (series.differ_in == "dates" or any(part.name.worded for part in group)):
            findings.append(kept_apart(group, reason))
    alone = {stem for origin, stem in stems.items() if origin not in names or names[origin].series not in joined}
    symbols = choose_symbols(joined, {*taken, *alone})
    return Naming({origin: _symbol(names.get(origin), stem, symbols) for origin, stem in stems.items()}, findings)


def _symbol(name: FileName | None, stem: str, symbols: Mapping[NameSeries, str]) -> str:
    return stem if name is None else symbols.get(name.series, stem)


def choose_symbols(joined: Sequence[NameSeries], taken: set[str]) -> dict[NameSeries, str]:
    """Return a symbol for each series of files: without the interval, unless that leaves two with one name."""
    plain = [series.symbol for series in joined]
    symbols: dict[NameSeries, str] = {}
    for series in joined:
        alone = plain.count(series.symbol) == 1 and series.symbol not in taken
        symbol = series.symbol if alone else f"{series.symbol}-{series.interval}"
        if alone or (series.interval and symbol not in {*taken, *symbols.values()}):
            symbols[series] = symbol
    return symbols


def why_apart(group: list[Part]) -> str:
    """Return why files whose names differ only in a date or a number are not one instrument; '' if they are."""
    if len(group) < 2 or not all(len(part.time) for part in group):
        return "there are not two with times that can be read"
    group.sort(key=lambda part: (part.time[0], part.time[-1]))
    for before, after in pairwise(group):
        if before.time[0] == after.time[0] or before.time[-1] >= after.time[-1]:
            return f"{after.file} and {before.file} cover the same time"
    sizes = {part.file: infer_timeframe(part.time) for part in group if len(part.time) > 1}
    if len(set(sizes.values())) > 1:
        return "their bars have different sizes"
    own = next(iter(sizes.values())).typical_nanoseconds if sizes else DAY
    reason = _why_not_dates(group) if group[0].name.date else _why_not_numbers(group, own)
    for before, after in pairwise(group):
        _, left, right = np.intersect1d(before.time, after.time, assume_unique=True, return_indices=True)
        if len(left) and np.mean(before.close[left] == after.close[right]) < LEAST_AGREEMENT:
            return f"{before.file} and {after.file} overlap, and there their prices differ"
    return reason


def _why_not_dates(group: Sequence[Part]) -> str:
    for part in group:
        begin, end = period_of(part.name.date)
        if not begin - NEAR <= part.time[0] < end + NEAR:
            return f"the bars of {part.file} begin at {describe_time(part.time[0])} UTC, not in {part.name.date}"
    return ""


def _why_not_numbers(group: Sequence[Part], bar: int) -> str:
    """bar: nanoseconds."""
    numbers = [part.name.part for part in group]
    if numbers not in (list(range(len(group))), list(range(1, len(group) + 1))):
        return "their numbers do not count up from 0 or 1 as their times do"
    for before, after in pairwise(group):
        if after.time[0] - before.time[-1] > max(LONGEST_BREAK, SEAM_BARS * bar):
            return f"{after.file} does not go on where {before.file} ends"
    return ""


def kept_apart(group: Sequence[Part], reason: str) -> Finding:
    """Return the note on files that look as if they were one instrument."""
    message = (
        f"{listed_files([part.origin for part in group])} have names that differ only in their "
        f"{group[0].name.series.differ_in}, but {reason}: each is a symbol of its own"
    )
    advice = (
        "If they are one instrument, put them into one file, or give them a column `symbol`; if one repeats another, "
        "remove it."
    )
    return Finding(NOTE, "names alike", "", 1, group[0].origin, message=message, advice=advice)


def note_joined(rows: SymbolRows) -> list[Finding]:
    """Return the note that several files are one symbol by their names; none for one file, or where columns say it."""
    if len(rows.tables) < 2 or not rows.from_name:
        return []
    files = [table.origin for table in rows.tables]
    message = f"{rows.symbol} is {len(files)} files, joined in order of time: {listed_files(files)}"
    advice = "Nothing to do if they are one instrument; else give them a column `symbol`, or read them one by one."
    return [Finding(NOTE, JOINED, rows.symbol, 1, message=message, advice=advice)]


def listed_files(origins: Sequence[str]) -> str:
    """Return the names of files, with their folder where two have one name; of many the first and the last."""
    names = [Path(origin).name for origin in origins]
    if len(set(names)) < len(names):
        names = ["/".join(Path(origin).parts[-2:]) for origin in origins]
    if len(names) > LISTED:
        return f"{names[0]} … {names[-1]}"
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
