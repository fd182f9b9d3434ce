"""Trainings of every kind of contender, kept in the file, and their means."""

from __future__ import annotations

import json

import pytest

from velodrome.bench.generalise import benchmark, trainings
from velodrome.bench.generalise.benchmark import GeneraliseBenchmark, GeneraliseOptions, beside_members, cells_of
from velodrome.bench.generalise.trainings import (
    ENSEMBLE,
    LOGISTIC,
    PROBLEMS,
    REGRESSIONS,
    REMEDIES,
    RIDGE,
    SB3,
    Point,
    Trained,
    Training,
    train,
)
from velodrome.bench.run import run_benchmark
from velodrome.cli.shared import split_words
from velodrome.errors import ConfigError
from velodrome.runs.config.files import load_run_config

SMALL = Training("ar1", 2_000, 8, "defaults", 0, 0, 16_384)


def trained(contender, market, seed, shares):
    points = [Point(steps=k, in_sample=1.0, validation=share, out_of_sample=share) for k, share in enumerate(shares)]
    about = {"problem": "ar1", "bars": 2_000, "windows": 8, "contender": contender}
    return Trained(**about, market_seed=market, seed=seed, points=points, seconds=1.0)


def test_means_are_over_markets_and_the_checkpoint_is_the_one_that_validation_chose():
    (cell,) = cells_of([trained("defaults", market, 0, (0.2, 0.5 + 0.1 * market, 0.1)) for market in (0, 1)])
    assert cell.out_of_sample == pytest.approx(0.55)
    assert cell.error == pytest.approx(0.05)
    assert (cell.latest, cell.best) == (pytest.approx(0.1), pytest.approx(0.55))
    assert (cell.taught, cell.members, cell.ahead) == (pytest.approx(0.2), None, None)


def test_ensembles_are_ahead_of_their_own_members_or_behind_by_more_than_chance():
    def ensembles(*ahead):
        each = [trained(ENSEMBLE, market, 0, (0.5 + own,)) for market, own in enumerate(ahead)]
        alone = [Point(steps=9, in_sample=1.0, validation=1.0, out_of_sample=share) for share in (0.4, 0.6)]
        return cells_of([one.model_copy(update={"members": alone}) for one in each])

    (tie,), (behind,), (one,) = ensembles(-0.003, 0.001), ensembles(-0.02, -0.021), ensembles(0.01)
    assert (tie.ahead, tie.ahead_error) == (pytest.approx(-0.001), pytest.approx(0.002))
    said = beside_members([tie, behind, one])
    assert "in 1 of 3 kinds" in said
    assert "−0.0205 at worst; behind by more than two standard errors over markets in 1 of 2" in said
    assert "standard errors" not in beside_members([one])  # one market says nothing about chance


def test_a_regression_needs_no_steps_and_finds_nearly_all_there_is():
    (point,) = train(SMALL._replace(contender=RIDGE, bars=10_000, steps=0)).points
    assert 0.8 < point.out_of_sample < 1.25
    assert 0.8 < point.in_sample < 1.25


@pytest.mark.parametrize("contender", ["defaults", pytest.param(SB3, marks=pytest.mark.slow)])
def test_an_agent_is_judged_along_its_training(contender):
    if contender == SB3:
        pytest.importorskip("stable_baselines3")
    found = train(SMALL._replace(contender=contender, problem="ar1-with-costs"))
    assert [point.steps for point in found.points] == sorted({point.steps for point in found.points})
    judged = [point.validation for point in found.points]
    taught = found.points[0].steps == 0
    assert taught == (contender == "defaults")
    early = found.averaged - 1 if taught else 0  # what was taught counts as if it had been there all along
    judged = judged[:1] * early + judged
    count = min(found.averaged, len(judged))
    means = [sum(judged[k : k + count]) for k in range(len(judged) - count + 1)]
    best = means.index(max(means)) + count - 1 - early
    assert (found.kept is not None) == taught
    assert found.model_copy(update={"kept": 1}).chosen is found.points[1]
    # As in files of before there was a margin, and for peers.
    assert found.model_copy(update={"kept": None}).chosen is found.points[best]


def test_an_ensemble_is_judged_beside_its_members(monkeypatch):
    monkeypatch.setattr(trainings, "MEMBERS", 2)
    found = train(SMALL._replace(contender=ENSEMBLE, steps=8_192))
    assert len(found.points) == 1
    assert len(found.members) == 2
    (cell,) = cells_of([found])
    assert cell.members == pytest.approx(sum(point.out_of_sample for point in found.members) / 2)


@pytest.mark.parametrize("contender", REMEDIES)
def test_every_remedy_is_a_legal_configuration(contender):
    assert load_run_config("trading", REMEDIES[contender])


def test_names_can_be_given_on_a_command_line_and_are_in_its_help():
    from velodrome.cli.measuring import bench_generalise

    told = " ".join(bench_generalise.__doc__.split())
    for name in (*PROBLEMS, *REMEDIES):
        assert split_words([name]) == (name,)
        assert name in told


def test_portfolios_are_not_asked_what_they_cannot_do():
    asked = [name for name in (*REMEDIES, *REGRESSIONS) if not trainings.can_be_asked("factors", name)]
    assert asked == ["before", "other-histories", "other-histories-whole-windows", LOGISTIC]
    for name in REMEDIES:
        if trainings.can_be_asked("factors", name):
            training = Training("factors", 2_000, 8, name, 0, 0, 0)
            assert load_run_config(None, trainings.settings_of(training, PROBLEMS["factors"]), own_data=True)


def test_what_is_in_the_file_is_not_trained_again(tmp_path, monkeypatch, capsys):
    options = {"problems": ("ar1",), "bars": (2_000,), "windows": (8,), "markets": 1, "seeds": 1, "against": ("none",)}
    path = tmp_path / "found.json"
    asked = GeneraliseOptions(**options, json_path=path, steps=8_192)
    first = GeneraliseBenchmark(asked)
    kept = {one.name: trained(one.contender, 0, 0, (0.3,)) for one in first.trainings()}
    assert [one.contender for one in first.trainings()] == [*REGRESSIONS, "defaults"]
    first.report.trained = kept
    first.report.write(path)
    monkeypatch.setattr(benchmark, "train", None)
    found = run_benchmark(GeneraliseBenchmark(asked))
    assert found.trained == kept
    assert "share of the best log return" in capsys.readouterr().err
    assert json.loads(path.read_text())["facts"]["cells"][0]["out_of_sample"] == 0.3
    path.write_text("{")
    with pytest.raises(ConfigError, match="name another file"):
        GeneraliseBenchmark(asked)


def test_options_without_meaning_are_refused():
    for wrong, said in (
        ({"problems": ("ar2",)}, "Did you mean 'ar1'|there is no 'ar2'"),
        ({"contenders": ("default",)}, "there is no 'default'"),
        ({"bars": (10,)}, "at least 1,000"),
        ({"seconds": 1.0}, "no speed is measured"),
    ):
        with pytest.raises(ValueError, match=said):
            GeneraliseOptions(**wrong)
    assert GeneraliseOptions(contenders=("all",)).contenders == tuple(REMEDIES)
    assert set(GeneraliseOptions().problems) == set(PROBLEMS)
