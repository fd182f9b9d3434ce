"""Studies whose trainings only pretend: the queue, leases and rows are real, and a formula says what they come to."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from velodrome.runs.config.run_config import dotted
from velodrome.service.budget import Resources
from velodrome.service.queue import Queue
from velodrome.service.scheduler import Scheduler
from velodrome.service.service import AgentTrainingService
from velodrome.service.studies import StudyKeeper
from velodrome.service.worker.task import Task
from velodrome.tune import outcome
from velodrome.tune.space import space_of
from velodrome.tune.study import Studies, Study, loaded
from velodrome.tune.trial import StudySettings

MACHINE = "here|boot|pid:[1]"


class PretendingExecutor:
    """Ends each training at once, as its score says; or loses it, or lets it fail, where it is told so."""

    name, machine = "pretending", MACHINE

    def __init__(self, score: Callable[[dict[str, Any]], float], lost: float = 0.0, seed: int = 0) -> None:
        self.score, self.lost, self.chance = score, lost, random.Random(seed)
        self.queue: Queue | None = None
        self.started: list[tuple[str, int]] = []
        self.dead: set[str] = set()

    def resources(self) -> Resources:
        return Resources(4, 1 << 36)

    def prepare(self) -> None:
        return None

    def start(self, task: Task) -> str:
        assert self.queue is not None
        self.started.append((task.job, task.attempt))
        process = f"{len(self.started)}:1"
        job = self.queue.attach(task.job, task.attempt, process)
        if self.chance.random() < self.lost:
            self.dead.add(process)
            return process
        config = dotted(self.queue.job(job.id).config)
        try:
            value = self.score(config)
        except ValueError as error:
            self.queue.end(task.job, task.attempt, "not_a_number", str(error), 0)
            return process
        folder = Path(task.root) / job.folder
        folder.mkdir()
        outcome.write(folder, {"sharpe": value, outcome.PER_BAR: value / 100.0})
        self.queue.end(task.job, task.attempt, "finished", "", 1)
        return process

    def poll(self, machine: str, process: str) -> bool | None:
        return process not in self.dead if process else None

    def is_frozen(self, machine: str, process: str) -> bool:
        return False

    def stop(self, machine: str, process: str) -> bool:
        return True

    def close(self) -> None:
        return None


def score(config: dict[str, Any]) -> float:
    """Return what a training comes to: a smooth function of some settings, and noise by the seed."""
    noise = random.Random(f"{config['ppo.learning_rate']}|{config['seed']}").gauss(0.0, 0.1)
    return 1.0 - 50.0 * (config["ppo.clip"] - 0.25) ** 2 - abs(config["ppo.learning_rate"] - 1e-3) * 300.0 + noise


def pretending(folder: Path, executor: PretendingExecutor) -> AgentTrainingService:
    """Return a service whose trainings pretend."""
    service = AgentTrainingService(folder, executor=executor)
    executor.queue = service.queue
    return service


def begin(service: AgentTrainingService, trials: int, **settings: Any) -> Study:
    """Begin a study of two fields of the preset smoke, without looking at any market."""
    from velodrome.runs.config.files import load_run_config

    config = service.placed(load_run_config("smoke"))
    space = space_of(config, ["ppo.learning_rate=1e-5:1e-2:log", "ppo.clip=0.1:0.4"], only=True)
    told = StudySettings(**{"test": False, "window": 4, "startup": 6, **settings}).model_dump()
    searched = {"dimensions": [one.content() for one in space], "needs": {}}
    study = Study("abcd1234", "pretended", "me", config.content(), searched, told, "data", trials, 1.0, 1.0)
    Studies(service.store).create(study)
    return study


def keep(service: AgentTrainingService, study: Study, keeper: StudyKeeper | None = None, turns: int = 100_000) -> bool:
    """Keep a study until it is over, or for so many turns; return whether it is over."""
    keeper = keeper or StudyKeeper(service, study)
    scheduler = Scheduler(service.queue, service.executor, service.folder, beside=keeper.advance, study=study.id)
    for _ in range(turns):
        scheduler.tick()
        if keeper.study.status != "running":
            return True
    return False


def rows(service: AgentTrainingService, study: Study) -> list[Any]:
    """Return what a study's rows say, but for the times."""
    course = loaded(Studies(service.store), study)
    return [
        (trial.number, trial.params, trial.status, repr(trial.value), trial.reason, {**trial.outcomes})
        for trial in course.trials
    ]
