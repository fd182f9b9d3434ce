"""The training benchmark end to end, on sizes that say nothing about speed but everything about the machinery."""

from __future__ import annotations

import io
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

from velodrome.bench import train as train_module
from velodrome.bench import train_options, train_race
from velodrome.bench.parity import ParityError
from velodrome.bench.sgemm import sgemm_rate
from velodrome.bench.train import measure_speed, new_report, run_train_benchmark
from velodrome.bench.train_contenders import PHASES, TrainContender, Trainer
from velodrome.bench.train_options import TRAIN_PEERS, TrainBenchmarkOptions
from velodrome.bench.train_problem import train_problem
from velodrome.bench.train_race import run_race
from velodrome.bench.train_report import Race, TrainReport


def tiny(**values: Any) -> TrainBenchmarkOptions:
    chosen = {
        "sizes": (16, 32), "batch": 128, "hidden": (8, 8), "epochs": 2, "minibatches": 2, "seconds": 0.05,
        "repeats": 3, "bars": 10_000, "episode_length": 50, "race_seconds": 0.2, "race_seeds": 1,
    }  # fmt: skip
    return TrainBenchmarkOptions(**{**chosen, **values})


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
    options = tiny(
        against=("dummy", "dummy_1_thread", "dummy64", "torchrl"), json_path=folder / "train.json",
        plot_path=folder / "train.png",
    )  # fmt: skip
    threads = torch.get_num_threads()
    report = run_train_benchmark(options, console)
    assert torch.get_num_threads() == threads
    return report, console.file.getvalue(), folder  # type: ignore[attr-defined]


def test_every_contender_is_measured(finished: tuple[TrainReport, str, Path]) -> None:
    report, text, _ = finished
    assert report.missing == []
    assert [(row.peer, row.num_envs, row.rollout_length) for row in report.measurements] == [
        ("native", 16, 8), ("native", 32, 4), ("native", 16, 8), ("dummy", 8, 16), ("dummy_1_thread", 8, 16),
        ("dummy64", 64, 2), ("torchrl", 8, 16),
    ]  # fmt: skip
    for row in report.measurements:
        assert 0.0 < row.slowest <= row.steps_per_second <= row.fastest
        assert len(row.rounds) == 3
        assert row.iterations >= 3
        assert row.label in text
    assert report.measurements[2].engine == "autograd"
    assert report.measurements[4].threads == 1


def test_phases_are_all_there_and_add_up(finished: tuple[TrainReport, str, Path]) -> None:
    for row in finished[0].measurements:
        assert set(row.phases) == set(PHASES)
        assert min(row.phases["environment"], row.phases["inference"], row.phases["learning"]) > 0.0
        seconds = sum(row.phases.values())
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
    yardstick = finished[0].yardstick()
    assert yardstick is not None
    assert [run.peer for run in race.runs] == ["native", yardstick.peer]
    for run in race.runs:
        assert run.reached or run.seconds >= 0.2
        assert [point.seconds for point in run.points] == sorted(point.seconds for point in run.points)
        assert run.points[0].steps == 0
        assert run.points[-1].steps == run.steps > 0


def test_json_and_plot_are_written(finished: tuple[TrainReport, str, Path]) -> None:
    report, text, folder = finished
    written = json.loads((folder / "train.json").read_text())
    assert TrainReport.model_validate(written) == report
    assert written["machine"]["cpu"]
    assert written["parity"]["liquidations"] > 0
    assert written["options"]["sizes"] == [16, 32]
    assert (folder / "train.png").read_bytes().startswith(b"\x89PNG")
    assert str(folder / "train.json") in text.replace("\n", "")


@pytest.mark.slow
def test_worker_processes_are_measured_and_end() -> None:
    pytest.importorskip("stable_baselines3")
    report = run_train_benchmark(tiny(against=("subproc",), sizes=(16,), race_seconds=0.0), silent_console())
    assert report.missing == []
    assert [row.processes for row in report.measurements] == [0, 0, 8]
    assert report.race is None


