"""Feeds for the tests of the paper loop: bars as lines of CSV files, which grow as a test says."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.bars.frame import Bars, Series
from velodrome.tune.paper.loop import Summary, follow

HEADER = "time,open,high,low,close,volume\n"


class Killed(BaseException):
    """What a test raises where a process would be killed: nobody catches it."""


def lines_of(series: Series) -> list[str]:
    """Return bars as lines of a file, to the bit."""
    columns = (series.open, series.high, series.low, series.close, series.volume)
    values = np.stack(columns, axis=1).tolist()
    moments = series.time.astype("datetime64[ns]").astype("datetime64[s]").astype(str).tolist()
    return [",".join((moment, *map(repr, row))) + "\n" for moment, row in zip(moments, values, strict=True)]


def write_feed(path: Path, lines: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(HEADER + "".join(lines))
    return path


def some(bars: Bars, begin: int, end: int) -> dict[str, list[str]]:
    """Return some bars of each symbol as lines."""
    return {symbol: lines_of(series.slice(begin, end)) for symbol, series in bars.series.items()}


def bars_logged(folder: Path) -> list[dict[str, Any]]:
    return entries(folder, "bar")


def entries(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [entry for entry in found if entry["kind"] == kind]


def follow_growing(name: str, feed: Path, steps: Sequence[Callable[[], object]], **options: Any) -> Summary:
    """Follow a feed that each of these steps changes in turn, whenever nothing is left to play."""
    left = iter(steps)

    def enough() -> bool:
        step = next(left, None)
        if step is None:
            return True
        step()
        return False

    return follow(name, feed, grows=True, poll_seconds=1e-6, enough=enough, **options)


class KillAt:
    """Raises `Killed` before the n-th operation that changes files for good."""

    def __init__(self, monkeypatch: Any, number: int) -> None:
        self.left = number
        for module, name in ((os, "fsync"), (Path, "replace")):
            monkeypatch.setattr(module, name, self._deadly(getattr(module, name)))

    def _deadly(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise Killed
            return operation(*arguments, **named)

        return call
