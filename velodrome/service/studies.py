"""Keeping studies: trials are begun, judged and ended by rows of the store, and their trainings are ordinary jobs.

A keeper has nothing of its own that matters. Jobs have ids that follow from the study, the trial and the step, so that
however many keepers there are, and whichever are killed or frozen, none is submitted twice and none is forgotten.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import shutil
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from velodrome.errors import JobError, StoreError, VelodromeError
from velodrome.runs.bucket.place import bring
from velodrome.runs.config.files import load_run_config
from velodrome.runs.folder import ID_LENGTH
from velodrome.service.job import ENDS, Job
from velodrome.service.worker.task import shelf_of
from velodrome.tune import outcome
from velodrome.tune.course import Course
from velodrome.tune.promotion import promote_study
from velodrome.tune.study import Studies, Study
from velodrome.tune.trial import FAILED, Outcome, Trial

if TYPE_CHECKING:
    from velodrome.service.service import AgentTrainingService

log = logging.getLogger("velodrome.service")
LIST_SECONDS = 2.0  # between two looks at which studies there are


def job_id(study: Study, trial: int, step: int) -> str:
    """Return the id of the job, and of the run, of a training."""
    return hashlib.sha256(f"{study.id}|{trial}|{step}".encode()).hexdigest()[:ID_LENGTH]


class StudyKeeper:
    """Keeps one study going."""

    def __init__(self, service: AgentTrainingService, study: Study) -> None:
        self.service, self.study = service, study
        self.studies, self.queue = Studies(service.store), service.queue
        self.config = service.placed(study.run_config)
        self.course: Course = study.course(self.config)
        self.promotion = ""  # what became of the winner, where the study promotes it (auto_promote)
        self._mark: tuple[object, ...] | None = None

    def end(self, status: str) -> None:
        """End the study; whoever of several keepers does it promotes the winner, if that is asked for."""
        if not self.studies.end(self.study, status):
            return
        shutil.rmtree(shelf_of(self.service.folder, self.study.id), ignore_errors=True)
        self.study = self.studies.refreshed(self.study)
        if status != "finished" or not self.study.told.auto_promote:
            return
        try:
            verdict = promote_study(self.study.name, self.service.folder, self.service.url)
        except VelodromeError as error:
            self.promotion = f"the winner was not promoted: {error}"
        else:
            self.promotion = verdict.sentence
        log.info("study %s: %s", self.study.name, self.promotion)

    def advance(self) -> None:
        """Do all that can be done now; most of the time that is nothing, which is seen at a glance."""
        self.study = self.studies.refreshed(self.study)
        mark = (self.queue.study_mark(self.study.id), self.study.trials)
        if self.study.status != "running" or mark == self._mark:
            return
        try:
            _Turn(self).take()
        except BaseException:  # what was not written is not so
            self.course = self.study.course(self.config)
            raise
        self._mark = mark


class _Turn:
    """One turn of a keeper: what is read, what follows from it, and what is written."""

    def __init__(self, keeper: StudyKeeper) -> None:
        self.keeper, self.study, self.course = keeper, keeper.study, keeper.course
        course = self.course
        over = next((trial.number for trial in course.trials if not trial.is_over), len(course.trials))
        # Trials before the first open one change no more, until the best of all are looked at again.
        self.since = 0 if course.is_searched(self.study.trials) else over
        course.trials[self.since :] = keeper.studies.trials(self.study, self.since)
        if self.since and course.is_searched(self.study.trials):
            self.since = 0
            course.trials[:] = keeper.studies.trials(self.study)
        self.jobs = keeper.queue.of_study(self.study.id, self.since)
        self.new_jobs: dict[str, Job] = {}
        self.outcomes: dict[tuple[int, int], Outcome] = {}
        self.changed: dict[int, Trial] = {}

    def take(self) -> None:
        """Go on until nothing more follows, then write it all at once."""
        while self._search():
            continue
        ended = self._end()
        store = self.keeper.service.store
        if self.changed or self.outcomes or self.new_jobs:
            store.at_once(self._write)
        if ended:
            self.keeper.end(ended)

    def _write(self) -> None:
        self.keeper.studies.enter(self.study, self.changed.values(), self.outcomes)
        self.keeper.queue.submit_once(self.new_jobs.values())

    def _search(self) -> bool:
        """Take what trainings came to, end trials, begin others and their trainings; return whether there was any."""
        course, moved = self.course, False
        for trial in course.trials[self.since :]:
            for step in course.due(trial):
                moved |= self._training(trial, step)
            if course.settle(trial):
                self._note(trial)
                moved = True
        while course.may_ask(self.study.trials):
            trial = course.ask()
            trial.created = time.time()
            self._note(trial)
            moved = True
        return moved

    def _note(self, trial: Trial) -> None:
        trial.updated = time.time()
        self.changed[trial.number] = trial

    def _end(self) -> str:
        """Make sure of the best, once all trials are over; return the study's status if it ends."""
        course, settings = self.course, self.course.settings
        first = course.trials[0] if course.trials else None
        if first is not None and first.status == FAILED and first.is_its_own_fault:
            self._cancel(lambda trial: True)
            return "failed"
        self._cancel(lambda trial: trial.is_over)
        if not course.is_searched(self.study.trials):
            return ""
        if self.since:  # trials of other processes may have ended unseen; the next turn has all
            course.trials[:] = self.keeper.studies.trials(self.study)
            self.since, self.jobs = 0, self.keeper.queue.of_study(self.study.id)
        if course.best is None:
            return "failed"
        for trial in course.candidates:
            for step in course.due_again(trial):
                self._training(trial, step)
        winner = course.winner
        if winner is None:
            return "failed" if course.is_confirmed else ""
        if not settings.test:
            return "finished"
        self._training(winner, settings.final_step)
        return "finished" if settings.final_step in winner.outcomes else ""

    def _cancel(self, unwanted: Callable[[Trial], bool]) -> None:
        """Stop trainings of trials that are over: one of their other steps decided them."""
        steps = range(self.course.settings.steps)
        own = {
            job_id(self.study, trial.number, step)
            for trial in self.course.trials[self.since :]
            for step in steps
            if unwanted(trial)
        }
        for identity in own & self.jobs.keys():
            if not self.jobs[identity].is_over and self.jobs[identity].wanted != "cancel":
                try:
                    self.keeper.queue.cancel(identity)
                except JobError:  # it has ended in between
                    continue

    def _training(self, trial: Trial, step: int) -> bool:
        """Take what a training came to, or begin it; return whether it is over."""
        if step in trial.outcomes:
            return False
        identity = job_id(self.study, trial.number, step)
        job = self.jobs.get(identity)
        found: Outcome | None = None
        if job is None and identity not in self.new_jobs:
            try:
                self.new_jobs[identity] = self._job(trial, step, identity)
            except VelodromeError as error:
                if isinstance(error, StoreError):
                    raise
                found = Outcome(math.nan, str(error), "error", run=identity)
        elif job is not None and job.is_over:
            found = self._came_to(job)
        if found is None:
            return False
        trial.outcomes[step] = self.outcomes[trial.number, step] = found
        return True

    def _job(self, trial: Trial, step: int, identity: str) -> Job:
        """Return the job of a training: the study's configuration, what the trial tries, and the seed or fold."""
        name = f"{self.study.name}-{trial.number:04d}-{step}"
        final = step == self.course.settings.final_step
        told = {**trial.params, **self.study.step_settings(step), "name": name}
        config = load_run_config(self.keeper.config, told)
        about: dict[str, Any] = {
            "id": identity,
            "study": self.study.id,
            "trial": trial.number,
            "owner": self.study.owner,
        }
        return self.keeper.service.job_of(config, evaluate=final, **about, **self.study.space["needs"])

    def _came_to(self, job: Job) -> Outcome:
        if job.status != "finished":
            # Settings are not to blame for what somebody cancelled, whatever happened while it stopped.
            kind = "cancelled" if job.status == "cancelled" else job.ended
            parts = dict.fromkeys((ENDS[kind].told, ENDS[job.ended].told, job.message))
            return Outcome(math.nan, ": ".join(filter(None, parts)), kind, run=job.id)
        bring(self.keeper.service.folder / job.folder)
        return outcome.read(self.keeper.service.folder / job.folder, self.course.settings.score, job.id)


