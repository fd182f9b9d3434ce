"""Trainings small enough for tests, and services that carry them out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runs.small_runs import TINY
from velodrome.runs.run import Run, train
from velodrome.service.executor import LocalExecutor
from velodrome.service.job import Job
from velodrome.service.scheduler import Patience
from velodrome.service.service import AgentTrainingService

# A lease as short as a busy machine may take to answer: who is given up too early goes on from its checkpoint.
QUICK = Patience(lease=5.0, grace=4.0, drain=25.0)


@pytest.fixture(scope="session")
def executor() -> Iterator[LocalExecutor]:
    """The executor of all tests, because what it imports takes seconds; its processes have the environment of now."""
    made = LocalExecutor()
    made.prepare()
    yield made
    made.close()


def _is_ended(executor: LocalExecutor, job: Job) -> bool:
    """End a job's processes; those of a machine that a test made up were never there."""
    return job.machine != executor.machine or executor.stop(job.machine, job.process)


@pytest.fixture
def service(tmp_path, executor) -> Iterator[AgentTrainingService]:
    """A service that does not run yet; what it leaves is ended."""
    made = AgentTrainingService(tmp_path / "runs", cores=3, patience=QUICK, executor=executor)
    yield made
    made.stop(save=False)
    deadline = time.monotonic() + 20.0
    # A process that has just begun may not have said its number yet.
    while left := [job for job in made.queue.running() if not _is_ended(executor, job)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    made.store.close()


@pytest.fixture
def serving(service) -> AgentTrainingService:
    """A service that runs."""
    return service.__enter__()


def settings(**changed: Any) -> dict[str, Any]:
    """Return the settings of a tiny training on top of the preset `smoke`."""
    return {**TINY, **changed}


def submit(service: AgentTrainingService, evaluate: bool = False, **changed: Any) -> Job:
    """Submit a tiny training; names of `AgentTrainingService.submit` are taken as such."""
    own = {
        name: changed.pop(name) for name in ("owner", "priority", "cores", "memory", "stall_seconds") if name in changed
    }
    return service.submit("smoke", evaluate=evaluate, **own, **settings(**changed))


def is_saved(service: AgentTrainingService, job: Job) -> bool:
    """Whether there is a checkpoint after the first."""
    home = service.folder / job.folder / "checkpoints"
    return len(list(home.glob("[0-9]*"))) > 1


@pytest.fixture(scope="session")
def left_alone(tmp_path_factory) -> Callable[..., Run]:
    """Returns the run of a tiny training that nobody disturbed, trained when it is first asked for."""
    known: dict[str, Run] = {}

    def trained(**changed: Any) -> Run:
        key = repr(sorted(changed.items()))
        if key not in known:
            folder: Path = tmp_path_factory.mktemp("left-alone")
            told = {**settings(**changed), "logging.folder": str(folder)}
            known[key] = train("smoke", mode="quiet", evaluate=False, **told)
        return known[key]

    return trained
