"""CAGE-2's own evaluation of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest

import velodrome as vd
from velodrome.errors import ConfigError
from velodrome.evaluation.cage2.policies import POLICIES, simple_policy
from velodrome.runs.official import LENGTHS, RED_AGENTS, official_evaluation, play_official

SMALL = {"steps": 2048, "num_envs": 16, "device": "cpu", "ppo.rollout_length": 16, "network.hidden": [8],
         "evaluation.every_steps": None}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return vd.train("cage2", mode="quiet", evaluate=False, **SMALL, **{"logging.folder": str(folder)})


def test_the_table_has_every_length_and_red_agent(run):
    told = []
    scores = official_evaluation(run, episodes=40, progress=lambda *now: told.append(now))
    assert len(scores.scores) == (1 + len(POLICIES)) * len(LENGTHS) * len(RED_AGENTS) == told[-1][1]
    assert {score.episodes for score in scores.scores} == {40}
    assert all(score.low <= score.mean <= score.high for score in scores.scores)
    # Nothing attacks and nothing is done: nothing is lost.
    assert [scores.of("sleep", "sleep", length).mean for length in LENGTHS] == [0.0] * 3
    assert scores.of("sleep", "b_line", 100).mean == pytest.approx(-1134.5, abs=15)
    assert scores.rule["impact_repeats"] is False
    kept = json.loads((run.folder.evaluation_path / "official.json").read_text())
    assert kept["scores"][0]["mean"] == scores.scores[0].mean
    assert kept["published"]


def test_the_table_is_for_people(run):
    from rich.console import Console

    out = Console(record=True, width=200)
    out.print(official_evaluation(run, episodes=10, baselines=False).table())
    text = out.export_text()
    assert all(word in text for word in ("b_line", "meander", "CardiffUni", "-3.47", "impact_repeats = False", "±"))


def test_an_agent_of_the_reduced_set_is_scored_beside_policies_of_the_full_one():
    params = {"action_set": "reduced", "scan_memory": True, "decoy_memory": True}
    scores = play_official(simple_policy("sleep"), "restores a host for ever", params, episodes=20)
    assert scores.rule["action_set"] == "reduced"
    assert scores.of("restores a host for ever", "sleep", 30).mean == -30.0  # its first action is Restore
    assert scores.of("sleep", "sleep", 30).mean == 0.0


def test_what_cannot_be_scored_is_refused(run, tmp_path):
    other = vd.train({"env": "template", "logging.folder": str(tmp_path), **SMALL}, mode="quiet", evaluate=False)
    with pytest.raises(ConfigError, match=r"the official evaluation is CAGE-2's, and this run is of 'template'"):
        official_evaluation(other)
    with pytest.raises(ConfigError, match="an interval needs at least 2"):
        official_evaluation(run, episodes=1)
    with pytest.raises(ConfigError, match="Did you mean 'react_remove'"):
        simple_policy("react_remov")


def test_policies_react_to_the_first_host_that_is_shown():
    bits = np.zeros((6, 13, 4), np.float32)
    bits[1, 8, 3] = 1  # Red's foothold is left alone
    bits[2, 5, 3] = bits[2, 9, 2] = 1  # user session on Op_Host1
    bits[3, 5, 2] = bits[3, 5, 3] = 1  # privileged
    bits[4, 5, 2] = bits[5, 5, 2] = 1  # unknown
    flat = bits.reshape(6, 52)
    assert simple_policy("react_restore").act(flat).tolist() == [0, 0, 137, 137, 137, 137]
    policy = simple_policy("react_remove")
    policy.begin(6)
    assert policy.act({"account": flat}).tolist() == [0, 0, 20, 137, 137, 137]
    policy.forget(np.array([False] * 5 + [True]))
    assert policy.act(flat).tolist() == [0, 0, 20, 137, 7, 137]
