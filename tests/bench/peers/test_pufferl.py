"""PuffeRL trains what the others train, and leaves the process as it was."""

from __future__ import annotations

import io
import os
import signal
import sys
import warnings
from importlib.util import find_spec

import pytest
import torch
from rich.console import Console

from velodrome.bench import train
from velodrome.bench.peers.pufferl import puffer_settings, torch_as_it_was
from velodrome.bench.report import Comparison, Measurement
from velodrome.bench.run import run_benchmark
from velodrome.bench.train import RIVALS, TrainBenchmark, TrainOptions, fastest

PUFFERS = RIVALS[1]


def test_settings_are_those_of_the_others():
    found = puffer_settings(TrainOptions(), 64, 3)
    assert (found["batch_size"], found["minibatch_size"], found["update_epochs"]) == (8192, 2048, 4)
    assert (found["bptt_horizon"], found["learning_rate"], found["clip_coef"]) == (64, 3e-4, 0.2)
    assert found["vf_coef"] == 1.0  # of half the mean squared error
    # No layout asks for a segment that its rollout or its minibatch could not hold.
    assert puffer_settings(TrainOptions(batch=1024, minibatches=32), 64, 0)["bptt_horizon"] == 16


def test_the_fastest_layout_of_a_peer_races():
    rates = {"puffer": 1.0, "puffer_serial": 3.0, "puffer_serial_1_thread": 2.0, "torchrl": 9.0}
    rows = [Measurement(peer=peer, label=peer, num_envs=1, rounds=[rate]) for peer, rate in rates.items()]
    comparison = Comparison(name="PPO", title="", measurements=rows)
    assert fastest(comparison, PUFFERS).peer == "puffer_serial"
    assert fastest(comparison, RIVALS[0]) is None


def test_what_is_set_for_all_of_torch_is_undone():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic
    with torch_as_it_was():
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.deterministic = not before[1]
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic) == before


@pytest.mark.skipif(find_spec("pufferlib") is None, reason="benchmarks/README.md says how it is built")
def test_it_trains_the_same_network_and_leaves_the_process_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "available_cores", lambda: 1)
    before = signal.getsignal(signal.SIGINT), sys.excepthook, list(warnings.filters), torch.get_num_threads()
    given = {"sizes": (16,), "batch": 1024, "hidden": (8, 8), "epochs": 2, "minibatches": 2, "seconds": 0.05}
    given |= {"repeats": 3, "bars": 10_000, "episode_length": 50, "race_seconds": 0.2, "race_seeds": 1}
    report = run_benchmark(
        TrainBenchmark(TrainOptions(against=PUFFERS, **given)), Console(file=io.StringIO(), width=140)
    )
    assert report.missing == []
    assert {row.peer for row in report.measurements} == {"velodrome", *PUFFERS}
    for row in report.comparisons[0].rows(peer="puffer_serial"):
        assert (row.num_envs, row.rollout_length) == (64, 16)
        assert all(row.mean(phase) > 0.0 for phase in ("environment", "inference", "learning"))
    assert {run.peer for run in report.race.runs} == {"velodrome", fastest(report.comparisons[0], PUFFERS).peer}
    assert before == (signal.getsignal(signal.SIGINT), sys.excepthook, list(warnings.filters), torch.get_num_threads())
    assert os.listdir(tmp_path) == []
