"""A study as people and programs look at it: how far it is, what was best, what decided it, and why trials ended."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from velodrome.bars.summary import Summarised, Summary
from velodrome.errors import ConfigError
from velodrome.evaluation.measures import BY_NAME, format_figure, written
from velodrome.evaluation.result import Evaluation
from velodrome.runs.config.explain import value_text
from velodrome.runs.folder import INFORMATION
from velodrome.runs.trained import Run
from velodrome.tune.course import Course
from velodrome.tune.outcome import KEPT, PER_BAR
from velodrome.tune.search import importances
from velodrome.tune.study import Studies, Study, loaded
from velodrome.tune.trial import FAILED, PRUNED, Outcome, Trial
from velodrome.tune.verdict import folders_of

RECENT = 30  # trials by whose ends the pace is told


@dataclass(frozen=True, repr=False)
class StudyView(Summarised):
    """A study and its trials as they were at a moment."""

    study: Study
    course: Course
    folders: dict[str, str]  # names of the runs' folders by id
    root: Path  # folder of the runs

    @classmethod
    def of(cls, studies: Studies, study: Study, root: Path) -> StudyView:
        """Read a study with all its trials."""
        return cls(study, loaded(studies, study), dict(folders_of(studies.store, study)), root)

    # How far it is

    @property
    def trials(self) -> list[Trial]:
        """All trials that were begun, by number."""
        return self.course.trials

    @cached_property
    def counts(self) -> Counter[str]:
        """How many trials there are by status."""
        return Counter(trial.status for trial in self.trials)

    @property
    def over(self) -> int:
        """How many trials are."""
        return sum(trial.is_over for trial in self.trials)

    @property
    def trainings(self) -> int:
        """How many trainings have ended."""
        return sum(len(trial.outcomes) for trial in self.trials)

    @property
    def kept(self) -> int:
        """How many trainings learnt nothing better than what they had been taught."""
        return sum(KEPT in one.figures for trial in self.trials for one in trial.outcomes.values())

    @property
    def phase(self) -> str:
        """What is being done, in words."""
        if self.study.status != "running":
            return self.study.status
        if not self.course.is_searched(self.study.trials):
            return "searching"
        return "testing the winner" if self.course.is_confirmed else "making sure of the best with fresh seeds"

    @property
    def per_hour(self) -> float:
        """Trials that end in an hour, by the last ones; NaN if that is too early to say."""
        ends = sorted(trial.updated for trial in self.trials if trial.is_over)[-RECENT:]
        begun = min((trial.created for trial in self.trials), default=0.0)
        first = ends[0] if len(ends) == RECENT else begun
        count = len(ends) - 1 if len(ends) == RECENT else len(ends)
        return 3600.0 * count / (ends[-1] - first) if count > 1 and ends[-1] > first else math.nan

    @property
    def seconds_left(self) -> float:
        """About so long it takes at that pace, to the winner's test; NaN if that cannot be said."""
        settings, over = self.course.settings, self.over
        if not over or not math.isfinite(self.per_hour):
            return math.nan
        steps = range(settings.steps)
        each = sum(sum(step in trial.outcomes for step in steps) for trial in self.trials if trial.is_over) / over
        again = [len(self.course.due_again(trial)) for trial in self.course.candidates] if not self._left else []
        fresh = (
            sum(again) if not self._left else min(settings.confirm + 1, self.study.trials) * len(settings.fresh_steps)
        )
        fresh += settings.final_seeds if settings.test and self.evaluation is None else 0
        return 3600.0 * (self._left + fresh / max(each, 1.0)) / self.per_hour

    @property
    def _left(self) -> int:
        return max(self.study.trials - self.over, 0)

    # What was found

    @property
    def best(self) -> Trial | None:
        """The best complete trial so far."""
        return self.course.best

    @property
    def winner(self) -> Trial | None:
        """The trial that held with fresh seeds, once that is known."""
        return self.course.winner if self.course.is_searched(self.study.trials) else None

    @property
    def preset(self) -> Trial | None:
        """The first trial, which is the configuration as it was given."""
        return self.trials[0] if self.trials else None

    @cached_property
    def importances(self) -> dict[str, float]:
        """How much each field decided, as shares; empty where trials are too few to say."""
        return importances(self.course.space, self.trials)

    @property
    def final(self) -> Outcome | None:
        """What the winner, trained anew, came to on the test split."""
        winner = self.winner
        return None if winner is None else winner.outcomes.get(self.course.settings.final_step)

    @property
    def winning_run(self) -> Run | None:
        """The run of the winner, trained anew with fresh seeds; without a test, its first training."""
        winner = self.winner
        if winner is None:
            return None
        found = self.final or winner.outcomes.get(self.course.settings.fresh_steps.start)
        folder = None if found is None else self.folders.get(found.run)
        there = folder is not None and (self.root / folder / INFORMATION).is_file()
        return Run.open(self.root / str(folder)) if there else None

    @cached_property
    def evaluation(self) -> Evaluation | None:
        """The winner's evaluation on the test split; None before it, or if its folder is gone."""
        run, final = self.winning_run, self.final
        if run is None or final is None or not final.is_good or self.study.told.test is False:
            return None
        try:
            return Evaluation.load(run.path, run.config.evaluation.final_split or "episodes")
        except ConfigError:
            return None

    @property
    def config(self) -> dict[str, Any]:
        """What the winner has that the configuration had not: settings for `vd.train`."""
        chosen = self.winner or self.best
        return {} if chosen is None else dict(chosen.params)

    # As text

    @cached_property
    def _unit(self) -> Any:
        scored = next((one for trial in self.trials for one in trial.outcomes.values() if one.is_good), None)
        name = self.course.settings.score
        return BY_NAME[name].unit if scored is not None and PER_BAR in scored.figures and name in BY_NAME else "number"

    def score(self, value: float) -> str:
        """Return a score for people."""
        return format_figure(value, self._unit)

    def summary(self) -> Summary:
        """Return what is shown of it in a line, and in a notebook."""
        counts = ", ".join(f"{self.counts[status]} {status}" for status in (PRUNED, FAILED) if self.counts[status])
        line = f"Study {self.study.name}: {self.phase}, {self.over} of {self.study.trials} trials"
        line += f" ({counts})" if counts else ""
        if self.best is not None:
            line += f", best {self.course.settings.score} {self.score(self.best.value)} (trial {self.best.number})"
        ranked = sorted(self.trials, key=lambda trial: (not math.isfinite(trial.value), -trial.value))
        rows = tuple((str(one.number), one.status, self.score(one.value), told_params(one)) for one in ranked)
        return Summary(line, ("trial", "status", self.course.settings.score, "settings"), rows)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""

        def number(value: float) -> float | None:
            return value if math.isfinite(value) else None

        def told(trial: Trial) -> dict[str, Any]:
            outcomes = [
                {"step": step, **asdict(one), "value": number(one.value)}
                for step, one in sorted(trial.outcomes.items())
            ]
            about = {"number": trial.number, "status": trial.status, "value": number(trial.value)}
            about |= {
                "reason": trial.reason,
                "params": trial.params,
                "created": trial.created,
                "updated": trial.updated,
            }
            return {**about, "outcomes": outcomes}

        best, winner, study = self.best, self.winner, self.study
        found: dict[str, Any] = {
            "id": study.id,
            "name": study.name,
            "owner": study.owner,
            "status": study.status,
            "phase": self.phase,
            "score": self.course.settings.score,
            "settings": study.settings,
            "space": {one.key: one.told() for one in self.course.space},
            "data_hash": study.data_hash,
            "wanted": study.trials,
            "over": self.over,
            "counts": dict(self.counts),
            "trials_per_hour": number(self.per_hour),
            "seconds_left": number(self.seconds_left) if study.status == "running" else None,
            "best": None if best is None else best.number,
            "winner": None if winner is None else winner.number,
            "winner_mean": None if winner is None else number(self.course.winner_mean),
            "winning_run": None if self.winning_run is None else str(self.winning_run.path),
            "importances": self.importances,
            "created": study.created,
        }
        if self.evaluation is not None:
            about = self.evaluation.information
            figures = {name: written(value) for name, value in self.evaluation.metrics.items()}
            found["test"] = {"figures": figures, "study": about.get("study"), "look": about.get("look")}
        return {**found, "trials": [told(trial) for trial in self.trials]}

    def to_json(self) -> str:
        """Return `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False)


def told_params(trial: Trial) -> str:
    """Return what a trial tries, as a person writes it."""
    return " ".join(f"{key}={shortened(value)}" for key, value in trial.params.items())


def shortened(value: Any) -> str:
    """Return a value in as many digits as are worth reading."""
    return f"{value:.3g}" if isinstance(value, float) else value_text(value).replace(" ", "")


def age_of(study: Study) -> float:
    """Return the seconds since a study began."""
    return max(0.0, time.time() - study.created)
