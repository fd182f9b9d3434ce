"""The backend of Ray's actors against the contract of all backends, on a real cluster of local nodes."""

from __future__ import annotations

import contextlib
import re
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

import velodrome as vd
from tests.contracts.own_backend import OwnBackendContract
from tests.contracts.vector_env import assert_same, play
from tests.ray_cluster import ray_cluster
from tests.vector.foreign_envs import Counting, Drawn, Faulty, draw_actions
from velodrome.errors import MissingDependencyError
from velodrome.outside.extras import install


@pytest.fixture(scope="module")
def cluster():
    import ray

    with ray_cluster(cores=0, nodes=2, each=100) as made:  # the contract has many batches open at once
        ray.init(address=made.address, log_to_driver=False)
        yield made


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
class TestRay(OwnBackendContract):
    backend = "ray"

    def make(self, env: Any, num_envs: int, **options: Any) -> Any:
        return vd.make_vec(env, num_envs, backend="ray", **{"workers": 2, **options})

    def test_what_is_closed_or_forgotten_leaves_nothing_behind(self, quick_collections):
        """Ray keeps processes for later; what counts is that no actor has a core any more."""
        import ray

        before = ray.available_resources()["CPU"]  # others of the contract are open
        for _ in range(4):
            envs = self.make(Counting, 2)
            envs.reset()
            envs.close()
        deadline = time.monotonic() + 30.0
        while ray.available_resources().get("CPU", 0.0) < before:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.slow
def test_environments_live_the_same_lives_as_in_a_loop(cluster):
    maker = partial(Drawn, "named", "floats", infos="every")
    with (
        contextlib.closing(vd.make_vec(maker, 5, backend="ray", workers=2)) as envs,
        contextlib.closing(vd.make_vec(maker, 5, backend="serial")) as loop,
    ):
        assert envs.num_workers == 2
        actions = draw_actions(envs.single_action_space, 5, 40, seed=1)
        assert_same(play(envs, actions, seed=6), play(loop, actions, seed=6))


@pytest.mark.slow
def test_an_actor_that_dies_is_replaced_and_its_episodes_are_cut_off(cluster):
    with contextlib.closing(vd.make_vec(Counting, 4, backend="ray", workers=2, on_fault="restart")) as envs:
        envs.set_attr("length", 1000)
        envs.reset(seed=1)
        envs.step([0] * 4)
        envs.ray.kill(envs.workers[1].actor)
        truncated = np.zeros(4, bool)
        for _ in range(2):  # it may be noticed in the step after
            truncated |= envs.step([0] * 4)[3]
        assert truncated.tolist() == [False, True, False, True]
        assert envs.worker_restarts == 1
        assert {fault.kind for fault in envs.faults} == {"died", "lost with its worker"}


@pytest.mark.slow
def test_an_environment_that_hangs_is_ended_and_replaced(cluster):
    maker = partial(Faulty, "hang", "step", at=0)
    with contextlib.closing(vd.make_vec(maker, 2, backend="ray", workers=2, on_fault="restart", timeout=1.0)) as envs:
        envs.reset(seed=1)
        began = time.monotonic()
        envs.step(envs.action_space.sample())
        assert time.monotonic() - began < 30.0
        assert envs.faults


OWN = """
import gymnasium
import numpy as np

LENGTH = 3


def shown():
    return np.full(2, LENGTH, np.float32)


class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return shown(), {}

    def step(self, action):
        self.at += 1
        return shown(), 1.0, False, self.at >= LENGTH, {}
"""


@pytest.mark.slow
def test_an_environment_that_only_this_machine_can_import_goes_to_the_nodes(cluster, tmp_path, monkeypatch):
    (tmp_path / "mine_of_a_test.py").write_text(OWN)
    with monkeypatch.context() as here:
        here.syspath_prepend(str(tmp_path))
        envs = vd.make_vec("mine_of_a_test:Mine", 4, backend="ray", workers=2)
    with contextlib.closing(envs):
        (tmp_path / "mine_of_a_test.py").unlink()
        observations, _ = envs.reset(seed=0)
        assert observations.tolist() == [[3.0, 3.0]] * 4
        ended = [envs.step(np.zeros(4, int))[3].all() for _ in range(3)]
    assert ended == [False, False, True]


class Sleeping(gymnasium.Env):
    """Takes five milliseconds a step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return np.zeros(4, np.float32), 0.0, False, False, {}


@pytest.mark.slow
def test_sleeping_environments_keep_all_workers_busy(cluster):
    """32 environments of 5 ms on 2 nodes of one core: two workers, and so 400 steps a second at best."""
    with contextlib.closing(vd.make_vec(Sleeping, 32, backend="ray", workers=2)) as envs:
        envs.reset(seed=1)
        envs.send(np.zeros(32, np.int64))
        envs.recv(32)  # how long a step takes is known
        envs.send(np.zeros(32, np.int64))
        began, steps = time.perf_counter(), 0
        while time.perf_counter() - began < 5.0:
            *_, ids = envs.recv(1)
            steps += len(ids)
            envs.send(np.zeros(len(ids), np.int64), ids)
        rate = steps / (time.perf_counter() - began)
        envs.recv()
        assert envs.num_workers == 2
        assert rate > 0.8 * 400, rate


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=re.escape(install("ray"))):
        vd.make_vec(Counting, 2, backend="ray")
