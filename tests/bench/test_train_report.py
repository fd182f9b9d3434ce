"""What follows from measurements, and how it is told, on numbers made up for the purpose."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from velodrome.bench.plot import write_plot
from velodrome.bench.race import Race, RacePoint, RaceRun, race_results
from velodrome.bench.report import PHASES, Measurement
from velodrome.bench.run import run_benchmark
from velodrome.bench.train import Bound, TrainBenchmark, TrainOptions, TrainReport


def row(peer: str, label: str, rounds: list[float], **values: Any) -> Measurement:
    chosen: dict[str, Any] = {"num_envs": 256, "rollout_length": 32, "threads": 2, **values}
    details = {phase: [seconds] for phase, seconds in zip(PHASES, (0.02, 0.1, 0.8, 0.08), strict=True)}
    return Measurement(peer=peer, label=label, rounds=rounds, details=details, steps_per_call=8192, **chosen)


def run(peer: str, seed: int, seconds: float, *, reached: bool) -> RaceRun:
    points = [RacePoint(seconds=0.0, steps=0, share=0.0), RacePoint(seconds=seconds, steps=1000, share=0.85)]
    return RaceRun(
        peer=peer, label=peer, num_envs=8, seed=seed, seconds=seconds, steps=1000, reached=reached, points=points
    )  # fmt: skip


class MadeUp(TrainBenchmark):
    """Measures nothing: the numbers are there."""

    def measure(self, tell: Any) -> None:
        pass


def made_up(**options: Any) -> MadeUp:
    benchmark = MadeUp(TrainOptions(bars=10_000, **options))
    report = benchmark.report
    report.bound = Bound(threads=2, operations=1_000)
    report.notes, report.missing = [], []
    # The machine became twice as fast from round to round; ratios within a round do not care.
    report.begin("PPO", "Training steps per second").measurements = [
        row("velodrome", "velodrome", [60e3, 120e3, 240e3]),
        row("velodrome", "velodrome", [50e3, 100e3, 200e3], num_envs=1024, rollout_length=8),
        row("velodrome", "velodrome, autograd", [20e3, 40e3, 80e3]),
        row("dummy", "SB3 DummyVecEnv", [4e3, 8e3, 16e3], num_envs=8, rollout_length=1024),
        row("dummy_1_thread", "SB3 DummyVecEnv, 1 thr.", [5e3, 10e3, 20e3], num_envs=8, rollout_length=1024, threads=1),
    ]
    report.measurements[0].details["flops"] = [1e8, 2e8, 4e8]
    report.race = Race(fraction=0.8, limit_seconds=20.0, optimum=1e-3, best_rule_share=1.01)
    report.race.runs = [
        *(run("velodrome", seed, seconds, reached=True) for seed, seconds in enumerate((3.0, 1.0, 2.0))),
        run("dummy", 0, 15.0, reached=True),
        run("dummy", 1, 20.5, reached=False),
        run("dummy", 2, 21.0, reached=False),
    ]
    report.note_missing("torchrl", "not installed: pip install 'velodrome[torchrl]'")
    benchmark.conclude()
    return benchmark


def told(benchmark: MadeUp, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width)
    run_benchmark(benchmark, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_ratios_are_within_a_round_and_about_the_faster_yardstick() -> None:
    rows = made_up().report.measurements
    assert [row.ratios["sb3"] for row in rows] == pytest.approx([12.0, 10.0, 4.0, 0.8, 1.0])


def test_the_share_of_the_bound_is_within_a_round() -> None:
    bound = made_up().report.bound
    assert bound is not None
    assert bound.steps_per_second == pytest.approx(400e3)
    assert bound.share == pytest.approx(0.6)
    assert bound.share_of_best == pytest.approx(120e3 / 400e3)


def test_what_was_promised_is_met_or_missed() -> None:
    benchmark = made_up()
    report = benchmark.report
    assert [target.reached for target in report.targets] == pytest.approx([15.0, 12.0, 0.6])
    assert [target.met for target in report.targets] == [True, True, True]
    assert told(benchmark).count(": met") == 3
    report.measurements[0].rounds = [44e3, 88e3, 176e3]
    assert told(benchmark).count("MISSED by 12%") == 2
    assert [target.met for target in report.targets] == [True, False, False]


@pytest.mark.parametrize(
    "options", [{"quick": True}, {"batch": 4096}, {"epochs": 2}, {"hidden": (32,)}, {"sizes": (512, 256)}]
)
def test_nothing_is_judged_that_was_not_promised(options: dict[str, Any]) -> None:
    assert made_up(**options).report.targets == []


def test_without_a_yardstick_there_is_no_ratio() -> None:
    benchmark = made_up()
    report = benchmark.report
    for row in report.measurements:
        row.ratios.clear()
    report.comparisons[0].measurements = report.measurements[:3]
    benchmark.conclude()
    assert [row.ratios for row in report.measurements] == [{}] * 3
    assert [target.wanted for target in report.targets] == [0.5]


def test_a_race_is_told_by_the_median_seed_and_not_reached_is_a_result() -> None:
    benchmark = made_up()
    assert benchmark.report.race is not None
    native, dummy = benchmark.report.race.results
    assert (native.seconds, native.reached, native.runs) == (2.0, 3, 3)
    assert (dummy.seconds, dummy.steps, dummy.reached, dummy.runs) == (None, None, 1, 3)
    assert "not reached in 20 s" in told(benchmark)


def test_an_interrupted_run_is_no_failure_to_reach() -> None:
    race = Race(fraction=0.8, limit_seconds=20.0, optimum=1e-3, best_rule_share=1.0)
    race.runs = [run("velodrome", 0, 2.0, reached=True), run("dummy", 0, 5.0, reached=False)]
    assert [result.peer for result in race_results(race)] == ["velodrome"]


def test_everything_is_told() -> None:
    text = told(made_up())
    for wanted in (
        "256 × 32", "1,024 × 8", "8 × 1,024", "velodrome, autograd", "120 k", "2/10/80/8", "12.0",
        "torchrl: not installed", "Bound: 1,000 floating-point operations a step", "400 k steps/s", "all cores",
        "batches of 8,192",
    ):  # fmt: skip
        assert wanted in text, wanted


def test_the_tables_fit_a_terminal_of_80_characters() -> None:
    lines = told(made_up(), width=80).splitlines()
    assert not [line for line in lines if "…" in line]
    assert any(line.split()[:5] == ["velodrome,", "autograd", "256", "×", "32"] for line in lines)


def test_the_file_gives_the_report_back(tmp_path: Path) -> None:
    report = made_up().report
    report.write(tmp_path / "new" / "train.json")
    assert TrainReport.model_validate_json((tmp_path / "new" / "train.json").read_text()) == report


@pytest.mark.parametrize("racing", [True, False])
def test_the_plot_is_a_picture(tmp_path: Path, racing: bool) -> None:
    pytest.importorskip("matplotlib")
    benchmark = made_up()
    if not racing:
        benchmark.report.race = None
    write_plot(benchmark.report, "training", tmp_path / "train.png", benchmark.more_panels())
    assert (tmp_path / "train.png").read_bytes().startswith(b"\x89PNG")
