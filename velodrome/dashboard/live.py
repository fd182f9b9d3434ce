"""What changes while a page is open, as server-sent events: one look at the store for all who watch.

Who reads slowly loses events, and is told so; nobody's slowness is felt by another, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from velodrome import __version__
from velodrome.dashboard.answers import Refusal, encoded
from velodrome.dashboard.api import jobs, studies
from velodrome.dashboard.index import Snapshot
from velodrome.dashboard.site import Site
from velodrome.dashboard.tasks import Task
from velodrome.errors import VelodromeError
from velodrome.service.queue import Event

LOOK_SECONDS = 1.0
MACHINE_SECONDS = 4.0
KEEP_ALIVE = 15.0  # seconds
MISSED = 500  # events that are sent again to somebody who was away; more are not worth it
RETRY = 2000  # milliseconds after which a browser connects again
OF_A_RUN = ("id", "status", "steps", "total_steps", "updated", "steps_per_second", "score")
KINDS = ("machine", "runs", "jobs", "studies")

log = logging.getLogger("velodrome.dashboard")


class Reader:
    """One open connection."""

    def __init__(self, most: int) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(most)
        self.lost = False

    def put(self, message: bytes) -> None:
        """Add a message; one that is full loses it and is told later."""
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.lost = True


class Live:
    """The events of a web server. `watch` is what a connection reads; the look begins with the first of them."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.server = secrets.token_hex(8)
        self._readers: set[Reader] = set()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self._last_event = 0
        self._machine_at = 0.0
        self._snapshot: Snapshot | None = None
        self._mark: tuple[Any, ...] | None = None
        site.tasks.tell = self._tell_task

    async def start(self) -> None:
        """Begin to serve."""
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """End all connections, and the look at the store."""
        if self._task is not None:
            self._task.cancel()
        self._send(b"")

    def end(self) -> None:
        """End all connections; a handler of signals may call this."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, b"")

    async def watch(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """Yield messages until the connection is closed. after: number of the last event that the browser saw."""
        reader = Reader(self.site.settings.limits.queued_events)
        if len(self._readers) >= self.site.settings.limits.streams:
            raise Refusal(
                503,
                f"{len(self._readers)} connections for events are open, as many as there may be; close some tabs.",
                retry_after=30.0,
            )
        self._readers.add(reader)
        try:
            last = await self._in_thread(lambda: self.site.queue.last_event)
            if self._task is None or self._task.done():
                self._last_event = last
                self._task = asyncio.create_task(self._look_again())
            hello = {"server": self.server, "version": __version__, "now": time.time(), "last_event": last}
            yield message("hello", hello, last, retry=RETRY)
            if after is not None and after < last:
                for event in (await self._in_thread(lambda: self.site.queue.events(after=after)))[-MISSED:]:
                    yield message("happened", told(event), event.id)
            while True:
                try:
                    async with asyncio.timeout(KEEP_ALIVE):
                        found = await reader.queue.get()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if not found:
                    return
                if reader.lost:
                    reader.lost = False
                    yield message("resync", {"reason": "this connection was too slow, and lost events"})
                yield found
        finally:
            self._readers.discard(reader)

    @property
    def readers(self) -> int:
        """How many connections are open."""
        return len(self._readers)

    def _send(self, found: bytes) -> None:
        for reader in list(self._readers):
            reader.put(found)

    def _tell_task(self, task: Task) -> None:
        """Say that a task changed; called by its thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            content = message("tasks", {"tasks": [task.content()]})
            loop.call_soon_threadsafe(self._send, content)

    # The look at the store

    async def _look_again(self) -> None:
        """Look at the store as long as somebody watches."""
        told_problem = ""
        while self._readers:
            try:
                for found in await self._in_thread(self._look):
                    self._send(found)
                if told_problem:
                    told_problem = ""
                    self._send(message("problem", {"message": ""}))
            except Exception as error:  # the store is away, or a fault of ours: the look goes on, and pages say so
                known = isinstance(error, VelodromeError)
                problem = str(error) if known else "Looking at what changed failed; the server's log says why."
                if problem != told_problem:
                    told_problem = problem
                    log.warning("%s", problem, exc_info=not known)
                    self._send(message("problem", {"message": problem}))
            await asyncio.sleep(LOOK_SECONDS)
        self._task = None

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        from starlette.concurrency import run_in_threadpool

        return await run_in_threadpool(work)

    def _look(self) -> list[bytes]:
        site, found = self.site, []
        snapshot, mark = site.index.snapshot(), site.index.mark
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            runs = {line.id: {name: getattr(line, name) for name in OF_A_RUN} for line in snapshot.own}
            found += self._changes("runs", runs)
        if mark is None or mark != self._mark:
            found += self._changes("jobs", {job.id: jobs.content(job, site) for job in site.queue.brief()})
            lines = {study.id: studies.line(site, study) for study in site.known_studies()}
            found += self._changes("studies", lines)
            for event in site.queue.events(after=self._last_event):
                self._last_event = event.id
                found.append(message("happened", told(event), event.id))
        self._mark = mark
        if time.monotonic() - self._machine_at >= MACHINE_SECONDS:
            self._machine_at = time.monotonic()
            if (sample := site.machine.now(site.steps_per_second())) is not None:
                found.append(message("machine", sample))
        return found

    def _changes(self, kind: str, now: Mapping[str, dict[str, Any]]) -> list[bytes]:
        """Return a message with what is not as it was; nothing at the first look, for pages have just asked."""
        before, self._before[kind] = self._before[kind], dict(now)
        changed = [one for key, one in now.items() if before.get(key) != one]
        return [message(kind, {kind: changed[:MISSED]})] if changed and before else []


def told(event: Event) -> dict[str, Any]:
    """Return an event in plain values."""
    return event._asdict()


def message(kind: str, content: Any, number: int | None = None, retry: int | None = None) -> bytes:
    """Return a message of server-sent events."""
    head = (f"retry: {retry}\n" if retry else "") + (f"id: {number}\n" if number is not None else "")
    return f"{head}event: {kind}\ndata: ".encode() + encoded(content) + b"\n\n"
