"""The queue: jobs as rows of the store. Every change is one transaction that looks first whether it may be made.

A process that carries out a job does so for one attempt, whose number it was given. Once the attempt is over, because
it ended or was given up, nothing that the process still writes is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from velodrome.errors import JobError, LeaseLostError, did_you_mean
from velodrome.runs.machine.disk import NO_ROOM
from velodrome.runs.store.fence import RUNNING
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore
from velodrome.service.job import ENDS, FIELDS, LONGEST_PAUSE, OVER, Job, legal_priority, pause_before

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

ADVISORY_LOCK = 0x76656C6F + 1  # PostgreSQL: held while jobs are chosen, so that two services do not fill one machine
ALIVE_SECONDS = 30.0  # since a service was last heard of
LEAST = [name for name in FIELDS if name != "config"]  # which is long, and not needed to choose
STOPPED = ("stopped", "preempted")  # ends that say no more than that somebody asked for them
# What a job must be for a request, and what to say of those that are not.
REFUSALS = {
    "waiting": "has not begun, and waits for its turn",
    "running": "is running",
    "paused": "is paused; go on with it: velodrome jobs resume {id}",
    "finished": "has finished",
    "cancelled": "was cancelled already",
    "failed": "has failed already ({message}); try it again: velodrome jobs resume {id}",
}


class Event(NamedTuple):
    """Something that happened."""

    id: int
    time: float  # seconds since 1970
    kind: str
    job: str | None
    text: str
    data: dict[str, Any]


class Choice(NamedTuple):
    """A job that may begin now."""

    job: Job
    gpu: str = ""  # which one it is given


class Waiting(NamedTuple):
    """What there is to choose from."""

    jobs: Sequence[Job]  # that may begin
    running: Sequence[Job]  # on this machine
    served: Mapping[str, float]  # by owner: when one of theirs last began


class Queue:
    """The jobs in a store."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self._jobs, self._events, self._services = tables().jobs, tables().events, tables().services

    # Submitting and looking

    def submit(self, job: Job) -> None:
        """Add a job."""

        def add(connection: Connection) -> None:
            connection.execute(self._jobs.insert(), asdict(job))
            self._note(connection, "submitted", job.id, f"by {job.owner}")

        self.store.write(add)

    def submit_once(self, jobs: Iterable[Job]) -> None:
        """Add those of some jobs that are not there yet, by their ids, in one transaction."""

        def add(connection: Connection) -> None:
            for job in jobs:
                known = self._jobs.select().with_only_columns(self._jobs.c.id).where(self._jobs.c.id == job.id)
                if connection.execute(known).first() is None:
                    connection.execute(self._jobs.insert(), asdict(job))
                    self._note(connection, "submitted", job.id, f"by {job.owner}")

        self.store.write(add)

    def of_study(self, study: str, since: int = 0) -> dict[str, Job]:
        """Return the jobs of a study by id, without their configurations, of trials from a number on."""
        mine = (self._jobs.c.study == study) & (self._jobs.c.trial >= since)
        query = self._jobs.select().with_only_columns(*self._least).where(mine)
        found = self.store.read(lambda connection: connection.execute(query).all())
        return {row.id: _job(row) for row in found}

    def study_mark(self, study: str) -> tuple[Any, ...]:
        """Return something that changes when a job of a study begins to wait, runs or is over."""
        from sqlalchemy import func, select

        column = self._jobs.c.status
        query = select(column, func.count()).where(self._jobs.c.study == study).group_by(column).order_by(column)
        return tuple(map(tuple, self.store.read(lambda connection: connection.execute(query).all())))

    def jobs(self, status: str | None = None, owner: str | None = None, limit: int | None = None) -> list[Job]:
        """Return jobs, newest first."""
        query = self._jobs.select().order_by(self._jobs.c.created.desc(), self._jobs.c.id).limit(limit)
        for column, wanted in ((self._jobs.c.status, status), (self._jobs.c.owner, owner)):
            query = query if wanted is None else query.where(column == wanted)
        return [_job(row) for row in self.store.read(lambda connection: connection.execute(query).all())]

    def brief(self, owner: str | None = None) -> list[Job]:
        """Return all jobs, newest first, without their configurations."""
        query = self._jobs.select().with_only_columns(*self._least)
        query = query if owner is None else query.where(self._jobs.c.owner == owner)
        query = query.order_by(self._jobs.c.created.desc(), self._jobs.c.id)
        return [_job(row) for row in self.store.read(lambda connection: connection.execute(query).all())]

    def find(self, identity: str) -> Job | None:
        """Return the job of this id, None if there is none."""
        query = self._jobs.select().where(self._jobs.c.id == identity)
        row = self.store.read(lambda connection: connection.execute(query).first())
        return None if row is None else _job(row)

    def job(self, text: str) -> Job:
        """Return the job that a person means by its id, the unique start of it, its name, or 'latest'."""
        by_time = self._jobs.c.created.desc(), self._jobs.c.id
        query = self._jobs.select().with_only_columns(self._jobs.c.id, self._jobs.c.name).order_by(*by_time)
        known = {row.id: row.name for row in self.store.read(lambda connection: connection.execute(query).all())}
        if not known:
            raise JobError(
                f"no job {text!r}: nothing was submitted to {self.store.place} yet (velodrome submit CONFIG)."
            )
        # A name goes before the start of an id: one that looks like it, such as "b" or "1", must not mean another job.
        found = [text] if text in known else [identity for identity, name in known.items() if name == text]
        found = found or [identity for identity in known if text and identity.startswith(text)]
        if text == "latest":
            found = [next(iter(known))]
        if len(found) > 1:
            raise JobError(f"{text!r} means {len(found)} jobs: {', '.join(found[:5])}. Write the whole id.")
        if not found:
            near = did_you_mean(text, [*known, *known.values()])
            raise JobError(f"no job {text!r} among {len(known)}.{near} List them: velodrome jobs list")
        return self._whole(found[0])

    def _whole(self, identity: str) -> Job:
        query = self._jobs.select().where(self._jobs.c.id == identity)
        return _job(self.store.read(lambda connection: connection.execute(query).one()))

    def refreshed(self, jobs: Iterable[Job]) -> list[Job]:
        """Return jobs as they are now."""
        return [self._whole(job.id) for job in jobs]

    def events(self, job: str | None = None, after: int = 0, kind: str | None = None) -> list[Event]:
        """Return what happened, oldest first: to a job, after an event, of a kind."""
        events = self._events
        query = events.select().where(events.c.id > after).order_by(events.c.id)
        for column, wanted in ((events.c.job, job), (events.c.kind, kind)):
            query = query if wanted is None else query.where(column == wanted)
        found = self.store.read(lambda connection: connection.execute(query).all())
        return [Event(row.id, row.time, row.kind, row.job, row.text, row.data) for row in found]

    # What people ask for

    def pause(self, job: str) -> Job:
        """Let a job save and stop until it is resumed."""
        return self._ask(job, "pause", "paused")

    def cancel(self, job: str) -> Job:
        """Let a job stop for good."""
        return self._ask(job, "cancel", "cancelled")

    def _ask(self, job: str, wanted: str, status: str) -> Job:
        """Ask something of a job that runs; one that does not is made to be so."""

        def ask(connection: Connection, found: Job) -> None:
            legal = ("waiting", "running", *(["paused"] if wanted == "cancel" else []))
            if found.status not in legal:
                raise self._refusal(found)
            if found.status == RUNNING:
                if found.wanted == wanted:
                    raise JobError(f"job {found.id} is being {status} already; it stops within seconds.")
                self._change(connection, found.id, wanted=wanted)
            else:
                ended = {"ended": status} if status in ENDS else {}
                self._change(connection, found.id, status=status, wanted="", **ended)
            self._note(connection, f"{wanted} asked", found.id, "")

        return self._with(job, ask)

    def resume(self, job: str) -> Job:
        """Let a job that is paused, or that failed, go on from its last checkpoint."""

        def ask(connection: Connection, found: Job) -> None:
            if found.status == RUNNING and found.wanted == "pause":
                self._change(connection, found.id, wanted="drain")  # it stops, and goes on
            elif found.status in ("paused", "failed"):
                new = {"status": "waiting", "wanted": "", "not_before": 0.0, "retries": {}, "message": ""}
                self._change(connection, found.id, **new)
            elif found.status == "waiting" and found.not_before > time.time():
                self._change(connection, found.id, not_before=0.0)
            else:
                raise self._refusal(found)
            self._note(connection, "resume asked", found.id, "")

        return self._with(job, ask)

    def set_priority(self, job: str, priority: int) -> Job:
        """Say how early a job begins: higher ones first."""

        value = legal_priority(priority)

        def ask(connection: Connection, found: Job) -> None:
            if found.status in OVER:
                raise self._refusal(found)
            self._change(connection, found.id, priority=value)
            self._note(connection, "priority", found.id, str(priority))

        return self._with(job, ask)

    def drain(self) -> list[Job]:
        """Let all services start nothing more, and all jobs that run save, stop and wait; return those."""

        def ask(connection: Connection) -> list[Job]:
            found = [_job(row) for row in connection.execute(self._jobs.select().where(self._jobs.c.status == RUNNING))]
            self._preempt(connection, [job.id for job in found])
            self._note(connection, "drain", None, f"{len(found)} running")
            return found

        return self.store.write(ask)

    def preempt(self, jobs: Sequence[str]) -> None:
        """Let jobs that run save, stop and wait."""
        self.store.write(lambda connection: self._preempt(connection, jobs))

    def _preempt(self, connection: Connection, jobs: Sequence[str]) -> None:
        own = self._jobs.c.id.in_(list(jobs)) & (self._jobs.c.status == RUNNING) & (self._jobs.c.wanted == "")
        connection.execute(self._jobs.update().where(own).values(wanted="drain"))

    @property
    def last_event(self) -> int:
        """Number of the last event; 0 if nothing happened yet."""
        from sqlalchemy import func, select

        return self.store.read(lambda connection: connection.execute(select(func.max(self._events.c.id))).scalar()) or 0

    # Services

    def enter_service(self, identity: str, machine: str, process: str, budget: Mapping[str, Any]) -> None:
        """Say that a service is there, and what it has to give; again and again, so that others know that it lives."""
        services, now = self._services, time.time()

        def enter(connection: Connection) -> None:
            same = services.c.id == identity
            if connection.execute(services.update().where(same).values(updated=now, budget=dict(budget))).rowcount == 0:
                about = {"id": identity, "machine": machine, "process": process, "budget": dict(budget)}
                connection.execute(services.insert(), {**about, "started": now, "updated": now})
            connection.execute(services.delete().where(services.c.updated < now - 100 * ALIVE_SECONDS))

        self.store.write(enter)

    def leave_service(self, identity: str) -> None:
        """Say that a service has ended."""
        services = self._services
        self.store.write(lambda connection: connection.execute(services.delete().where(services.c.id == identity)))

    def services(self) -> list[Mapping[str, Any]]:
        """Return the services that were heard of lately."""
        now, heard = time.time(), self._services.c.updated
        # One that was heard of later than now is from before the clock was put back; it says anew that it is there.
        query = self._services.select().where(heard > now - ALIVE_SECONDS, heard < now + ALIVE_SECONDS)
        return [dict(row._mapping) for row in self.store.read(lambda connection: connection.execute(query).all())]

    # Carrying out

    def running(self) -> list[Job]:
        """Return the jobs that run, wherever that is."""
        query = self._jobs.select().with_only_columns(*self._least).where(self._jobs.c.status == RUNNING)
        return [_job(row) for row in self.store.read(lambda connection: connection.execute(query).all())]

    def claim(self, service: str, machine: str, choose: Callable[[Waiting], list[Choice]]) -> list[Job]:
        """Take jobs for a service on a machine; one service at a time chooses, from what is so at that moment."""
        from sqlalchemy import text

        jobs = self._jobs

        def claim(connection: Connection) -> list[Job]:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
            now, begun = time.time(), []
            for choice in choose(self._waiting(connection, machine)):
                values = {
                    "status": RUNNING,
                    "wanted": "",
                    "attempt": choice.job.attempt + 1,
                    "beat": 0,
                    "service": service,
                    "machine": machine,
                    "process": "",
                    "gpu": choice.gpu,
                }
                # Whoever asks something of a job does not wait for that lock: what was asked since the look counts.
                same = jobs.c.id == choice.job.id
                unchanged = same & (jobs.c.status == "waiting") & (jobs.c.attempt == choice.job.attempt)
                taken = jobs.update().where(unchanged).values(updated=now, started=now, message="", **values)
                if connection.execute(taken).rowcount == 0:
                    continue
                data = {"attempt": values["attempt"], "machine": machine, "before": choice.job.machine}
                self._note(connection, "started", choice.job.id, f"attempt {values['attempt']}", data)
                begun.append(_job(connection.execute(jobs.select().where(same)).one()))
            return begun

        # A look that takes no lock, first: most of the time nothing can begin.
        if not choose(self.store.read(lambda connection: self._waiting(connection, machine))):
            return []
        return self.store.write(claim)

    def _waiting(self, connection: Connection, machine: str) -> Waiting:
        from sqlalchemy import func, select

        jobs = self._jobs
        rows = jobs.select().with_only_columns(*self._least)
        now = time.time()
        # Further away than any pause: the clock was put back since.
        due = (jobs.c.not_before <= now) | (jobs.c.not_before > now + LONGEST_PAUSE)
        ready = rows.where(jobs.c.status == "waiting", due)
        here = rows.where(jobs.c.status == RUNNING, jobs.c.machine == machine)
        served = select(jobs.c.owner, func.max(jobs.c.started)).group_by(jobs.c.owner)
        waiting, running = ([_job(row) for row in connection.execute(query)] for query in (ready, here))
        return Waiting(waiting, running, {row[0]: row[1] for row in connection.execute(served)})

    def waiting_mark(self) -> tuple[Any, ...]:
        """Return something that changes when other jobs wait, or wait for something else."""
        from sqlalchemy import func, select

        jobs = self._jobs
        query = select(func.count(), func.max(jobs.c.updated)).where(jobs.c.status == "waiting")
        return tuple(self.store.read(lambda connection: connection.execute(query).one()))

    def attach(self, job: str, attempt: int, process: str) -> Job:
        """Say which process carries out an attempt, and return the job; LeaseLostError if the attempt is over."""

        def attach(connection: Connection) -> Job:
            self._hold(connection, job, attempt)
            self._change(connection, job, process=process)
            return _job(connection.execute(self._jobs.select().where(self._jobs.c.id == job)).one())

        return self.store.write(attach)

    def beat(self, job: str, attempt: int, **seen: Any) -> str:
        """Give a sign of life and say how far it is; return what is wanted. LeaseLostError if the attempt is over."""

        def beat(connection: Connection) -> str:
            found = self._hold(connection, job, attempt)
            self._change(connection, job, beat=found.beat + 1, **seen)
            return found.wanted

        return self.store.write(beat)

    def end(
        self,
        job: str,
        attempt: int,
        kind: str,
        message: str,
        steps: int,
        *,
        beat: int | None = None,
        most_memory: int = 0,
    ) -> Job:
        """End an attempt; LeaseLostError if it is over already.

        kind: one of `ENDS`, or 'stopped': by a signal, so that what is wanted says why. steps: that are saved. beat:
        the last sign of life, if somebody else than the process says that it has ended. most_memory: what a retry may
        have.
        """

        def end(connection: Connection) -> Job:
            found = self._hold(connection, job, attempt)
            if beat is not None and found.beat != beat:
                raise LeaseLostError(f"job {job}: attempt {attempt} is alive.")
            values = _after(found, kind, message, steps, most_memory)
            self._change(connection, job, wanted="", process="", steps=max(steps, 0), **values)
            data = {"attempt": attempt, "end": values["ended"], "steps": steps}
            self._note(connection, "ended", job, message or ENDS[values["ended"]].told, data)
            return _job(connection.execute(self._jobs.select().where(self._jobs.c.id == job)).one())

        return self.store.write(end)

    def hold(self, why: str) -> None:
        """Let all jobs that wait say that there is no room for them; '': let none of them say so any more."""
        from sqlalchemy import true

        jobs = self._jobs
        says_so = jobs.c.message.startswith(NO_ROOM, autoescape=True) | (jobs.c.ended == "no_room")
        others = (jobs.c.message != why) & (says_so if not why else true())
        meant = (jobs.c.status == "waiting") & others
        first = jobs.select().with_only_columns(jobs.c.id).where(meant).limit(1)
        if self.store.read(lambda connection: connection.execute(first).first()) is None:
            return  # without a lock: this is asked again and again
        values = jobs.update().where(meant).values(message=why, updated=time.time())
        self.store.write(lambda connection: connection.execute(values))

    # Rows

    @property
    def _least(self) -> list[Any]:
        return [self._jobs.c[name] for name in LEAST]

    def _with(self, job: str, ask: Callable[[Connection, Job], None]) -> Job:
        identity = self.job(job).id

        def within(connection: Connection) -> Job:
            query = self._jobs.select().where(self._jobs.c.id == identity)
            ask(connection, _job(connection.execute(query.with_for_update()).one()))
            return _job(connection.execute(query).one())

        return self.store.write(within)

    def _hold(self, connection: Connection, job: str, attempt: int) -> Job:
        """Return the job of an attempt that is not over, which nobody can end before this transaction does."""
        query = self._jobs.select().with_only_columns(*self._least).where(self._jobs.c.id == job)
        row = connection.execute(query.with_for_update()).first()
        if row is None:  # with the whole store, it may be; nobody else can have the work
            raise JobError(f"job {job} is not in {self.store.place} any more.")
        if (row.attempt, row.status) != (attempt, RUNNING):
            raise LeaseLostError(f"job {job} is {row.status}, at attempt {row.attempt}; attempt {attempt} is over.")
        return _job(row)

    def _change(self, connection: Connection, job: str, **values: Any) -> None:
        connection.execute(self._jobs.update().where(self._jobs.c.id == job).values(updated=time.time(), **values))

    def _note(
        self, connection: Connection, kind: str, job: str | None, text: str, data: Mapping[str, Any] | None = None
    ) -> None:
        values = {"time": time.time(), "kind": kind, "job": job, "run": job, "text": text, "data": dict(data or {})}
        connection.execute(self._events.insert(), values)

    def _refusal(self, job: Job) -> JobError:
        return JobError(f"job {job.id} {REFUSALS[job.status].format(id=job.id, message=job.message.rstrip('.'))}.")


