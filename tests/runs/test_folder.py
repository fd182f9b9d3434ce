"""The run's folder: what is in it, how it is found, and that one process at a time trains it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import velodrome
from velodrome.errors import ConfigError
from velodrome.runs.folder import INFORMATION, Candidate, RunError, RunFolder, choose_run, replace_text, run_folders
from velodrome.runs.versions import git_commit, machine, versions


def make(root: Path, name: str, minutes: int = 0) -> RunFolder:
    """Make a run that is some minutes old."""
    run = RunFolder.create(root, name)
    created = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()
    replace_text(run.path / INFORMATION, json.dumps({**run.information, "created": created}))
    return run


def test_a_new_run_says_what_it_was_made_with(tmp_path):
    run = RunFolder.create(
        tmp_path / "runs",
        "ar1",
        config="seed: 3\n",
        seeds={"seed": 3},
        data_hash="abc",
        command=["velodrome", "train", "a b"],
    )
    assert run.path.parent == (tmp_path / "runs").resolve()
    name, day, moment, identity = run.path.name.split("-")
    assert (name, len(day), len(moment), identity) == ("ar1", 8, 6, run.id)
    assert run.config_path.read_text() == "seed: 3\n"
    assert (run.path / "checkpoints").is_dir()
    assert run.evaluation_path.is_dir()
    found = run.information
    assert (found["id"], found["seeds"], found["data_hash"]) == (run.id, {"seed": 3}, "abc")
    assert found["command"] == "velodrome train 'a b'"
    assert found["versions"]["velodrome"] == velodrome.__version__
    assert {"python", "torch", "numpy", "numba"} <= found["versions"].keys()
    assert found["machine"]["cores"] >= 1
    assert datetime.now(UTC) - datetime.fromisoformat(found["created"]) < timedelta(minutes=1)
    assert json.loads(json.dumps(found)) == found


def test_the_command_is_that_of_the_process_if_not_given(tmp_path):
    assert RunFolder.create(tmp_path).information["command"].startswith(Path(sys.orig_argv[0]).name)


def test_two_runs_of_one_name_and_second_have_folders_of_their_own(tmp_path):
    runs = [RunFolder.create(tmp_path, "same") for _ in range(20)]
    assert len({run.path for run in runs}) == len({run.id for run in runs}) == 20


def test_a_run_whose_folder_was_named_before_it_began_was_made_when_it_began(tmp_path):
    folder = RunFolder.create(tmp_path, identity="ab12cd34", moment=1e9)
    assert folder.path.name == "run-20010909-014640-ab12cd34"
    assert abs(folder.candidate.created - time.time()) < 60.0


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-flag", "a b", "é", "x" * 101, "a\n"])
def test_a_name_that_is_no_good_folder_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="a run's name is"):
        RunFolder.create(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunError, match="could not be made: Not a directory"):
        RunFolder.create(tmp_path / "runs")


def test_a_file_is_replaced_and_leaves_nothing_beside_it(tmp_path):
    run = RunFolder.create(tmp_path)
    replace_text(run.path / INFORMATION, json.dumps({**run.information, "note": "é"}))
    assert run.information["note"] == "é"
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoints", "config.yaml", "evaluation", "run.json"]


# Finding a run


def test_a_run_is_found_by_path_id_name_start_and_latest(tmp_path):
    old, new = make(tmp_path, "old", 5), make(tmp_path, "new")
    assert RunFolder.open(old.path) == old
    assert RunFolder.open(str(old.path)) == old
    for text in (old.id, old.path.name, old.id[:5], "old", old.path.name[:8]):
        assert RunFolder.open(text, tmp_path) == old
    assert RunFolder.open("latest", tmp_path) == new
    assert run_folders(tmp_path) == sorted([old, new], key=lambda run: run.path)


def test_a_start_that_fits_several_lists_them(tmp_path):
    runs = [make(tmp_path, f"ar1-{index}", index) for index in range(3)]
    with pytest.raises(RunError, match="'ar1' is the start of 3 runs") as caught:
        RunFolder.open("ar1", tmp_path)
    assert all(run.path.name in str(caught.value) for run in runs)


def test_an_unknown_run_lists_near_names(tmp_path):
    run = make(tmp_path, "momentum")
    make(tmp_path, "other")
    with pytest.raises(RunError, match=f"no run 'momentm-2026'.*which has 2.*Near to that: {run.path.name}"):
        RunFolder.open("momentm-2026", tmp_path)
    with pytest.raises(RunError, match="The newest: other"):
        RunFolder.open("@", tmp_path)
    with pytest.raises(RunError, match="no run ''"):
        choose_nothing(tmp_path)


def choose_nothing(root: Path) -> None:
    from velodrome.runs.folder import choose_run

    choose_run("", [run.candidate for run in run_folders(root)], "here")


def test_no_runs_at_all_is_told(tmp_path):
    with pytest.raises(RunError, match=r"there are no runs in .*velodrome train"):
        RunFolder.open("latest", tmp_path / "nowhere")


def test_a_folder_that_holds_no_run_is_told(tmp_path):
    with pytest.raises(RunError, match=r"holds no run: it has no run\.json"):
        RunFolder.open(tmp_path)


def test_a_damaged_description_is_told_and_does_not_hide_the_others(tmp_path, caplog):
    damaged, whole = make(tmp_path, "damaged"), make(tmp_path, "whole")
    (damaged.path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json: cannot be read"):
        RunFolder.open(damaged.path)
    assert RunFolder.open("latest", tmp_path) == whole
    assert "run.json: cannot be read" in caplog.text


# The lock

HOLDER = """
import os, sys, time
from velodrome.runs.folder import RunFolder
with RunFolder.open(sys.argv[1]).lock():
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(60)
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def hold(run: RunFolder, how: str = "alone") -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path), how], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    return process


