"""Studies: how far they are, all trials by column, what decided, score against cost, and the winner's test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from velodrome.dashboard.answers import Asked, Encoded, Question, Routes, encoded, tag_of
from velodrome.dashboard.api.promotion import Promotion
from velodrome.dashboard.site import Site
from velodrome.runs.store.schema import tables
from velodrome.tune.outcome import SECONDS
from velodrome.tune.study import Study
from velodrome.tune.trial import COMPLETE

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from velodrome.tune.trial import Outcome, Trial
    from velodrome.tune.view import StudyView

routes = Routes()
LINE_SECONDS = 2.0  # for which a line of a study with new trials may be old


class Seen:
    """A study as it was at a moment, and what was made of it since: pages ask again and again for the same."""

    def __init__(self, view: StudyView) -> None:
        self.view = view

    @cached_property
    def line(self) -> dict[str, Any]:
        """The study as lists show it."""
        return _line(self.view)

    @cached_property
    def page(self) -> bytes:
        """What the page of the study shows."""
        return encoded(_page(self.view))

    @cached_property
    def columns(self) -> Encoded:
        """All trials."""
        body = by_parts(_columns(self.view))
        return Encoded(body, tag_of(body))


def seen(site: Site, study: Study) -> Seen:
    """Return a study with all its trials; it is read again when they changed."""
    from velodrome.tune.view import StudyView

    mark = site.unchanged(("mark", study.id), lambda: site.store.read(lambda connection: study_mark(connection, study)))
    # Thousands of trials take a while: while they come, what is shown may be a little old.
    age = LINE_SECONDS if study.trials > 200 else 0.0
    return site.held(("study", study.id), mark, lambda: Seen(StudyView.of(site.studies, study, site.folder)), age)


def study_mark(connection: Connection, study: Study) -> tuple[Any, ...]:
    """Return something that changes when a trial of a study does."""
    from sqlalchemy import func, select

    trials, outcomes = tables().trials, tables().outcomes
    own = select(func.count(), func.max(trials.c.updated), func.count(trials.c.value)).where(trials.c.study == study.id)
    ended = select(func.count()).where(outcomes.c.study == study.id)
    return (study.status, study.updated, *connection.execute(own).one(), connection.execute(ended).scalar())


def line(site: Site, study: Study) -> dict[str, Any]:
    """Return a study as lists show it."""
    return seen(site, study).line


def _line(view: StudyView) -> dict[str, Any]:
    study, best = view.study, view.best
    running = study.status == "running"
    about = {name: getattr(study, name) for name in ("id", "name", "owner", "status", "created", "updated")}
    return {
        **about,
        "phase": view.phase,
        "score": view.course.settings.score,
        "wanted": study.trials,
        "over": view.over,
        "counts": dict(view.counts),
        "trials_per_hour": view.per_hour,
        "seconds_left": view.seconds_left if running else None,
        "best": None if best is None else {"number": best.number, "value": best.value, "text": view.score(best.value)},
    }


@routes.get("/api/studies")
def studies(site: Site, question: Question[Asked]) -> Any:
    """List studies, newest first."""
    return {"studies": [line(site, study) for study in site.known_studies()]}


@routes.get("/api/studies/{name}")
def show(site: Site, question: Question[Asked]) -> Any:
    """Show a study: how far it is, what was best, what decided it, and the winner."""
    return Encoded(seen(site, site.study(question.path["name"])).page)


def _page(view: StudyView) -> dict[str, Any]:
    from velodrome.tune.listing import facts_of

    winner, preset, course = view.winner, view.preset, view.course
    run = view.winning_run
    trials = [_about(view, trial) for trial in view.trials]
    return {
        **_line(view),
        "space": [_dimension(one) for one in course.space],
        "settings": view.study.settings,
        "data_hash": view.study.data_hash,
        "importances": view.importances,
        "winner": None if winner is None else _chosen(view, winner, course.winner_mean),
        "winning_run": None if run is None else run.folder.id,
        "preset": None if preset is None else _chosen(view, preset, course.fresh_mean(preset)),
        "test": _test(view),
        "facts": [[name, text] for name, text in facts_of(view).items()],
        "history": _history(view),
        "pareto": pareto(trials),
        "can_promote": run is not None and view.study.status == "finished",
    }


def _dimension(one: Any) -> dict[str, Any]:
    kind = "choice" if one.choices else "int" if one.whole else "float"
    ends = {"low": None, "high": None} if one.choices else {"low": one.low, "high": one.high}
    choices = list(one.choices) if one.choices else None
    return {"key": one.key, "kind": kind, **ends, "log": one.log, "choices": choices, "text": one.told()}


def _chosen(view: StudyView, trial: Trial, fresh: float) -> dict[str, Any]:
    from velodrome.tune.view import told_params

    texts = {"text": view.score(trial.value), "fresh_text": view.score(fresh), "settings": told_params(trial)}
    return {"number": trial.number, "value": trial.value, "fresh": fresh, **texts, "params": trial.params}


def _test(view: StudyView) -> dict[str, Any] | None:
    """Return the winner's one look at the test split, with what speaks against trusting it."""
    from velodrome.dashboard.api.evaluations import figures

    found = view.evaluation
    if found is None:
        return None
    rows = figures(found)
    study = found.information.get("study") or {}
    overfitting = study.get("overfitting") or {}
    return {
        "rows": rows,
        "figures": {row["name"]: row["value"] for row in rows},
        "texts": {row["name"]: row["text"] for row in rows},
        "deflated_sharpe": next((row["value"] for row in rows if row["name"] == "deflated_sharpe"), None),
        "pbo": overfitting.get("probability"),
        "notes": [*study.get("notes", ()), *found.notes],
        "warnings": list(found.warnings),
        "look": found.information.get("look"),
        "summary": found.summary().line,
    }


