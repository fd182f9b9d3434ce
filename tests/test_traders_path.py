"""A trader's path: a folder of downloaded files, checked, trained on, walked forward and reported by two commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sample_prices import write_samples
from velodrome import cli

SEEDS = ("--seeds", "3")
LONGEST = 300.0  # seconds on two cores
QUICK = ("steps=2_048", "num_envs=16", "ppo.rollout_length=32", "network.hidden=[8]", "windows=4", "features=[return]")
QUICK += ("timeframe=12h", "market.check_leaks=false", "device=cpu", "evaluation.every_steps=1_024")
QUICK += ("evaluation.bootstrap_samples=20", "evaluation.seeds=1", "episode_length=64")


@pytest.fixture(scope="module")
def samples(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trader")
    rows = write_samples(folder / "prices")
    assert all(5_800 < count < 8_300 for count in rows.values())
    return folder


def assert_whole(folder: Path, folds: int) -> None:
    """Assert that a folder of runs holds what a trader looks for: both reports, and every fold's result."""
    (report,) = (path for path in folder.glob("*/report.html") if not path.parent.name.startswith("fold"))
    page = report.read_text()
    assert "buy and hold" in page
    (walked,) = folder.glob("walk-forward-*")
    assert (walked / "walk_forward.html").stat().st_size > 10_000
    found = json.loads((walked / "walk_forward.json").read_text())
    assert len(found["folds"]) == folds
    tested = [fold["splits"]["test"] for fold in found["folds"]]
    assert tested == sorted(tested)
    assert found["joined"]["information"]["symbols"] == ["BTCUSD", "EURUSD", "XAUUSD"]


def test_the_files_are_read_as_they_were_downloaded(samples, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert cli.run(["data", "check", str(samples / "prices")]) == 0
    printed = capsys.readouterr().out
    assert "These bars can be read." in printed
    for word in ("BTCUSD", "EURUSD", "XAUUSD", "repeated rows", "gaps", "the newest row comes"):
        assert word in printed


def test_from_a_folder_of_files_to_the_reports_quickly(samples, monkeypatch, capsys):
    monkeypatch.chdir(samples)
    assert cli.run(["train", "market.source=prices", "logging.folder=quick", "fee=0.0002", *QUICK, "--quiet"]) == 0
    (run,) = Path("quick").glob("trading-*")
    assert cli.run(["eval", str(run), "--walk-forward", "--folds", "2"]) == 0
    assert_whole(samples / "quick", 2)


@pytest.mark.slow
def test_from_a_folder_of_files_to_the_reports_in_two_commands_and_five_minutes(samples):
    began = time.monotonic()
    for words in (
        ("data", "check", "prices"),
        ("train", "market.source=prices", "steps=200_000", "fee=0.0002", *SEEDS),
        ("eval", "latest", "--walk-forward"),
    ):
        command = [sys.executable, "-m", "velodrome", *words]
        answer = subprocess.run(command, cwd=samples, capture_output=True, text=True, timeout=LONGEST, check=False)
        assert answer.returncode == 0, answer.stdout + answer.stderr
    if len(os.sched_getaffinity(0)) >= 2 and os.getloadavg()[0] < 3:  # a busy machine says nothing about the commands
        assert time.monotonic() - began < LONGEST
    assert_whole(samples / "runs", 4)
