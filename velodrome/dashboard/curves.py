"""Curves for people to look at: no more points than can be seen, raw ones where one looks closely."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.dashboard.answers import Stretch, encoded
from velodrome.runs.store.outlines import read_outline
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore

if TYPE_CHECKING:
    from sqlalchemy import Connection

DIGITS = 7  # significant, of what is drawn
FARTHEST = 2.0**62  # steps
KEPT_BYTES = 48 << 20  # of curves that were thinned before
FINER = 2  # points of an outline, at least, for each that is asked for; else all rows are looked at
READ = "SELECT step, value FROM metrics WHERE run = ? AND name = ? AND step BETWEEN ? AND ? ORDER BY step"

Curve = tuple[NDArray[np.int64], NDArray[np.float64], int]  # steps, values, and how many rows they stand for


def thinned(x: NDArray[Any], y: NDArray[np.float64], points: int) -> NDArray[np.int64]:
    """Return the rows of a curve to draw: all of a short one, else those that keep its look (MinMaxLTTB)."""
    count = len(x)
    if count <= points:
        return np.arange(count)
    from tsdownsample import NaNMinMaxLTTBDownsampler

    # A gap (NaN) is kept as one; the library wants contiguous arrays, and at least three points.
    chosen = NaNMinMaxLTTBDownsampler().downsample(
        np.ascontiguousarray(x), np.ascontiguousarray(y, np.float64), n_out=max(points, 3)
    )
    return np.unique(np.asarray(chosen, np.int64))


def curve(x: NDArray[Any], y: NDArray[np.float64], asked: Stretch, **about: Any) -> dict[str, Any]:
    """Return a curve in plain values, within the stretch that is asked for."""
    begin = 0 if asked.begin is None else int(np.searchsorted(x, asked.begin, "left"))
    end = len(x) if asked.end is None else int(np.searchsorted(x, asked.end, "right"))
    x, y = x[begin:end], y[begin:end]
    rows = thinned(x, y, asked.points)
    shown = {"x": x[rows].tolist(), "y": rounded(y[rows])}
    return {**about, **shown, "total": len(x), "thinned": len(rows) < len(x)}


def rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers short enough to send; what is not finite is a gap."""
    with np.errstate(divide="ignore", invalid="ignore"):
        finite = np.isfinite(values)
        size = np.floor(np.log10(np.abs(np.where(finite & (values != 0.0), values, 1.0))))
    digits = DIGITS - 1 - size
    return [
        round(value, int(kept)) if known else None
        for value, kept, known in zip(values.tolist(), digits.tolist(), finite.tolist(), strict=True)
    ]


class Kept:
    """What was made before, as bytes, up to a size: what was asked for longest ago goes first. Threads may share it."""

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most, self._size = most, 0
        self._parts: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """Return the bytes of a key, made now if they are not there."""
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
                return self._parts[key]
        made = make()
        with self._lock:
            if key not in self._parts and len(made) <= self._most // 4:
                self._parts[key] = made
                self._size += len(made)
                while self._size > self._most:
                    self._size -= len(self._parts.popitem(last=False)[1])
        return made


class MetricCurves:
    """The metrics of runs as curves over steps."""

    def __init__(self, store: SqlStore) -> None:
        self._store, self._kept = store, Kept()

    def written(self, run: str, name: str, asked: Stretch, mark: tuple[Any, ...], about: Mapping[str, Any]) -> bytes:
        """Return a curve as JSON. mark: what changes with the run; of the same, the curve is the same."""
        key = (run, name, asked, mark, tuple(about.items()))
        return self._kept.get(key, lambda: encoded(self._curve(run, name, asked, about)))

    def _curve(self, run: str, name: str, asked: Stretch, about: Mapping[str, Any]) -> dict[str, Any]:
        steps, values, total = self._store.read(lambda connection: read_curve(connection, run, name, asked))
        found = curve(steps, values, asked, run=run, name=name, **about)
        return {**found, "total": total, "thinned": len(found["x"]) < total}


def read_curve(connection: Connection, run: str, name: str, asked: Stretch) -> Curve:
    """Return steps and values of one metric, in order, and how many there are: of many, those of their outline."""
    begin, end = (
        int(rounding(np.clip(edge if given is None else given, -FARTHEST, FARTHEST)))
        for given, edge, rounding in ((asked.begin, -FARTHEST, np.ceil), (asked.end, FARTHEST, np.floor))
    )
    outline = read_outline(connection, run, name, begin, end)
    if outline is None or len(outline.steps) < FINER * asked.points:
        steps, values = read_rows(connection, run, name, begin, end)
        return steps, values, len(steps)
    before = read_rows(connection, run, name, begin, outline.first - 1)
    after = read_rows(connection, run, name, outline.last + 1, end)
    steps = np.concatenate([before[0], outline.steps, after[0]])
    values = np.concatenate([before[1], outline.values, after[1]])
    return steps, values, len(before[0]) + outline.rows + len(after[0])


def read_rows(
    connection: Connection, run: str, name: str, begin: int, end: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return steps and values of one metric, in order; in SQLite by the driver itself, which is three times as fast."""
    rows: Sequence[Any]
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        rows = driver.execute(READ, (run, name, begin, end)).fetchall()
    else:
        table = tables().metrics
        query = table.select().with_only_columns(table.c.step, table.c.value)
        query = query.where(table.c.run == run, table.c.name == name, table.c.step.between(begin, end))
        rows = connection.execute(query.order_by(table.c.step)).all()
    steps = np.fromiter((row[0] for row in rows), np.int64, len(rows))
    values = np.fromiter((np.nan if row[1] is None else row[1] for row in rows), np.float64, len(rows))
    return steps, values
