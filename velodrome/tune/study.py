"""Studies as rows of the store: what is searched, the trials, and what their trainings came to.

What is written is the same whoever writes it, because it follows from the rows that were there. So several processes
may keep one study: a row that is there already stays as it is, and who was frozen in between does no harm.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError, did_you_mean
from velodrome.runs.config.files import load_run_config
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore
from velodrome.tune.course import Course
from velodrome.tune.space import Dimension, starting_point
from velodrome.tune.trial import RUNNING, Outcome, StudySettings, Trial

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

STATUSES = ("running", "stopped", "finished", "failed", "replaced")
FRESH, FINAL = 1_000, 2_000  # added to the configuration's seed: for the second look at the best, and for the winner


class StudyError(ConfigError):
    """A study that cannot be found, or that cannot be done what was asked with."""


@dataclass(frozen=True)
class Study:
    """A study's row."""

    id: str
    name: str
    owner: str
    config: dict[str, Any]
    space: dict[str, Any]
    settings: dict[str, Any]
    data_hash: str  # of the prices of all splits
    trials: int  # that are wanted
    created: float  # seconds since 1970
    updated: float
    status: str = RUNNING

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What is searched."""
        return tuple(Dimension.read(each) for each in self.space["dimensions"])

    @property
    def told(self) -> StudySettings:
        """How it searches."""
        # Studies from before there was a model go on as they began.
        return StudySettings(**{"sampler": "tpe", **self.settings})

    @property
    def is_free(self) -> bool:
        """Whether its accounts trade for nothing."""
        return bool(self.space.get("free"))

    @property
    def run_config(self) -> RunConfig:
        """What all trials have in common."""
        return load_run_config(self.config)

    def course(self, config: RunConfig | None = None) -> Course:
        """Return its course, without trials yet."""
        return Course(self.dimensions, self.told, starting_point(config or self.run_config, self.dimensions))

    def step_settings(self, step: int) -> dict[str, Any]:
        """Return what tells a training of a trial apart from its others: the seed, or the fold."""
        settings, seed = self.told, int(self.config["seed"])
        fresh = step in settings.fresh_steps
        place = step - settings.steps if fresh else step
        if step == settings.final_step:
            return {"seed": seed + FINAL, "seeds": settings.final_seeds}
        if settings.folds is None:
            return {"seed": seed + place + (FRESH if fresh else 0)}
        splits = self.space["folds"][place]
        # Studies from before the embargo was kept go on without one, as they began.
        cut = {"market.splits": splits, "market.embargo": self.space.get("embargo", 0)}
        judged = {"evaluation.split": "validation", "evaluation.final_split": None}
        return {"seed": seed + (FRESH if fresh else 0), **cut, **judged}


FIELDS = tuple(each.name for each in fields(Study))


class Studies:
    """The studies in a store."""

    def __init__(self, store: SqlStore) -> None:
        known = tables()
        self.store = store
        self._studies, self._trials, self._outcomes = known.studies, known.trials, known.outcomes

    # Studies

    def create(self, study: Study) -> None:
        """Add a study; its name must be new."""
        self.store.write(lambda connection: connection.execute(self._studies.insert(), asdict(study)))

    def all(self) -> list[Study]:
        """Return all, newest first."""
        query = self._studies.select().order_by(self._studies.c.created.desc())
        return [_study(row) for row in self.store.read(lambda connection: connection.execute(query).all())]

    def find(self, name: str) -> Study | None:
        """Return the study of this name."""
        return next((study for study in self.all() if study.name == name), None)

    def get(self, text: str) -> Study:
        """Return the study that a person means by its name, its id, the unique start of either, or 'latest'."""
        known = self.all()
        if not known:
            raise StudyError(f"no study {text!r}: there is none in {self.store.place} (velodrome tune CONFIG).")
        exact = [study for study in known if text in (study.name, study.id)] or (known[:1] if text == "latest" else [])
        found = exact or [
            study for study in known if text and (study.name.startswith(text) or study.id.startswith(text))
        ]
        if len(found) > 1:
            raise StudyError(f"{text!r} means {len(found)} studies: {', '.join(study.name for study in found[:5])}.")
        if not found:
            near = did_you_mean(text, [study.name for study in known])
            raise StudyError(f"no study {text!r} among {len(known)}.{near} List them: velodrome studies list")
        return found[0]

    def refreshed(self, study: Study) -> Study:
        """Return a study as it is now."""
        query = self._studies.select().where(self._studies.c.id == study.id)
        return _study(self.store.read(lambda connection: connection.execute(query).one()))

    def change(self, study: Study, **values: Any) -> Study:
        """Change fields of a study's row."""
        statement = self._studies.update().where(self._studies.c.id == study.id).values(updated=time.time(), **values)
        self.store.write(lambda connection: connection.execute(statement))
        return replace(study, **values)

    def end(self, study: Study, status: str) -> bool:
        """End a study that is running; return whether it was this call that did."""
        mine = self._studies.update().where(self._studies.c.id == study.id, self._studies.c.status == "running")
        statement = mine.values(updated=time.time(), status=status)
        return bool(self.store.write(lambda connection: connection.execute(statement).rowcount))

    # Trials

    def trials(self, study: Study, since: int = 0) -> list[Trial]:
        """Return the trials from a number on, in order, with what their trainings came to."""
        trials, outcomes = self._trials, self._outcomes
        mine = trials.select().where(trials.c.study == study.id, trials.c.number >= since).order_by(trials.c.number)
        known = outcomes.select().where(outcomes.c.study == study.id, outcomes.c.trial >= since)
        found, ends = self.store.read(
            lambda connection: (
                {row.number: _trial(row) for row in connection.execute(mine)},
                connection.execute(known).all(),
            )
        )
        for row in ends:
            found[row.trial].outcomes[row.step] = Outcome(row.value, row.reason, row.kind, row.figures, row.run)
        return list(found.values())

    def counts(self, study: Study) -> dict[str, int]:
        """Return how many trials there are by status."""
        from sqlalchemy import func, select

        column = self._trials.c.status
        query = select(column, func.count()).where(self._trials.c.study == study.id).group_by(column)
        return {row[0]: row[1] for row in self.store.read(lambda connection: connection.execute(query).all())}

    def enter(self, study: Study, trials: Iterable[Trial], outcomes: Mapping[tuple[int, int], Outcome]) -> None:
        """Write trials that began or ended and what trainings came to; what is there already stays."""
        changed = list(trials)

        def work(connection: Connection) -> None:
            self._hold(connection, study)
            for trial in changed:
                values = {"status": trial.status, "params": trial.params, "value": trial.value, "reason": trial.reason}
                key = {"study": study.id, "number": trial.number}
                if not self._has(connection, self._trials, key):
                    moments = {"created": trial.created, "updated": trial.updated}
                    connection.execute(self._trials.insert(), {**key, **values, **moments})
                elif trial.is_over:
                    table = self._trials
                    open_one = (table.c.study == study.id) & (table.c.number == trial.number)
                    statement = table.update().where(open_one & (table.c.status == RUNNING))
                    connection.execute(statement.values(updated=trial.updated, **values))
            for (number, step), outcome in outcomes.items():
                key = {"study": study.id, "trial": number, "step": step}
                if not self._has(connection, self._outcomes, key):
                    about = {"run": outcome.run, "value": outcome.value, "kind": outcome.kind}
                    about |= {"reason": outcome.reason, "figures": dict(outcome.figures)}
                    connection.execute(self._outcomes.insert(), {**key, **about})

        self.store.write(work)

    def _hold(self, connection: Connection, study: Study) -> None:
        """Let nobody else write about a study until this transaction ends; SQLite has one writer at a time anyway."""
        column = self._studies.c.id
        connection.execute(self._studies.select().with_only_columns(column).where(column == study.id).with_for_update())

    @staticmethod
    def _has(connection: Connection, table: Any, key: Mapping[str, Any]) -> bool:
        query = table.select().with_only_columns(*(table.c[name] for name in key))
        for name, value in key.items():
            query = query.where(table.c[name] == value)
        return connection.execute(query).first() is not None


def _study(row: Row[Any]) -> Study:
    return Study(**{name: row._mapping[name] for name in FIELDS})


def _trial(row: Row[Any]) -> Trial:
    kept = ("number", "status", "value", "reason", "created", "updated")
    # Thousands of trials have the same keys: each is kept once.
    params = {sys.intern(key): value for key, value in row.params.items()}
    return Trial(params=params, **{name: row._mapping[name] for name in kept})


def loaded(studies: Studies, study: Study, make: Callable[[], Course] | None = None) -> Course:
    """Return the course of a study with all its trials."""
    course = make() if make is not None else study.course()
    course.trials = studies.trials(study)
    return course


def step_number(course_settings: StudySettings) -> Sequence[str]:
    """Return what the trainings of a trial are called, in the order of their numbers."""
    unit = "fold" if course_settings.folds else "seed"
    own = [f"{unit} {place + 1}" for place in range(course_settings.steps)]
    fresh = [f"fresh {unit} {place + 1}" for place in range(len(course_settings.fresh_steps))]
    return [*own, *fresh, "final"]
