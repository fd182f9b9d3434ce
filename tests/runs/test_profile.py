"""The profile: finds where a known program spends its time, and leaves files that open."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from rich.console import Console

from velodrome.errors import ConfigError, MissingDependencyError
from velodrome.outside.extras import install
from velodrome.rollout.phases import PhaseClock
from velodrome.runs.profile import (
    MOST_ROWS,
    MOST_TRACED,
    WARM_UP,
    ProfileReport,
    Spent,
    profile_iterations,
    without_tracing_notes,
)


def slow_rule() -> None:
    time.sleep(0.006)


class Training:
    """An iteration of which the split is known: 6 ms of environment, 3 ms of inference, products on two threads."""

    def __init__(self, device: str = "cpu") -> None:
        self.clock = PhaseClock(device)
        self.values = torch.ones(64, 64, device=device)
        self.pool = ThreadPoolExecutor(1)
        self.iterations = 0

    def iterate(self) -> None:
        self.iterations += 1
        with self.clock("environment"):
            slow_rule()
        with self.clock("inference"):
            time.sleep(0.003)
        with self.clock("learning"):
            for _ in range(5):
                torch.mm(self.values, self.values)
            self.pool.submit(lambda: torch.tanh(self.values)).result()


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, ProfileReport]:
    training = Training()
    folder = tmp_path_factory.mktemp("profile") / "new" / "folder"
    return training, profile_iterations(training.iterate, training.clock, 4, folder)


def test_every_round_has_its_iterations(profiled: tuple[Training, ProfileReport]) -> None:
    training, report = profiled
    assert training.iterations == WARM_UP + 4 + 4 + MOST_TRACED
    assert report.iterations == 4


def test_phases_are_those_of_the_clock(profiled: tuple[Training, ProfileReport]) -> None:
    _, report = profiled
    phases = report.phases
    assert phases["environment"] >= 0.006
    assert phases["inference"] >= 0.003
    assert phases["environment"] > phases["inference"]
    parts = sum(phases[name] for name in ("environment", "inference", "learning", "other"))
    assert parts == pytest.approx(phases["total"])


class ReportingTraining(Training):
    """A learner reads its clock itself, and begins to learn once it has collected enough."""

    def iterate(self) -> dict[str, float]:  # type: ignore[override]
        super().iterate()
        seconds = self.clock.take()
        if self.iterations < 3:
            seconds["learning"] = 0.0
        return {f"time/{name}": value for name, value in seconds.items()}


def test_phases_that_a_learner_reports_are_added_up_once_it_learns(tmp_path: Path) -> None:
    training = ReportingTraining()
    phases = profile_iterations(training.iterate, training.clock, 2, tmp_path).phases
    assert training.iterations == 3 + 2 + 2 + 2
    assert 0.006 <= phases["environment"] < phases["total"]
    assert phases["inference"] >= 0.003
    assert phases["learning"] > 0
    assert phases["other"] < 0.5 * phases["total"]


def test_notes_of_the_tracer_do_not_leak(capfd: pytest.CaptureFixture[str]) -> None:
    with without_tracing_notes():
        os.write(2, b"USDT:2026-11-16 profiler_start\na word that matters\n")
    assert capfd.readouterr().err == "a word that matters\n"


def test_operations_of_all_threads_are_counted(profiled: tuple[Training, ProfileReport]) -> None:
    _, report = profiled
    operations = {operation.name: operation for operation in report.operations}
    assert operations["aten::mm"].calls == 5
    if report.every_thread:
        assert operations["aten::tanh"].calls == 1
    times = [operation.seconds for operation in report.operations]
    assert times == sorted(times, reverse=True)
    # The iteration mostly sleeps.
    assert all(0 < operation.share < 0.9 for operation in report.operations)


def test_the_slowest_function_leads(profiled: tuple[Training, ProfileReport]) -> None:
    _, report = profiled
    assert sum(function.share for function in report.functions) == pytest.approx(1.0)
    assert "sleep" in report.functions[0].name
    assert report.functions[0].seconds == pytest.approx(0.009, rel=0.6)


def test_the_files_open(profiled: tuple[Training, ProfileReport]) -> None:
    _, report = profiled
    page = report.flame_graph.read_text(encoding="utf-8")
    assert "slow_rule" in page
    assert "fonts.googleapis.com" not in page
    speedscope = json.loads(report.speedscope.read_text(encoding="utf-8"))
    assert any("slow_rule" in frame["name"] for frame in speedscope["shared"]["frames"])
    trace = json.loads(report.trace.read_text(encoding="utf-8"))
    products = [event for event in trace["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(products) == 5 * MOST_TRACED


@pytest.mark.parametrize("width", [60, 120])
def test_the_table_shows_all_three_views(profiled: tuple[Training, ProfileReport], width: int) -> None:
    _, report = profiled
    target = Console(file=io.StringIO(), width=width)
    target.print(report.table())
    assert isinstance(target.file, io.StringIO)
    shown = target.file.getvalue()
    assert max(len(line) for line in shown.splitlines()) <= width
    for expected in ("environment", "100.0%", "aten::mm", "slow_rule", "profile.html", "trace.json"):
        assert expected in "".join(shown.split("\n")), expected


def test_a_long_table_ends_with_the_sum_of_the_rest(tmp_path: Path) -> None:
    operations = [Spent(f"operation {index}", 2.0, 0.001, 0.01) for index in range(MOST_ROWS + 10)]
    phases = dict.fromkeys(("environment", "inference", "learning", "other", "total"), 0.0)
    files = (tmp_path / "profile.html", tmp_path / "profile.speedscope.json", tmp_path / "trace.json")
    target = Console(file=io.StringIO(), width=100)
    target.print(ProfileReport(1, "cpu", phases, operations, True, [], *files).table())
    assert isinstance(target.file, io.StringIO)
    (rest,) = [line for line in target.file.getvalue().splitlines() if "others" in line]
    assert rest.split() == ["10", "others", "10.0%", "20", "10", "ms"]


def test_a_missing_profiler_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyinstrument" else found(name))
    training = Training()
    with pytest.raises(MissingDependencyError, match=re.escape(install("profile"))):
        profile_iterations(training.iterate, training.clock, 1, tmp_path)
    assert training.iterations == 0


def test_no_iterations_are_refused(tmp_path: Path) -> None:
    training = Training()
    with pytest.raises(ConfigError, match="received 0"):
        profile_iterations(training.iterate, training.clock, 0, tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_kernels_are_counted(tmp_path: Path) -> None:
    pytest.importorskip("pyinstrument")
    training = Training("cuda")
    report = profile_iterations(training.iterate, training.clock, 3, tmp_path)
    assert report.device == "cuda"
    assert report.operations
    assert not [operation for operation in report.operations if operation.name.startswith("aten::")]
    assert all(0 < operation.share < 1 for operation in report.operations)