def end(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def try_lock(run: RunFolder) -> None:
    with run.lock():
        pass


def test_two_processes_cannot_train_one_run(tmp_path):
    run = RunFolder.create(tmp_path)
    assert not run.is_locked()
    process = hold(run)
    assert run.is_locked()
    with pytest.raises(
        RunError, match=f"process {process.pid} on .* has been training this run since .*kill {process.pid}"
    ):
        try_lock(run)
    end(process)
    assert not run.is_locked()
    try_lock(run)


def test_one_process_cannot_train_a_run_twice(tmp_path):
    run = RunFolder.create(tmp_path)
    with run.lock():
        assert run.is_locked()
        with pytest.raises(RunError, match=f"process {os.getpid()}"):
            try_lock(run)
    assert not run.is_locked()


def test_a_lock_that_a_child_of_a_killed_trainer_holds_is_told(tmp_path):
    run = RunFolder.create(tmp_path)
    process = hold(run, "fork")
    process.kill()
    process.wait()
    try:
        with pytest.raises(RunError, match=r"is gone, but a process that it started still holds the lock.*fuser"):
            try_lock(run)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()
    deadline = time.monotonic() + 5.0
    while run.is_locked():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_looking_whether_a_run_is_locked_does_not_keep_it_from_being_locked(tmp_path):
    import threading

    run = RunFolder.create(tmp_path)
    try_lock(run)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            run.is_locked()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(20):
            try_lock(run)
    finally:
        stop.set()
        thread.join()


# The log


def test_the_log_is_kept_and_goes_on(tmp_path):
    run = RunFolder.create(tmp_path)
    logger = logging.getLogger("velodrome.anything")
    before = logging.getLogger("velodrome").level
    with run.write_log():
        logger.info("first, é")
        logger.debug("too fine")
    logger.warning("between")
    with run.write_log():
        logger.warning("second")
    first, second = run.log_path.read_text(encoding="utf-8").splitlines()
    assert first.endswith("Z INFO first, é")
    assert second.endswith("Z WARNING second")
    assert datetime.now(UTC) - datetime.fromisoformat(first.split()[0]) < timedelta(minutes=1)
    assert logging.getLogger("velodrome").level == before


# Versions


def test_versions_are_those_of_this_process():
    import numpy

    assert versions()["numpy"] == numpy.__version__
    assert machine()["host"]


def test_the_commit_of_a_folder(tmp_path):
    assert git_commit(tmp_path) is None

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "file").write_text("2")
    assert git_commit(tmp_path) == f"{commit} + changes"


def test_the_latest_run_is_no_fold_of_a_walk_forward():
    runs = [Candidate("a1", "trading-20260101-101500-a1", 1.0), Candidate("b2", "fold-2-of-3-trading-x-b2", 2.0)]
    assert choose_run("latest", runs, "here").id == "a1"
    assert choose_run("latest", runs[1:], "here").id == "b2"


def test_a_whole_name_goes_before_the_start_of_others():
    titles = ("slow-20260101-101500-a1", "slow-seed-0-20260101-101501-b2", "slower-20260101-101502-c3")
    runs = [Candidate(title[-2:], title, float(place)) for place, title in enumerate(titles)]
    assert choose_run("slow", runs, "here").id == "a1"
    assert choose_run("slow-seed-0", runs, "here").id == "b2"
    again = Candidate("d4", "slow-20260102-101500-d4", 4.0)
    with pytest.raises(RunError, match="'slow' is the start of 2 runs here"):
        choose_run("slow", [*runs, again], "here")
