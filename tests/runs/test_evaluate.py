"""`vd.evaluate`: which split, which checkpoint, what is refused, and what is kept."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import one_thread, small_run  # noqa: F401
from velodrome.errors import ConfigError, LeakError, RunError
from velodrome.evaluation.named_policy import NamedPolicy, TrainedAgent
from velodrome.evaluation.result import Evaluation
from velodrome.evaluation.sharpe import Trials
from velodrome.runs import checkpoint
from velodrome.runs.evaluate import report_path
from velodrome.runs.report.listing import list_content, show_view
from velodrome.runs.run import Run
from velodrome.runs.store.store import open_store


def text_of(renderable: object, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(renderable)
    return console.export_text()


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
    kept = json.loads((run.folder.evaluation_path / f"{found.file_name}.json").read_text())
    assert kept == json.loads(found.to_json())
    with open_store(run.path.parent, create=False) as store:
        table = store.evaluations(run.folder.id).filter(pl.col("split") == "test")
    stored = dict(zip(table["name"], table["value"], strict=True))
    assert stored["return"] == found.metrics["return"]


def test_a_report_is_written_unless_it_is_not_wanted(run):
    vd.evaluate(run, "validation", report=False)
    assert not list(run.path.glob("report*.html"))
    found = vd.evaluate(run, "validation")
    page = report_path(run, found)
    assert page.name == f"report-{found.file_name}.html"  # report.html is that of the final split
    assert "<html" in page.read_text()[:1000].lower()


def best_step(run):
    return checkpoint.checkpoint_steps(checkpoint.pinned_checkpoints(run.path)[-1])


def test_a_result_names_its_checkpoint_its_training_and_what_it_was_chosen_from(run):
    step = best_step(run)
    best, latest = (vd.evaluate(run, checkpoint=which) for which in ("best", "latest"))
    agents = {at: TrainedAgent(run.folder.id, 0, at, 640, planned_steps=640) for at in (step, 640)}
    assert best.policy == NamedPolicy("best", (replace(agents[step], candidates=3),), "validation")
    assert latest.policy == NamedPolicy("latest", (agents[640],))
    told = f"best of 3 on validation: step {step} of 640; one training seed (0)"
    assert told in text_of(best.table())
    assert json.loads(best.to_json())["policy"]["text"] == told
    assert told in run.folder.report_path.read_text()
    assert "latest checkpoint: step 640 of 640; one training seed (0)" in report_path(run, latest).read_text()
    with open_store(run.path.parent, create=False) as store:
        kept = {(row.split, row.checkpoint, row.step): row.policy["text"] for row in store.policies(run.folder.id)}
        shown = text_of(show_view(store, store.run(run.folder.id)), 200)
    assert kept["test", "best", step] == told
    assert kept["test", "latest", 640] == latest.policy.text
    assert told in shown
    assert latest.policy.text in shown


def test_results_of_other_checkpoints_and_splits_lie_side_by_side(run):
    asked = [(which, split) for which in ("best", "latest") for split in ("test", "validation")]
    found = [vd.evaluate(run, split, checkpoint=which, report=False) for which, split in asked]
    assert len({one.to_json() for one in found}) == 4
    for (which, split), one in zip(asked, found, strict=True):
        assert Evaluation.load(run.path, split, which).to_json() == one.to_json()
    with open_store(run.path.parent, create=False) as store:
        table = store.evaluations(run.folder.id).filter(pl.col("name") == "return")
        listed = list_content(store)[0]["evaluation"]
    stored = {(row["split"], row["step"]): row["value"] for row in table.iter_rows(named=True)}
    for one in found:
        assert stored[one.split, one.policy.step] == one.metrics["return"]
    assert listed["value"] == found[0].metrics["return"]  # the list shows the best


def test_the_split_that_chose_the_checkpoint_is_labelled(run):
    chosen = vd.evaluate(run, "validation")
    assert chosen.used_for_selection
    assert json.loads(chosen.to_json())["used_for_selection"] is True
    assert chosen.warnings[0].startswith("used for selection: this checkpoint was chosen by its result on validation")
    assert "validation (used for selection)" in text_of(chosen.table())
    assert '<span class="tag in-sample">validation (used for selection)</span>' in report_path(run, chosen).read_text()
    with open_store(run.path.parent, create=False) as store:
        assert "validation (used for selection)" in text_of(show_view(store, store.run(run.folder.id)), 200)
    for free in (vd.evaluate(run, report=False), vd.evaluate(run, "validation", checkpoint="latest", report=False)):
        assert not free.used_for_selection
        assert "used for selection" not in text_of(free.table())


def test_the_winner_of_a_study_stays_the_best_of_its_trials(tmp_path):
    """To evaluate it again, as anybody may, must not make a lucky choice look like a single try."""
    run = small_run(tmp_path)
    vd.evaluate(run, trials=Trials(8, 0.01), report=False)  # as the best of a population is
    assert vd.evaluate(run, report=False).information["trials"] == {"count": 8, "variance": 0.01}
    about = {"name": "search", "trials": 50, "notes": ["the winner among 50 trials"]}
    told = vd.evaluate(run, trials=Trials(50, 0.04), study=about, report=False)
    assert told.metrics["deflated_sharpe"] < told.metrics["probabilistic_sharpe"]
    again = [vd.evaluate(run, report=False), vd.evaluate(run, checkpoint="latest", report=False)]
    assert again[0].to_json() == told.to_json()
    for found in again:
        assert found.information["trials"] == {"count": 50, "variance": 0.04}
        assert "the winner among 50 trials" in found.notes
        assert found.metrics["deflated_sharpe"] < found.metrics["probabilistic_sharpe"]


def test_a_checkpoint_that_is_neither_best_nor_latest_is_refused(run):
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
