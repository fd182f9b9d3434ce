"""Runs in an S3 bucket: a server on this machine that speaks the protocol, and processes that share nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runs.bucket.s3_server import s3  # noqa: F401
from tests.runs.small_runs import tiny
from velodrome import cli
from velodrome.errors import BucketError
from velodrome.runs import checkpoint
from velodrome.runs.bucket.place import SCRATCH, _system_of, here
from velodrome.runs.run import Run, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def no_old_connections():
    _system_of.cache_clear()
    yield
    _system_of.cache_clear()


def words(url: str, **changed) -> list[str]:
    told = tiny(Path("x"), **changed) | {"logging.folder": url}
    return [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in told.items()]


def listed(url: str) -> list[str]:
    import s3fs

    system = s3fs.S3FileSystem()
    system.invalidate_cache()
    return system.find(url.removeprefix("s3://"))


def test_a_run_that_was_killed_goes_on_on_another_machine(s3, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv(SCRATCH, str(tmp_path / "first"))
    command = [sys.executable, "-m", "velodrome", "train", "smoke", *words(s3, steps=2_000_000), "--quiet"]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 200.0
    while len([path for path in listed(s3) if path.endswith("state.json")]) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = max(int(path.split("/")[-2]) for path in listed(s3) if path.endswith("state.json"))
    monkeypatch.setenv(SCRATCH, str(tmp_path / "second"))
    assert cli.run(["train", "--resume", "latest", "--folder", s3, f"steps={before + 1280}", "--quiet"]) == 0
    run = Run.open("latest", s3)
    assert run.path.is_relative_to(tmp_path / "second")
    assert run.status == "finished"
    assert checkpoint.latest_valid(run.path).steps == before + 1280
    assert any(path.endswith("/report.html") for path in listed(s3))
    assert cli.run(["runs", "list", "--folder", s3]) == 0
    assert cli.run(["runs", "show", f"{s3}/{run.path.name}"]) == 0


def test_a_study_in_a_bucket(s3, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv(SCRATCH, str(tmp_path / "first"))
    told = [word for word in words(s3) if not word.startswith("logging.")]
    command = [sys.executable, "-m", "velodrome", "tune", "smoke", *told, "--trials", "4", "--study", "s"]
    command += ["--search", "ppo.learning_rate=1e-4:1e-2:log", "--search-only", "--no-pruning", "--seeds", "1"]
    command += ["--confirm", "1", "--confirm-seeds", "1", "--folder", s3, "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    there = listed(s3)
    runs = {path.split("/")[2] for path in there if path.endswith("/run.json")}
    logs = [path for path in there if path.split("/")[2] == "jobs"]
    assert len(runs) == len(logs) >= 4
    monkeypatch.setenv(SCRATCH, str(tmp_path / "second"))
    assert {run.path.name for run in map(Run.of, _folders(s3))} == runs


def _folders(url: str):
    from velodrome.runs.folder import run_folders

    return run_folders(url)


def test_a_bucket_that_is_not_there_or_not_ours_is_told_in_a_sentence(s3, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv(SCRATCH, str(tmp_path))
    with pytest.raises(BucketError, match=r"s3://nobody/runs: cannot be read or written") as told:
        train("smoke", mode="quiet", **tiny(Path("s3://nobody/runs")))
    assert "\n" not in str(told.value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    _system_of.cache_clear()
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(BucketError, match="cannot be read or written"):
        train("smoke", mode="quiet", **tiny(Path(s3)))
    assert json.loads((here(s3) / ".bucket.json").read_text())["url"] == s3