def _history(view: StudyView) -> dict[str, Any]:
    """Return the scores of trials by number, and the best so far among those that are complete."""
    known = [trial for trial in view.trials if math.isfinite(trial.value)]
    values = [trial.value if trial.status == COMPLETE else -math.inf for trial in known]
    best = list(itertools.accumulate(values, max))
    return {
        "number": [trial.number for trial in known],
        "value": [trial.value for trial in known],
        "status": [trial.status for trial in known],
        "best": [value if math.isfinite(value) else None for value in best],
    }


def _about(view: StudyView, trial: Trial) -> dict[str, Any]:
    """Return what a trial cost and came to."""
    cost = sum(float(one.figures.get(SECONDS) or 0.0) for one in _searched(view, trial))
    # Studies of older versions do not say what a training took; then the trial's own time stands for it.
    cost = cost or (max(trial.updated - trial.created, 0.0) if trial.is_over else math.nan)
    return {"number": trial.number, "value": trial.value, "cost": cost, "complete": trial.status == COMPLETE}


def _searched(view: StudyView, trial: Trial) -> list[Outcome]:
    """Return what the trainings came to that a trial's score is made of: no fresh seeds, and no test of the winner."""
    return [trial.outcomes[step] for step in range(view.course.settings.steps) if step in trial.outcomes]


def pareto(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return score against cost, and which trials nobody beats in both."""
    known = [one for one in trials if one["complete"] and math.isfinite(one["value"]) and math.isfinite(one["cost"])]
    known.sort(key=lambda one: (one["cost"], -one["value"]))
    best = np.maximum.accumulate([-math.inf, *(one["value"] for one in known)])
    front = [bool(one["value"] > before) for one, before in zip(known, best.tolist(), strict=False)]
    return {**{name: [one[name] for one in known] for name in ("cost", "value", "number")}, "front": front}


@routes.get("/api/studies/{name}/trials")
def trials(site: Site, question: Question[Asked]) -> Any:
    """Return all trials of a study by column."""
    return seen(site, site.study(question.path["name"])).columns


def _columns(view: StudyView) -> dict[str, Any]:
    every, course = view.trials, view.course
    about = [_about(view, trial) for trial in every]
    keys = list(dict.fromkeys(key for trial in every for key in trial.params))
    searched = [_searched(view, trial) for trial in every]
    names = sorted({name for some in searched for one in some for name in one.figures} - {SECONDS})
    means = {name: [_mean(some, name) for some in searched] for name in names}
    return {
        "total": len(every),
        "number": [trial.number for trial in every],
        "status": [trial.status for trial in every],
        "value": [trial.value for trial in every],
        "text": [view.score(trial.value) for trial in every],
        "fresh": [course.fresh_mean(trial) for trial in every],
        "cost": [one["cost"] for one in about],
        "seeds": [len(some) for some in searched],
        "reason": [trial.reason for trial in every],
        "created": [trial.created for trial in every],
        "updated": [trial.updated for trial in every],
        "runs": [[one.run for one in trial.outcomes.values() if one.run] for trial in every],
        "params": {key: [trial.params.get(key) for trial in every] for key in keys},
        "figures": means,
    }


def by_parts(content: Mapping[str, Any]) -> bytes:
    """Return columns as JSON, one after the other: a million values at once would take hundreds of megabytes."""
    parts = [
        encoded(name) + b":" + (by_parts(value) if isinstance(value, dict) else encoded(value))
        for name, value in content.items()
    ]
    return b"{" + b",".join(parts) + b"}"


def _mean(outcomes: Sequence[Outcome], name: str) -> float | None:
    """Return the mean of a figure over those trainings that have it."""
    known = [one.figures.get(name) for one in outcomes]
    numbers = [float(value) for value in known if isinstance(value, int | float) and math.isfinite(value)]
    return math.fsum(numbers) / len(numbers) if numbers else None


@routes.post("/api/studies/{name}/promote", Promotion, status=202)
def promote(site: Site, question: Question[Promotion]) -> Any:
    """Make the winner of a study the champion if it passes every check; a task that takes a while."""
    study = site.study(question.path["name"])
    return site.tasks.promote(question.asked.name, question.asked.margin, study=study.name).content()
