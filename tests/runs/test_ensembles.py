"""An ensemble as a run: members that are ordinary runs, an end that can be resumed, one policy and one result."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import (
    AfterIterations,
    command_line,
    ended,
    last_tensors,
    one_thread,  # noqa: F401
    signals_after,
    small_run,
    start,
    tiny,
)
from velodrome import cli
from velodrome.errors import ConfigError, OutOfMemoryError, RunError
from velodrome.evaluation.result import Evaluation
from velodrome.learn.ensembles import EnsemblePolicy, ensemble_of
from velodrome.rollout.observation import WindowBank
from velodrome.runs.config.changes import changes_between
from velodrome.runs.config.files import load_run_config
from velodrome.runs.folder import RunFolder
from velodrome.runs.machine import memory
from velodrome.runs.run import Run
from velodrome.runs.session import Session
from velodrome.runs.together import group, processes
from velodrome.runs.trained import Ensemble
from velodrome.runs.walk_forward import walk_forward

SETTINGS = {"steps": 192, "params.fee": 0.0001}


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory) -> Ensemble:
    found = small_run(tmp_path_factory.mktemp("runs"), evaluate=True, seed=3, ensemble=3, **SETTINGS)
    assert isinstance(found, Ensemble)
    return found


@pytest.fixture(scope="module")
def evaluation(ensemble) -> Evaluation:
    return Evaluation.load(ensemble.path, "test")


def test_members_are_the_runs_of_their_seeds_and_act_as_one(ensemble):
    assert [run.config.seed for run in ensemble.members] == [3, 4, 5]
    assert {run.status for run in ensemble.members} == {ensemble.status} == {"finished"}
    assert {(run.config.ensemble, run.config.seeds) for run in ensemble.members} == {(1, 1)}
    alone = load_run_config("smoke", tiny(ensemble.path, seed=4, **SETTINGS))
    assert ensemble.members[1].config.hash == alone.hash
    policy = ensemble.policy
    assert isinstance(policy, EnsemblePolicy)
    rows = np.random.default_rng(0).normal(size=(50, policy.shape.floats)).astype(np.float32)
    assert (policy.act(rows) == ensemble_of([run.policy for run in ensemble.members]).act(rows)).all()
    assert "an ensemble of 3" in ensemble.summary().line


def test_the_result_is_that_of_one_policy_and_names_its_members(ensemble, evaluation):
    assert evaluation.seeds == ()
    named = evaluation.policy
    assert named is not None
    assert named.ensemble
    assert [agent.run for agent in named.agents] == [run.folder.id for run in ensemble.members]
    assert named.text.startswith(
        "ensemble of 3, each the best of 1 on validation: step 192 of 192; 3 training seeds (3"
    )
    assert evaluation.information["training_seeds"] == [3, 4, 5]
    assert any("intervals cover the data, not chance in training" in note for note in evaluation.notes)
    assert [path.name for path in ensemble.folder.evaluation_path.glob("*.json")] == [
        "test-best-ensemble-of-3-192.json"
    ]


def test_the_result_shows_the_disagreement_bar_by_bar(ensemble, evaluation):
    bars = evaluation.bars
    assert bars["disagreement"][0] is None  # nothing was decided yet
    found = bars["disagreement"][1:].to_numpy()
    about = evaluation.information["disagreement"]
    assert evaluation.metrics["disagreement"] == pytest.approx(found.mean()) == about["mean"]
    assert about["meaning"] == "the share of members that would choose otherwise"
    assert (about["highest"], about["agreed"]) == (found.max(), (found == 0.0).mean())
    assert set(np.unique(np.round(found * 3))) <= {0, 1, 2, 3}
    assert np.isnan(evaluation.row("disagreement").baselines["random"])
    page = (ensemble.path / "report.html").read_text(encoding="utf-8")
    figures = json.loads(page.partition('id="figures-data">')[2].partition("</script>")[0].replace("<\\/", "</"))
    assert figures["disagreement"]["data"][-1]["y"]
    assert "How far the 3 members are apart about each action: the share of members" in page


@pytest.mark.slow
def test_it_is_self_contained(ensemble, tmp_path):
    moved = Run.of(RunFolder.open(shutil.copytree(ensemble.path, tmp_path / ensemble.path.name)))
    assert isinstance(moved, Ensemble)
    found = vd.evaluate(moved, report=False)
    assert found.metrics == pytest.approx(vd.evaluate(ensemble, report=False).metrics, nan_ok=True)
    shutil.rmtree(moved.members[1].path)
    with pytest.raises(RunError, match=r"an ensemble of 3, and 2 of its members have finished: it has no policy yet"):
        moved.load_policy()
    partly = vd.evaluate(moved, report=False)
    assert any(
        "2 of 3 members have finished, and the result is about an ensemble of those" in w for w in partly.warnings
    )


def test_members_that_finished_are_kept_and_the_rest_is_resumed_to_the_same_bits(ensemble, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        signals_after(patched, 5)  # an agent takes three iterations
        stopped = small_run(tmp_path, seed=3, ensemble=3, **SETTINGS)
    assert stopped.status == "interrupted"
    assert [run.status for run in stopped.members] == ["finished", "interrupted"]
    before = (stopped.members[0].path / "metrics.jsonl").stat().st_mtime_ns
    with pytest.raises(RunError, match="1 of its members have finished: it has no policy yet"):
        _ = stopped.policy
    again = vd.resume(stopped, mode="quiet", evaluate=False)
    assert again.status == "finished"
    assert (again.members[0].path / "metrics.jsonl").stat().st_mtime_ns == before
    for run, wanted in zip(again.members, ensemble.members, strict=True):
        tensors, reference = last_tensors(run), last_tensors(wanted)
        assert all(tensor.numpy().tobytes() == reference[name].numpy().tobytes() for name, tensor in tensors.items())


@pytest.mark.slow
def test_it_takes_more_members_and_no_fewer(ensemble, tmp_path):
    copied = Run.of(RunFolder.open(shutil.copytree(ensemble.path, tmp_path / ensemble.path.name)))
    with pytest.raises(ConfigError, match=r"ensemble = 2: the ensemble has 3, and none of them is left out"):
        vd.resume(copied, ensemble=2)
    with pytest.raises(
        ConfigError, match=r"seeds = 2: .*its agents differ in nothing but their seeds\. It takes steps"
    ):
        vd.resume(copied, seeds=2, ensemble=1)
    grown = vd.resume(copied, ensemble=4, mode="quiet", evaluate=False)
    assert [run.config.seed for run in grown.members] == [3, 4, 5, 6]
    assert grown.policy.members == 4


def test_numbers_that_make_no_ensemble_are_refused():
    with pytest.raises(ConfigError, match=r"ensemble = 0"):
        load_run_config(None, {"ensemble": 0})
    with pytest.raises(ConfigError, match=r"seeds = 5 and ensemble = 8: agents of several seeds are evaluated one by"):
        load_run_config(None, {"seeds": 5, "ensemble": 8})
    with pytest.raises(
        ConfigError, match=r"ensemble = 3: a run that goes on keeps ensemble = 1: it is a single agent\."
    ):
        changes_between(load_run_config(None, {}), load_run_config(None, {"ensemble": 3}), "")
    assert load_run_config(None, {"ensemble": 1}).hash == load_run_config(None, {}).hash
    assert len({load_run_config(None, {key: 8}).hash for key in ("seed", "seeds", "ensemble")}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("iterations", [3, 4])  # an agent takes three
def test_a_kill_between_members_loses_nothing(ensemble, iterations, tmp_path):
    told = {**tiny(tmp_path / "runs", seed=3, **SETTINGS), "ensemble": 3}
    killed = start(command_line(tmp_path / "runs", told), tmp_path / "out.txt", AfterIterations(iterations, 0.0))
    assert ended(killed) == -signal.SIGKILL
    assert ended(start(command_line(tmp_path / "runs", told), tmp_path / "out.txt")) == 0
    found = Run.open("latest", tmp_path / "runs")
    assert found.status == "finished"
    assert all(same_bits(run, wanted) for run, wanted in zip(found.members, ensemble.members, strict=True))


# Several processes


def same_bits(run, reference):
    tensors, wanted = last_tensors(run), last_tensors(reference)
    return all(tensor.numpy().tobytes() == wanted[name].numpy().tobytes() for name, tensor in tensors.items())


@pytest.mark.slow
def test_members_that_are_trained_together_are_the_same(ensemble, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(processes, "START_SECONDS", -1e9)
    monkeypatch.setattr(processes, "available_cores", lambda: 2)
    shown = Console(file=io.StringIO(), width=200)
    told = tiny(tmp_path, seed=3, ensemble=3, **SETTINGS)
    found = vd.train("smoke", console=shown, mode="plain", evaluate=False, **told)
    assert "2 more, 2 at a time in processes of their own" in shown.file.getvalue()
    assert found.status == "finished"
    assert all(same_bits(run, wanted) for run, wanted in zip(found.members, ensemble.members, strict=True))
    with found.store() as store:
        assert [run.steps for run in store.members(found.folder.id)] == [192] * 3
    assert not capfd.readouterr().err


@pytest.mark.slow
def test_an_interruption_reaches_members_that_are_trained_together(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "START_SECONDS", -1e9)
    monkeypatch.setattr(processes, "available_cores", lambda: 2)
    settings = {**SETTINGS, "steps": 64 * 500, "checkpoint.every_steps": 640, "evaluation.every_steps": 32_000}

    def interrupt() -> None:
        folders = []
        while not all(any((path / "checkpoints").iterdir()) for path in folders) or len(folders) < 3:
            time.sleep(0.05)
            folders = [path for path in tmp_path.glob("*/*-seed-*") if (path / "metrics.jsonl").is_file()]
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    stopped = small_run(tmp_path, ensemble=3, **settings)
    assert [run.status for run in (stopped, *stopped.members)] == ["interrupted", "finished", *["interrupted"] * 2]
    with stopped.members[2].folder.lock(), pytest.raises(RunError, match="has been training this run since"):
        vd.resume(stopped, mode="quiet", evaluate=False)
    again = vd.resume(stopped, mode="quiet", evaluate=False)
    assert [run.status for run in (again, *again.members)] == ["finished"] * 4
    assert same_bits(again.members[2], small_run(tmp_path / "alone", seed=2, **settings))


@pytest.mark.parametrize(
    ("error", "code"),
    [(OutOfMemoryError("memory ran out"), processes.OUT_OF_MEMORY), (MemoryError(), processes.OUT_OF_MEMORY),
     (RunError("no room on the disk"), 1)],
    ids=repr,
)  # fmt: skip
def test_a_member_s_process_says_by_its_code_that_memory_ran_out(ensemble, monkeypatch, error, code):
    def fail(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(group, "member_session", fail)
    with pytest.raises(SystemExit) as ended_with:
        group._train_member(ensemble.path, 3, None, "quiet")
    assert ended_with.value.code == code


def test_memory_that_ran_out_in_a_process_is_known_where_they_are_watched():
    jobs = [processes.Job("seed 4", os._exit, (processes.OUT_OF_MEMORY,), 1, lambda: processes.Seen(error="none left"))]
    done, error = processes.train_together(jobs, 1, Console(quiet=True), "quiet")
    assert (done, str(error)) == (False, "seed 4: none left")
    assert memory.shortage(error) is not None


def test_members_are_trained_together_where_that_is_faster(ensemble, monkeypatch):
    done = Session(ensemble.members[0], None)
    done.learner = SimpleNamespace(same_on_any_threads=True)
    monkeypatch.setattr(processes, "available_cores", lambda: 4)
    monkeypatch.setattr(processes, "free_memory", lambda: 1 << 40)
    done.pace = 60.0 / done.config.steps  # a minute each
    assert [group.together(done, left) for left in (7, 2, 1)] == [4, 2, 1]
    done.pace = 1.0 / done.config.steps
    assert group.together(done, 7) == 1  # to begin takes longer
    done.pace = 60.0 / done.config.steps
    monkeypatch.setattr(processes, "free_memory", lambda: 1)
    assert group.together(done, 7) == 1
    done.learner.same_on_any_threads = False
    monkeypatch.setattr(processes, "free_memory", lambda: 1 << 40)
    assert group.together(done, 7) == 1


# What people see of it


def test_commands_show_it_as_one(ensemble, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    place = ["--folder", str(ensemble.path.parent)]
    assert cli.run(["runs", "list", "--members", *place]) == 0
    shown = capsys.readouterr().out
    assert "(ensemble of 3)" in shown
    assert "seed 5" in shown
    assert cli.run(["runs", "show", ensemble.folder.id, *place]) == 0
    shown = capsys.readouterr().out
    assert "ensemble of 3, seeds from 3 on" in shown
    assert cli.run(["runs", "export", ensemble.folder.id, str(ensemble.path / "policy.pt"), *place]) == 0
    assert cli.run(["runs", "compare", ensemble.folder.id, ensemble.members[0].folder.id, *place]) == 0


@pytest.mark.slow
def test_the_command_trains_one(tmp_path, capsys):
    words = [f"{key}={list(v) if isinstance(v, tuple) else v}" for key, v in tiny(tmp_path, **SETTINGS).items()]
    assert cli.run(["train", "smoke", *words, "--ensemble", "2", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["seed"] for line in lines if line["event"] == "end"] == [0, 1]
    (final,) = [line for line in lines if line["event"] == "final"]
    assert final["policy"]["ensemble"]
    assert final["policy"]["training_seeds"] == [0, 1]


@pytest.mark.slow
def test_walk_forward_trains_an_ensemble_in_each_fold(tmp_path):
    settings = tiny(tmp_path, **SETTINGS, **{"market.length": 600}, ensemble=2)
    walked = walk_forward({"preset": "smoke", **settings}, 2, console=Console(file=io.StringIO()))
    assert [len(fold.run.members) for fold in walked.folds] == [2, 2]
    assert walked.joined.policy is not None
    assert walked.joined.policy.ensemble
    assert len(walked.joined.policy.agents) == 4
    assert walked.joined.policy.text.startswith("ensemble of 2 in each of 2 folds, each the ")
    tests = [fold.evaluation.metrics["return"] for fold in walked.folds]
    assert walked.joined.metrics["return"] == pytest.approx((1.0 + tests[0]) * (1.0 + tests[1]) - 1.0, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "dqn", "dqn.learning_starts": 64, "dqn.normalise_rewards": True},
        {"network.kind": "gru", "network.memory": 4},
        {"params.action": "continuous"},
        {"params.action": "continuous", "algorithm": "sac", "sac.learning_starts": 64},
    ],
)
def test_every_kind_of_agent_makes_one(settings, tmp_path):
    found = small_run(tmp_path, evaluate=True, ensemble=2, **SETTINGS, **settings)
    assert found.status == "finished"
    market = found.market
    assert market is not None
    policy = found.policy.with_bank(WindowBank(market.windows))
    assert policy.members == 2
    evaluation = Evaluation.load(found.path, "test")
    assert evaluation.metrics["disagreement"] > 0.0
    assert (found.path / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"network.head": "dirichlet", "params.weighting": "simplex"}])
def test_portfolios_have_ensembles(settings, tmp_path):
    told = {**tiny(tmp_path, **settings), "env": "portfolio", "market.source": "factors", "ensemble": 2, "steps": 128}
    found = vd.train(mode="quiet", **{key: value for key, value in told.items() if key != "market.length"})
    evaluation = Evaluation.load(found.path, "test")
    assert 0.0 < evaluation.metrics["disagreement"] < 1.0
    assert evaluation.information["disagreement"]["meaning"].startswith("the part of the account")
    assert evaluation.bars["disagreement"].null_count() == evaluation.bars["symbol"].n_unique()


@pytest.mark.slow
def test_environments_without_a_market_have_them_too(tmp_path):
    settings = {"env": "CartPole-v1", "steps": 128, "num_envs": 4, "ensemble": 2, "ppo.rollout_length": 16}
    found = vd.train(mode="quiet", **settings, **{"logging.folder": str(tmp_path), "network.hidden": (8,)})
    evaluation = Evaluation.load(found.path, "episodes")
    assert 0.0 < evaluation.metrics["disagreement"] < 1.0
    assert evaluation.policy is not None
    assert evaluation.policy.ensemble
