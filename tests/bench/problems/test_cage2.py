"""The benchmark of CAGE-2: parity first, then every size, then verdicts."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from velodrome.bench import parity
from velodrome.bench.parity import ParityError
from velodrome.bench.problems.cage2 import Cage2Benchmark, Cage2Options
from velodrome.bench.run import run_benchmark
from velodrome.envs.catalog import CATALOG


class Small(Cage2Benchmark):
    """Compares the rules for fewer steps: the plain one takes most of the time of a test."""

    PARITY_ENVS, PARITY_STEPS = 3, 120


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    options = Cage2Options(
        sizes=(1, 1000), seconds=0.05, repeats=2, json_path=folder / "cage2.json", plot_path=folder / "cage2.png"
    )
    out = Console(record=True, width=120)
    return run_benchmark(Small(CATALOG.get("cage2"), options), out), out.export_text(), options


def test_every_size_is_measured_after_parity(measured):
    report, text, _ = measured
    (comparison,) = report.comparisons
    assert comparison.parity.steps == 1_440
    assert "agrees with the plain rule to the bit in 4 settings over 1,440 steps" in text
    assert {(row.num_envs, row.label) for row in report.measurements} >= {
        (1, "velodrome, b_line"),
        (1000, "velodrome, meander"),
        (1000, "velodrome, b_line, specialised"),
    }
    assert all(0.0 < row.slowest <= row.steps_per_second <= row.fastest for row in report.measurements)
    assert "cage2: steps per second" in text
    assert "promised 5e+06" in text


def test_every_red_agent_is_compared_for_more_than_two_episodes():
    assert (Cage2Benchmark.PARITY_ENVS, Cage2Benchmark.PARITY_STEPS, len(Cage2Benchmark.PARITY_CASES)) == (64, 220, 4)


def test_peers_that_are_not_installed_are_told_and_judged_by_what_is_on_record(measured):
    report, text, _ = measured
    if {peer.peer for peer in report.missing} != {"cyborg", "mini_cage"}:
        pytest.skip("a peer is installed here")
    assert "cyborg: not installed: https://github.com/cage-challenge" in text
    assert [target.name for target in report.targets][1:] == [
        "times CybORG (on record, 429/s on 2 cores)",
        "times mini-CAGE (on record, 54,000/s on 2 cores)",
    ]


def test_files_are_written(measured):
    _, _, options = measured
    assert json.loads(options.json_path.read_text())["kind"] == "step, cage2"
    assert options.plot_path.read_bytes().startswith(b"\x89PNG")


def test_a_rule_that_differs_ends_the_benchmark_before_it_times_anything(monkeypatch):
    make = parity.make_vec

    def wrong(*arguments, **options):
        seed = options["seed"] + (options["backend"] == "native")
        return make(*arguments, **{**options, "seed": seed})

    monkeypatch.setattr(parity, "make_vec", wrong)
    benchmark = Cage2Benchmark(CATALOG.get("cage2"), Cage2Options())
    with pytest.raises(ParityError, match="differs at step"):
        run_benchmark(benchmark, Console(quiet=True))
    assert benchmark.report.measurements == []
