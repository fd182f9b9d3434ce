"""Everything that the operations of the API look at: the store, its runs at a glance, the service, and tasks."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Hashable
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from velodrome.dashboard.answers import Refusal
from velodrome.dashboard.curves import MetricCurves
from velodrome.dashboard.index import RunIndex, RunLine
from velodrome.dashboard.machine import MachineHistory
from velodrome.dashboard.settings import Settings
from velodrome.dashboard.tasks import Tasks
from velodrome.errors import VelodromeError, did_you_mean
from velodrome.runs.folder import INFORMATION
from velodrome.runs.store.outlines import ROWS
from velodrome.runs.trained import Run
from velodrome.service.service import AgentTrainingService
from velodrome.tune.study import Studies, Study

IDENTITY = re.compile(r"[0-9a-f]{4,64}")
MOST_HELD = 512
MACHINE_SECONDS = 5.0
PREPARE_SECONDS = 10.0  # between two looks for runs that ended

log = logging.getLogger("velodrome.dashboard")
Result = TypeVar("Result")


class Site:
    """What one web server knows. Threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.service = AgentTrainingService(settings.folder, settings.store)
        self.folder: Path = self.service.folder
        self.store, self.queue = self.service.store, self.service.queue
        self.studies = Studies(self.store)
        self.index = RunIndex(self.store, self.folder, is_file=settings.store is None)
        self.curves = MetricCurves(self.store)
        self.machine = MachineHistory(self.folder)
        self.tasks = Tasks(self.folder, settings.store, settings.limits.tasks)
        self._held: dict[Hashable, tuple[Hashable, float, Any]] = {}
        self._making = [threading.RLock() for _ in range(64)]
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin what goes on beside the answers.

        The machine is looked at, so that its last hour is known to whoever comes; and long curves of runs that are over
        are outlined where an older version wrote them, a little at a time, so that they open at once.
        """
        for work in (self._watch_machine, self._prepare):
            thread = threading.Thread(target=work, name=f"velodrome {work.__name__.strip('_')}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _watch_machine(self) -> None:
        while not self._closing.wait(MACHINE_SECONDS):
            try:
                self.machine.now(self.steps_per_second())
            except VelodromeError as error:
                log.warning("%s", error)

    def steps_per_second(self) -> float:
        """Return the steps a second of all that runs."""
        lines = self.index.snapshot().lines.values()
        running = [line for line in lines if line.status == "running" and not line.members]
        return sum(line.steps_per_second or 0.0 for line in running)

    def _prepare(self) -> None:
        done: set[tuple[Any, ...]] = set()
        while not self._closing.wait(PREPARE_SECONDS):
            try:
                lines = [line for line in self.index.snapshot().lines.values() if line.noted != "running"]
                for line in lines:
                    more = (line.id, *line.mark) not in done and line.steps >= ROWS
                    while more:
                        begun = time.thread_time()
                        more = self.store.outline(line.id)
                        # A twentieth of a core at most: trainings go first.
                        if self._closing.wait(20.0 * (time.thread_time() - begun)):
                            return
                    done.add((line.id, *line.mark))
            except VelodromeError as error:
                log.warning("%s", error)

    @cached_property
    def registry(self) -> Any:
        """The champions beside the runs."""
        from velodrome.tune.champions.registry import Registry

        return Registry(self.folder)

    def close(self) -> None:
        """Let go of everything; tasks that run are ended."""
        self._closing.set()
        for thread in self._threads:
            thread.join(5.0)
        self.tasks.close()
        self.machine.close()
        self.service.close()

    # What requests name by id

    def line(self, identity: str) -> RunLine:
        """Return a run by its id; one that is not there is refused."""
        found = self.index.line(identity) if IDENTITY.fullmatch(identity) else None
        if found is None:
            raise Refusal(404, f"there is no run {identity[:80]!r} in this store.")
        return found

    def lines(self, identities: str, most: int) -> list[RunLine]:
        """Return runs by their ids, separated by commas."""
        wanted = list(dict.fromkeys(part for part in identities.split(",") if part))
        if not 0 < len(wanted) <= most:
            raise Refusal(422, f"runs: {len(wanted)} are named; 1 to {most} ids are legal, separated by commas.")
        return [self.line(identity) for identity in wanted]

    def run(self, line: RunLine) -> Run:
        """Return a run as it lies in its folder; one that was moved or removed is refused."""
        if not (line.folder / INFORMATION).is_file():
            raise Refusal(410, f"the folder of run {line.id} is gone; the store has its metrics and results still.")
        return Run.open(line.folder)

    def study(self, name: str) -> Study:
        """Return a study by its name or its id; one that is not there is refused."""
        known = self.known_studies()
        found = next((study for study in known if name in (study.name, study.id)), None)
        if found is None:
            near = did_you_mean(name, [study.name for study in known])
            raise Refusal(404, f"there is no study {name[:80]!r} in this store.{near}")
        return found

    def known_studies(self) -> list[Study]:
        """Return all studies, newest first."""
        return self.unchanged("studies", self.studies.all)

    def study_names(self) -> dict[str, str]:
        """Return the names of all studies by their ids."""
        return {study.id: study.name for study in self.known_studies()}

    def unchanged(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return what was made before, as long as the store is not written; else, or if that is not known, make it."""
        self.index.snapshot()
        mark = self.index.mark
        return make() if mark is None else self.held(key, mark, make)

    def held(self, key: Hashable, mark: Hashable, make: Callable[[], Result], seconds: float = 0.0) -> Result:
        """Return what was made before under a key with the same mark, or less than so many seconds ago; else make it.

        One thread makes it, and others that want the same wait for it; making it must not ask for another such thing.
        """

        def known() -> tuple[Any] | None:
            before = self._held.get(key)
            fits = before is not None and (before[0] == mark or time.monotonic() - before[1] < seconds)
            return (before[2],) if before is not None and fits else None

        if (found := known()) is not None:
            return found[0]
        with self._making[hash(key) % len(self._making)]:
            if (found := known()) is not None:
                return found[0]
            made = make()
            while len(self._held) > MOST_HELD:
                self._held.pop(next(iter(self._held)), None)
            self._held[key] = (mark, time.monotonic(), made)
            return made


def file_inside(folder: Path, *names: str) -> Path:
    """Return a file below a folder; a link that leads elsewhere is refused."""
    path = folder.joinpath(*names)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise Refusal(403, f"{path.name}: this file is a link that leads out of its folder.")
    return path
