"""What worker processes hold goes with whoever made them: after a fork, at the end of the interpreter, after a failure.

What is forgotten is in the contract of backends (tests/contracts/own_backend.py).
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.own_backend import open_resources
from tests.vector.foreign_envs import Counting
from velodrome.vector.workers.env_host import HostSettings
from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.foreign_env import autoreset_mode
from velodrome.vector.workers.options import WorkerOptions
from velodrome.vector.workers.worker import parent_side
from velodrome.vector.workers.worker.protocol import control_block
from velodrome.vector.workers.worker.shared_memory import SharedBlock

# A process forked from one with workers ends as scripts do; then the parent goes on, and ends without closing anything.
FORKING = """
import gc, os
import gymnasium, numpy as np, velodrome as vd

batches = [vd.make_vec("CartPole-v1", 2, backend=name, workers=2, seed=1) for name in ("process", "async")]
views = [envs.reset()[0] for envs in batches]
child = os.fork()
if child == 0:
    for envs, view in zip(batches, views):
        try:
            envs.step(np.zeros(2, int))
        except gymnasium.error.ClosedEnvironmentError:
            print("closed in the child", np.isfinite(view).all())
    del batches, envs
    gc.collect()
else:
    assert os.waitpid(child, 0)[1] == 0
    for envs in batches:
        print(envs.step(np.zeros(2, int))[1].tolist(), *(worker.process.pid for worker in envs.workers))
"""


def test_a_forked_process_leaves_the_workers_to_its_parent_and_they_end_with_that():
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, env=environment)
    assert (done.stderr, done.returncode) == ("", 0)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["closed in the child True"] * 2
    assert [line.split("]")[0] for line in lines[2:]] == ["[1.0, 1.0"] * 2
    workers = [int(text) for line in lines[2:] for text in line.split("]")[1].split()]
    assert len(workers) == 4
    assert not [worker for worker in workers if Path(f"/proc/{worker}").exists()]


def test_a_worker_that_cannot_be_started_leaves_nothing_behind(monkeypatch, quick_collections):
    control = control_block()
    settings = HostSettings([EnvMaker(Counting, {})], autoreset_mode(True), WorkerOptions(), seed=0)

    def refuse(*arguments: object) -> None:
        raise OSError("no more processes on purpose")

    # The server of processes, if it has to be started, stays.
    parent_side.WorkerHandle(0, settings, control, 0.0).close(0.0)
    gc.collect()
    before = open_resources()
    for name in ("start", "send"):
        target = parent_side.WorkerHandle
        if name == "start":
            target = parent_side.process_context("forkserver").Process
        with monkeypatch.context() as patch:
            patch.setattr(target, name, refuse)
            with pytest.raises(OSError, match="on purpose"):
                parent_side.WorkerHandle(0, settings, control, 0.0)
        gc.collect()
        assert open_resources() == before


def test_memory_that_cannot_be_had_leaves_no_descriptor():
    before = open_resources()
    with pytest.raises((OSError, OverflowError, ValueError)):
        SharedBlock(1 << 62)
    gc.collect()
    assert open_resources() == before
