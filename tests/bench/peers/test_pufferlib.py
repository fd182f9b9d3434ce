"""PufferLib beside our vectorisers: the same trajectories, and only steps of environments are counted."""

from __future__ import annotations

import io
import os
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from velodrome.bench import vector
from velodrome.bench.hosts.batches import BatchSpec, open_batch, row_sums, trajectory
from velodrome.bench.hosts.environments import TimedEnv
from velodrome.bench.peers import pufferlib
from velodrome.bench.peers.pufferlib import PUFFERLIB, emulated_env, layouts, seed_lags
from velodrome.bench.report import Measurement
from velodrome.bench.run import run_benchmark
from velodrome.bench.timing import Stepper, action_ring
from velodrome.bench.vector import VectorBenchmark, VectorOptions, beside_pufferlib, peer_specs
from velodrome.errors import ConfigError

installed = pytest.mark.skipif(find_spec("pufferlib") is None, reason="benchmarks/README.md says how it is built")


class Stand:
    """What PufferLib shows of its vectorisers, in a loop: parts that take turns, and resets that are steps."""

    def __init__(self, num_envs: int, received: int) -> None:
        self.envs = [TimedEnv(0.0) for _ in range(num_envs)]
        self.num_agents, self.agents_per_batch = num_envs, received
        self.answers: list[Any] = []

    def async_reset(self, seed: int) -> None:
        found = [(env.reset(seed=seed + row)[0], 0.0, False) for row, env in enumerate(self.envs)]
        starts = range(0, self.num_agents, self.agents_per_batch)
        self.answers = [(np.arange(start, start + self.agents_per_batch), found) for start in starts]
        self.ended = [False] * self.num_agents

    def recv(self) -> tuple[Any, ...]:
        self.rows, found = self.answers.pop(0)
        observations, rewards, ended = (
            np.array(values) for values in zip(*(found[row] for row in self.rows), strict=True)
        )
        return observations, rewards, np.zeros(len(ended), bool), ended, [], self.rows, None

    def send(self, actions: np.ndarray) -> None:
        found: dict[int, Any] = {}
        for row, action in zip(self.rows.tolist(), actions, strict=True):
            env = self.envs[row]
            if self.ended[row]:
                found[row] = (env.reset()[0], 0.0, False)
            else:
                observation, reward, _, truncated, _ = env.step(action)
                found[row] = (observation, reward, truncated)
            self.ended[row] = found[row][2]
        self.answers.append((self.rows, found))


@pytest.mark.parametrize("received", [4, 2])
def test_a_reset_that_is_a_step_is_told_as_part_of_the_step_before(received):
    spec = BatchSpec("sync", "burn:1us", 4, seed=3)
    batch = open_batch(spec)
    wanted = trajectory(batch, spec, 150)
    actions = action_ring(batch.action_space, 4, 3)
    found = pufferlib.trajectory(Stand(4, received), 3, actions, 150, row_sums)
    batch.close()
    assert sum(step["ended"].sum() for step in wanted[1:]) > 4
    assert len(found) == len(wanted)
    for expected, given in zip(wanted, found, strict=True):
        for name, values in expected.items():
            np.testing.assert_allclose(given[name], values, err_msg=name)


def test_resets_and_what_was_done_before_are_not_counted(monkeypatch):
    monkeypatch.setattr(pufferlib, "imported", lambda: SimpleNamespace(Multiprocessing=int, MAIN=5))
    monkeypatch.setattr(pufferlib, "WAKE_SECONDS", 0.0)
    stand = Stand(4, 2)
    stand.async_reset(0)
    stepper = pufferlib.stepper_of(stand, stand.recv()[0], lambda k, shown: np.zeros(len(shown), int))
    found = stepper.time(200)
    assert 2 + 4 * 200 / 61 <= found["uncounted"] <= 2 + 4 * 200 / 6
    row = Measurement(peer="puffer", label="", num_envs=4, steps_per_call=4)
    row.add(200, {"seconds": 2.0, "uncounted": 50})
    assert row.rounds == [375.0]
    assert row.details["uncounted"] == [50]
    assert "uncounted" not in Stepper(lambda k: None).time(1)


