"""`vd.evaluate`: which split, which checkpoint, what is refused, and what is kept."""

from __future__ import annotations

import json
import shutil

import polars as pl
import pytest

import velodrome as vd
from tests.runs.small_runs import one_thread, small_run  # noqa: F401
from velodrome.errors import ConfigError, LeakError, RunError
from velodrome.runs import checkpoint
from velodrome.runs.run import Run
from velodrome.runs.store.store import open_store


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was trained and not evaluated."""
    return small_run(tmp_path_factory.mktemp("runs"))


def test_the_final_split_is_played_unless_another_is_named(run):
    assert vd.evaluate(run, report=False).split == "test"
    assert vd.evaluate(run, "validation", report=False).split == "validation"


def test_a_run_may_be_named_in_any_way(run):
    by_name = vd.evaluate(run.folder.id, root=run.path.parent, report=False).to_json()
    for given in (run, run.path, str(run.path)):
        assert vd.evaluate(given, report=False).to_json() == by_name


def test_the_result_is_kept_in_the_folder_and_in_the_store(run):
    found = vd.evaluate(run, report=False)
    kept = json.loads((run.folder.evaluation_path / "test.json").read_text())
    assert kept == json.loads(found.to_json())
    with open_store(run.path.parent, create=False) as store:
        table = store.evaluations(run.folder.id).filter(pl.col("split") == "test")
    stored = dict(zip(table["name"], table["value"], strict=True))
    assert stored["return"] == found.metrics["return"]


def test_a_report_is_written_unless_it_is_not_wanted(run):
    vd.evaluate(run, "validation", report=False)
    assert not run.folder.report_path.exists()
    vd.evaluate(run, "validation")
    assert "<html" in run.folder.report_path.read_text()[:1000].lower()
    run.folder.report_path.unlink()


def test_the_best_and_the_latest_checkpoint_are_different_policies(run):
    pinned = [path for path in checkpoint.checkpoints(run.path) if checkpoint.is_pinned(path)]
    assert checkpoint.checkpoint_steps(pinned[0]) < 640
    best, latest = (vd.evaluate(run, checkpoint=which, report=False) for which in ("best", "latest"))
    assert best.to_json() != latest.to_json()
    with pytest.raises(ConfigError, match="checkpoint = 'bets'; legal: 'best', 'latest'"):
        vd.evaluate(run, checkpoint="bets")


def test_a_split_that_is_not_there_is_refused_with_a_suggestion(run):
    with pytest.raises(ConfigError, match=r"no split 'tset' in this market; there are .* Did you mean 'test'\?"):
        vd.evaluate(run, "tset")


def test_the_training_split_is_refused_unless_it_is_asked_for(run):
    with pytest.raises(LeakError, match=r"'train', which the agent was trained on.*allow_training_split=True"):
        vd.evaluate(run, "train")
    found = vd.evaluate(run, "train", allow_training_split=True, report=False)
    assert found.in_sample
    assert "IN SAMPLE" in found.label


def test_without_a_final_split_one_must_be_named(tmp_path):
    run = small_run(tmp_path, steps=64, evaluate=True, **{"evaluation.final_split": None})
    assert not list(run.folder.evaluation_path.iterdir())
    with pytest.raises(ConfigError, match="No split to evaluate on; name one of train, validation, test"):
        vd.evaluate(run)


def test_other_data_is_refused(run, tmp_path):
    copy = tmp_path / run.path.name
    shutil.copytree(run.path, copy)
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(text.replace("length: 300", "length: 310"))
    with pytest.raises(RunError, match=r"the data has changed since this run began.*to evaluate it needs the data"):
        vd.evaluate(Run.open(copy))
