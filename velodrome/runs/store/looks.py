"""The ledger of looks at test data: which policies were played on it. It lasts when their runs are removed.

A test split is worth something only as long as nobody has chosen by it. So each result says how many other policies
were tested before on bars that overlap with its own, whatever their features, windows or settings were.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore

if TYPE_CHECKING:
    from sqlalchemy import Connection


class SeenBars(NamedTuple):
    """Bars of one instrument that test data has, by their open times in nanoseconds UTC."""

    symbol: str
    first: int
    last: int


class Look(NamedTuple):
    """A policy that was played on test data."""

    data_hash: str  # of the bars
    run: str
    step: int  # of the checkpoint
    split: str
    time: float  # seconds since 1970
    bars: tuple[SeenBars, ...] = ()  # (): not known
    overlap: float = 1.0  # as found by `looks_at`: the part of the bars asked for that it has seen


def add_looks(store: SqlStore, looks: Iterable[Look]) -> None:
    """Enter looks; the same policy on the same data again tells nothing new, and is not entered twice."""
    table, tested, new = tables().looks, tables().tested, list(looks)

    def add(connection: Connection) -> None:
        for look in new:
            same = (table.c.data_hash == look.data_hash) & (table.c.run == look.run) & (table.c.step == look.step)
            if connection.execute(table.select().where(same)).first() is None:
                row = {name: value for name, value in look._asdict().items() if name in table.c}
                connection.execute(table.insert(), row)
            known = connection.execute(tested.select().where(tested.c.data_hash == look.data_hash)).first()
            if look.bars and known is None:
                connection.execute(
                    tested.insert(), [{"data_hash": look.data_hash, **bars._asdict()} for bars in look.bars]
                )

    if new:
        store.write(add)


def looks_at(store: SqlStore, data_hash: str, bars: Sequence[SeenBars] = ()) -> list[Look]:
    """Return the looks at some data, or at other data that has some of its bars, oldest first; of a policy, one.

    bars: of the data; if none are given, what the store knows of it.
    """
    table, tested = tables().looks, tables().tested

    def find(connection: Connection) -> tuple[list, dict[str, float]]:
        own = list(bars) or _tested(connection, tested.c.data_hash == data_hash).get(data_hash, [])
        shared = {data_hash: 1.0}
        if own:
            near = tested.c.symbol.in_({one.symbol for one in own}) & (tested.c.last >= min(one.first for one in own))
            others = _tested(connection, near & (tested.c.first <= max(one.last for one in own)))
            shared = {other: overlap(own, theirs) for other, theirs in others.items()} | shared
        seen = [other for other, share in shared.items() if share > 0.0]
        query = table.select().where(table.c.data_hash.in_(seen)).order_by(table.c.time, table.c.run)
        return list(connection.execute(query).all()), shared

    rows, shared = store.read(find)
    looks = [Look(**row._mapping, overlap=shared[row.data_hash]) for row in rows]
    most: dict[tuple[str, int], Look] = {}
    for look in looks:
        kept = most.setdefault((look.run, look.step), look)
        if look.overlap > kept.overlap:
            most[look.run, look.step] = look
    return list(most.values())


def _tested(connection: Connection, which: Any) -> dict[str, list[SeenBars]]:
    """Return the bars of some data, by its hash."""
    found: dict[str, list[SeenBars]] = {}
    for data_hash, *bars in connection.execute(tables().tested.select().where(which)).all():
        found.setdefault(data_hash, []).append(SeenBars(*bars))
    return found


def overlap(own: Sequence[SeenBars], others: Sequence[SeenBars]) -> float:
    """Return the part of the time of some bars that others cover, too, each instrument by itself."""
    shared = sum(
        max(min(mine.last, theirs.last) - max(mine.first, theirs.first) + 1, 0)
        for mine in own
        for theirs in others
        if mine.symbol == theirs.symbol
    )
    return shared / sum(mine.last - mine.first + 1 for mine in own)


def told_looks(before: int, split: str, overlaps: Sequence[float] = ()) -> str:
    """Return the sentence that a result says of how often its data has been looked at.

    overlaps: the part of its bars that each of the other policies saw, where some did not see all of them.
    """
    if not before:
        return f"the {split} data is looked at for the first time, as far as this store knows"
    others = f"{before} other {'policies were' if before > 1 else 'policy was'} played on it before"
    return (
        f"look number {before + 1} at this {split} data: {others}{_told_overlap(overlaps)}, and the best of so many "
        "looks better than it is"
    )


def _told_overlap(overlaps: Sequence[float]) -> str:
    """Return how much of the data others saw, '' if all of it."""
    if not overlaps or min(overlaps) >= 1.0:
        return ""
    # What is not all of it is never said to be.
    least, most = (f"{math.floor(1000.0 * share) / 10.0:.1f}%" for share in (min(overlaps), max(overlaps)))
    return f", on bars that overlap with these by {least}" + (f" to {most}" if most != least else "")