def test_environments_keep_their_own_seeds_whatever_the_workers(monkeypatch):
    stand_in = SimpleNamespace(GymnasiumPufferEnv=lambda env, buf, seed: env)
    monkeypatch.setattr(pufferlib, "imported", lambda name: stand_in)
    for workers in (1, 2, 4):
        each = 4 // workers
        told = [row // each + row % each for row in range(4)]  # PufferLib's, after the seed itself
        envs = [emulated_env(lambda: TimedEnv(0.0), lag) for lag in seed_lags(4, workers)]
        for row, env in enumerate(envs):
            np.testing.assert_array_equal(env.reset(seed=7 + told[row])[0], TimedEnv(0.0).reset(seed=7 + row)[0])


def test_layouts_are_those_that_pufferlib_takes():
    assert layouts("puffer_serial", 16, [2]) == [{}]
    assert layouts("puffer", 16, [2]) == [{"workers": 1}, {"workers": 2}]
    assert layouts("puffer", 16, [2, 16]) == [{"workers": 1}, {"workers": 2}, {"workers": 16}]
    assert layouts("puffer", 10, [4, 7]) == [{"workers": 2}, {"workers": 5}]  # as many environments in each
    assert layouts("puffer_async", 16, [2, 16]) == [{"workers": 2, "received": 8}, {"workers": 16, "received": 8}]
    assert layouts("puffer_async", 15, [4]) == [{"workers": 3, "received": 5}]  # batches of whole workers
    assert layouts("puffer_async", 4, [1]) == []


def test_peers_with_a_say_get_as_many_workers_as_ours(monkeypatch):
    monkeypatch.setattr(vector, "available_cores", lambda: 2)
    shared = {"env": "sleep:2ms", "num_envs": 16}
    found = peer_specs(["sync", "puffer", "puffer_async"], {"backend": "process", "workers": 16}, shared)
    assert [(spec.peer, spec.workers, spec.received) for spec in found] == [
        *[("sync", 0, None), ("puffer", 1, None), ("puffer", 2, None), ("puffer", 16, None)],
        *[("puffer_async", 2, 8), ("puffer_async", 16, 8)],
    ]
    row = found[-1].row()
    assert (row.label, row.processes, row.steps_per_call) == ("PufferLib, 8 of 16", 16, 16)


def test_the_report_sets_ours_beside_the_fastest_of_pufferlib():
    shown = [("puffer", "PufferLib", 50.0, 1), ("velodrome", "velodrome serial", 100.0, 0)]
    shown += [("velodrome", "velodrome process", 150.0, 2), ("puffer_serial", "PufferLib Serial", 200.0, 0)]
    rows = [
        Measurement(peer=peer, label=label, num_envs=4, processes=processes, rounds=[rate])
        for peer, label, rate, processes in shown
    ]
    (line,) = beside_pufferlib(rows)
    assert line == "  Times the fastest of PufferLib, PufferLib Serial: process (2 workers) 0.75, serial 0.50"
    assert beside_pufferlib(rows[1:3]) == []


@installed
def test_every_layout_is_measured_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"num_envs": 2, "seconds": 0.05, "repeats": 2, "quick": True, "against": ("sync", *PUFFERLIB)}
    console = Console(file=io.StringIO(), width=200)
    report = run_benchmark(VectorBenchmark(VectorOptions(env="burn:2ms", **options)), console)
    assert report.missing == []
    (comparison,) = report.comparisons
    rows = [row for row in comparison.measurements if row.peer in PUFFERLIB]
    assert {row.peer for row in rows} >= {"puffer", "puffer_serial"}
    assert all(row.steps_per_second > 0.0 and len(row.details["uncounted"]) == 2 for row in rows)
    assert {row.label for row in rows} <= {*comparison.parity.contenders}
    assert "Times the fastest of PufferLib" in console.file.getvalue()
    assert os.listdir(tmp_path) == []


@installed
def test_structures_are_refused_with_the_reason(tmp_path):

    spec = BatchSpec("puffer_serial", "tests.bench.peers.test_pufferlib:DictEnv", 2)
    with pytest.raises(ConfigError, match="emulated structures"):
        open_batch(spec)


class DictEnv(TimedEnv):
    """Shows a dictionary."""

    def __init__(self) -> None:
        from gymnasium.spaces import Box, Dict

        super().__init__(0.0)
        self.observation_space = Dict({"a": Box(0.0, 1.0, (8,), np.float32)})