def _job(row: Row[Any]) -> Job:
    return Job(**{"config": {}, **row._mapping})


def _after(job: Job, kind: str, message: str, steps: int, most_memory: int) -> dict[str, Any]:
    """Return what a job's row says after an attempt has ended.

    A person who asked to cancel or pause is obeyed however the attempt ended, unless it finished.
    """
    if kind == "finished":
        return {"status": "finished", "ended": kind, "message": "", "retries": {}}
    learns = kind == "out_of_memory" and not job.memory_is_limit  # how much memory it needs
    more = max(job.memory, min(2 * max(job.memory, job.memory_used), most_memory))
    memory = {"memory": more} if learns else {}
    if job.wanted == "cancel":
        return {"status": "cancelled", "ended": "cancelled" if kind in STOPPED else kind, "message": message}
    kind = "preempted" if kind in STOPPED else kind
    if job.wanted == "pause":
        return {"status": "paused", "ended": kind, "message": message, **memory}
    retries = {} if steps > job.retried_at else dict(job.retries)  # it came further since
    retry = retries.get(kind, 0) + 1
    most = ENDS[kind].retries
    may = most is None or retry <= most
    if learns:
        may = may and job.memory < most_memory
    elif kind == "out_of_memory":
        may = retry <= 1
    if not may:
        tried = f" Tried {job.attempt} times." if job.attempt > 1 else ""
        return {"status": "failed", "ended": kind, "message": message + tried, "retries": retries}
    pause = pause_before(retry) if ENDS[kind].pauses else 0.0
    values = {"retries": {**retries, kind: retry}, "retried_at": steps, "not_before": time.time() + pause}
    return {"status": "waiting", "ended": kind, "message": message, **values, **memory}
