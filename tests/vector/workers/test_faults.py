"""Environments that raise, hang, return nonsense, die or grow: named, replaced or dropped; the others go on."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest

import velodrome as vd
from tests.vector.foreign_envs import Counting, Faulty
from velodrome.errors import BackendError, ConfigError
from velodrome.vector.workers.env_host import Interruption
from velodrome.vector.workers.faults import EnvironmentFaultError
from velodrome.vector.workers.worker.worker_side import Worker

WORKERS = ("process", "async")
BACKENDS = ("serial", *WORKERS)
RAISED = ("raise", "raise unpicklable", "raise exit", "wrong shape", "wrong tuple", "wrong type", "wrong info")
DEADLY = ("exit", "kill")
HANGING = ("hang", "sleep")
GOOD = partial(Counting, length=4)


def batch(kind: str, backend: str, *, num_envs: int = 4, at: int = 2, where: str = "step", **options):
    """Return environments of which number 1 is faulty, with two workers: number 3 shares the worker of number 1."""
    bad = partial(Faulty, kind, where=where, at=at, length=4)
    makers = [GOOD, bad, *[GOOD] * (num_envs - 2)]
    if backend != "serial":
        options = {"workers": 2, "timeout": 0.3, **options}
    return vd.make_vec(makers, num_envs, backend=backend, seed=1, copy=True, **options)


def steps(envs, count: int):
    return [envs.step(np.zeros(envs.num_envs, np.int64)) for _ in range(count)]


def children() -> list[psutil.Process]:
    """Return the workers that descend from this process: the fork server and its tracker stay."""
    found = psutil.Process().children(recursive=True)
    return [child for child in found if child.is_running() and _is_worker(child)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("/memfd:velodrome" in mapping.path for mapping in process.memory_maps())
    except (psutil.Error, OSError):
        return False


def shared_descriptors() -> int:
    names = [os.readlink(entry) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum("memfd:velodrome" in name for name in names)


def test_a_signal_that_comes_as_a_step_ends_keeps_no_environment_from_its_own():
    stepped = []

    def step(rows, read):
        for row in rows:
            stepped.append(read(row))
            if row == 5:
                raise Interruption("no answer within 1 s")

    host = SimpleNamespace(step=step, faults=[])
    worker = SimpleNamespace(host=host, read_action=str, current=[6], index=2)
    Worker.step_rows(cast(Any, worker), [3, 5, 7])
    assert stepped == ["3", "5", "7"]
    assert [(fault.environment, fault.worker, fault.kind) for fault in host.faults] == [(5, 2, "hung")]
    assert worker.current == [0]


@pytest.fixture(autouse=True)
def nothing_is_left_behind(quick_collections):
    gc.collect()
    workers, descriptors = set(children()), shared_descriptors()  # of other modules' tests
    yield
    gc.collect()
    end = time.monotonic() + 5
    while set(children()) - workers and time.monotonic() < end:
        time.sleep(0.05)
    assert set(children()) - workers == set()
    assert shared_descriptors() <= descriptors


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", RAISED)
def test_an_environment_that_fails_is_named_with_its_traceback(kind, backend):
    envs = batch(kind, backend)
    envs.reset()
    steps(envs, 2)
    with pytest.raises(EnvironmentFaultError, match=r"environment 1 .*in step: .*") as caught:
        steps(envs, 1)
    (fault,) = caught.value.faults
    assert (fault.environment, fault.kind) == (1, "wrong value" if kind.startswith("wrong") else "raised")
    assert ("foreign_envs.py" in fault.traceback) == (not kind.startswith("wrong"))
    assert envs.lost_environments == 1
    with pytest.raises(BackendError, match=r"environments \[1\] are broken"):
        steps(envs, 1)
    mask = np.array([False, True, False, False])
    observations, _ = envs.reset(options={"reset_mask": mask})
    # The others are in the third step of their episodes, unharmed; number 1 is a new environment.
    np.testing.assert_array_equal(observations[:, 0], [3, 0, 3, 3])
    np.testing.assert_array_equal(steps(envs, 1)[0][0][:, 0], [0, 1, 0, 0])
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", RAISED)
def test_an_environment_that_fails_is_replaced_and_the_others_are_unharmed(kind, backend):
    envs = batch(kind, backend, on_fault="restart")
    envs.reset()
    steps(envs, 2)
    observations, rewards, terminated, truncated, infos = steps(envs, 1)[0]
    np.testing.assert_array_equal(observations[:, 0], [3, 0, 3, 3])
    np.testing.assert_array_equal(rewards, [3, 0, 3, 3])
    assert terminated.tolist() == [False] * 4
    assert truncated.tolist() == [False, True, False, False]
    assert infos["final_obs"][1][0] == 2  # the last good observation
    assert infos["_fault"].tolist() == [False, True, False, False]
    assert "environment 1" in infos["fault"][1]
    assert envs.restarts.tolist() == [0, 1, 0, 0]
    assert envs.lost_environments == 1
    assert envs.worker_restarts == 0
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_environment_that_fails_is_dropped(backend):
    envs = batch("raise", backend, on_fault="drop")
    envs.reset()
    *_, (_, _, _, truncated, _) = steps(envs, 3)
    assert truncated.tolist() == [False, True, False, False]
    _, rewards, terminated, truncated, _ = steps(envs, 1)[0]
    assert envs.alive.tolist() == [True, False, True, True]
    assert rewards.tolist() == [4, 0, 4, 4]
    assert terminated.tolist() == [True, False, True, True]
    assert not truncated.any()
    assert envs.lost_environments == 1
    envs.reset()
    assert not envs.alive[1]
    envs.close()


@pytest.mark.parametrize("autoreset", ["next_step", False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replaced_environment_is_reset_as_the_mode_says(backend, autoreset):
    envs = batch("raise", backend, on_fault="restart", autoreset=autoreset)
    envs.reset()
    *_, (observations, _, _, truncated, infos) = steps(envs, 3)
    assert truncated.tolist() == [False, True, False, False]
    np.testing.assert_array_equal(observations[:, 0], [3, 2, 3, 3])
    assert "final_obs" not in infos
    if autoreset:
        observations, rewards, *_ = steps(envs, 1)[0]
        np.testing.assert_array_equal(observations[:, 0], [4, 0, 4, 4])
        assert rewards[1] == 0
    else:
        observations, _ = envs.reset(options={"reset_mask": truncated})
        np.testing.assert_array_equal(observations[:, 0], [3, 0, 3, 3])
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fault_in_reset_is_seen_to_as_well(backend):
    envs = batch("raise", backend, where="reset", at=0)
    with pytest.raises(EnvironmentFaultError, match=r"environment 1 .*raised in reset"):
        envs.reset()
    envs.close()
    envs = batch("raise", backend, where="reset", at=1, on_fault="restart")
    envs.reset()
    *_, (observations, _, terminated, truncated, _) = steps(envs, 4)
    # The episode that had ended is cut off, since its environment could not begin the next one.
    assert (terminated | truncated).all()
    np.testing.assert_array_equal(observations[:, 0], [0, 0, 0, 0])
    assert envs.lost_environments == 1
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_environment_that_always_fails_is_given_up(backend):
    envs = vd.make_vec([GOOD, partial(Faulty, "raise"), GOOD], 3, backend=backend, on_fault="restart", max_restarts=3)
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match=r"restarted 3 times, as often as max_restarts allows"):
        steps(envs, 9)
    assert envs.restarts.tolist() == [0, 3, 0]
    assert envs.lost_environments == 4
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["raise", "exit"])
def test_an_environment_that_cannot_be_made_is_named(kind, backend):
    if (kind, backend) == ("exit", "serial"):
        pytest.skip("ends this very process")
    with pytest.raises(EnvironmentFaultError, match=r"environment [01] .* in make"):
        batch(kind, backend, where="constructor", at=None)


@pytest.mark.parametrize("backend", WORKERS)
@pytest.mark.parametrize("kind", HANGING)
def test_an_environment_that_hangs_is_interrupted_and_its_worker_lives(kind, backend):
    envs = batch(kind, backend, on_fault="restart")
    envs.reset()
    *_, (observations, _, _, truncated, _) = steps(envs, 3)
    np.testing.assert_array_equal(observations[:, 0], [3, 0, 3, 3])
    assert truncated.tolist() == [False, True, False, False]
    assert [(fault.environment, fault.kind) for fault in envs.faults] == [(1, "hung")]
    assert envs.worker_restarts == 0
    envs.close()


@pytest.mark.parametrize("backend", WORKERS)
@pytest.mark.parametrize("kind", [*DEADLY, "hang in C"])
def test_a_worker_that_dies_is_replaced_with_all_its_environments(kind, backend):
    envs = batch(kind, backend, on_fault="restart")
    envs.reset()
    *_, (observations, rewards, _, truncated, infos) = steps(envs, 3)
    # Number 3 lived in the same process.
    np.testing.assert_array_equal(observations[:, 0], [3, 0, 3, 0])
    assert rewards.tolist() == [3, 0, 3, 0]
    assert truncated.tolist() == [False, True, False, True]
    assert infos["final_obs"][1][0] == 2
    kinds = {fault.environment: fault.kind for fault in envs.faults}
    assert kinds == {1: "hung" if kind == "hang in C" else "died", 3: "lost with its worker"}
    assert envs.lost_environments == 2
    assert envs.restarts.tolist() == [0, 1, 0, 1]
    assert envs.worker_restarts == 1
    steps(envs, 2)
    envs.close()


@pytest.mark.parametrize("backend", WORKERS)
def test_a_worker_that_dies_is_told_and_reset_starts_another(backend):
    envs = batch("exit", backend)
    envs.reset()
    steps(envs, 2)
    with pytest.raises(EnvironmentFaultError, match=r"environment 1 \(worker 1\) died in step: .*exit code 3"):
        steps(envs, 1)
    observations, _ = envs.reset()
    np.testing.assert_array_equal(observations[:, 0], [0, 0, 0, 0])
    steps(envs, 2)
    envs.close()


@pytest.mark.parametrize("backend", WORKERS)
def test_when_a_worker_dies_only_the_culprit_is_dropped(backend):
    envs = batch("kill", backend, on_fault="drop")
    envs.reset()
    *_, (_, _, _, truncated, _) = steps(envs, 3)
    assert truncated.tolist() == [False, True, False, True]
    assert envs.alive.tolist() == [True, False, True, True]
    _, rewards, *_ = steps(envs, 1)[0]
    assert rewards.tolist() == [4, 0, 4, 1]
    envs.close()


@pytest.mark.parametrize("backend", WORKERS)
def test_a_worker_that_is_killed_from_outside_between_steps_is_replaced(backend):
    envs = vd.make_vec(GOOD, 4, backend=backend, workers=2, on_fault="restart", copy=True)
    envs.reset()
    steps(envs, 1)
    os.kill(envs.workers[1].process.pid, signal.SIGKILL)
    *_, (observations, _, _, truncated, _) = steps(envs, 1)
    assert truncated.tolist() == [False, True, False, True]
    np.testing.assert_array_equal(observations[:, 0], [2, 0, 2, 0])
    assert envs.lost_environments == 2
    envs.close()


@pytest.mark.parametrize("backend", WORKERS)
def test_a_worker_whose_memory_grows_is_replaced(backend, monkeypatch):
    monkeypatch.setattr("velodrome.vector.workers.process.MEMORY_LOOKS", 0.0)
    makers = [GOOD, partial(Faulty, "grow", growth=30 << 20), GOOD]
    plain = vd.make_vec(GOOD, 1, backend=backend)
    limit = plain.workers[0].memory() + (100 << 20)
    plain.close()
    envs = vd.make_vec(makers, 3, backend=backend, workers=3, on_fault="restart", memory_limit=limit)
    envs.reset()
    steps(envs, 12)
    assert {(fault.environment, fault.kind) for fault in envs.faults} == {(1, "memory")}
    assert 2 <= envs.lost_environments <= 4
    assert "MiB, more than memory_limit allows" in envs.faults[0].message
    assert max(worker.memory() for worker in envs.workers) < limit + (60 << 20)
    envs.close()


@pytest.mark.parametrize(
    "option", [{"memory_limit": 1 << 30}, {"workers": 2}, {"timeout": 1.0}, {"start_method": "spawn"}]
)
def test_options_of_workers_are_refused_where_there_are_none(option):
    with pytest.raises(ConfigError, match=r"is of worker processes, and backend = 'serial' has none"):
        vd.make_vec(GOOD, 2, backend="serial", **option)


def test_recv_goes_on_without_an_environment_that_hangs():
    envs = batch("sleep", "async", on_fault="restart", timeout=1.0, workers=4)
    envs.reset()
    zeros = np.zeros(4, np.int64)
    for _ in range(2):
        envs.send(zeros)
        envs.recv()
    envs.send(zeros)
    seen = []
    while 1 not in seen:
        _, _, _, truncated, infos, ids = envs.recv(1)
        seen += ids.tolist()
        if ids[0] == 1:
            assert truncated[0]
            assert "no answer within 1 s" in infos["fault"][0]
        envs.send(zeros[:1], ids)
    assert len(seen) > 20
    envs.recv()
    envs.close()


def test_environments_lost_while_nobody_waits_for_them_say_so_at_their_next_step():
    envs = vd.make_vec(GOOD, 4, backend="async", workers=2, on_fault="restart")
    envs.reset()
    zeros = np.zeros(4, np.int64)
    envs.send(zeros[:1], [0])
    os.kill(envs.workers[1].process.pid, signal.SIGKILL)
    envs.workers[1].process.join()
    time.sleep(0.6)
    envs.recv()  # looks at the workers as well
    assert envs.lost_environments == 2
    envs.send(zeros)
    _, rewards, _, truncated, infos, ids = envs.recv()
    order = np.argsort(ids)
    assert truncated[order].tolist() == [False, True, False, True]
    assert rewards[order].tolist() == [2, 0, 1, 0]
    assert infos["_fault"][order].tolist() == [False, True, False, True]
    envs.close()


class Numbers(Counting):
    """Says a number in every step; dies in a given one."""

    def __init__(self, dies_at: int | None = None, **values) -> None:
        super().__init__(**values)
        self.dies_at = dies_at

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        if self.count == self.dies_at:
            os._exit(3)
        return observation, reward, terminated, truncated, {"count": float(self.count)}


@pytest.mark.parametrize("backend", WORKERS)
def test_numbers_of_a_worker_that_dies_do_not_outlive_it(backend):
    makers = [partial(Numbers, length=9), partial(Numbers, 3, length=9)]
    envs = vd.make_vec(makers, 2, backend=backend, workers=1, on_fault="restart", copy=True)
    envs.reset()
    steps(envs, 2)
    _, _, _, truncated, infos = steps(envs, 1)[0]
    assert truncated.all()
    assert infos["_fault"].all()
    *_, infos = steps(envs, 1)[0]
    assert infos["count"].tolist() == [1.0, 1.0]
    envs.close()


@pytest.mark.parametrize("backend", WORKERS)
def test_a_row_dropped_with_its_worker_stands_still_and_survives_a_reset(backend):
    envs = batch("kill", backend, on_fault="drop")
    envs.reset()
    steps(envs, 3)
    _, rewards, terminated, truncated, infos = steps(envs, 1)[0]
    assert (rewards[1], terminated[1], truncated[1]) == (0, False, False)
    assert not infos.get("_final_obs", np.zeros(4, bool))[1]
    envs.reset()
    steps(envs, 2)
    assert envs.alive.tolist() == [True, False, True, True]
    envs.close()


@pytest.mark.parametrize("backend", WORKERS)
def test_a_call_that_meets_a_dead_worker_leaves_the_others_in_order(backend):
    envs = vd.make_vec(GOOD, 4, backend=backend, workers=2, on_fault="restart", copy=True)
    envs.reset()
    os.kill(envs.workers[1].process.pid, signal.SIGKILL)
    envs.workers[1].process.join()
    with pytest.raises(BackendError, match="worker 1"):
        envs.get_attr("count")
    *_, (_, _, _, truncated, _) = steps(envs, 1)
    assert truncated.tolist() == [False, True, False, True]
    assert envs.get_attr("count") == (1, 0, 1, 0)
    envs.close()


@pytest.mark.parametrize("backend", WORKERS)
def test_all_faults_of_one_step_are_told_at_once(backend):
    bad = partial(Faulty, "raise", at=1, length=4)
    envs = vd.make_vec([bad, bad, GOOD], 3, backend=backend, workers=1, copy=True)
    envs.reset()
    steps(envs, 1)
    with pytest.raises(EnvironmentFaultError) as caught:
        steps(envs, 1)
    assert [fault.environment for fault in caught.value.faults] == [0, 1]
    observations, _ = envs.reset()
    np.testing.assert_array_equal(observations[:, 0], [0, 0, 0])
    steps(envs, 1)
    envs.close()


def test_recv_that_raises_keeps_the_results_of_the_others():
    envs = batch("raise", "async", at=0)
    envs.reset()
    envs.send(np.zeros(4, np.int64))
    time.sleep(0.3)
    with pytest.raises(EnvironmentFaultError, match="environment 1"):
        envs.recv()
    *_, ids = envs.recv()
    assert sorted(ids.tolist()) == [0, 2, 3]
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_growth_that_fails_leaves_the_batch_as_it_was(backend, tmp_path):
    maker = partial(Faulty, "raise", where="constructor", at=3, folder=str(tmp_path), length=9)
    options = {} if backend == "serial" else {"workers": 2}
    envs = vd.make_vec(maker, 3, backend=backend, copy=True, **options)
    envs.reset()
    steps(envs, 1)
    with pytest.raises(EnvironmentFaultError, match="in make"):
        envs.resize(5)
    assert envs.num_envs == 3
    np.testing.assert_array_equal(steps(envs, 1)[0][0][:, 0], [2, 2, 2])
    assert len(envs.resize(5)) == 5
    envs.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_are_reset_one_after_the_other_have_the_seeds_of_the_making(backend):
    def seeds() -> tuple:
        envs = vd.make_vec(GOOD, 2, backend=backend, seed=5)
        envs.reset(options={"reset_mask": np.array([True, False])})
        envs.reset(options={"reset_mask": np.array([False, True])})
        found = envs.np_random_seed
        envs.close()
        return found

    together = vd.make_vec(GOOD, 2, backend=backend, seed=5)
    together.reset()
    assert seeds() == seeds() == together.np_random_seed
    together.close()


# The parent

SCRIPT = """
import sys, time
import numpy as np
import velodrome as vd
from tests.vector.foreign_envs import Faulty, Slow
from functools import partial

