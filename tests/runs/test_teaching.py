"""Runs whose policy begins as the rule of the forecaster: what a run says, keeps and chooses from, and its bits."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import assert_equal_runs, checkpoint_names, rows, small_run, tiny
from tests.runs.test_resume import interrupted_run
from velodrome.errors import ConfigError
from velodrome.evaluation.forecast import teaching
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config
from velodrome.runs.together.group import session_of
from velodrome.runs.trained import Run, as_member

TAUGHT = {
    "teacher.policy": "forecast",
    "teacher.samples": 1024,
    "teacher.epochs": 2,
    "teacher.hold": "auto",
    "ppo.critic_first": 128,
    "ppo.average_weights": True,
    "teacher.bars": "half",
    "evaluation.averaged": 2,
    "evaluation.margin": 0.5,
}


def test_the_rule_itself_is_a_candidate(tmp_path):
    screen = Console(file=io.StringIO(), width=200)
    run = vd.train("smoke", mode="plain", console=screen, evaluate=False, **tiny(tmp_path, **TAUGHT))
    shown = screen.file.getvalue()
    assert "The policy begins as a forecaster's rule (teacher.policy): " in shown
    assert "After every update it goes 10.0% of the way back to it (teacher.hold)." in shown
    told = {(step, name): value for step, name, value in rows(run)}
    assert (0, "evaluation/validation/return") in told
    assert sum(pinned for _, pinned in checkpoint_names(run)) == 1
    _, named = run.one_policy("best")
    assert named.agents[0].candidates == 1 + 3
    # The critic alone learns at first, so that the same policy is validated again.
    means = run.load_policy("latest").network.state_dict()
    assert any(not value.equal(latest_weights(run)[name]) for name, value in means.items())


def test_a_lesson_is_no_part_of_the_first_iteration(tmp_path, monkeypatch):
    teach = setup.teach

    def slowly(*arguments):
        time.sleep(1.0)
        return teach(*arguments)

    monkeypatch.setattr(setup, "teach", slowly)
    run = small_run(tmp_path)
    found = run.metrics.filter((run.metrics["step"] == 64) & (run.metrics["name"] == "time/other"))
    assert found["value"].item() < 0.9


def test_without_validations_nothing_is_chosen_and_the_latest_policy_is_judged(tmp_path):
    run = small_run(tmp_path, **TAUGHT, **{"evaluation.every_steps": None})
    assert not any(pinned for _, pinned in checkpoint_names(run))
    _, named = run.one_policy("best")
    assert named.agents[0].step == named.agents[0].training_steps > 0


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({"ppo.critic_first": 320}, True),
        ({"ppo.critic_first": 319}, False),
        ({"algorithm": "dqn", "dqn.learning_starts": 321}, True),
        ({"algorithm": "dqn", "dqn.learning_starts": 320}, False),
    ],
)
def test_a_policy_that_is_never_allowed_to_learn_is_told_of(tmp_path, settings, is_told):
    screen = Console(file=io.StringIO(), width=400)
    vd.train("smoke", mode="plain", console=screen, evaluate=False, **tiny(tmp_path, steps=320, **settings))
    assert ("warning: the policy learns nothing in this run." in screen.file.getvalue()) is is_told


def latest_weights(run):
    """Return the weights that learning goes on from."""
    found = run.find_checkpoint("latest").tensors
    return {name.removeprefix("policy."): value for name, value in found.items() if name.startswith("policy.")}


def test_a_taught_run_that_is_interrupted_continues_to_the_same_bits(tmp_path, monkeypatch):
    reference = small_run(tmp_path / "reference", **TAUGHT)
    for iterations in (1, 5):  # while the critic learns alone, and later
        run = interrupted_run(tmp_path / str(iterations), monkeypatch, iterations, **TAUGHT)
        vd.resume(run, mode="quiet", evaluate=False)
        assert_equal_runs(run, reference)


def test_what_was_taught_is_taken_from_a_shelf_by_who_begins_alike_and_learns_otherwise(tmp_path, monkeypatch):
    taught = []
    monkeypatch.setattr(teaching, "teach", lambda *given, teach=teaching.teach: (taught.append(1), teach(*given)))

    def trained(name, shelf, **settings):
        config = load_run_config("smoke", tiny(tmp_path / name, **{**TAUGHT, **settings}))
        market = setup.build_market(config)
        run = Run.create(config, market, tmp_path / name)
        sitting = session_of(run, market)
        sitting.shelf = shelf
        return sitting.go(None, "quiet", False)

    shelf = tmp_path / "shelf"
    first = trained("first", shelf)
    assert_equal_runs(trained("again", shelf), first)
    assert len(taught) == 1
    bolder = {"ppo.learning_rate": 0.01, "teacher.hold": 0.3}
    assert_equal_runs(trained("bolder", shelf, **bolder), trained("without", None, **bolder))
    assert len(taught) == 2  # the one without a shelf
    trained("dearer", shelf, **{"params.fee": 0.01})
    assert len(taught) == 3
    for file in shelf.iterdir():
        file.write_bytes(file.read_bytes()[:100])
    assert_equal_runs(trained("torn", shelf), first)
    assert len(taught) == 4


def test_members_of_an_ensemble_begin_as_the_rules_of_two_halves(tmp_path):
    ensemble = small_run(tmp_path, ensemble=2, **TAUGHT | {"teacher.bars": "auto", "steps": 64})
    assert [run.config.teacher.bars for run in ensemble.members] == ["half", "half"]
    assert ensemble.config.teacher.bars == "auto"
    assert all(ensemble.has_all(run) for run in ensemble.members)
    rows = np.random.default_rng(0).normal(size=(200, ensemble.policy.shape.floats)).astype(np.float32)
    ensemble.policy.act(rows)
    assert 0.0 < ensemble.policy.disagreement.mean() < 1.0
    alone = small_run(tmp_path, **TAUGHT | {"steps": 64})  # the setting and the seed say everything
    assert_equal_runs(alone, ensemble.members[0])


def test_agents_by_themselves_begin_as_the_rule_of_all_bars():
    one = load_run_config("trading", own_data=True)
    assert one.teacher.bars == "auto"
    assert as_member(one).teacher.bars == "half"
    for given in ("all", "half"):
        told = load_run_config("trading", {"teacher.bars": given})
        assert as_member(told) is told


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"market.length": 130}, "the training split has too few bars"),
        ({"network.kind": "gru", "network.memory": 8}, "a recurrent network cannot be taught"),
    ],
)
def test_who_begins_at_random_is_told_so(settings, told, tmp_path):
    screen = Console(file=io.StringIO(), width=200)
    settings = tiny(tmp_path, **TAUGHT, **settings)
    vd.train("smoke", mode="plain", console=screen, evaluate=False, **settings)
    assert f"The policy begins at random: {told}" in screen.file.getvalue()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"algorithm": "dqn"}, "algorithm is dqn, whose policy cannot be taught"),
        ({"env": "cage2"}, "env is cage2, which plays on no market"),
        ({"network.shared": True, "ppo.critic_first": 64}, "the critic cannot learn alone while it shares its layers"),
        ({"teacher.hold": 1.0}, "teacher.hold"),
        ({"teacher.policy": "buy_and_hold"}, "it takes: one of forecast, or null"),
    ],
)
def test_who_cannot_be_taught(settings, told):
    with pytest.raises(ConfigError, match=told):
        load_run_config(None, {"teacher.policy": "forecast", **settings})
