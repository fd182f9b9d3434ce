"""A run's folder is complete by itself: without its store, with a damaged one, and the store made anew from folders."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import velodrome as vd
from tests.runs.small_runs import one_thread, signals_after, small_run  # noqa: F401
from tests.runs.test_old_runs import DQN, PPO
from tests.runs.test_old_runs import runs as old_runs  # noqa: F401
from velodrome import cli
from velodrome.errors import RunError, StoreError
from velodrome.runs.folder import RunFolder
from velodrome.runs.run import Run
from velodrome.runs.store import outlines
from velodrome.runs.store.from_folder import enter_run, forget_evaluations
from velodrome.runs.store.rebuild import rebuild
from velodrome.runs.store.rows import EvaluationRow, MetricRow, RunRecord
from velodrome.runs.store.store import FILE_NAME, SqlStore, open_store

SMALL = {"steps": 192, "evaluation.every_steps": 128}
DAMAGES = {
    "no database": lambda file: file.write_bytes(b"prices, prices, prices\n" * 400),
    "a page of noise": lambda file: overwrite(file, 4096, b"\xa5" * 4096),
    "cut short": lambda file: os.truncate(file, file.stat().st_size // 2),
    "its head gone": lambda file: overwrite(file, 0, b"\0" * 100),
}


def overwrite(file: Path, place: int, content: bytes) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(content)


@pytest.fixture(scope="module", autouse=True)
def short_blocks():
    """Let runs of a few rows have outlines, too."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(outlines, "ROWS", 2)
        patched.setattr(outlines, "BUCKET", 1)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A folder of runs: one evaluated twice, its child, one that was interrupted, a group of two seeds."""
    root = tmp_path_factory.mktemp("trained") / "runs"
    with pytest.MonkeyPatch.context() as patched:
        signals_after(patched, 2)
        stopped = small_run(root, name="stopped", **SMALL)
    assert stopped.status == "interrupted"
    first = small_run(root, name="first", **SMALL)
    for checkpoint in ("best", "latest"):
        vd.evaluate(first, checkpoint=checkpoint, report=False)
    vd.resume(first, seed=7, steps=256, mode="quiet", evaluate=False, name="child")
    group = small_run(root, name="group", seeds=2, **SMALL)
    vd.evaluate(group, report=False)
    return root


@pytest.fixture
def root(trained, tmp_path) -> Path:
    """A copy of that folder to spoil."""
    return shutil.copytree(trained, tmp_path / "runs")


ASKED_FOR = ("jobs", "services", "studies", "trials", "outcomes", "champions", "events", "sqlite_sequence")


def content(root: Path) -> dict[str, list[Any]]:
    """All rows of all tables of a store that come from folders; what people ask for does not."""
    with open_store(root, create=False):  # brings its log into its file
        pass
    connection = sqlite3.connect(root / FILE_NAME)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    names = [name for name in names if name not in ASKED_FOR]
    rows = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in names}
    connection.close()
    return rows


def found(root: Path, name: str) -> Run:
    return Run.open(name, root)


def run_command(*words: str) -> int:
    return cli.run(["runs", *words])


# The store from the folders


def test_a_store_that_is_rebuilt_has_the_rows_of_the_one_before(root):
    before = content(root)
    assert {name for name, rows in before.items() if rows} == set(before), "a table without rows proves nothing"
    for file in root.glob(f"{FILE_NAME}*"):
        file.unlink()
    result = rebuild(root)
    assert (len(result.entered), result.problems, result.only_in_store) == (6, [], 0)
    assert content(root) == before
    with pytest.MonkeyPatch.context() as patched:  # killed in the middle of a run, it is completed by the next look
        patched.setattr(SqlStore, "add_metrics", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rebuild(root)
    assert content(root) != before
    assert run_command("list", "--folder", str(root)) == 0
    assert content(root) == before
    rebuild(root)
    assert content(root) == before


def test_a_rebuild_repairs_rows_and_keeps_runs_whose_folder_is_gone(root, capsys):
    before, first = content(root), found(root, "first")
    with open_store(root) as store:
        store.update_run(first.folder.id, status="failed", steps=1, error="x")
        store.add_metrics(
            first.folder.id, [MetricRow(10**6, "loss/policy", 1.0, 1.0), MetricRow(64, "extra", 1.0, 1.0)]
        )
        store.create_run(RunRecord("gone", "gone", "/nowhere"))
        store.add_evaluations("gone", [EvaluationRow(1, "test", "return", 1.0)])
    assert run_command("rebuild", "--folder", str(root)) == 0
    told = capsys.readouterr().out
    assert "6 runs entered, as the folders say" in told
    assert "1 run without a folder here: left as the store has them" in told
    with open_store(root) as store:
        assert store.run("gone").name == "gone"
        assert store.evaluations("gone").height == 1
    connection = sqlite3.connect(root / FILE_NAME)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("DELETE FROM runs WHERE id = 'gone'")
    connection.commit()
    connection.close()
    assert content(root) == before


def test_rows_that_a_store_lacks_in_the_middle_are_found_by_a_resumed_run(root):
    before, first = content(root), found(root, "first")
    connection = sqlite3.connect(root / FILE_NAME)
    connection.execute("DELETE FROM metrics WHERE run = ? AND step = 64", (first.folder.id,))
    connection.commit()
    connection.close()
    with open_store(root) as store:
        enter_run(store, first.folder)
    assert content(root) == before


def test_a_folder_that_cannot_be_read_is_left_out_and_told(root, capsys):
    broken = found(root, "stopped")
    broken.folder.config_path.write_text("env: [")
    assert run_command("rebuild", "--folder", str(root)) == cli.PROBLEM_FOUND
    assert f"not complete: {broken.path.name}: " in capsys.readouterr().out
    damaged = found(root, "first")
    overwrite(damaged.folder.metrics_path, 5, b"\xff\0")
    with pytest.raises(RunError, match=r"metrics\.jsonl: the line that ends at byte \d+ is damaged .*restore the file"):
        _ = damaged.metrics
    (root / FILE_NAME).unlink()
    assert run_command("list", "--folder", str(root), "--json") == 0
    listed, told = capsys.readouterr()
    assert {run["name"] for run in json.loads(listed)} == {"child", "group", "first"}
    assert "is damaged" in told


def test_numbers_that_only_the_store_has_left_stay_in_it(root):
    first = found(root, "first")
    with open_store(root) as store:
        before = store.metrics(first.folder.id)
        first.folder.metrics_path.unlink()
        rebuild(root)
        assert store.metrics(first.folder.id).equals(before)
    assert first.metrics.is_empty()


def test_a_copy_beside_a_run_is_not_taken_for_it(root, caplog):
    first = found(root, "first")
    shutil.copytree(first.path, root / "a-copy")
    rebuild(root)
    assert "a-copy: has the id of" in caplog.text
    with open_store(root) as store:
        assert store.run(first.folder.id).folder == str(first.path)


def test_there_must_be_a_folder_to_rebuild(tmp_path, capsys):
    assert run_command("rebuild", "--folder", str(tmp_path / "nowhere")) == cli.REFUSED
    assert "there is no such folder" in capsys.readouterr().err


# Without a store, or with one that cannot be used


QUICK = ("deleted", "a page of noise")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(damage, id=name, marks=() if name in QUICK else pytest.mark.slow)
        for name, damage in {"deleted": None, **DAMAGES}.items()
    ],
)
def test_what_was_trained_is_listed_shown_and_exported_whatever_became_of_the_store(root, tmp_path, damage, capsys):
    before = content(root)
    if damage is None:
        (root / FILE_NAME).unlink()
    else:
        damage(root / FILE_NAME)
    damaged = damage and (root / FILE_NAME).read_bytes()
    assert run_command("list", "--folder", str(root), "--json") == 0
    listed, told = capsys.readouterr()
    assert sorted((run["name"], run["status"]) for run in json.loads(listed)) == [
        ("child", "finished"), ("first", "finished"), ("group", "finished"), ("stopped", "interrupted"),
    ]  # fmt: skip
    assert "made from the folders of 6 runs" in told
    aside = [path for path in root.glob(f"{FILE_NAME}.corrupt-*") if not path.name.endswith(("-wal", "-shm"))]
    assert [path.read_bytes() for path in aside] == ([damaged] if damaged else [])
    assert all(path.name in told for path in aside)
    assert content(root) == before
    assert run_command("list", "--folder", str(root)) == 0
    assert capsys.readouterr().err == ""
    assert run_command("export", "first", str(tmp_path / "out.csv"), "--folder", str(root)) == 0


def test_a_copied_folder_is_shown_where_it_lies_and_leaves_nothing_behind(root, tmp_path, capsys):
    first = found(root, "first")
    copy = shutil.copytree(first.path, tmp_path / "elsewhere" / "renamed")
    assert run_command("show", str(copy), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    wanted = {"id": first.folder.id, "status": "finished", "steps": 192, "folder": str(copy)}
    assert {name: shown[name] for name in wanted} == wanted
    assert shown["evaluations"]
    assert shown["metrics"]
    assert run_command("compare", str(copy), "stopped", "--folder", str(root), "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    assert os.listdir(copy.parent) == ["renamed"]
    beside = shutil.copytree(first.path, tmp_path / "beside" / first.path.name)
    assert run_command("list", "--folder", str(beside.parent), "--json") == 0
    assert [run["id"] for run in json.loads(capsys.readouterr().out)] == [first.folder.id]


@pytest.mark.parametrize("damage", [pytest.param("deleted", marks=pytest.mark.slow), "no database"])
def test_a_run_is_opened_evaluated_and_resumed_whatever_became_of_the_store(root, damage, caplog):
    first = found(root, "first")
    metrics, known = first.metrics, json.loads(next(first.folder.evaluation_path.glob("test-best-*.json")).read_text())
    if damage == "deleted":
        (root / FILE_NAME).unlink()
    else:
        DAMAGES[damage](root / FILE_NAME)
    run = vd.Run.open(first.path)
    assert (run.status, run.metrics.equals(metrics, null_equal=True)) == ("finished", True)
    again = vd.evaluate(run, report=False)
    assert json.loads(again.to_json()) == known
    longer = vd.resume(run, steps=256, mode="quiet", evaluate=False)
    assert longer.status == "finished"
    with open_store(root, create=False) as store:
        assert store.run(first.folder.id).steps == 256
        assert store.policies(first.folder.id)
    assert ("was damaged, and is velodrome.db.corrupt-" in caplog.text) == (damage != "deleted")


def test_a_store_that_nobody_may_write_is_no_reason_to_show_nothing(root, capsys):
    """A look waits for no writer; what must be entered first, while another program writes, is shown all the same."""
    other = sqlite3.connect(root / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert run_command("list", "--folder", str(root), "--json") == 0
    listed, told = capsys.readouterr()
    assert (len(json.loads(listed)), told) == (4, "")
    other.rollback()
    other.execute("DELETE FROM runs WHERE name = 'first'")
    other.execute("BEGIN IMMEDIATE")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("velodrome.runs.store.rebuild.LOOK_SECONDS", 0.2)
        assert run_command("list", "--folder", str(root), "--json") == 0
    listed, told = capsys.readouterr()
    assert len(json.loads(listed)) == 4
    assert "locked by another process" in told
    assert "What follows comes from the runs' folders." in told
    other.close()


def test_a_folder_without_runs_is_told(tmp_path, capsys):
    assert run_command("list", "--folder", str(tmp_path)) == cli.REFUSED
    assert "there is no store, so no runs" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_results_of_steps_that_are_taken_back_are_forgotten_and_no_others(root):
    folder = found(root, "first").folder
    kept = next(folder.evaluation_path.glob("test-best-*.json"))
    step = int(kept.stem.rsplit("-", 1)[-1])
    (folder.evaluation_path / f"test-best-{step}0-note.txt").write_text("of another step")
    forget_evaluations(folder, step)
    assert kept.exists()
    forget_evaluations(folder, step - 1)
    assert [path.name for path in folder.evaluation_path.glob("test-best-*")] == [f"test-best-{step}0-note.txt"]


# Older folders


def test_older_runs_are_listed_and_rebuilt_without_their_store(old_runs):  # noqa: F811
    before = content(old_runs)
    (old_runs / FILE_NAME).unlink()
    assert vd.Run.open(DQN, old_runs).status == "finished"
    assert vd.Run.open(PPO, old_runs).status == "killed" or vd.Run.open(PPO, old_runs).status == "interrupted"
    rebuild(old_runs)
    after = content(old_runs)
    for table in ("metrics", "evaluations", "members", "lineage"):
        assert after[table] == before[table], table
    with open_store(old_runs) as store:
        assert {run.id: run.steps for run in store.runs()} == {PPO: 4096, DQN: 2048, "2291d24a": 4096}


def test_a_status_that_cannot_be_read_is_told_by_the_steps(root, caplog):
    folder: RunFolder = found(root, "first").folder
    folder.status_path.write_text("{")
    assert Run.of(folder).status == "finished"
    assert "status.json: cannot be read" in caplog.text


def test_a_store_by_its_url_is_taken_as_it_is(root, capsys):
    (root / "other.db").write_bytes(b"noise" * 1000)
    assert run_command("list", "--store", f"sqlite:///{root / 'other.db'}") == cli.REFUSED
    assert "this file is not a store" in capsys.readouterr().err
    assert (root / "other.db").read_bytes() == b"noise" * 1000
    with pytest.raises(StoreError):
        open_store(root, f"sqlite:///{root / 'other.db'}")
