"""What is begun and waited for: our workers beside Gymnasium's AsyncVectorEnv, which is the first of the cases."""

from __future__ import annotations

import multiprocessing
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode

import velodrome as vd
from tests.vector.foreign_envs import Counting, Faulty, Gated
from tests.vector.test_gymnasium_semantics import Forked
from velodrome.errors import BackendError, ConfigError
from velodrome.vector.workers.faults import EnvironmentFaultError

OURS = ("process", "async")
ZEROS = np.zeros(3, np.int64)


def make(backend: str, env: Any, num_envs: int = 3) -> Any:
    if backend == "gymnasium":
        return Forked([env] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    return vd.make_vec(env, num_envs, backend=backend, workers=2, seed=0)


@pytest.fixture(scope="module", params=("gymnasium", *OURS))
def shared(request):
    envs = make(request.param, partial(Gated, length=9))
    yield envs
    envs.close()


@pytest.fixture
def envs(shared):
    shared.reset(seed=1)
    return shared


def test_what_was_begun_returns_what_it_returns_at_once(envs):
    expected = envs.reset(seed=4)[0].copy(), envs.step(ZEROS + 2)[1].copy(), envs.call("combine", 7, suffix="!")
    envs.reset_async(seed=4)
    observations, infos = envs.reset_wait()
    np.testing.assert_array_equal(observations[:, 0], expected[0][:, 0])
    assert infos == {}
    assert envs.np_random_seed == (4, 5, 6)
    envs.step_async(ZEROS + 2)
    np.testing.assert_array_equal(envs.step_wait(timeout=60)[1], expected[1])
    envs.call_async("combine", 7, suffix="!")
    assert envs.call_wait() == expected[2]


def test_a_mask_and_options_go_with_a_reset_that_is_begun(envs):
    envs.step(ZEROS)
    envs.reset_async(options={"level": 3, "reset_mask": np.array([True, False, True])})
    assert envs.reset_wait(timeout=60)[0][:, 0].tolist() == [0.0, 1.0, 0.0]
    assert envs.get_attr("options") == ({"level": 3}, None, {"level": 3})


@pytest.mark.parametrize("begun", ["step", "reset", "call"])
def test_a_second_call_is_refused_until_the_first_was_waited_for(envs, begun):
    begin = {
        "step": partial(envs.step_async, ZEROS),
        "reset": envs.reset_async,
        "call": partial(envs.call_async, "label"),
    }
    others = [*begin.values(), envs.reset, partial(envs.step, ZEROS), partial(envs.call, "label"),
              partial(envs.set_attr, "label", "x")]  # fmt: skip
    begin[begun]()
    for call in others:
        with pytest.raises(AlreadyPendingCallError, match=f"while waiting for a pending call to `{begun}`") as caught:
            call()
        assert caught.value.name == begun
    for other in begin.keys() - {begun}:
        with pytest.raises(NoAsyncCallError, match=f"`{other}_wait` without any prior call to `{other}_async`"):
            getattr(envs, f"{other}_wait")()
    getattr(envs, f"{begun}_wait")()
    with pytest.raises(NoAsyncCallError, match=f"`{begun}_wait` without any prior call") as caught:
        getattr(envs, f"{begun}_wait")()
    assert envs.get_attr("label") == ("new", "new", "new")


@pytest.mark.parametrize("backend", ["gymnasium", *OURS])
@pytest.mark.parametrize("begun", ["step", "reset", "call"])
def test_a_wait_ends_in_time(backend, begun, tmp_path):
    envs = make(backend, Gated)
    envs.reset()
    envs.set_attr("gate", str(tmp_path / "never"))
    begin = {
        "step": partial(envs.step_async, ZEROS),
        "reset": envs.reset_async,
        "call": partial(envs.call_async, "pass_gate"),
    }
    begin[begun]()
    with pytest.raises(multiprocessing.TimeoutError, match=f"`{begun}_wait` has timed out after 0.05 second"):
        getattr(envs, f"{begun}_wait")(timeout=0.05)
    envs.close(terminate=True)
    with pytest.raises(ClosedEnvironmentError):
        envs.step_wait()


@pytest.mark.parametrize("backend", OURS)
def test_what_was_not_done_in_time_goes_on(backend, tmp_path):
    """Gymnasium forgets the call, and the next one receives its results."""
    envs = make(backend, partial(Gated, length=9))
    envs.reset()

    def begin_and_give_up(gate: Path) -> None:
        envs.set_attr("gate", str(gate))
        envs.step_async(ZEROS)
        with pytest.raises(BackendError, match=r"The step goes on: call step_wait\(\) again"):
            envs.step_wait(timeout=0.0)
        gate.touch()

    begin_and_give_up(tmp_path / "first")
    assert envs.step_wait()[0][:, 0].tolist() == [1.0, 1.0, 1.0]
    begin_and_give_up(tmp_path / "second")
    assert envs.step(ZEROS)[0][:, 0].tolist() == [3.0, 3.0, 3.0]  # the step before was finished first
    begin_and_give_up(tmp_path / "third")
    assert envs.call("pass_gate") == (4, 4, 4)
    begin_and_give_up(tmp_path / "fourth")
    assert envs.reset()[0][:, 0].tolist() == [0.0, 0.0, 0.0]
    envs.step_async(ZEROS)
    for bad in (-1, "soon", float("nan"), True):
        with pytest.raises(ConfigError, match="timeout = "):
            envs.step_wait(timeout=bad)
    assert envs.step_wait()[0][:, 0].tolist() == [1.0, 1.0, 1.0]
    envs.close()


@pytest.mark.parametrize("begun", ["step", "reset", "call"])
def test_send_waits_for_what_was_not_done_in_time(begun, tmp_path):
    envs = make("async", partial(Gated, length=9))
    envs.reset()
    envs.set_attr("gate", str(tmp_path / "gate"))
    begin = {
        "step": partial(envs.step_async, ZEROS),
        "reset": envs.reset_async,
        "call": partial(envs.call_async, "pass_gate"),
    }
    begin[begun]()
    with pytest.raises(AlreadyPendingCallError):
        envs.send(ZEROS)
    with pytest.raises(AlreadyPendingCallError):
        envs.recv()
    with pytest.raises(multiprocessing.TimeoutError):
        getattr(envs, f"{begun}_wait")(timeout=0)
    (tmp_path / "gate").touch()
    envs.send(ZEROS)
    observations, *_, ids = envs.recv()
    assert sorted(ids) == [0, 1, 2]
    assert observations[:, 0].tolist() == [2.0 if begun == "step" else 1.0] * 3
    envs.close()


@pytest.mark.parametrize("backend", OURS)
@pytest.mark.parametrize("where", ["step", "reset"])
def test_a_fault_is_told_to_whoever_waits(backend, where):
    envs = make(backend, partial(Faulty, "raise", where, at=1))
    envs.reset()
    envs.step(ZEROS)
    begin = {"step": partial(envs.step_async, ZEROS), "reset": envs.reset_async}
    begin[where]()
    with pytest.raises(EnvironmentFaultError, match=f"environment 0 .* raised in {where}"):
        getattr(envs, f"{where}_wait")(timeout=60)
    assert envs.reset()[0][:, 0].tolist() == [0.0, 0.0, 0.0]
    envs.close()


@pytest.mark.parametrize("backend", OURS)
def test_a_worker_that_dies_does_not_keep_a_waiter(backend):
    envs = make(backend, partial(Faulty, "kill", at=0))
    envs.reset()
    envs.step_async(ZEROS)
    with pytest.raises(EnvironmentFaultError, match="SIGKILL"):
        envs.step_wait(timeout=60)
    assert envs.reset()[0][:, 0].tolist() == [0.0, 0.0, 0.0]
    envs.close()


def test_a_monitor_counts_episodes_from_a_reset_that_was_begun():
    envs = vd.VecMonitor(make("process", partial(Gated, length=3)))
    envs.reset()
    envs.step(ZEROS)
    envs.reset_async(options={"reset_mask": np.array([True, False, True])})
    envs.reset_wait()
    for _ in range(3):
        envs.step_async(ZEROS)
        *_, infos = envs.step_wait(timeout=60)
    assert infos["episode"]["l"].tolist() == [3, 0, 3]
    assert envs.statistics().mean_length == 3.0
    envs.close()
    serial = vd.VecMonitor(vd.make_vec(Counting, 1, backend="serial"))
    with pytest.raises(BackendError, match=r"no reset_async\(\).*backend='process'"):
        serial.reset_async()


def test_hung_workers_are_closed_together():
    envs = vd.make_vec(partial(Faulty, "hang in C"), 3, backend="process", workers=3, timeout=None)
    envs.reset()
    envs.step_async(np.zeros(3, np.int64))
    time.sleep(0.2)
    started = time.monotonic()
    with pytest.warns(UserWarning, match="Calling `close` while waiting for a pending call to `step`"):
        envs.close(timeout=2)
    assert time.monotonic() - started < 5  # one after the other they would be given 6 seconds


@pytest.mark.parametrize("backend", OURS)
def test_what_close_does_not_know_is_refused(backend):
    envs = make(backend, Counting, 1)
    with pytest.raises(TypeError, match="terminat"):
        envs.close(terminat=True)
    envs.close(timeout=3)


@pytest.mark.parametrize("backend", ["serial", *OURS])
def test_what_another_thread_calls_meanwhile_is_refused(backend, tmp_path):
    """Two threads in one batch of workers took each other's answers, and waited for ever."""
    envs = vd.make_vec(partial(Gated, length=9), 3, backend=backend, seed=0)
    envs.reset()
    gate = tmp_path / "gate"
    envs.set_attr("gate", str(gate))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(envs.step(ZEROS)[1].tolist()))
    thread.start()
    while envs._thread.acquire(False):  # until the other thread is in its step
        envs._thread.release()
        time.sleep(0.001)
    calls = [partial(envs.step, ZEROS), envs.reset, envs.render, partial(envs.set_attr, "label", "x"),
             partial(envs.resize, 4)]  # fmt: skip
    if backend != "serial":
        calls += [partial(envs.step_async, ZEROS), envs.reset_async, partial(envs.call_async, "label")]
    if backend == "async":
        calls += [partial(envs.send, ZEROS), envs.recv]
    for call in calls:
        with pytest.raises(BackendError, match="while another thread is in a call of the same environments"):
            call()
    gate.touch()
    thread.join()
    assert found == [envs.arrays.rewards.tolist()]
    assert envs.step(ZEROS)[0][:, 0].tolist() == [2.0, 2.0, 2.0]
    envs.close()


@pytest.mark.parametrize("backend", OURS)
def test_a_step_during_which_another_thread_closes_says_so(backend, tmp_path):
    envs = make(backend, partial(Gated, length=9))
    envs.reset()
    envs.set_attr("gate", str(tmp_path / "never"))
    found: list[BaseException] = []

    def step() -> None:
        try:
            envs.step(ZEROS)
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    while envs._thread.acquire(False):
        envs._thread.release()
        time.sleep(0.001)
    envs.close(terminate=True)
    thread.join()
    assert isinstance(found[0], ClosedEnvironmentError)
    assert "closed during step(), by another thread" in str(found[0])
