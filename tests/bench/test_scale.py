"""The benchmark of cores and ranks end to end, on sizes that say nothing about speed."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from velodrome.bench.report import OURS
from velodrome.bench.run import run_benchmark
from velodrome.bench.scale.benchmark import IDEAL, NO_RANKS, ScaleBenchmark, ScaleOptions, doubled, many
from velodrome.bench.scale.ranks import WARM_UP, RankedTraining
from velodrome.cli import run
from velodrome.envs.catalog import CATALOG
from velodrome.errors import BackendError, RunError

SMALL = {"seconds": 0.02, "repeats": 2, "size": 32, "iterations": WARM_UP + 1}


def measured(**options):
    """Return a benchmark that has run, and what it printed at 80 columns."""
    out = io.StringIO()
    benchmark = ScaleBenchmark(CATALOG.get("template"), ScaleOptions(**{**SMALL, **options}))
    run_benchmark(benchmark, Console(file=out, width=80))
    return benchmark, out.getvalue()


def test_numbers_are_doubled_up_to_the_most():
    assert [doubled(most) for most in (1, 2, 3, 4, 6)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 4), (1, 2, 4, 6)]


def test_steps_on_one_core_are_what_others_are_compared_with(tmp_path):
    files = {"json_path": tmp_path / "scale.json", "plot_path": tmp_path / "scale.png"}
    benchmark, told = measured(parts=("steps",), cores=(1,), against=("async",), **files)
    ours, others = benchmark.report.comparisons
    assert [(row.peer, row.num_envs, row.threads, many(row)) for row in ours.measurements] == [(OURS, 32, 1, 1)]
    assert [(row.peer, row.num_envs, row.processes, many(row)) for row in others.measurements] == [("async", 1, 1, 1)]
    assert all(row.ratios[IDEAL] == 1.0 for row in (*ours.measurements, *others.measurements))
    assert ours.parity.steps > 0
    assert "of ideal" in told
    assert max(map(len, told.splitlines())) <= 80
    assert json.loads(files["json_path"].read_text())["kind"] == "scale, template"
    assert files["plot_path"].stat().st_size > 10_000


def test_ranks_are_compared_with_a_training_without_them(monkeypatch):
    asked, rates = [], {0: [100.0, 200.0], 1: [90.0, 190.0], 4: [300.0, 500.0]}

    def rate(training, ranks):
        asked.append((ranks, training.envs, training.threads))
        return rates[ranks][asked.count((ranks, 32, 2)) - 1]

    monkeypatch.setattr(RankedTraining, "rate", rate)
    benchmark, told = measured(parts=("training",), ranks=(4, 1), threads=2)
    assert asked == [(0, 32, 2), (1, 32, 2), (4, 32, 2)] * 2
    (training,) = benchmark.report.comparisons
    found = {row.label: (row.num_envs, row.rounds, row.ratios[IDEAL]) for row in training.measurements}
    assert found[NO_RANKS] == (32, rates[0], 1.0)
    assert found["velodrome, 1 rank"] == (32, rates[1], pytest.approx((0.9 + 0.95) / 2))
    assert found["velodrome, 4 ranks"] == (128, rates[4], pytest.approx((3.0 + 2.5) / 2 / 4))
    assert "128 × 32" in told


def test_a_training_in_two_ranks_tells_its_speed():
    training = RankedTraining(envs=16, device="cpu", iterations=WARM_UP + 2, hidden=(8,), threads=1, seed=0)
    assert training.rate(2) > 0.0
    with pytest.raises(RunError, match=r"a training in 0 ranks ended with exit code 2: velodrome: .*device"):
        training._replace(device="nowhere").rate(0)


def test_what_cannot_be_measured_is_refused(capsys, monkeypatch):
    for words, told in (
        (["--cores", "100000"], "--cores 100000: this machine offers 1 … "),
        (["--parts", "nothing"], "there are steps, training"),
        (["--ranks", "0"], "needs one or more whole numbers from 1"),
        (["--iterations", str(WARM_UP)], "--iterations"),
    ):
        assert run(["bench", "scale", *words]) == 2
        assert told in capsys.readouterr().err
    monkeypatch.setattr("velodrome.vector.cuda.unavailable_reason", lambda backend: "there is no GPU")
    with pytest.raises(BackendError, match=r"--device cuda: there is no GPU\. Take cpu\."):
        ScaleBenchmark(CATALOG.get("template"), ScaleOptions(device="cuda", ranks=(1,)))
