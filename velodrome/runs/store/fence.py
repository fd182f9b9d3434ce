"""Who may write: a process that trains for a service does so under a lease, and only as long as that is its own.

A process that was frozen may wake up after its training was given to another. Whatever it then writes into the store is
refused, because each transaction looks first whether the attempt is still the one that it was started for, and holds
the job's row until it ends (docs/decisions/0026).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from velodrome.errors import LeaseLostError
from velodrome.runs.folder import LEASE
from velodrome.runs.store.schema import tables

if TYPE_CHECKING:
    from sqlalchemy import Connection

RUNNING = "running"


class Fence(NamedTuple):
    """Which attempt at which job a process works for."""

    job: str
    attempt: int

    @classmethod
    def of_process(cls) -> Fence | None:
        """Return that of this process; None for one that nobody leased its work to."""
        job, _, attempt = os.environ.get(LEASE, "").partition(":")
        return cls(job, int(attempt)) if attempt.isdecimal() else None

    def set_for_process(self) -> None:
        """Let all that this process, and those that it starts, write be fenced."""
        os.environ[LEASE] = f"{self.job}:{self.attempt}"

    def check(self, connection: Connection) -> None:
        """Refuse a transaction of an attempt that is over; until it ends, nobody can give the job to another."""
        jobs = tables().jobs
        query = jobs.select().with_only_columns(jobs.c.attempt, jobs.c.status).where(jobs.c.id == self.job)
        found = connection.execute(query.with_for_update(read=True)).first()  # SQLite: writers are one at a time anyway
        if found is None or tuple(found) != (self.attempt, RUNNING):
            now = "is not in the store" if found is None else f"is {found.status}, at attempt {found.attempt}"
            raise LeaseLostError(
                f"job {self.job} {now}: what attempt {self.attempt} writes is refused, because its work was given away."
            )
