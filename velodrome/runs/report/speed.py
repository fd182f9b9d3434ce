"""How fast a run was on the whole, as its store has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore

if TYPE_CHECKING:
    from sqlalchemy import Connection

SPEED = "time/steps_per_second"  # of an iteration, and of what was done between it and the one before


def mean_speed(store: SqlStore, runs: Sequence[str]) -> float | None:
    """Return steps per second over a whole run; of several, which a group has, the mean. None: none were measured.

    Iterations have as many steps as each other, so a run's is the harmonic mean: compiling, validating and saving
    count, as in the line at the end of a training, and the time between two sittings does not.
    """
    from sqlalchemy import func, select

    metrics = tables().metrics
    seconds = func.sum(1.0 / metrics.c.value)  # that a step took, in all iterations
    own = (metrics.c.run.in_(runs), metrics.c.name == SPEED, metrics.c.value > 0.0)
    query = select((func.count() / seconds).label("speed")).where(*own).group_by(metrics.c.run)

    def read(connection: Connection) -> list[float]:
        return [row.speed for row in connection.execute(query)]

    found = store.read(read)
    return sum(found) / len(found) if found else None
