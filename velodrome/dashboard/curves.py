"""Curves for people to look at: no more points than can be seen, raw ones where one looks closely."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.dashboard.answers import Stretch, encoded
from velodrome.outside.folders import make_private_folder, why_not_private
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore

if TYPE_CHECKING:
    from sqlalchemy import Connection

DIGITS = 7  # significant, of what is drawn
FARTHEST = 2.0**62  # steps
KEPT_BYTES = 48 << 20  # of curves that were thinned before
LONG = 20_000  # rows from which a curve is thinned once for all, to so many points:
OVERVIEW = 4_000
MOST_OVERVIEWS = 4_000  # 64 KB each
READ = "SELECT step, value FROM metrics WHERE run = ? AND name = ? AND step BETWEEN ? AND ? ORDER BY step"
MAKE = "CREATE TABLE IF NOT EXISTS curves (key TEXT PRIMARY KEY, total INT, x BLOB, y BLOB)"
FIND = "SELECT total, x, y FROM curves WHERE key = ?"

Curve = tuple[NDArray[np.int64], NDArray[np.float64], int]  # steps, values, and how many there were

log = logging.getLogger("velodrome.dashboard")


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


class Overviews:
    """Long curves of runs that are over, thinned once and kept in a file of this user's cache: they open at once.

    A file that cannot be used costs time, and nothing else. It is made when there is something to keep.
    """

    def __init__(self, place: str) -> None:
        home = os.environ.get("XDG_CACHE_HOME")
        name = f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.db"
        self.path = (Path(home) if home else Path.home() / ".cache") / "velodrome" / "curves" / name
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._failed = False

    def get(self, key: str) -> Curve | None:
        """Return a curve that was thinned before."""
        row = self._do(False, lambda file: file.execute(FIND, (key,)).fetchone())
        return None if row is None else (np.frombuffer(row[1], np.int64), np.frombuffer(row[2], np.float64), row[0])

    def put(self, key: str, found: Curve) -> None:
        """Keep a curve; the oldest ones go when there are too many."""
        x, y, total = found

        def put(file: sqlite3.Connection) -> None:
            file.execute("INSERT OR REPLACE INTO curves VALUES (?, ?, ?, ?)", (key, total, x.tobytes(), y.tobytes()))
            file.execute("DELETE FROM curves WHERE rowid <= (SELECT max(rowid) - ? FROM curves)", (MOST_OVERVIEWS,))

        self._do(True, put)

    def _do(self, create: bool, work: Callable[[sqlite3.Connection], Any]) -> Any:
        """Do something with the file, if it is there or may be made."""
        with self._lock:
            if self._failed or (self._connection is None and not create and not self.path.exists()):
                return None
            try:
                if self._connection is None:
                    self._connection = self._opened()
                return work(self._connection)
            except (OSError, sqlite3.Error) as error:
                self._failed = True
                log.warning("%s: thinned curves are not kept there (%s)", self.path, error)
                return None

    def _opened(self) -> sqlite3.Connection:
        make_private_folder(self.path.parent)
        if fault := why_not_private(self.path.parent):
            raise PermissionError(0, fault)
        file = sqlite3.connect(self.path, timeout=1.0, check_same_thread=False, isolation_level=None)
        for setting in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=OFF", MAKE):  # it can be made again
            file.execute(setting)
        return file

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class MetricCurves:
    """The metrics of runs as curves over steps."""

    def __init__(self, store: SqlStore) -> None:
        self._store, self._kept, self.overviews = store, Kept(), Overviews(store.place)

    def written(
        self, run: str, name: str, asked: Stretch, mark: tuple[Any, ...], about: Mapping[str, Any], over: bool = False
    ) -> bytes:
        """Return a curve as JSON.

        mark: what changes with the run; of the same, the curve is the same. over: whether the run has ended.
        """
        key = (run, name, asked, mark, tuple(about.items()))
        return self._kept.get(key, lambda: encoded(self._curve(run, name, asked, mark, about, over)))

    def _curve(
        self, run: str, name: str, asked: Stretch, mark: tuple[Any, ...], about: Mapping[str, Any], over: bool
    ) -> dict[str, Any]:
        whole = over and asked.begin is None and asked.end is None and asked.points <= OVERVIEW // 2
        if whole and (found := self.overviews.get(_key(run, name, mark))) is not None:
            x, y, total = found
            return {**curve(x, y, asked, run=run, name=name, **about), "total": total, "thinned": True}
        steps, values = self._read(run, name, asked)
        if whole:
            self._keep(run, name, mark, steps, values)
        return curve(steps, values, asked, run=run, name=name, **about)

    def _read(self, run: str, name: str, asked: Stretch) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return self._store.read(lambda connection: read_curve(connection, run, name, asked))

    def _keep(
        self, run: str, name: str, mark: tuple[Any, ...], steps: NDArray[np.int64], values: NDArray[np.float64]
    ) -> None:
        if len(steps) > LONG:
            rows = thinned(steps, values, OVERVIEW)
            self.overviews.put(_key(run, name, mark), (steps[rows], values[rows], len(steps)))

    def prepare(self, run: str, mark: tuple[Any, ...]) -> int:
        """Thin the long curves of a run that is over before somebody asks; return how many there were to thin."""
        from sqlalchemy import func, select

        table = tables().metrics
        counts = select(table.c.name, func.count()).where(table.c.run == run).group_by(table.c.name)
        names = self._store.read(lambda connection: connection.execute(counts).all())
        done = 0
        for name, count in names:
            if count > LONG and self.overviews.get(_key(run, name, mark)) is None:
                self._keep(run, name, mark, *self._read(run, name, Stretch()))
                done += 1
        return done


def _key(run: str, name: str, mark: tuple[Any, ...]) -> str:
    return "\n".join((run, name, *map(repr, mark)))


def read_curve(
    connection: Connection, run: str, name: str, asked: Stretch
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return steps and values of one metric, in order; in SQLite by the driver itself, which is three times as fast."""
    begin, end = (
        int(rounding(np.clip(edge if given is None else given, -FARTHEST, FARTHEST)))
        for given, edge, rounding in ((asked.begin, -FARTHEST, np.ceil), (asked.end, FARTHEST, np.floor))
    )
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
