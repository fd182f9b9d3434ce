"""Every backend against its contract: native, python, serial, process, async, and cuda (simulated if need be)."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import velodrome as vd
from tests.contracts.backend import SEEDS
from tests.contracts.own_backend import OwnBackendContract
from tests.contracts.simulator import run_threads_in_turn
from tests.contracts.values import RuleValuesContract
from tests.contracts.vector_env import ResizeContract, assert_same, infos_of, on_host, play, row_of
from tests.markets import small_market
from tests.vector.foreign_envs import Drawn, draw_actions
from velodrome.vector.cuda import unavailable_reason

MARKET = small_market(bars=80, instruments=2)
MISSING = unavailable_reason()
REPOSITORY = Path(__file__).parents[2]
if "NUMBA_ENABLE_CUDASIM" in os.environ:  # below, in a process of its own
    run_threads_in_turn()


def trading(backend: str, num_envs: int, **options: Any) -> Any:
    """Return rule environments whose episodes end at different times."""
    return vd.make_vec(
        "trading", num_envs, backend=backend, market=MARKET, episode_length=(3, 6), fee=(0.0, 0.01), **options
    )  # fmt: skip


class TestNative(RuleValuesContract, ResizeContract):
    backend = "native"

    def build(self, num_envs: int, **options: Any) -> Any:
        return trading("native", num_envs, **options)


class TestPython(RuleValuesContract, ResizeContract):
    backend = "python"

    def build(self, num_envs: int, **options: Any) -> Any:
        return trading("python", num_envs, **options)


class TestCuda(RuleValuesContract, ResizeContract):
    # Where it cannot serve, the test below runs this class in a process of its own.
    __test__ = MISSING is None

    backend = "cuda"
    steps = 7  # one more than the longest episode: the simulator is slow

    def build(self, num_envs: int, **options: Any) -> Any:
        return trading("cuda", num_envs, **options)


@pytest.mark.skipif(MISSING is None, reason="TestCuda itself ran in this process")
def test_the_simulated_device_passes_its_contract():
    """Numba takes the simulator from the environment when it is imported: hence a process of its own."""
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::TestCuda"],
        cwd=REPOSITORY, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout[-5000:]
    passed = re.search(r"^(\d+) passed in", answer.stdout, re.MULTILINE)
    assert passed, answer.stdout
    assert int(passed[1]) >= len([name for name in dir(TestCuda) if name.startswith("test_")])


class TestSerial(OwnBackendContract):
    backend = "serial"

    def make(self, env: Any, num_envs: int, **options: Any) -> Any:
        return vd.make_vec(env, num_envs, backend="serial", **options)


class TestProcess(OwnBackendContract):
    backend = "process"

    def make(self, env: Any, num_envs: int, **options: Any) -> Any:
        return vd.make_vec(env, num_envs, backend="process", **options)

    @pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 3}, {"start_method": "spawn"}], ids=str)
    def test_the_number_and_the_start_of_workers_change_nothing(self, options):
        maker = partial(Drawn, "named", "floats", infos="every")
        with contextlib.closing(self.make(maker, 5, **options)) as envs, contextlib.closing(
            vd.make_vec(maker, 5, backend="serial")
        ) as loop:  # fmt: skip
            actions = draw_actions(envs.single_action_space, 5, 40, seed=1)
            assert_same(play(envs, actions, seed=6), play(loop, actions, seed=6))


class TestAsync(OwnBackendContract):
    backend = "async"

    def make(self, env: Any, num_envs: int, **options: Any) -> Any:
        return vd.make_vec(env, num_envs, backend="async", **options)

    @pytest.mark.parametrize("min_ready", [1, 2, 3])
    def test_whoever_is_first_each_environment_lives_the_same_life(self, min_ready):
        """Actions are handed out and results taken in whatever order; each row is what a plain loop makes of it."""
        steps = 40
        maker = partial(Drawn, "named", "floats", infos="every")
        with contextlib.closing(self.make(maker, 3)) as envs, contextlib.closing(
            vd.make_vec(maker, 3, backend="serial", copy=True)
        ) as loop:  # fmt: skip
            actions = draw_actions(envs.single_action_space, 3, steps, seed=1)
            assert_same(on_host(envs.reset(seed=SEEDS)), on_host(loop.reset(seed=SEEDS)))
            expected = [on_host(loop.step(action)) for action in actions]
            taken = np.zeros(3, int)
            envs.send(actions[0])
            while (taken < steps).any():
                waiting = int((taken < steps).sum())
                *results, infos, ids = envs.recv(min(min_ready, waiting))
                assert min(min_ready, waiting) <= len(ids) == len(set(ids.tolist()))
                for at, row in enumerate(ids.tolist()):
                    step = expected[taken[row]]
                    for ours, theirs in zip(results, step[:-1], strict=True):
                        assert_same(row_of(on_host(ours), at), row_of(theirs, row))
                    assert_same(infos_of(infos, at), infos_of(step[-1], row))
                taken[ids] += 1
                again = [row for row in ids.tolist() if taken[row] < steps]
                if again:
                    envs.send(np.stack([actions[taken[row]][row] for row in again]), again)
