"""The training benchmark end to end, on sizes that say nothing about speed but everything about the machinery."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from rich.console import Console

import velodrome as vd
from velodrome.bench import options as options_module
from velodrome.bench import race as race_module
from velodrome.bench import train as train_module
from velodrome.bench.parity import ParityError
from velodrome.bench.race import Race, RacePoint, RaceRun, draw_race, run_race
from velodrome.bench.report import PHASES, Measurement
from velodrome.bench.run import run_benchmark
from velodrome.bench.sgemm import sgemm_rate
from velodrome.bench.timing import Contender
from velodrome.bench.train import TRAIN_PEERS, TrainBenchmark, TrainOptions, TrainReport
from velodrome.bench.trainer import Trainer
from velodrome.cli import REFUSED, run
from velodrome.learn.catalog import AlgorithmEntry
from velodrome.outside.extras import install


def tiny(**values: Any) -> TrainOptions:
    chosen: dict[str, Any] = {"sizes": (16, 32), "batch": 128, "hidden": (8, 8), "epochs": 2, "minibatches": 2}
    chosen |= {"seconds": 0.05, "repeats": 3, "bars": 10_000, "episode_length": 50, "race_seconds": 0.2}
    return TrainOptions(**{**chosen, "race_seeds": 1, **values})


def measured(options: TrainOptions, console: Console | None = None) -> TrainReport:
    return run_benchmark(TrainBenchmark(options), console or silent_console())


def silent_console() -> Console:
    return Console(file=io.StringIO(), width=140)


@pytest.fixture(scope="module", autouse=True)
def small_measures() -> Iterator[None]:
    """One thread and small matrices: threads that wait for each other on a busy machine would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "available_cores", lambda: 1)
        patch.setattr(train_module, "sgemm_rate", lambda: sgemm_rate(128, 2))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainReport, str, Path]:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("torchrl")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("bench") / "new"
    console = silent_console()
    files = {"json_path": folder / "train.json", "plot_path": folder / "train.png"}
    options = tiny(against=("dummy", "dummy_1_thread", "dummy64", "torchrl"), **files)
    threads = torch.get_num_threads()
    report = measured(options, console)
    assert torch.get_num_threads() == threads
    return report, console.file.getvalue(), folder  # type: ignore[attr-defined]


def test_every_contender_is_measured(finished: tuple[TrainReport, str, Path]) -> None:
    report, text, _ = finished
    assert report.missing == []
    assert [(row.peer, row.num_envs, row.rollout_length) for row in report.measurements] == [
        *(("velodrome", 16, 8), ("velodrome", 32, 4), ("velodrome", 16, 8), ("dummy", 8, 16)),
        *(("dummy_1_thread", 8, 16), ("dummy64", 64, 2), ("torchrl", 8, 16)),
    ]
    for row in report.measurements:
        assert 0.0 < row.slowest <= row.steps_per_second <= row.fastest
        assert len(row.rounds) == 3
        assert row.calls >= 3
        assert row.label in text
    assert report.measurements[2].kind == "autograd"
    assert report.measurements[4].threads == 1


def test_phases_are_all_there_and_add_up(finished: tuple[TrainReport, str, Path]) -> None:
    for row in finished[0].measurements:
        phases = {phase: row.mean(phase) for phase in PHASES}
        assert min(phases["environment"], phases["inference"], phases["learning"]) > 0.0
        seconds = sum(phases.values())
        assert 128 / row.fastest * 0.99 <= seconds <= 128 / row.slowest * 1.01


def test_all_train_the_same_network(finished: tuple[TrainReport, str, Path]) -> None:
    trunk = 264 * 8 + 8 + 8 * 8 + 8
    assert finished[0].parameters == 2 * trunk + (8 * 3 + 3) + (8 + 1)


def test_the_bound_is_measured_in_every_round(finished: tuple[TrainReport, str, Path]) -> None:
    bound = finished[0].bound
    assert len(bound.flops) == 3
    assert min(bound.flops) > 0.0
    assert bound.share is not None
    assert 0.0 < bound.share < 1.0


def test_the_race_has_a_curve_for_both(finished: tuple[TrainReport, str, Path]) -> None:
    race = finished[0].race
    assert race is not None
    rows = [row for row in finished[0].measurements if row.peer in train_module.YARDSTICKS]
    yardstick = max(rows, key=lambda row: row.steps_per_second)
    assert [racer.peer for racer in race.runs] == ["velodrome", yardstick.peer]
    for racer in race.runs:
        assert racer.reached or racer.seconds >= 0.2
        assert [point.seconds for point in racer.points] == sorted(point.seconds for point in racer.points)
        assert racer.points[0].steps == 0
        assert racer.points[-1].steps == racer.steps > 0


def test_json_and_plot_are_written(finished: tuple[TrainReport, str, Path]) -> None:
    report, text, folder = finished
    written = json.loads((folder / "train.json").read_text())
    assert TrainReport.model_validate(written) == report
    assert written["machine"]["cpu"]
    assert written["comparisons"][0]["parity"]["counts"]["liquidations"] > 0
    assert written["options"]["sizes"] == [16, 32]
    assert (folder / "train.png").read_bytes().startswith(b"\x89PNG")
    assert str(folder / "train.json") in text.replace("\n", "")


