"""Populations: rounds, children, what is kept, and an interruption that changes nothing."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import one_thread, tiny  # noqa: F401
from velodrome.errors import ConfigError, RunLockedError
from velodrome.runs.checkpoint import latest_valid
from velodrome.runs.folder import RunFolder
from velodrome.runs.run import resume
from velodrome.tune.outcome import read_returns
from velodrome.tune.population import population as population_module
from velodrome.tune.population.population import FILE, Population
from velodrome.tune.promotion import evidence_of_population, overfitting_of, promote

SMALL = {"steps": 384, "checkpoint.every_steps": None}
SEARCH = ("ppo.learning_rate=1e-4:1e-1:log", "ppo.epochs=1:4")


def train(folder: Path, **options) -> Population:
    settings = {key: value for key, value in tiny(folder, **SMALL).items() if not key.startswith("evaluation.every")}
    given = {"members": 4, "rounds": 3, "search": SEARCH, "search_only": True, "mode": "quiet", "name": "four"}
    given |= {"evaluate": False, "processes": 1}
    return vd.train_population("smoke", **{**given, **options}, **settings)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Population:
    return train(tmp_path_factory.mktemp("population"), evaluate=True)


def weights(run):
    return latest_valid(run.path).tensors


def test_every_round_trains_all_members_to_its_end_and_the_worst_go_on_from_better_ones(trained):
    assert trained.status == "finished"
    assert [len(each) for each in trained.rounds] == [4, 4, 4]
    assert [run.status for run in trained.members] == ["finished"] * 4
    assert len({run.config.seed for run in trained.members}) == 4
    for before, after in zip(trained.rounds, trained.rounds[1:], strict=False):
        scores = [member.score for member in before]
        assert not any(map(math.isnan, scores))
        taken = {number: member.parent for number, member in enumerate(after) if member.parent is not None}
        assert len(taken) == 1  # a quarter of four
        ((worse, better),) = taken.items()
        assert scores[worse] == min(scores)
        assert scores[better] == max(scores)
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            if number not in taken:
                assert (old.run, old.settings) == (new.run, new.settings)
        rates = [own.settings["ppo.learning_rate"] for own in (before[better], after[worse])]
        assert 0.79 < rates[1] / rates[0] < 1.26
        child = vd.Run.open(trained.path / after[worse].run)
        (entry,) = child.folder.lineage
        assert entry["parent"] == vd.Run.open(trained.path / before[better].run).folder.id
        assert child.config.ppo.learning_rate == after[worse].settings["ppo.learning_rate"]


def test_schedules_are_those_of_the_whole_run(trained):
    steps = [run.metrics["step"].max() for run in trained.members]
    assert steps == [384] * 4
    assert all(run.config.steps == 384 for run in trained.members)


def test_the_best_is_tested_once_as_the_best_of_all(trained):
    best = max(trained.rounds[-1], key=lambda member: member.score)
    assert trained.best.path.name == best.run
    assert trained.evaluation is not None
    assert trained.evaluation.split == "test"
    about = json.loads(next((trained.best.path / "evaluation").glob("test*.json")).read_text())["information"]
    assert about["trials"]["count"] == 4
    assert (trained.best.path / "report.html").is_file()


def test_the_best_is_promoted_as_the_best_of_all(trained):
    """Chosen by the validation split among all members, it must not pass for the only one that was ever tried."""
    found = evidence_of_population(trained.best)
    assert found is not None
    assert found.trials.count == 4
    assert found.trials.variance == pytest.approx(np.var([one.per_bar for one in trained.rounds[-1]], ddof=1))
    returns = np.stack([read_returns(run.path) for run in trained.members], axis=1).astype(np.float64)
    assert found.overfitting.probability == overfitting_of(returns).probability
    verdict = promote(trained.best, root=trained.path)
    assert verdict.said[0] == "the best of a population: it is judged among the 4 members of the last round"


def test_it_says_what_it_is(trained):
    shown = trained.summary()
    assert "population of 4, round 3, finished" in repr(trained)
    assert len(shown.rows) == 12
    assert "ppo.learning_rate=" in shown.rows[0][2]


def test_one_that_was_interrupted_goes_on_to_the_same_result(trained, tmp_path, monkeypatch):
    calls = []

    def interrupted(run, **options):
        calls.append(run)
        if len(calls) == 7:  # in the second round, between its child and its end
            raise KeyboardInterrupt
        return resume(run, **options)

    with monkeypatch.context() as patched:
        patched.setattr(population_module, "resume", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    kept = json.loads((tmp_path / "four" / FILE).read_text())
    assert len(kept["done"]) == 2
    again = train(tmp_path)
    assert again.status == "finished"
    assert [[(m.settings, m.parent, m.score) for m in each] for each in again.rounds] == [
        [(m.settings, m.parent, m.score) for m in each] for each in trained.rounds
    ]
    ours, theirs = weights(again.best), weights(trained.best)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    once_more = train(tmp_path)  # nothing is left to do
    assert once_more.rounds == again.rounds


def test_two_processes_do_not_train_one_population_at_once(tmp_path, monkeypatch):
    """Another process has a lock of its own, as another file that is open here has."""

    def interrupted(run, **options):
        with pytest.raises(RunLockedError, match=r"^four: process \d+ on .* has been training this population since"):
            train(tmp_path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(population_module, "resume", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    assert RunFolder(tmp_path / "four", "four").is_locked() is False
    assert len(json.loads((tmp_path / "four" / FILE).read_text())["done"]) == 1


def test_a_finished_one_is_read_and_not_tested_again(trained, monkeypatch):
    monkeypatch.setattr(population_module, "evaluate_run", None)
    again = train(trained.path.parent, evaluate=True)
    assert again.evaluation is not None
    assert trained.evaluation is not None
    assert again.evaluation.metrics == trained.evaluation.metrics
    assert repr(again) == repr(trained)


def test_environments_without_a_market_have_populations_too(tmp_path):
    settings = {"env": "template", "steps": 512, "num_envs": 8, "ppo.rollout_length": 16, "network.hidden": (8,)}
    settings |= {"logging.folder": str(tmp_path), "evaluation.episodes": 8}
    options = {"members": 2, "rounds": 2, "search": ["ppo.learning_rate=1e-4:1e-1:log"], "mode": "quiet", "name": "two"}
    found = vd.train_population(settings, search_only=True, **options)
    assert found.score == "return"
    assert found.evaluation is not None
    again = vd.train_population(settings, search_only=True, **options)
    assert again.evaluation is not None
    assert again.evaluation.metrics == found.evaluation.metrics
    looks = list((found.best.path / "evaluation").glob("*.json"))
    assert len(looks) == 1


def test_members_in_processes_of_their_own_learn_the_same(trained, tmp_path):
    screen = Console(file=io.StringIO(), width=200)
    found = train(tmp_path, processes=2, rounds=1, mode="plain", console=screen)
    assert [member.settings for member in found.rounds[0]] == [member.settings for member in trained.rounds[0]]
    assert found.status == "finished"
    told = screen.file.getvalue()
    assert "round 1 of 1, to step 384" in told
    assert f"by {found.best.path.name}: ppo.learning_rate=" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 1}, "members = 1: a population has 2 to"),
        ({"members": "four"}, "members = 'four': needs a whole number"),
        ({"rounds": 2.5}, "rounds = 2.5: needs a whole number"),
        ({"processes": 0}, "processes = 0: needs a whole number"),
        ({"name": "a/b"}, "name = 'a/b': a population's folder"),
        ({"rounds": 7}, "384 steps can be divided into 1 to 6"),
        ({"search": ["network.activation=[tanh, relu]"]}, "network.activation cannot change while an agent learns"),
        ({"seeds": 2}, "seeds = 2: the members of a population are single agents"),
        ({"score": "luck"}, "score = 'luck'"),
        ({"evaluation.split": None}, "members are compared on that split"),
    ],
)
def test_what_no_population_can_be_made_of_is_refused(options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(tmp_path, **options)
    assert not (tmp_path / "four").exists()


def test_another_population_of_the_same_name_is_refused(trained):
    with pytest.raises(ConfigError, match="has another rounds"):
        train(trained.path.parent, rounds=2)


def test_a_sitting_that_stops_at_a_step_goes_on_to_the_same_bits(tmp_path):
    whole = vd.train("smoke", mode="quiet", evaluate=False, **tiny(tmp_path / "whole", steps=320))
    first = vd.train("smoke", mode="quiet", evaluate=False, **tiny(tmp_path / "parts", steps=320), until=128)
    assert (first.status, first.metrics["step"].max()) == ("interrupted", 128)
    then = vd.resume(first, mode="quiet", evaluate=False)
    assert then.status == "finished"
    ours, theirs = weights(then), weights(whole)
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
