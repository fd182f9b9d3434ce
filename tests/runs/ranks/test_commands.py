"""The commands themselves: torchrun's restart continues the run, --nproc says who died, Ctrl-C saves."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.runs.ranks.several import only_run
from tests.runs.small_runs import TIMEOUT, tiny
from velodrome import cli

pytestmark = pytest.mark.slow
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
LONG = {"steps": 10**8, "checkpoint.every_steps": 640, "evaluation.every_steps": None}


def begin(
    folder: Path, launcher: Sequence[str], flags: Sequence[str] = (), **settings: object
) -> subprocess.Popen[str]:
    """Begin a training that does not end by itself, and wait for a checkpoint."""
    given = tiny(folder, **{**LONG, **settings})
    given = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
    words = [f"{key}={'null' if value is None else value}" for key, value in given.items()]
    command = [sys.executable, *launcher, "-m", "velodrome", "train", "smoke", *words, "--quiet", "--no-evaluation"]
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_until(lambda: any(folder.glob("*/checkpoints/*[1-9]*")) or process.poll() is not None)
    assert process.poll() is None, process.stderr.read()
    return process


def wait_until(what) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ranks_of(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """The ranks among the processes that descend from one."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            rank = child.environ().get("RANK")
            if rank is not None and "velodrome" in child.cmdline():
                found[rank] = child
    return found


def test_a_rank_that_is_killed_is_restarted_by_torchrun_and_the_run_goes_on(tmp_path):
    process = begin(tmp_path, TORCHRUN)
    before = ranks_of(process)
    before["1"].kill()
    old = {child.pid for child in before.values()}
    wait_until(lambda: len(new := ranks_of(process)) == 2 and not old & {child.pid for child in new.values()})
    run = only_run(tmp_path)
    last = run.folder.metrics_path.stat().st_mtime
    wait_until(lambda: run.folder.metrics_path.stat().st_mtime > last + 1.0)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=TIMEOUT)
    assert len(list(tmp_path.glob("*-*/run.json"))) == 1
    assert only_run(tmp_path).status == "interrupted"


def test_a_rank_that_is_killed_stops_the_others_within_seconds(tmp_path):
    process = begin(tmp_path, (), ["--nproc", "2"])
    began = time.monotonic()
    ranks_of(process)["1"].kill()
    _, told = process.communicate(timeout=TIMEOUT)
    assert time.monotonic() - began < 30.0
    assert process.returncode == cli.REFUSED
    assert "Rank 1 of 2 was ended by SIGKILL" in told
    assert "torch/distributed" not in told
    assert only_run(tmp_path).status in ("failed", "interrupted")


def test_what_all_ranks_refuse_is_said_in_one_sentence(tmp_path):
    words = ["train", "smoke", "algorithm=dqn", "--nproc", "2", f"logging.folder={tmp_path}"]
    done = subprocess.run([sys.executable, "-m", "velodrome", *words], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == cli.REFUSED
    (told,) = done.stderr.splitlines()
    assert told.startswith("velodrome: algorithm = dqn: several ranks can train ppo.")


def test_an_interruption_saves_in_all_ranks(tmp_path):
    process = begin(tmp_path, (), ["--nproc", "2"])
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=TIMEOUT)
    assert process.returncode == cli.INTERRUPTED
    assert told.count("interrupted and saved") == 1
    assert only_run(tmp_path).status == "interrupted"
