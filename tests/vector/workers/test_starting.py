"""Workers do not load the user's script, and other threads that start processes meanwhile are not affected."""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velodrome as vd
from tests.vector.foreign_envs import Counting
from velodrome.errors import BackendError
from velodrome.vector.workers.worker.starting import also_from_daemons, without_main_module

REPOSITORY = Path(__file__).parents[3]

# A thread starts ordinary processes, which need the script, while workers start. No guard against a second run is
# needed for the workers; a marker tells whether the script was loaded by one.
SCRIPT = """
import multiprocessing
import os
import sys
import threading

import velodrome as vd

if multiprocessing.parent_process() is not None and multiprocessing.current_process().name.startswith("velodrome"):
    open(os.environ["MARKER"], "w").close()


def answer(queue):
    queue.put(os.getpid())


if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    failed = []

    def others():
        try:
            for _ in range(4):
                queue = context.SimpleQueue()
                process = context.Process(target=answer, args=(queue,))
                process.start()
                queue.get()
                process.join()
                assert process.exitcode == 0
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=others)
    thread.start()
    while thread.is_alive():
        vd.make_vec("CartPole-v1", 2, backend="process", workers=2, start_method="METHOD").close()
    thread.join()
    print("failed:", failed)
"""


def preparation() -> dict[str, Any]:
    return multiprocessing.spawn.get_preparation_data("a process")


def names_main(data: dict[str, Any]) -> bool:
    return any(key.startswith("init_main_from_") for key in data)


def test_only_the_thread_that_starts_a_worker_leaves_the_script_out(monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "/somewhere/script.py", raising=False)
    found: list[dict[str, Any]] = []
    assert names_main(preparation())
    with without_main_module():
        other = threading.Thread(target=lambda: found.append(preparation()))
        other.start()
        other.join()
        assert not names_main(preparation())
        assert sys.modules["__main__"] is main
    assert names_main(found[0])
    assert names_main(preparation())


def test_a_start_that_fails_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/somewhere/script.py", raising=False)
    with pytest.raises(OSError, match="no more processes"), without_main_module():
        raise OSError("no more processes")
    assert names_main(preparation())


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_processes_of_another_thread_find_the_script_while_workers_start(tmp_path, method):
    script, marker = tmp_path / "script.py", tmp_path / "loaded"
    script.write_text(SCRIPT.replace("METHOD", method))
    answer = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "MARKER": str(marker), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "failed: []\n", answer.stderr
    assert not marker.exists()


# A process of multiprocessing.Pool is daemonic and may have no children, and here it is forked from one that has a fork
# server, for which it cannot wait.
POOL = """
import multiprocessing

import numpy as np

import velodrome as vd


def play(backend):
    envs = vd.make_vec("CartPole-v1", 2, backend=backend, workers=1, seed=0)
    envs.reset()
    rewards = envs.step(np.ones(2, int))[1].tolist()
    envs.close()
    return rewards, multiprocessing.current_process().daemon


envs = vd.make_vec("CartPole-v1", 2, backend="process", workers=1, seed=0)
envs.reset()
with multiprocessing.get_context("fork").Pool(1) as pool:
    print(pool.map(play, ["process", "async"]))
print(envs.step(np.ones(2, int))[1].tolist())
envs.close()
"""


def test_processes_of_a_pool_may_have_workers(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", POOL],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.stdout == "[([1.0, 1.0], True), ([1.0, 1.0], True)]\n[1.0, 1.0]\n", answer.stderr


def test_a_daemon_stays_one(monkeypatch):
    config = multiprocessing.current_process()._config
    monkeypatch.setitem(config, "daemon", True)
    with also_from_daemons():
        assert not config["daemon"]
    with pytest.raises(OSError, match="no more processes"), also_from_daemons():
        raise OSError("no more processes")
    assert config["daemon"]


@pytest.mark.parametrize("backend", ["process", "async"])
def test_a_script_needs_no_guard_and_its_own_classes_are_sent(backend, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import gymnasium, numpy as np, velodrome as vd

            SCALE = 3.0

            class Own(gymnasium.Env):
                observation_space = gymnasium.spaces.Box(-9, 9, (1,))
                action_space = gymnasium.spaces.Discrete(2)
                def reset(self, *, seed=None, options=None):
                    super().reset(seed=seed)
                    return np.zeros(1, np.float32), {}
                def step(self, action):
                    return np.full(1, SCALE, np.float32), SCALE, False, False, {}

            gymnasium.register("Own-v0", entry_point=Own)
            for env in (Own, "Own-v0", lambda: Own()):
                envs = vd.make_vec(env, 4, backend="BACKEND", workers=2)
                envs.reset()
                print(envs.step(np.zeros(4, int))[1].sum())
            """
        ).replace("BACKEND", backend)
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.stdout.split() == ["12.0"] * 3, done.stderr
    assert done.stderr == ""


def test_what_somebody_preloads_into_the_fork_server_is_kept():
    code = (
        "import multiprocessing as m, multiprocessing.forkserver as f\n"
        "from velodrome.vector.workers.worker.starting import process_context\n"
        "m.get_context('forkserver').set_forkserver_preload(['json'])\n"
        "process_context('forkserver')\n"
        "print(f._forkserver._preload_modules)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "['json']"


def test_an_environment_that_cannot_travel_is_told_and_runs_here(capsys):
    lock = threading.Lock()

    def maker():
        with lock:
            return Counting()

    envs = vd.make_vec(maker, 2, backend="process")
    assert envs.backend == "serial"
    assert "backend 'process' cannot serve" in capsys.readouterr().err
    envs.close()
    with pytest.raises(BackendError, match="'async' cannot serve"):
        vd.make_vec(maker, 2, backend="async")


class Asking(Counting):
    """Asks a process of its own in every step."""

    def step(self, action):
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
        return super().step(action)


@pytest.mark.parametrize("backend", ["process", "async"])
def test_environments_in_workers_may_start_processes(backend):
    envs = vd.make_vec(Asking, 2, backend=backend, workers=1, seed=0)
    envs.reset()
    assert envs.step(np.zeros(2, int))[0][:, 0].tolist() == [1.0, 1.0]
    envs.close()
