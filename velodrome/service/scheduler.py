"""The loop of a service: it gives up what is lost, begins what fits, and says that it is there.

It keeps nothing in memory that matters: a service that is killed is replaced by one that reads the same rows. Trainings
keep their own leases, so none of them needs it in order to go on.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from velodrome.errors import BucketError, JobError, LeaseLostError, StoreError
from velodrome.runs.bucket.place import bring, here
from velodrome.runs.machine.disk import why_no_room
from velodrome.service.budget import Budget, choose, why_never
from velodrome.service.executor import Executor
from velodrome.service.job import ENDS, Job
from velodrome.service.machine import Machine, handle_of
from velodrome.service.queue import Choice, Queue, Waiting
from velodrome.service.worker.task import Task, saved_steps, sources_of
from velodrome.turns import Policy

TICK_SECONDS = 0.1
CALM_SECONDS = 0.5  # between two turns while nothing waits: each takes 2 ms, which trainings would lack
AGAIN_SECONDS = 1.0  # between two looks at jobs that wait, if nothing has changed but the time
ENTER_SECONDS = 5.0  # between two signs of life of the service itself

log = logging.getLogger("velodrome.service")


@dataclass(frozen=True)
class Patience:
    """How long is waited for what, in seconds."""

    lease: float = 15.0  # for a sign of life of a training
    grace: float = 4.0  # for a training to save that is paused or cancelled
    drain: float = 25.0  # for one to save whose machine is taken away


@dataclass
class Seen:
    """The last sign of life of a training, and when it came by this process's own clock: clocks of machines differ."""

    attempt: int
    beat: int
    at: float = field(default_factory=time.monotonic)


