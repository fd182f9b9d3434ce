"""Ending early: a training whose validation has not become better for long enough, stopped and resumed."""

from __future__ import annotations

from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import one_thread, signals_after, small_run, tiny  # noqa: F401
from velodrome.evaluation.validation import Validation
from velodrome.runs import checkpoint, session
from velodrome.runs.config.files import load_run_config

# An iteration has 64 steps, and each is validated.
SETTINGS = {"steps": 1280, "evaluation.every_steps": 64, "evaluation.patience": 3}
RETURNS = [0.1, 0.3, 0.2, 0.25, 0.4, 0.3, 0.2, 0.1, 0.9, 0.9]  # the fifth is the best that patience lives to see


def script(monkeypatch, returns=RETURNS):
    """Let validations have these results, in this order."""
    left = list(returns)
    monkeypatch.setattr(session, "play_validation", lambda *_: Validation({"return": left.pop(0)}, ()))


def steps_of(run):
    return checkpoint.checkpoint_steps(checkpoint.latest_checkpoint(run.path))


def test_training_ends_when_validation_has_stopped_improving(tmp_path, monkeypatch):
    script(monkeypatch)
    console = Console(record=True, width=200)
    run = vd.train("smoke", mode="plain", console=console, **tiny(tmp_path, **SETTINGS))
    assert run.status == "finished"
    assert steps_of(run) == 8 * 64
    told = console.export_text()
    assert "training ended at step 512 of 1,280: the last 3 validations were no better than the best one" in told
    named = vd.evaluate(run, report=False).policy
    assert named.text == "best of 8 on validation: step 320 of 512 (1,280 were planned); one training seed (0)"
    assert "training ended at step 512 of 1,280" in run.folder.report_path.read_text()


def test_it_counts_on_after_a_stop(tmp_path, monkeypatch):
    script(monkeypatch)
    with monkeypatch.context() as patched:
        signals_after(patched, 7)  # two validations after the best one
        run = small_run(tmp_path, **SETTINGS)
    assert run.status == "interrupted"
    assert steps_of(run) == 7 * 64
    assert vd.resume(run, mode="quiet", evaluate=False).status == "finished"
    assert steps_of(run) == 8 * 64


def test_what_has_ended_stays_so_until_it_is_told_more(tmp_path, monkeypatch):
    script(monkeypatch)
    run = small_run(tmp_path, **SETTINGS)
    vd.resume(run, mode="quiet", evaluate=False)
    assert steps_of(run) == 8 * 64
    script(monkeypatch, [0.2, 0.1, 0.2, 0.5])
    vd.resume(run, mode="quiet", evaluate=False, steps=2560)
    assert steps_of(run) == 11 * 64  # with new patience


def test_hashes_of_runs_without_patience_stay():
    plain = load_run_config("smoke")
    assert "patience" in plain.content()["evaluation"]
    assert load_run_config(plain, ["evaluation.patience=null"]).hash == plain.hash
    assert load_run_config(plain, ["evaluation.patience=2"]).hash != plain.hash


def test_the_mean_of_several_validations_chooses(tmp_path, monkeypatch):
    script(monkeypatch, [0.9, 0.1, 0.2, 0.5, 0.6, 0.7, 0.1, 0.2, 0.1, 0.0])
    with monkeypatch.context() as patched:
        signals_after(patched, 5)
        run = small_run(tmp_path, **SETTINGS | {"steps": 640, "evaluation.patience": None, "evaluation.averaged": 3})
    vd.resume(run, mode="quiet", evaluate=False)
    named = vd.evaluate(run, report=False).policy
    # The first is the best alone; of three in a row, the fourth to the sixth are.
    assert named.text == "best of 10 on validation (by means of 3): step 384 of 640; one training seed (0)"
