"""Disturbing a service and its trainings in every way: kills and freezes at random moments, of whom is there then."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.contracts.executor import waited_for
from tests.service.conftest import is_saved
from velodrome.errors import StoreError
from velodrome.runs.store.store import open_store
from velodrome.service.job import Job
from velodrome.service.machine import session_processes
from velodrome.service.service import AgentTrainingService

# Long enough to be met in the middle: 64 steps an iteration, 100 of them, a checkpoint every tenth.
COURSE = {"steps": 6_400, "checkpoint.every_steps": 640, "evaluation.every_steps": 3_200}


class Disturbance:
    """Who of a training is hit by which signal; frozen ones wake up again, some after their work was given away."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.frozen: list[tuple[float, int]] = []  # when to wake which process
        self.done: list[str] = []

    def strike(self, job: Job) -> bool:
        """Hit the processes of a job; return whether there were any."""
        members = session_processes(job.process) if job.process else []
        if not members:
            return False
        keeper = int(job.process.partition(":")[0])
        others = [pid for pid in members if pid != keeper]
        whom = self.chance.choice([[keeper], others or [keeper], members])
        number = self.chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
        return self.hit(whom, number)

    def hit(self, whom: list[int], number: int, wake_after: float = 4.0) -> bool:
        """Send a signal to processes; return whether one was there."""
        struck = False
        for pid in whom:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            struck = True
            if number == signal.SIGSTOP:
                self.frozen.append((time.monotonic() + self.chance.uniform(0.2, 2 * wake_after), pid))
        if struck:
            self.done.append(f"{signal.Signals(number).name} to {len(whom)}")
        return struck

    def wake(self, everybody: bool = False) -> None:
        """Wake those whose time has come."""
        now = time.monotonic()
        for moment, pid in list(self.frozen):
            if everybody or now >= moment:
                self.frozen.remove((moment, pid))
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    continue


def frozen_in_the_middle(service: AgentTrainingService, begin: Callable[[], Job]) -> tuple[Job, list[int]]:
    """Freeze a training after its first checkpoints; one that was too quick is begun again. Return it and whom.

    None of its processes holds the store then: several machines have PostgreSQL, whose server takes it from the frozen.
    """
    for _ in range(10):
        job = begin()
        waited_for(lambda: (is_saved(service, job) and service.job(job).process) or service.job(job).is_over)  # noqa: B023
        while (found := service.job(job)).status == "running" and found.process:
            members = session_processes(found.process)
            for pid in members:
                os.kill(pid, signal.SIGSTOP)
            try:
                with open_store(service.folder, busy_seconds=0.2) as store:
                    store.write(lambda connection: None)
                if (found := service.job(job)).status == "running" and len(members) > 1:
                    return found, members
            except StoreError:
                pass
            for pid in members:
                os.kill(pid, signal.SIGCONT)
    raise AssertionError("no training was met in its middle")


def disturb(
    service: AgentTrainingService,
    jobs: list[Job],
    wanted: int,
    chance: random.Random,
    more: Callable[[Disturbance], None] = lambda disturbance: None,
    pause: tuple[float, float] = (0.0, 0.7),
    another: Callable[[], Job] | None = None,
) -> Disturbance:
    """Strike jobs at random until it was done so often; `more` disturbs others besides.

    another: submits one more when all are over; without it, that is the end.
    """
    disturbance = Disturbance(chance)
    while len(disturbance.done) < wanted:
        time.sleep(chance.uniform(*pause))
        disturbance.wake()
        running = [job for job in service.queue.refreshed(jobs) if job.status == "running"]
        if all(job.is_over for job in service.queue.refreshed(jobs)):
            if another is None:
                break
            jobs.append(another())
        if running:
            disturbance.strike(chance.choice(running))
        more(disturbance)
    return disturbance


def serve(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start `velodrome serve` in a process of its own."""
    command = [sys.executable, "-m", "velodrome", "serve", "--no-dashboard", "--folder", str(folder), *words]
    with (folder.parent / "serve.log").open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def all_over(service: AgentTrainingService, jobs: list[Job], disturbance: Disturbance, seconds: float = 600.0) -> None:
    """Wait until all are over, and wake up whoever still sleeps."""

    def over() -> bool:
        disturbance.wake()
        return all(job.is_over for job in service.queue.refreshed(jobs))

    waited_for(over, seconds)
    disturbance.wake(everybody=True)
