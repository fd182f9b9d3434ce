"""Runs, a store and checkpoints made before the package got its present layout: they open, evaluate and resume.

`old_runs/runs.tar.gz` was made by commit 1018c33: a PPO run killed at step 4,096 of 16,384, a finished DQN run and a
finished portfolio run (their reports, pictures and first checkpoints left out). The store says that they lie in
/tmp/oldruns; the tests unpack them elsewhere, as one does with a copied folder.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import polars as pl
import pytest

import velodrome as vd
from tests.runs.small_runs import one_thread  # noqa: F401
from velodrome import cli
from velodrome.runs.store.store import open_store

PPO, DQN, PORTFOLIO = "f57448eb", "b23aa6f6", "2291d24a"
ARCHIVE = Path(__file__).parent / "old_runs" / "runs.tar.gz"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "runs"


def test_they_are_found_and_their_rows_are_read(runs):
    with open_store(runs, create=False) as store:
        rows = {row.id: row for row in store.runs()}
        for row in rows.values():  # the status of a run comes from its folder, not from the place that the store names
            store.update_run(row.id, folder=row.folder.replace("/tmp/oldruns", "/nowhere"))
    assert {identity: (row.env, row.algorithm, row.steps) for identity, row in rows.items()} == {
        PPO: ("trading", "ppo", 4096),
        DQN: ("trading", "dqn", 2048),
        PORTFOLIO: ("portfolio", "ppo", 4096),
    }
    found = {identity: vd.Run.open(identity, runs) for identity in rows}
    assert {identity: run.status for identity, run in found.items()} == {
        PPO: "killed",
        DQN: "finished",
        PORTFOLIO: "finished",
    }
    assert [run.config.algorithm for run in found.values()] == [row.algorithm for row in rows.values()]
    assert all(run.config.hash == rows[identity].config_hash for identity, run in found.items())
    measured = found[PPO].metrics.filter(pl.col("name") == "evaluation/validation/return")
    assert measured["value"].to_list() == pytest.approx([0.02638, 0.03435, 0.0385, 0.02808], rel=1e-3)


@pytest.mark.parametrize("identity", [PPO, DQN, PORTFOLIO])
def test_their_data_is_built_to_the_same_content(runs, identity):
    run = vd.Run.open(identity, runs)
    assert run.market is not None
    run.check_data(run.market, "to compare it")


def test_the_command_lists_shows_and_compares_them(runs, capsys):
    assert cli.run(["runs", "list", "--folder", str(runs), "--json"]) == 0
    listed = {entry["id"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed.keys() == {PPO, DQN, PORTFOLIO}
    assert listed[PORTFOLIO]["evaluation"]["value"] == pytest.approx(0.7335, rel=1e-3)
    assert cli.run(["runs", "show", DQN, "--folder", str(runs)]) == 0
    assert "trading, dqn, seed 0" in capsys.readouterr().out
    assert cli.run(["runs", "compare", PPO, DQN, "--folder", str(runs), "--json"]) == 0
    assert "algorithm" in json.loads(capsys.readouterr().out)["config"]
    exported = runs.parent / "metrics.csv"
    assert cli.run(["runs", "export", PPO, str(exported), "--folder", str(runs)]) == 0
    assert pl.read_csv(exported)["step"].to_list()[-1] == 4096


def test_the_policy_of_one_is_exported_from_where_the_runs_are_now(runs, capsys):
    with open_store(runs) as store:
        store.update_run(DQN, folder=f"/nowhere/{Path(store.run(DQN).folder).name}")
    policy = runs.parent / "policy.pt"
    assert cli.run(["runs", "export", DQN, str(policy), "--folder", str(runs)]) == 0
    assert policy.stat().st_size > 1000


@pytest.mark.parametrize(("identity", "expected"), [(DQN, -0.02179), (PORTFOLIO, 0.7335)])
def test_they_evaluate_to_what_they_did(runs, identity, expected):
    evaluation = vd.evaluate(identity, root=runs, report=False)
    assert evaluation.metrics["return"] == pytest.approx(expected, rel=1e-3)
    before = json.loads(next(runs.glob(f"*{identity}/evaluation/test.json")).read_text())
    assert before["split"] == evaluation.split  # the result of before stays beside the new one
    assert evaluation.policy.text.startswith("latest checkpoint (no best one is kept): step ")


def test_the_command_evaluates_one_and_writes_its_report(runs, capsys):
    assert cli.run(["eval", DQN, "--runs-folder", str(runs)]) == 0
    assert "Sharpe ratio" in capsys.readouterr().out
    (folder,) = runs.glob(f"*{DQN}")
    assert (folder / "report.html").stat().st_size > 1e6
    images = {path.name.rsplit("-", 1)[-1] for path in (folder / "evaluation").glob("test-best-*.png")}
    assert images >= {"equity.png", "position.png"}


def test_one_that_was_killed_goes_on_to_its_end(runs, capsys):
    assert cli.run(["train", "--resume", PPO, "--runs-folder", str(runs), "--quiet"]) == 0
    run = vd.Run.open(PPO, runs)
    assert run.status == "finished"
    returns = run.metrics.filter(pl.col("name") == "evaluation/validation/return")
    assert returns["step"].to_list() == list(range(1024, 16_385, 1024))
    # What the code of before made of the same checkpoint.
    expected = [0.02638, 0.03435, 0.0385, 0.02808, 0.03645, 0.03668, 0.03927, 0.03107]
    expected += [0.03943, 0.04154, 0.03399, 0.03159, 0.0344, 0.0322, 0.02004, 0.01971]
    assert returns["value"].to_list() == pytest.approx(expected, rel=1e-3)
    with open_store(runs) as store:
        final = store.evaluations(PPO).filter((pl.col("split") == "test") & (pl.col("name") == "return"))
    assert final["value"].to_list() == pytest.approx([0.0073], abs=5e-5)


def test_one_that_has_finished_is_left_as_it_is(runs, capsys):
    assert vd.resume(DQN, root=runs, mode="plain").status == "finished"
    assert "has finished" in capsys.readouterr().out
