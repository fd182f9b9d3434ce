"""The ledger of looks at test data: which policies were played on it. It lasts when their runs are removed.

A test split is worth something only as long as nobody has chosen by it. So each result says how many other policies
were tested on the same bars before, whatever their features, windows or settings were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Look(NamedTuple):
    """A policy that was played on test data."""

    data_hash: str  # of the bars
    run: str
    step: int  # of the checkpoint
    split: str
    time: float  # seconds since 1970


def add_looks(store: SqlStore, looks: Iterable[Look]) -> None:
    """Enter looks; the same policy on the same data again tells nothing new, and is not entered twice."""
    table, new = tables().looks, list(looks)

    def add(connection: Connection) -> None:
        for look in new:
            same = (table.c.data_hash == look.data_hash) & (table.c.run == look.run) & (table.c.step == look.step)
            if connection.execute(table.select().where(same)).first() is None:
                connection.execute(table.insert(), look._asdict())

    if new:
        store.write(add)


def looks_at(store: SqlStore, data_hash: str) -> list[Look]:
    """Return the looks at some data, oldest first."""
    table = tables().looks
    query = table.select().where(table.c.data_hash == data_hash).order_by(table.c.time, table.c.run)
    found = store.read(lambda connection: connection.execute(query).all())
    return [Look(**row._mapping) for row in found]


def told_looks(before: int, split: str) -> str:
    """Return the sentence that a result says of how often its data has been looked at."""
    if not before:
        return f"the {split} data is looked at for the first time, as far as this store knows"
    others = f"{before} other {'policies were' if before > 1 else 'policy was'}"
    return (
        f"look number {before + 1} at this {split} data: {others} played on it before, and the best of so many looks "
        "better than it is"
    )