@pytest.mark.slow
def test_worker_processes_are_measured_and_end() -> None:
    pytest.importorskip("stable_baselines3")
    report = measured(tiny(against=("subproc",), sizes=(16,), race_seconds=0.0))
    assert report.missing == []
    assert [row.processes for row in report.measurements] == [0, 0, 8]
    assert report.race is None


class Fake(Trainer):
    """Takes the seconds it is told to and writes down when it was its turn."""

    def __init__(self, name: str, seconds: float, log: list[str], parameters: int = 10) -> None:
        self.name, self.seconds, self.log, self.weights = name, seconds, log, [torch.zeros(parameters)]
        self.skill = 0.0

    def iterate(self) -> dict[str, float]:
        self.log.append(self.name)
        self.skill += 0.1
        shares = {"environment": 0.1, "inference": 0.2, "learning": 0.7, "other": 0.0}
        return {phase: share * self.seconds for phase, share in shares.items()}

    def run(self) -> dict[str, float]:
        raise NotImplementedError

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.array(self.skill)

    def close(self) -> None:
        self.log.append(f"{self.name} closed")


def contender(trainer: Fake, peer: str) -> Contender:
    row = Measurement(peer=peer, label=trainer.name, num_envs=8, rollout_length=16, steps_per_call=128)
    return Contender(row, lambda: trainer)


def fakes(log: list[str], **second: Any) -> list[Contender]:
    return [contender(Fake("ours", 1.0, log), "velodrome"), contender(Fake("theirs", 4.0, log, **second), "dummy")]


def test_everyone_in_the_race_has_a_colour_of_their_own() -> None:
    from matplotlib.figure import Figure

    panel = Figure().subplots()
    race = Race(fraction=0.8, limit_seconds=9.0, optimum=1.0, best_rule_share=1.0)
    for seed, peer in itertools.product(range(2), ("velodrome", "dummy", "puffer")):
        points = [RacePoint(seconds=1.0, steps=1, share=0.1), RacePoint(seconds=2.0, steps=2, share=0.2)]
        race.runs.append(RaceRun(peer=peer, label=peer, num_envs=8, seed=seed, points=points))
    draw_race(race, panel)
    colours = [line.get_color() for line in panel.lines[:6]]
    assert colours[:3] == colours[3:]
    assert len(set(colours)) == 3
    assert len(panel.get_legend_handles_labels()[1]) == 3


def raced(options: TrainOptions, contenders: list[Contender]) -> TrainReport:
    benchmark = TrainBenchmark(options)
    comparison = benchmark.report.begin("PPO", "")
    benchmark.measure_speed(contenders, comparison, lambda description, turns: None)
    return benchmark.report


def test_contenders_take_turns_and_turns_last_alike() -> None:
    log: list[str] = []
    report = raced(tiny(seconds=12.0), fakes(log))
    warm_up = ["ours"] * 2 + ["theirs"] * 2
    assert log == [*warm_up, *(["ours"] * 4 + ["theirs"]) * 3, "theirs closed", "ours closed"]
    ours, theirs = report.measurements
    assert ours.steps_per_second == pytest.approx(128.0)
    assert theirs.steps_per_second == pytest.approx(32.0)
    phases = {phase: ours.mean(phase) for phase in PHASES}
    assert phases == pytest.approx({"environment": 0.1, "inference": 0.2, "learning": 0.7, "other": 0.0})
    assert (ours.calls, theirs.calls) == (12, 3)
    assert len(ours.details["flops"]) == 3


def test_another_network_is_not_compared() -> None:
    benchmark = TrainBenchmark(tiny())
    with pytest.raises(ParityError, match="Fake 10, Fake 11 parameters"):
        benchmark.measure_speed(fakes([], parameters=11), benchmark.report.begin("PPO", ""), lambda done, turns: None)
    assert benchmark.report.measurements == []