class StudiesKeeper:
    """Keeps all studies of a store going, as a service does that is there for everything."""

    def __init__(self, service: AgentTrainingService) -> None:
        self.service = service
        self.keepers: dict[str, StudyKeeper] = {}
        self.looked_at = -math.inf
        self.told: dict[str, str] = {}

    def advance(self) -> bool:
        """Let each study that is not over go on; return whether there are any."""
        if time.monotonic() - self.looked_at > LIST_SECONDS:
            self.looked_at = time.monotonic()
            running = {study.id: study for study in Studies(self.service.store).all() if study.status == "running"}
            known = {name: keeper for name, keeper in self.keepers.items() if name in running}
            self.keepers = known
            for study in (study for name, study in running.items() if name not in known):
                self._try(study, functools.partial(self._keep, study))
        for keeper in list(self.keepers.values()):
            self._try(keeper.study, keeper.advance)
        return bool(self.keepers)

    def _keep(self, study: Study) -> None:
        self.keepers[study.id] = StudyKeeper(self.service, study)

    def _try(self, study: Study, work: Callable[[], None]) -> None:
        """Do something about a study that may name what is not installed here; others go on."""
        try:
            work()
        except (StoreError, JobError):
            raise
        except VelodromeError as error:
            self.keepers.pop(study.id, None)
            if self.told.get(study.id) != str(error):
                self.told[study.id] = str(error)
                log.warning("study %s cannot go on here: %s", study.name, error)
