"""A process that has imported everything and forks others that carry out a study, so that killing many costs seconds.

It reads the folder of the runs a line, and answers with the number of a process that keeps the study there, with leases
of its own and real processes for each training. Only the training itself pretends: it takes a moment, and a formula
says what it comes to.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.service.pretending import score
from velodrome.runs.config.run_config import dotted
from velodrome.service import job as jobs
from velodrome.service.executor import LocalExecutor
from velodrome.service.job import Job
from velodrome.service.scheduler import Patience
from velodrome.service.service import AgentTrainingService
from velodrome.service.studies import StudyKeeper
from velodrome.service.worker import nursery, trainer
from velodrome.service.worker.task import Task
from velodrome.tune import outcome
from velodrome.tune.search import import_optuna
from velodrome.tune.study import Studies

STUDY = "abcd1234"
PATIENCE = Patience(lease=4.0, grace=2.0, drain=3.0)
ENOUGH = "enough"  # a file in the folder of the runs; until it is there, the last trials do not end
HELD_BACK = 2  # last trials that wait for it


class ForkingExecutor(LocalExecutor):
    """Forks the processes of trainings from this one, which has imported everything."""

    def start(self, task: Task) -> None:
        nursery._fork(task, ())

    def prepare(self) -> None:
        return None


def pretend(task: Task, job: Job) -> trainer.Ended:
    """Take a moment in place of a training, and write what it comes to."""
    root = Path(task.root)
    wanted = int((root / "trials").read_text())
    moment = time.monotonic() + random.Random(f"{job.id}|{job.attempt}").uniform(0.0, 0.5)
    held = job.trial is not None and job.trial >= wanted - HELD_BACK
    while time.monotonic() < moment or (held and not (root / ENOUGH).exists()):
        time.sleep(0.02)
    folder = root / job.folder
    folder.mkdir(exist_ok=True)
    value = score(dotted(job.config))
    outcome.write(folder, {"sharpe": value, outcome.PER_BAR: value / 100.0})
    return trainer.Ended("finished")


def carry_out(folder: Path) -> None:
    """Carry out the study of a folder until it is over."""
    trainer.train = pretend
    jobs.FIRST_PAUSE = 0.05
    jobs.ENDS |= {kind: jobs.ENDS[kind]._replace(retries=99) for kind in ("machine_lost", "stalled")}
    service = AgentTrainingService(folder, cores=2, patience=PATIENCE, executor=ForkingExecutor())
    keeper = StudyKeeper(service, Studies(service.store).get(STUDY))

    def advance() -> None:
        keeper.advance()
        if keeper.study.status != "running":
            service.ask_to_stop()

    service.run(beside=advance, study=STUDY)


def main() -> None:
    """Fork a process for each line."""
    import_optuna()
    nursery._warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are killed
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setsid()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                carry_out(Path(line.strip()))
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


class Nursery:
    """This module as a process of its own."""

    def __init__(self, log: Path) -> None:
        with log.open("ab") as output:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": output}
            self.process = subprocess.Popen([sys.executable, "-m", __name__], text=True, **pipes)
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def begin(self, folder: Path) -> int:
        """Begin to carry out the study of a folder; return the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()
        return int(self._answer())


@contextmanager
def nursery_of(log: Path) -> Iterator[Nursery]:
    """Have a nursery for a while."""
    made = Nursery(log)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


if __name__ == "__main__":
    main()