def test_the_one_that_trained_least_goes_next_and_evaluations_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    now = 0.0

    def train(self: Fake) -> dict[str, float]:
        nonlocal now
        now += self.seconds
        self.log.append(self.name)
        self.skill += 0.1
        return {}

    def share(act: Any) -> float:
        nonlocal now
        now += 100.0
        return float(act(None))

    monkeypatch.setattr(Fake, "iterate", train)
    monkeypatch.setattr(race_module.time, "perf_counter", lambda: now)
    race = Race(fraction=0.75, limit_seconds=10.0, evaluate_every=2, optimum=1.0, best_rule_share=1.0)
    run_race(race, fakes(log), 0, SimpleNamespace(share=share), lambda description, turns: None)  # type: ignore[arg-type]
    ours, theirs = race.runs
    # Two iterations of 1 s and of 4 s: 2, 8 | 4, 6, 8 = reached | then 12 s, over the limit after one more.
    assert log[:-2] == ["ours"] * 2 + ["theirs"] * 2 + ["ours"] * 6 + ["theirs"]
    assert (ours.reached, ours.seconds, ours.steps) == (True, 8.0, 8 * 128)
    assert (theirs.reached, theirs.seconds) == (False, 12.0)
    assert [point.share for point in ours.points] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module.importlib.util, "find_spec", lambda name: None)
    console = silent_console()
    report = measured(tiny(sizes=(16,), race_seconds=0.0), console)
    assert {peer.peer for peer in report.missing} == set(TRAIN_PEERS)
    assert {row.peer for row in report.measurements} == {"velodrome"}
    for extra in ("sb3", "torchrl"):
        assert f"not installed: {install(extra)}" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_failing_peer_is_reported_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def fail(self: Fake) -> dict[str, float]:
        if self.name == "theirs":
            raise RuntimeError("no such spec")
        return {"learning": 1.0}

    monkeypatch.setattr(Fake, "iterate", fail)
    report = raced(tiny(against=("dummy",)), fakes(log))
    told = "theirs with 8 environments failed: RuntimeError: no such spec"
    assert [(peer.peer, peer.reason) for peer in report.missing] == [("dummy", told)]
    assert [row.label for row in report.measurements] == ["ours"]
    assert log == ["theirs closed", "ours closed"]


def test_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainBenchmark, "measure_race", interrupt)
    console = silent_console()
    report = measured(tiny(against=("none",), sizes=(16,), json_path=tmp_path / "train.json"), console)
    assert report.interrupted
    assert json.loads((tmp_path / "train.json").read_text())["comparisons"][0]["measurements"]
    assert "Interrupted" in console.file.getvalue()  # type: ignore[attr-defined]


def test_quick_leaves_given_options_alone() -> None:
    options = TrainOptions(quick=True, bars=20_000).resolved()
    assert options.bars == 20_000
    assert options.race_seeds == 1
    assert TrainOptions().resolved().race_seeds == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"against": ("dumy",)}, "Did you mean 'dummy'"),
        ({"sizes": ()}, "needs one or more numbers"),
        ({"sizes": (0,)}, "that divide the batch"),
        ({"sizes": (100,)}, "divide the batch of 8192"),
        ({"minibatches": 3}, "3 minibatches do not divide"),
        ({"hidden": ()}, "needs one or more widths"),
        ({"repeats": 2}, "greater than or equal to 3"),
        ({"batches": 1}, "Extra inputs are not permitted"),
    ],
)
def test_illegal_options_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainOptions(**values)


def test_every_option_is_described() -> None:
    assert all(field.description for field in TrainOptions.model_fields.values())


# Any algorithm of the catalogue


class Outside:
    """Steps its environments and learns nothing; the least that a learner is."""

    def __init__(self, worlds: Any, network: Any, config: Any, *, total_steps: int, seed: int) -> None:
        from velodrome.learn.policy import ActorCritic

        self.worlds, self.config, self.moments = worlds, config, None
        self.policy = ActorCritic(worlds.shape, worlds.action_space, network)
        self.iterations = 0

    def iterate(self) -> dict[str, float]:
        self.iterations += 1
        return {"time/environment": 0.0}


def outside_entry() -> AlgorithmEntry:
    from velodrome.learn.config import LearnerConfig

    class OutsideConfig(LearnerConfig):
        """What it can be told: what all learners share."""

    entry = AlgorithmEntry("outside", OutsideConfig, Outside, lambda *_: None)
    vd.register_algorithm(entry, replace=True)
    return entry


def test_an_algorithm_from_outside_is_benchmarked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside_entry()
    coarse = {"seconds": 0.05, "repeats": 3, "bars": 10_000, "race_seconds": 0.02, "race_seeds": 1, "sizes": (16,)}
    monkeypatch.setattr(TrainOptions, "QUICK", {**coarse, "batch": 128})
    path, plot = tmp_path / "train.json", tmp_path / "train.png"
    command = ["bench", "train", "--algorithm", "outside", "--quick", "--json", str(path), "--plot", str(plot)]
    assert run(command) == 0
    report = TrainReport.model_validate_json(path.read_text())
    assert {row.label for row in report.measurements} == {"velodrome", "velodrome, autograd"}
    assert report.comparisons[0].name == "OUTSIDE"
    assert report.bound is None  # which counts PPO's operations
    assert report.race is not None
    assert report.race.runs[0].points
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("algorithm", "race_seconds"), [("dqn", 0.0), ("sac", 0.1)])
def test_another_algorithm_of_ours_is_benchmarked_without_peers(algorithm: str, race_seconds: float) -> None:
    console = silent_console()
    options = tiny(algorithm=algorithm, against=("dummy",), sizes=(16,), race_seconds=race_seconds)
    report = measured(options, console)
    assert {row.label for row in report.measurements} == {"velodrome"}  # by the one engine that it has
    told = f"Peers train ppo only; none is measured beside {algorithm}."
    assert told in console.file.getvalue()  # type: ignore[attr-defined]
    if report.race is not None:
        assert 0.8 < report.race.best_rule_share < 1.1


def test_an_unknown_algorithm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "train", "--algorithm", "pppo"]) == REFUSED
    assert "Did you mean 'ppo'" in capsys.readouterr().err
