"""The tape: the bars that a loop has taken, in a file that only grows. What was decided on is never changed.

A feed may lose its beginning, correct a bar or bring one late. Decisions were made on what was there, so those bars
stay as they were taken; the tape alone is enough to repeat every decision.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.bars.frame import BAR_COLUMNS, Bars, Series
from velodrome.bars.timeframe import describe_time
from velodrome.errors import ChampionError
from velodrome.outside.files import UNFIT

VALUES = (*BAR_COLUMNS,)
SHOWN = 3  # times that a remark names


class Tape:
    """Bars by symbol, each taken once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.series: dict[str, Series] = {}
        self.timeframe = self.timezone = ""
        self.refused: set[tuple[str, int]] = set()  # bars that came too late, or differ from the one taken; said once
        if path.exists():
            self._read()

    def __len__(self) -> int:
        return sum(len(series) for series in self.series.values())

    def bars(self, symbol: str | None = None) -> Bars:
        """Return what was taken, of all instruments or of one."""
        chosen = self.series if symbol is None else {symbol: self.series[symbol]}
        return Bars(chosen, self.timeframe, self.timezone, str(self.path))

    def take(self, bars: Bars, decided: Mapping[str, int]) -> list[str]:
        """Take the bars that are new; return what was wrong with others.

        decided: by symbol, the moment up to which bars were decided on, in nanoseconds UTC.
        """
        remarks, lines = [], []
        self.timeframe, self.timezone = bars.timeframe, bars.timezone
        for symbol, series in bars.series.items():
            own = self.series.get(symbol)
            since = decided.get(symbol, np.iinfo(np.int64).min)
            if own is not None:
                since = max(since, int(own.time[-1]) + 1)
            first = int(np.searchsorted(series.time, since))
            if own is not None:
                remarks += self._judge(symbol, series.slice(0, first), own)
            new = series.slice(first, len(series))
            if len(new):
                lines += [_line(symbol, new, row) for row in range(len(new))]
                self.series[symbol] = new if own is None else _joined(own, new)
        self._append(lines)
        return remarks

    def _judge(self, symbol: str, series: Series, own: Series) -> list[str]:
        """Return what is said of bars that are not new and not those that were taken."""
        places = np.minimum(np.searchsorted(own.time, series.time), len(own) - 1)
        known = own.time[places] == series.time
        differ = np.zeros(len(series), bool)
        for name in VALUES:
            differ |= getattr(series, name) != getattr(own, name)[places]
        # Bars from before the first one that was taken are history that nobody waited for.
        told = (
            (
                ~known & (series.time > own.time[0]),
                "came too late, after later bars were decided on, and {are} left out",
            ),
            (known & differ, "{are} no longer what was decided on, and {stay} as taken"),
        )
        remarks = []
        for chosen, what in told:
            moments = [moment for moment in series.time[chosen].tolist() if (symbol, moment) not in self.refused]
            self.refused.update((symbol, moment) for moment in moments)
            if moments:
                several = len(moments) > 1
                said = what.format(are="are" if several else "is", stay="stay" if several else "stays")
                remarks.append(f"{symbol}: {_listed(moments)} {said}")
        return remarks

    def _append(self, lines: list[str]) -> None:
        if not lines:
            return
        with self.path.open("a", encoding="utf-8") as file:
            if file.tell() == 0:
                header = {
                    "timeframe": self.timeframe,
                    "timezone": self.timezone,
                    "close_only": [symbol for symbol, series in self.series.items() if series.close_only],
                }
                file.write(json.dumps(header) + "\n")
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> None:
        """Read the file; half a line at its end, which a kill left, is taken away."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with self.path.open("r+b") as file:
                file.truncate(whole)
        lines = content[:whole].decode("utf-8").splitlines()
        if not lines:
            return
        try:
            header = json.loads(lines[0])
            self.timeframe, self.timezone = header["timeframe"], header["timezone"]
            rows: dict[str, list[Any]] = {}
            for line in lines[1:]:
                symbol, moment, values, extra = json.loads(line)
                rows.setdefault(symbol, []).append((moment, values, extra))
            for symbol, own in rows.items():
                values = np.array([row[1] for row in own], np.float64)
                names = own[0][2]
                further = {name: np.array([row[2].get(name, math.nan) for row in own], np.float64) for name in names}
                columns = dict(zip(VALUES, values.T, strict=True))
                moments = np.array([row[0] for row in own], np.int64)
                self.series[symbol] = Series(
                    moments, **columns, extra=further, close_only=symbol in header["close_only"]
                )
        except UNFIT as error:
            raise ChampionError(
                f"{self.path}: these are not bars that a loop has taken ({type(error).__name__}: {error}). Begin anew "
                "in another folder: --state FOLDER."
            ) from error


def _line(symbol: str, series: Series, row: int) -> str:
    values = [float(getattr(series, name)[row]) for name in VALUES]
    extra = {name: float(column[row]) for name, column in series.extra.items()}
    return json.dumps([symbol, int(series.time[row]), values, extra]) + "\n"


def _joined(one: Series, other: Series) -> Series:
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in ("time", *VALUES)
    }
    missing = np.full(len(other), math.nan)
    extra = {name: np.concatenate([column, other.extra.get(name, missing)]) for name, column in one.extra.items()}
    return Series(**columns, extra=extra, close_only=one.close_only)


def _listed(moments: list[int]) -> str:
    shown = ", ".join(describe_time(np.int64(moment)) for moment in moments[:SHOWN])
    more = f" and {len(moments) - SHOWN} more" if len(moments) > SHOWN else ""
    return f"the bars of {shown}{more} UTC" if len(moments) > 1 else f"the bar of {shown} UTC"