envs = vd.make_vec(MAKER, 4, backend="BACKEND", workers=2, start_method="METHOD", timeout=None)
envs.reset()
print(*(worker.process.pid for worker in envs.workers), flush=True)
while True:
    envs.step(np.zeros(4, np.int64))
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
@pytest.mark.parametrize(
    ("backend", "maker"),
    [("process", 'partial(Slow, 0.01, length=9)'), ("async", 'partial(Faulty, "hang")'),
     ("process", 'partial(Faulty, "hang in C")')],
)  # fmt: skip
def test_no_worker_outlives_a_parent_that_is_killed(backend, maker, method, tmp_path):
    if method == "spawn" and backend == "async":
        pytest.skip("the same as with process")
    script = SCRIPT.replace("MAKER", maker).replace("BACKEND", backend).replace("METHOD", method)
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert parent.stdout is not None
    workers = [int(text) for text in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 5
    while any(map(_lives, workers)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not [worker for worker in workers if _lives(worker)]


def _lives(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_soak_of_random_faults(backend):
    """Every fault is counted once; nothing blocks; survivors behave. The long version is among the slow tests."""
    soak(backend, faults=40, seed=5)


@pytest.mark.slow
@pytest.mark.parametrize("backend", WORKERS)
def test_a_soak_of_a_thousand_random_faults(backend):
    soak(backend, faults=1000, seed=7)


def soak(backend: str, faults: int, seed: int) -> None:
    kinds = RAISED if backend == "serial" else (*RAISED, *DEADLY, "sleep")
    maker = partial(Faulty, kinds, probability=0.02, length=7)
    options = {} if backend == "serial" else {"workers": 3, "timeout": 0.1}
    envs = vd.make_vec(
        maker, 12, backend=backend, seed=seed, on_fault="restart", max_restarts=10_000, copy=True, **options
    )  # fmt: skip
    envs.reset()
    told = 0
    before = np.zeros(12)
    while envs.lost_environments < faults:
        observations, rewards, terminated, truncated, infos = envs.step(np.zeros(12, np.int64))
        ended = terminated | truncated
        np.testing.assert_array_equal(observations[:, 0], np.where(ended, 0, before + 1))
        np.testing.assert_array_equal(rewards, np.where(truncated, 0, before + 1))
        before = observations[:, 0]
        if "_fault" in infos:
            np.testing.assert_array_equal(infos["_fault"], truncated)
            told += int(infos["_fault"].sum())
    # An environment that is lost twice within one step is two faults and one row.
    twice = len(envs.faults) - told
    assert twice <= len(envs.faults) // 4
    assert envs.restarts.sum() == envs.lost_environments
    envs.close()