class Scheduler:
    """One service on one machine. tell: called with what a person should know.

    beside: called at each turn; says whether there will be more to begin. study: whose trainings alone are begun.
    policy: whose turn it is.
    """

    def __init__(
        self,
        queue: Queue,
        executor: Executor,
        root: Path | str,
        store: str | None = None,
        budget: Budget | None = None,
        patience: Patience | None = None,
        trust: bool = False,
        tell: Callable[[str], None] = log.info,
        beside: Callable[[], object] = lambda: None,
        study: str | None = None,
        policy: str | Policy = "fair",
    ) -> None:
        self.queue, self.executor, self.root, self.store = queue, executor, root, store
        self.given, self.patience, self.trust, self.tell = budget or Budget(), patience or Patience(), trust, tell
        self.beside, self.study, self.policy = beside, study, policy
        self.id = secrets.token_hex(4)
        self.budget = self.given.within(executor.resources())
        self.draining = False
        self._seen: dict[str, Seen] = {}
        self._started: dict[str, tuple[int, str]] = {}  # by job: the attempt begun here, and its processes
        self._entered_at = 0.0
        self._first_event = queue.last_event  # older requests to drain are not meant for this service
        self._told: dict[str, str] = {}
        self._problem = ""
        self._held: str | None = None  # why nothing begins for want of room, '' if it does; None: nobody has looked
        self._mark: tuple[object, ...] = (0,)  # of the jobs that wait, whose number is first, and run
        self._is_calm = False  # nothing waits, and no study is about to begin something
        self._nothing_at: tuple[tuple[object, ...], float] | None = (
            None  # with which mark nothing could begin, and when
        )

    # The loop

    def run(self, stop: threading.Event, until_empty: bool = False) -> None:
        """Serve until told to stop, drained, or, if asked, until nothing is left to do."""
        try:
            while not stop.is_set():
                try:
                    self.tick()
                    if self.draining and not self._own():
                        self.tell("drained: trainings saved and stopped; they go on when a service runs again")
                        return
                    if until_empty and not self.left():
                        return
                    self._problem = ""
                except (
                    StoreError,
                    JobError,
                ) as error:  # it may be busy or away; trainings go on, and so does this loop
                    if str(error) != self._problem:
                        self._problem = str(error)
                        self.tell(f"warning: {error}")
                    stop.wait(1.0)
                stop.wait(CALM_SECONDS if self._is_calm and not until_empty else TICK_SECONDS)
        finally:
            try:
                self.queue.leave_service(self.id)
            except StoreError as error:
                log.warning("%s", error)

    def tick(self) -> None:
        """Do once all that is to be done now."""
        self._follow_store()
        self._give_up_lost()  # first, because who is frozen may hold the store
        if time.monotonic() - self._entered_at >= ENTER_SECONDS:
            self._enter()
        if not self.draining and self.queue.events(after=self._first_event, kind="drain"):
            # What this service began after somebody asked was not asked to stop.
            self.queue.preempt([job.id for job in self._own() if job.service == self.id])
            self.draining = True
            self.tell("draining: nothing more begins, and what runs saves and stops")
        self.executor.prepare()
        more = False if self.draining else bool(self.beside())
        may_choose = not self.draining and self._may_choose()
        self._is_calm = not (more or self.draining or self.study is not None or self._mark[0])
        if may_choose and self._has_room():
            begun = self.queue.claim(self.id, self.executor.machine, self._choose)
            self._nothing_at = None if begun else (self._mark, time.monotonic())
            for job in begun:
                self._start(job)

    def _follow_store(self) -> None:
        """Turn to the file that has taken the place of the store's: nobody submits to the one before any more."""
        store = self.queue.store
        if not store.is_replaced:
            return
        if not Path(store.place).is_file():
            raise StoreError(f"{store.place}: is gone. Put it back, or submit a training, which makes a new one.")
        store.close()
        self._seen.clear()
        self._entered_at, self._first_event, self._nothing_at = 0.0, self.queue.last_event, None
        self.tell(f"warning: {store.place}: was replaced; what waited in the file before has to be submitted again")

    def _may_choose(self) -> bool:
        """Return whether there is something to choose from: with thousands that wait, that is not looked up in vain."""
        waiting = self.queue.waiting_mark()
        self._mark = (*waiting, tuple(sorted(self._seen)))
        if not waiting[0]:
            return False
        if self._nothing_at is None or self._nothing_at[0] != self._mark:
            return True
        return time.monotonic() - self._nothing_at[1] > AGAIN_SECONDS

    def _has_room(self) -> bool:
        """Return whether the disk of the runs has room for what begins; if not, jobs that wait say so."""
        why = why_no_room(here(self.root)) or ""
        if why or self._held != why:
            self.queue.hold(why)
        if why and why != self._held:
            self.tell(f"warning: nothing begins: {why}")
        if why:
            self._nothing_at = (self._mark, time.monotonic())
        self._held = why
        return not why

    def _enter(self) -> None:
        self.budget = self.given.within(self.executor.resources())
        self.queue.enter_service(self.id, self.executor.machine, handle_of(os.getpid()), self.budget.content())
        self._entered_at = time.monotonic()

    def left(self) -> int:
        """Return how many jobs wait or run."""
        return sum(len(self.queue.jobs(status)) for status in ("waiting", "running"))

    def _own(self) -> list[Job]:
        return [job for job in self.queue.running() if job.machine == self.executor.machine]

    def _choose(self, waiting: Waiting) -> list[Choice]:
        if self.study is not None:
            waiting = waiting._replace(jobs=[job for job in waiting.jobs if job.study == self.study])
        for job in waiting.jobs:
            why = why_never(job, self.budget)
            if why is not None and self._told.get(job.id) != why:
                self._told[job.id] = why
                self.tell(f"job {job.id} ({job.name}) cannot begin here: {why}")
        return choose(waiting, self.budget, self.executor.resources(), policy=self.policy)

    def _start(self, job: Job) -> None:
        before = self._machine_before(job)
        task = Task(
            job.id,
            job.attempt,
            str(self.root),
            self.store,
            self.executor.machine,
            took_over=before is not None and self._may_still_write(before),
            lease_seconds=self.patience.lease,
            grace_seconds=self.patience.grace,
            drain_seconds=self.patience.drain,
            most_memory=self.budget.memory or 0,
            trust=self.trust,
            cores=job.cores,
            memory=job.memory,
            gpu_memory=job.gpu_memory,
            sources=sources_of(job) if getattr(self.executor, "sends_files", False) else {},
        )
        try:
            self._started[job.id] = (job.attempt, self.executor.start(task))
            self.tell(f"job {job.id} ({job.name}, {job.owner}): began, attempt {job.attempt}")
        except JobError as error:
            begun = self.queue.job(job.id)  # it may have begun all the same
            if begun.attempt == job.attempt:
                self.executor.stop(begun.machine, begun.process)
            self._end(job, "machine_lost", str(error))

    def _machine_before(self, job: Job) -> Machine | None:
        """Return the machine of the attempt before this one, if there was one."""
        started = [event for event in self.queue.events(job.id, kind="started") if event.data["attempt"] == job.attempt]
        return Machine.read(started[-1].data["before"]) if started else None

    def _may_still_write(self, before: Machine) -> bool:
        """Return whether a process of another machine's attempt may still have the run's folder.

        Those of this machine were ended before, and a machine that was started anew has none of them any more.
        """
        here = Machine.read(self.executor.machine)
        assert here is not None
        return before != here and not before.is_gone(here)

    # What is lost

    def _give_up_lost(self) -> None:
        running = self.queue.running()
        for identity in self._seen.keys() - {job.id for job in running}:
            del self._seen[identity]
            self._started.pop(identity, None)
            self._tell_end(self.queue.job(identity))
        lost = []
        for job in running:
            seen = self._seen.get(job.id)
            if seen is None or (seen.attempt, seen.beat) != (job.attempt, job.beat):
                seen = self._seen[job.id] = Seen(job.attempt, job.beat)
            alive = self.executor.poll(job.machine, job.process or self._started_as(job))
            silent = time.monotonic() - seen.at > self.patience.lease
            if alive is False or (silent and self._is_to_blame(job, alive)):
                process = job.process or self._started_as(job)
                lost.append((job, alive, self.executor.stop(job.machine, process)))
        # Only now, because one that is stopped may have held the store.
        for job, alive, stopped in lost:
            self._give_up(job, alive, stopped)

    def _started_as(self, job: Job) -> str:
        """Return what the processes of an attempt are known by that have not entered themselves yet."""
        attempt, process = self._started.get(job.id, (0, ""))
        own = attempt == job.attempt and job.machine == self.executor.machine
        return process if own else ""

    def _is_to_blame(self, job: Job, alive: bool | None) -> bool:
        """Return whether a training is silent by its own fault, and not because nobody can write into the store."""
        if alive is None or self.executor.is_frozen(job.machine, job.process):
            return True
        try:
            self._enter()
        except StoreError:
            self._seen.clear()  # everybody's silence counts from when the store answers
            raise
        return True

    def _give_up(self, job: Job, alive: bool | None, stopped: bool) -> None:
        """Give up an attempt, whose processes are ended if they could be."""
        seconds = f"gave no sign of life for {self.patience.lease:g} seconds"
        host = job.machine.partition("|")[0]
        if alive is False:
            self._end(job, "machine_lost", "its process is gone")
        elif alive is None:
            what = f"its process on {host} {seconds}" if job.process else f"it did not begin on {host} in time"
            self._end(job, "machine_lost", what, beat=job.beat)
        elif stopped and (full := why_no_room(here(self.root))):  # what it could not write was its sign of life
            self._end(job, "no_room", full)
        elif stopped:
            self._end(job, "stalled", f"its process {seconds}: it was frozen, or the machine is overloaded")
        else:
            self.tell(f"warning: job {job.id}: its processes cannot be ended; a disk may not answer")

    def _end(self, job: Job, kind: str, message: str, beat: int | None = None) -> None:
        try:
            home = here(self.root)
            bring(home / job.folder)
            steps = saved_steps(home, job)
            most = self.budget.memory or 0
            after = self.queue.end(job.id, job.attempt, kind, message, steps, beat=beat, most_memory=most)
        except LeaseLostError:  # it ended by itself, or lives after all
            return
        except BucketError as error:  # tried again at the next turn
            raise JobError(str(error)) from error
        self._seen.pop(job.id, None)
        self._tell_end(after)

    def _tell_end(self, job: Job) -> None:
        if job.status == "running":  # it began again between two looks
            return
        says_more = job.ended in ENDS and (job.status, job.ended) != ("paused", "preempted")
        why = ENDS[job.ended].told if says_more and job.ended != job.status else ""
        told = ": ".join(part for part in (job.status, why, job.message) if part)
        self.tell(f"job {job.id} ({job.name}, {job.owner}): {told}")
