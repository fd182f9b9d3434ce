"""A feed: a price file or a folder of them that may still grow, read as `read_bars` reads it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from velodrome.bars.files import TEXT_SUFFIXES, find_files, suffix_of
from velodrome.bars.frame import Bars
from velodrome.bars.inspection import Inspection, Reading, inspect_bars
from velodrome.bars.timeframe import describe_time
from velodrome.errors import ConfigError, DataError
from velodrome.runs.config.sections import FOR_FILES
from velodrome.tune.champions.frozen import Champion

FEW_BARS = 3  # of which the bar size may still be mistaken


class Look(NamedTuple):
    """What a look at a feed brought."""

    bars: Bars | None  # None: nothing that can be used yet
    problem: str = ""  # why there are none, as `read_bars` says it
    remarks: tuple[str, ...] = ()  # rows that are doubled or out of order, which are put right


class Feed:
    """Where bars come from."""

    def __init__(self, path: Path, champion: Champion, name: str, follow: bool) -> None:
        """follow: it may still grow, so that half a line at the end of a file is not looked at yet."""
        self.path, self.champion, self.name, self.follow = path.expanduser(), champion, name, follow
        self._seen: tuple[tuple[str, int, int], ...] | None = None

    def has_changed(self) -> bool:
        """Return whether there may be something new since the last look."""
        return self._signature() != self._seen

    def _signature(self) -> tuple[tuple[str, int, int], ...]:
        try:
            found = [(file, file.stat()) for file in find_files(self.path)]
        except (DataError, OSError):
            return ()
        return tuple((str(file), facts.st_mtime_ns, facts.st_size) for file, facts in found)

    def look(self) -> Look:
        """Read what there is. In a feed that grows, what is wrong with it is said; in one that does not, raised."""
        self._seen = self._signature()
        try:
            return self._read()
        except (DataError, ConfigError) as error:
            if not self.follow or (isinstance(error, ConfigError) and self.path.exists()):
                raise
            return Look(None, str(error))

    def _read(self) -> Look:
        if not self.follow:
            return self._judge(self._inspect(self.path))
        with tempfile.TemporaryDirectory(prefix="velodrome-feed-") as folder:
            whole = Path(folder) / self.path.name
            if self.path.is_dir():
                whole.mkdir()
            for file in find_files(self.path):
                target = whole / file.relative_to(self.path) if self.path.is_dir() else whole
                target.parent.mkdir(parents=True, exist_ok=True)
                _copy_whole_lines(file, target)
            try:
                return self._judge(self._inspect(whole))
            except (DataError, ConfigError) as error:
                raise type(error)(str(error).replace(folder, str(self.path.parent))) from error

    def _inspect(self, source: Path) -> Inspection:
        market = self.champion.config.market
        options = {option: getattr(market, option) for option in FOR_FILES}
        try:
            return inspect_bars(source, Reading(list(self.champion.symbols), None, **options))
        except ConfigError as error:
            said = str(error).replace(str(source), str(self.path))
            raise ConfigError(
                f"feed {self.path}: champion {self.name!r} trades {', '.join(self.champion.symbols)}, and not all of "
                f"them are there: {said} A file is the symbol of its name, unless a column says which."
            ) from error

    def _judge(self, found: Inspection) -> Look:
        if found.bars is None:
            refusals = found.refusals
            more = f" {len(refusals) - 1} more: velodrome data check {self.path}" if len(refusals) > 1 else ""
            raise DataError(f"{refusals[0]}{more}")
        wanted = self.champion.timeframe
        if found.bars.timeframe != wanted:
            if self.follow and min(len(series) for series in found.bars.series.values()) < FEW_BARS:
                return Look(None, "too few bars to tell their size")
            raise ConfigError(
                f"feed {self.path}: its bars are of {found.bars.timeframe}, and champion {self.name!r} takes bars of "
                f"{wanted}. Give it a feed of those."
            )
        return Look(found.bars, "", tuple(_remarks(found)))


def _copy_whole_lines(file: Path, target: Path) -> None:
    """Copy a file as it is at this moment, without half a line at the end of a text that is being written."""
    content = file.read_bytes()
    plain = suffix_of(file).lower() in TEXT_SUFFIXES and not file.name.lower().endswith(".gz")
    if plain and b"\n" in content:
        content = content[: content.rindex(b"\n") + 1]
    target.write_bytes(content)


def _remarks(found: Inspection) -> Iterator[str]:
    """Yield what was put right in rows: those that came twice, and those that came before an earlier one."""
    for symbol, rows in found.rows.items():
        doubled = len(rows) - len(found.series[symbol])
        if doubled:
            times, counts = np.unique(rows.time, return_counts=True)
            what = f"{_rows(doubled)} doubled, the last"
            yield f"{symbol}: {what} of {describe_time(times[counts > 1][-1])} UTC; equal rows count once"
        backwards = np.flatnonzero(np.diff(rows.time) < 0) + 1
        if len(backwards):
            what = f"{_rows(len(backwards))} older than the one before, the last"
            yield f"{symbol}: {what} of {describe_time(rows.time[backwards[-1]])} UTC; rows are sorted"


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count} rows are"
