"""Kills and freezes of studies at random moments, of workers and schedulers: none is lost, none is done twice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.contracts.executor import waited_for
from tests.service.disturbing import Disturbance
from tests.service.pretending import PretendingExecutor, begin, keep, pretending, rows, score
from tests.service.study_nursery import ENOUGH, nursery_of
from velodrome.service.machine import session_processes
from velodrome.service.service import AgentTrainingService
from velodrome.tune.study import Studies

TRIALS = 10
SCHEDULERS = 2
SETTINGS = {"seeds": 2, "confirm": 2, "confirm_seeds": 1}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    with nursery_of(tmp_path_factory.mktemp("nursery") / "log") as made:
        yield made


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    """Rows of the same study that nobody disturbed."""
    service = pretending(tmp_path_factory.mktemp("left-alone") / "runs", PretendingExecutor(score))
    study = begin(service, TRIALS, **SETTINGS)
    assert keep(service, study)
    found = rows(service, study)
    service.close()
    return found


class Disturbed:
    """A study that two processes carry out, and what strikes them."""

    def __init__(self, folder: Path, nursery, chance: random.Random) -> None:
        self.nursery, self.chance, self.disturbance = nursery, chance, Disturbance(chance)
        self.service = AgentTrainingService(folder)
        self.folder = self.service.folder
        (self.folder / "trials").write_text(str(TRIALS))
        self.study = begin(self.service, TRIALS, **SETTINGS)
        self.schedulers = [nursery.begin(self.folder) for _ in range(SCHEDULERS)]

    @property
    def is_over(self) -> bool:
        return Studies(self.service.store).refreshed(self.study).status != "running"

    def strike(self) -> None:
        """Hit a worker, a scheduler, or both at once; a scheduler that was killed is followed by another."""
        kind = self.chance.choice(["worker", "scheduler", "both"])
        running = [job for job in self.service.queue.running() if job.process]
        job = self.chance.choice(running) if running else None
        if kind == "worker" and job is not None:
            self.disturbance.strike(job)
        if kind == "scheduler" or (kind == "both" and job is not None):
            place = self.chance.randrange(SCHEDULERS)
            number = self.chance.choice([signal.SIGKILL, signal.SIGSTOP])
            workers = session_processes(job.process) if kind == "both" and job is not None else []
            self.disturbance.hit([self.schedulers[place], *workers], number)
            if number == signal.SIGKILL:
                self.schedulers[place] = self.nursery.begin(self.folder)

    def disturb(self, strikes: int) -> None:
        """Strike so often at random moments, then let the study end and wake up whoever still sleeps."""
        while len(self.disturbance.done) < strikes:
            assert not self.is_over
            time.sleep(self.chance.uniform(0.0, 0.4))
            self.disturbance.wake()
            self.strike()
        (self.folder / ENOUGH).touch()

        def over() -> bool:
            self.disturbance.wake()
            return self.is_over

        waited_for(over, 400.0)
        self.disturbance.wake(everybody=True)

    def end(self) -> None:
        for pid in self.schedulers:
            for number in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    break
        for job in self.service.queue.running():
            self.service.executor.stop(job.machine, job.process)
        self.service.close()


def assert_whole(found: Disturbed, left_alone) -> None:
    """Check that a study is the one that nobody disturbed, and that each training ended once."""
    service, study = found.service, found.study
    assert rows(service, study) == left_alone
    assert Studies(service.store).refreshed(study).status == "finished"
    waited_for(lambda: not service.queue.running(), 60.0)
    jobs = service.queue.of_study(study.id).values()
    finished = [job for job in jobs if job.status == "finished"]
    ends = {job.id: [event.data["end"] for event in service.events(job) if event.kind == "ended"] for job in finished}
    assert all(each.count("finished") == 1 and each[-1] == "finished" for each in ends.values()), ends
    # A step that another one decided is cancelled; what counts has ended.
    counted = {one.run for trial in Studies(service.store).trials(study) for one in trial.outcomes.values()}
    assert counted == {job.id for job in finished}
    assert {job.status for job in jobs} <= {"finished", "cancelled"}


@pytest.mark.parametrize(
    ("seed", "strikes"), [(19, 6), *(pytest.param(n, 11, marks=pytest.mark.slow) for n in range(5))]
)
def test_a_study_whose_workers_and_schedulers_are_killed_and_frozen_is_the_same_study(
    tmp_path, nursery, left_alone, seed, strikes
):
    found = Disturbed(tmp_path / "runs", nursery, random.Random(seed))
    try:
        found.disturb(strikes)
        assert_whole(found, left_alone)
        assert len(found.disturbance.done) >= strikes
    finally:
        found.end()