class Fake(Trainer):
    """Takes the seconds it is told to and writes down when it was its turn."""

    def __init__(self, name: str, seconds: float, log: list[str], parameters: int = 10) -> None:
        self.name, self.seconds, self.log, self.parameters = name, seconds, log, parameters
        self.skill = 0.0

    def iterate(self) -> dict[str, float]:
        self.log.append(self.name)
        self.skill += 0.1
        return {"environment": 0.1 * self.seconds, "inference": 0.2 * self.seconds, "learning": 0.7 * self.seconds,
                "other": 0.0}  # fmt: skip

    def run(self) -> dict[str, float]:
        raise NotImplementedError

    def act(self, observations: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.array(self.skill)

    def close(self) -> None:
        self.log.append(f"{self.name} closed")


def contender(trainer: Fake, peer: str) -> TrainContender:
    return TrainContender(peer, trainer.name, 8, 16, 0, None, lambda seed: trainer)


def fakes(log: list[str], **second: Any) -> list[TrainContender]:
    return [contender(Fake("ours", 1.0, log), "native"), contender(Fake("theirs", 4.0, log, **second), "dummy")]


def test_contenders_take_turns_and_turns_last_alike() -> None:
    log: list[str] = []
    options = tiny(seconds=12.0)
    report = new_report(options, train_problem(options))
    measure_speed(fakes(log), options, report, lambda description, steps=1: None)
    warm_up = ["ours"] * 2 + ["theirs"] * 2
    assert log == [*warm_up, *(["ours"] * 4 + ["theirs"]) * 3, "theirs closed", "ours closed"]
    ours, theirs = report.measurements
    assert ours.steps_per_second == pytest.approx(128.0)
    assert theirs.steps_per_second == pytest.approx(32.0)
    assert ours.phases == pytest.approx({"environment": 0.1, "inference": 0.2, "learning": 0.7, "other": 0.0})
    assert (ours.iterations, theirs.iterations) == (12, 3)


def test_another_network_is_not_compared() -> None:
    options = tiny()
    report = new_report(options, train_problem(options))
    with pytest.raises(ParityError, match="theirs 8 11 parameters"):
        measure_speed(fakes([], parameters=11), options, report, lambda description, steps=1: None)
    assert report.measurements == []


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
    monkeypatch.setattr(train_race.time, "perf_counter", lambda: now)
    race = Race(fraction=0.75, limit_seconds=10.0, optimum=1.0, best_rule_share=1.0)
    options = tiny(evaluate_every=2, race_seconds=10.0)
    run_race(race, fakes(log), options, SimpleNamespace(share=share), lambda description, steps: None)  # type: ignore[arg-type]
    ours, theirs = race.runs
    # Two iterations of 1 s and of 4 s: 2, 8 | 4, 6, 8 = reached | then 12 s, over the limit after one more.
    assert log[:-2] == ["ours"] * 2 + ["theirs"] * 2 + ["ours"] * 6 + ["theirs"]
    assert (ours.reached, ours.seconds, ours.steps) == (True, 8.0, 8 * 128)
    assert (theirs.reached, theirs.seconds) == (False, 12.0)
    assert [point.share for point in ours.points] == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_options.importlib.util, "find_spec", lambda name: None)
    console = silent_console()
    report = run_train_benchmark(tiny(sizes=(16,), race_seconds=0.0), console)
    assert {peer.peer for peer in report.missing} == set(TRAIN_PEERS)
    assert {row.peer for row in report.measurements} == {"native"}
    for extra in ("sb3", "torchrl"):
        assert f"not installed: pip install 'velodrome[{extra}]'" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_failing_peer_is_reported_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    def fail(self: Fake) -> dict[str, float]:
        if self.name == "theirs":
            raise RuntimeError("no such spec")
        return {"learning": 1.0}

    monkeypatch.setattr(Fake, "iterate", fail)
    options = tiny()
    report = new_report(options, train_problem(options))
    measure_speed(fakes(log), options, report, lambda description, steps=1: None)
    assert [(peer.peer, peer.reason) for peer in report.missing] == [("dummy", "failed: RuntimeError: no such spec")]
    assert [row.label for row in report.measurements] == ["ours"]
    assert log == ["theirs closed", "ours closed"]


def test_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_module, "measure_race", interrupt)
    console = silent_console()
    report = run_train_benchmark(tiny(against=("none",), sizes=(16,), json_path=tmp_path / "train.json"), console)
    assert report.interrupted
    assert json.loads((tmp_path / "train.json").read_text())["measurements"]
    assert "Interrupted" in console.file.getvalue()  # type: ignore[attr-defined]


def test_quick_leaves_given_options_alone() -> None:
    options = TrainBenchmarkOptions(quick=True, bars=20_000).resolved()
    assert options.bars == 20_000
    assert options.race_seeds == 1
    assert TrainBenchmarkOptions().resolved().race_seeds == 3


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
        TrainBenchmarkOptions(**values)


def test_every_option_is_described() -> None:
    assert all(field.description for field in TrainBenchmarkOptions.model_fields.values())
