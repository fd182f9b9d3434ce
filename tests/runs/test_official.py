"""The official evaluation of a run, through the entry of its environment."""

from __future__ import annotations

import json

import pytest

import velodrome as vd
from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import ConstantPolicy
from velodrome.evaluation.cage2.official import LENGTHS, RED_AGENTS, SIMPLE, play_official
from velodrome.runs.config.files import load_run_config
from velodrome.runs.official import official_evaluation

SMALL = {"steps": 2048, "num_envs": 16, "device": "cpu", "ppo.rollout_length": 16, "network.hidden": [8],
         "evaluation.every_steps": None}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return vd.train("cage2", mode="quiet", evaluate=False, **SMALL, **{"logging.folder": str(folder)})


def test_the_table_has_every_length_and_red_agent(run):
    told = []
    found = official_evaluation(run, episodes=40, progress=lambda *now: told.append(now))
    scores = found.result
    assert len(scores.scores) == (1 + len(SIMPLE)) * len(LENGTHS) * len(RED_AGENTS) == told[-1][1]
    assert {score.episodes for score in scores.scores} == {40}
    assert all(score.low <= score.mean <= score.high for score in scores.scores)
    # Nothing attacks and nothing is done: nothing is lost.
    assert [scores.of("sleep", "sleep", length).mean for length in LENGTHS] == [0.0] * 3
    assert scores.of("sleep", "b_line", 100).mean == pytest.approx(-1134.5, abs=15)
    assert scores.rule["impact_repeats"] is False
    kept = json.loads((run.folder.evaluation_path / "official-best-2048.json").read_text())
    assert kept == json.loads(found.to_json())
    assert kept["policy"]["agents"][0]["step"] == 2048
    assert kept["scores"][0]["mean"] == scores.scores[0].mean
    assert kept["published"]


def test_the_table_is_for_people(run):
    from rich.console import Console

    out = Console(record=True, width=200)
    out.print(official_evaluation(run, episodes=10, baselines=False).table())
    text = out.export_text()
    assert all(word in text for word in ("b_line", "meander", "CardiffUni", "-3.47", "impact_repeats = False", "±"))
    assert "policy: latest checkpoint (no best one is kept): step 2,048 of 2,048; one training seed (0)" in text


def test_what_cannot_be_scored_is_refused(run, tmp_path):
    other = vd.train({"env": "template", "logging.folder": str(tmp_path), **SMALL}, mode="quiet", evaluate=False)
    with pytest.raises(
        ConfigError,
        match=r"of 'template', which has no official evaluation; those that have one: cage2\. Leave --official",
    ):
        official_evaluation(other)
    with pytest.raises(ConfigError, match="an interval needs at least 2"):
        official_evaluation(run, episodes=1)


@pytest.mark.parametrize("given", [{"split": "foo"}, {"allow_training_split": True}])
def test_what_plays_episodes_has_no_splits(run, given):
    with pytest.raises(ConfigError, match="env = 'cage2' plays episodes and has no splits"):
        vd.evaluate(run, report=False, **given)


def test_training_seeds_are_scored_one_by_one_and_by_their_mean(run):
    found = play_official([run.policy, ConstantPolicy(0)], "agent", run.config.params, 10, baselines=False)
    scores = {(score.policy, score.red_agent, score.length): score for score in found.scores}
    names = {"agent", "agent, training 1 of 2", "agent, training 2 of 2"}
    assert {name for name, *_ in scores} == names
    assert len(scores) == len(names) * len(LENGTHS) * len(RED_AGENTS)
    mean, *each = (scores[name, "meander", 50] for name in sorted(names))
    assert mean.mean == pytest.approx((each[0].mean + each[1].mean) / 2)
    widths = [one.high - one.low for one in (mean, *each)]
    assert 0.0 < widths[0] <= (widths[1] + widths[2]) / 2  # as wide if both agents had the same luck in each episode
    assert [one.episodes for one in (mean, *each)] == [20, 10, 10]


def test_a_training_ends_with_it_if_it_is_told_to(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("velodrome.evaluation.cage2.official.EPISODES", 10)
    told = {"evaluation.official": True, "logging.folder": str(tmp_path)}
    run = vd.train("cage2", mode="plain", **{**SMALL, **told})
    shown = capsys.readouterr().out
    assert shown.index("report: ") < shown.index("CAGE-2, mean return of 10 episodes") < shown.index("CardiffUni")
    assert (run.folder.evaluation_path / "official-best-2048.json").is_file()


def test_it_is_not_promised_where_there_is_none():
    with pytest.raises(ConfigError, match=r"has no evaluation of its own; those that have one: cage2\. Leave eval"):
        load_run_config("demo", {"evaluation.official": True})
