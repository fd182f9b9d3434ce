"""Outlines of long curves: of each block of a metric's rows the few that its look depends on, as columns.

Ten million rows are read in ten seconds, their outlines in a tenth of one. Whoever writes rows keeps the outlines of
whole blocks, in the same transaction; rows behind the last block are few, and are read themselves. Rows without an
outline, as stores of version 2 have them, are only read more slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.runs.store.rows import MetricRow
from velodrome.runs.store.schema import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

ROWS = 512  # in a block
BUCKET = 16  # rows of which the smallest and the largest are kept
STEPS, VALUES = np.dtype("<i8"), np.dtype("<f8")
READ = (
    'SELECT "first", "last", "rows", steps, "values" FROM outlines '
    'WHERE run = ? AND name = ? AND "last" BETWEEN ? AND ? AND "first" >= ? ORDER BY "last"'
)


class Outline(NamedTuple):
    """The kept rows of neighbouring blocks, the first and the last step that they stand for, and how many rows."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    first: int
    last: int
    rows: int


def outlined(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return which rows of a block to keep: its ends, the extremes of each bucket, a gap (NaN) where there is one."""
    rows = values.reshape(-1, BUCKET)
    unknown = np.isnan(rows)
    begins = np.arange(len(rows)) * BUCKET
    chosen = [
        np.where(unknown, np.inf, rows).argmin(1) + begins,
        np.where(unknown, -np.inf, rows).argmax(1) + begins,
        (unknown.argmax(1) + begins)[unknown.any(1)],
        np.array([0, len(values) - 1]),
    ]
    return np.unique(np.concatenate(chosen))


class OutlineWriter:
    """Keeps the outlines of runs while their rows are written."""

    def __init__(self) -> None:
        # Rows behind the last block, by run and name. A wrong number only lets a block come early or late.
        self._waiting: dict[tuple[str, str], int] = {}

    def follow(self, connection: Connection, run: str, rows: Iterable[MetricRow]) -> None:
        """Do what new rows ask for: blocks that they belong to are forgotten, and whole ones are outlined."""
        table = tables().outlines
        own: dict[str, list[int]] = {}
        for row in rows:
            own.setdefault(row.name, []).append(row.step)
        from sqlalchemy import bindparam

        changed = (table.c.run == run, table.c.name == bindparam("of"), table.c.last >= bindparam("smallest"))
        smallest = [{"of": name, "smallest": min(steps)} for name, steps in own.items()]
        forgotten = connection.execute(table.delete().where(*changed), smallest).rowcount
        for name, steps in own.items():
            if forgotten:  # of which of them is not known: look at them all
                self._waiting.pop((run, name), None)
            waiting = self._waiting.get((run, name), ROWS) + len(steps)
            if waiting >= ROWS:
                waiting = extend(connection, run, name, blocks=2 + len(steps) // ROWS)
            self._waiting[run, name] = waiting


def extend(connection: Connection, run: str, name: str, blocks: int) -> int:
    """Outline up to so many blocks behind the last one; return how many rows are left, ROWS if that is not known."""
    from sqlalchemy import func, select

    table, metrics = tables().outlines, tables().metrics
    largest = select(func.max(table.c.last)).where(table.c.run == run, table.c.name == name)
    last = connection.execute(largest).scalar()
    for _ in range(blocks):
        query = select(metrics.c.step, metrics.c.value).where(metrics.c.run == run, metrics.c.name == name)
        query = query if last is None else query.where(metrics.c.step > last)
        found = connection.execute(query.order_by(metrics.c.step).limit(ROWS)).all()
        if len(found) < ROWS:
            return len(found)
        steps, values = np.array([row[0] for row in found], STEPS), np.array([row[1] for row in found], VALUES)
        kept = outlined(values)
        last = int(steps[-1])
        block = {"run": run, "name": name, "first": int(steps[0]), "last": last, "rows": ROWS}
        connection.execute(table.insert(), {**block, "steps": steps[kept].tobytes(), "values": values[kept].tobytes()})
    return ROWS


def unfinished(connection: Connection, run: str) -> list[str]:
    """Return the names of a run's metrics that have a block without an outline; few rows of each are looked at."""
    from sqlalchemy import func, select

    table, metrics = tables().outlines, tables().metrics
    found, name = [], ""
    following = select(func.min(metrics.c.name)).where(metrics.c.run == run)
    while (name := connection.execute(following.where(metrics.c.name > name)).scalar() or "") != "":
        last = select(func.max(table.c.last)).where(table.c.run == run, table.c.name == name).scalar_subquery()
        behind = select(metrics.c.step).where(metrics.c.run == run, metrics.c.name == name)
        behind = behind.where(metrics.c.step > func.coalesce(last, -1)).order_by(metrics.c.step)
        if connection.execute(behind.offset(ROWS - 1).limit(1)).first() is not None:
            found.append(name)
    return found


def read_outline(connection: Connection, run: str, name: str, begin: int, end: int) -> Outline | None:
    """Return the outline of all blocks that lie between two steps; None if there is none."""
    if connection.dialect.name == "sqlite":  # by the driver itself, which is three times as fast
        driver: Any = connection.connection.driver_connection
        found = driver.execute(READ, (run, name, begin, end, begin)).fetchall()
    else:
        table = tables().outlines
        columns = (table.c[name] for name in ("first", "last", "rows", "steps", "values"))
        query = table.select().with_only_columns(*columns).where(table.c.run == run, table.c.name == name)
        query = query.where(table.c.last.between(begin, end), table.c.first >= begin).order_by(table.c.last)
        found = connection.execute(query).all()
    if not found:
        return None
    firsts, lasts, counts, steps, values = zip(*found, strict=True)
    return Outline(
        np.frombuffer(b"".join(steps), STEPS).astype(np.int64, copy=False),
        np.frombuffer(b"".join(values), VALUES).astype(np.float64, copy=False),
        firsts[0],
        lasts[-1],
        sum(counts),
    )
