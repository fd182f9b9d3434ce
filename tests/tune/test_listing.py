"""What is shown of a study's winner: what it comes to with seeds that did not choose it."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from tests.tune.planted import SPACE, START, Landscape
from velodrome.runs.config.files import load_run_config
from velodrome.tune.course import simulate
from velodrome.tune.listing import facts_of, winner_lines
from velodrome.tune.study import Study
from velodrome.tune.trial import StudySettings
from velodrome.tune.view import StudyView

TRIALS = 12


@pytest.fixture(scope="module")
def view(tmp_path_factory) -> StudyView:
    """A study in which luck decided between the candidates."""
    settings = StudySettings(sampler="tpe", startup=TRIALS, pruning=False, test=False)
    course, _ = simulate(SPACE, settings, START, TRIALS, Landscape(5, noise=2.0))
    searched = {"dimensions": [one.content() for one in SPACE], "needs": {}}
    config = load_run_config("smoke").content()
    study = Study("abcd1234", "shown", "me", config, searched, settings.model_dump(), "data", TRIALS, 1.0, 1.0)
    return StudyView(study, course, {}, tmp_path_factory.mktemp("shown"))


def test_the_winner_is_reported_by_seeds_that_did_not_choose_it(view):
    course = view.course
    reported, own = course.winner_mean, course.fresh_mean(course.winner)
    assert reported < own
    out = StringIO()
    for line in winner_lines(view):
        Console(file=out, width=200).print(line)
    first = out.getvalue().splitlines()[0]
    as_configured = view.score(course.fresh_mean(course.trials[0]))
    assert f"sharpe {view.score(reported)} with fresh seeds, as configured {as_configured}" in first
    assert f"itself has {view.score(own)} with them, and they helped to choose it" in out.getvalue()
    assert f"{view.score(reported)} with fresh seeds" in facts_of(view)["Winner"]
    assert view.to_dict()["winner_mean"] == reported
