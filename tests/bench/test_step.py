"""The step benchmark end to end, on sizes that say nothing about speed but everything about the machinery."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from velodrome.bench import PEERS, StepBenchmarkOptions, StepReport, run_step_benchmark
from velodrome.bench import step as step_module
from velodrome.bench.machine import machine_stamp
from velodrome.bench.memory import ALONE, BLOCKS, WHOLE
from velodrome.bench.process_peers import PeerFailedError, run_python
from velodrome.bench.report import Measurement, window_rates
from velodrome.bench.timing import Stepper, take_turns


def tiny(**values: Any) -> StepBenchmarkOptions:
    chosen = {"sizes": (4, 16), "seconds": 0.02, "repeats": 2, "bars": 3_000, "processes": (2,), "quick": True}
    return StepBenchmarkOptions(**{**chosen, **values})


def silent_console() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[StepReport, str, Path]:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("bench")
    console = silent_console()
    options = tiny(json_path=folder / "new" / "step.json", plot_path=folder / "new" / "step.png")
    report = run_step_benchmark(options, console)
    return report, console.file.getvalue(), folder / "new"


def test_every_contender_is_measured_or_reported_missing(finished: tuple[StepReport, str, Path]) -> None:
    report, text, _ = finished
    measured = {row.peer for row in report.measurements}
    missing = {peer.peer for peer in report.missing}
    assert measured | missing == {"native", "memcpy", *PEERS}
    assert not measured & missing
    for row in report.measurements:
        assert 0.0 < row.slowest <= row.steps_per_second <= row.fastest
        assert row.repeats == 2
    for peer in measured - {"memcpy", "native"}:
        assert PEERS[peer][0] in text


def test_native_has_both_observations_and_all_sizes(finished: tuple[StepReport, str, Path]) -> None:
    report, _, _ = finished
    native = {(row.num_envs, row.observation) for row in report.measurements if row.peer == "native"}
    assert native == {(size, kind) for size in (4, 16) for kind in ("windows", "cursor")}
    assert report.observation_floats == 32 * 8 + 8
    widths = {row.floats for row in report.measurements if row.group == "same rule" and row.observation == "windows"}
    assert widths - {32 * 8} == {report.observation_floats}  # memcpy copies the windows only


def test_ratios_are_to_the_faster_native_row(finished: tuple[StepReport, str, Path]) -> None:
    report, _, _ = finished
    for row in report.measurements:
        if row.peer == "memcpy":
            assert row.native_ratio is None
        else:
            native = report.native_rate(row.group, row.num_envs)
            assert native is not None
            assert row.native_ratio == pytest.approx(native / row.steps_per_second)


def test_process_peers_say_how_many_processes_they_had(finished: tuple[StepReport, str, Path]) -> None:
    report, text, _ = finished
    for peer in ("async", "subproc"):
        rows = [row for row in report.measurements if row.peer == peer]
        assert {row.num_envs for row in rows} == {4, 16}
        assert {row.processes for row in rows} == {2} == {row.measured_envs for row in rows}
    assert "2 processes" in text


def test_json_holds_everything(finished: tuple[StepReport, str, Path]) -> None:
    report, _, folder = finished
    written = json.loads((folder / "step.json").read_text())
    assert StepReport.model_validate(written) == report
    assert written["schema_version"] == 1
    for name in ("cpu", "cores", "memory_gib", "python", "libraries", "threading_layer", "load_average", "command"):
        assert written["machine"][name]
    assert written["parity"]["liquidations"] > 0
    assert written["parity"]["terminated"] > 0
    assert written["memory"]["bytes_allocated"] > 0
    assert {"stepping", "memcpy_windows", "memcpy_block", "share"} <= written["window_rates"][0].keys()
    assert written["options"]["sizes"] == [4, 16]


def test_plot_is_a_png(finished: tuple[StepReport, str, Path]) -> None:
    assert (finished[2] / "step.png").read_bytes().startswith(b"\x89PNG")


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from velodrome.bench import contenders

    found = contenders.importlib.util.find_spec
    absent = ("stable_baselines3", "torchtrade")
    monkeypatch.setattr(
        contenders.importlib.util, "find_spec", lambda name, *rest: None if name in absent else found(name, *rest)
    )
    console = silent_console()
    report = run_step_benchmark(tiny(against=("dummy", "subproc", "torchtrade"), sizes=(4,)), console)
    assert {peer.peer for peer in report.missing} == {"dummy", "subproc", "torchtrade"}
    for extra in ("sb3", "torchtrade"):
        assert f"not installed: pip install 'velodrome[{extra}]'" in console.file.getvalue()
    assert {row.peer for row in report.measurements} == {"native", "memcpy"}


def test_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(step_module, "measure_processes", interrupt)
    options = tiny(against=("async",), sizes=(4,), json_path=tmp_path / "step.json")
    report = run_step_benchmark(options, silent_console())
    assert report.interrupted
    assert json.loads((tmp_path / "step.json").read_text())["measurements"]


def test_a_failing_peer_is_reported_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PeerFailedError("failed: out of memory")

    monkeypatch.setattr(step_module, "measure_process_peer", fail)
    report = run_step_benchmark(tiny(against=("async",), sizes=(4,)), silent_console())
    assert [peer.peer for peer in report.missing] == ["async"]
    assert any("out of memory" in note for note in report.notes)
    assert report.memory is not None


def test_quick_leaves_given_options_alone() -> None:
    options = StepBenchmarkOptions(quick=True, bars=5_000).resolved()
    assert options.bars == 5_000
    assert options.sizes == (64, 1024)
    assert StepBenchmarkOptions().resolved().sizes == (64, 1024, 16384)


@pytest.mark.parametrize("values", [{"against": ("dumy",)}, {"sizes": ()}, {"sizes": (0,)}, {"seconds": 0.0}])
def test_illegal_options_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        StepBenchmarkOptions(**values)


def test_a_wrong_peer_name_is_corrected() -> None:
    with pytest.raises(ValidationError, match="Did you mean 'dummy'"):
        StepBenchmarkOptions(against=("dumy",))


def test_every_option_is_described() -> None:
    assert all(field.description for field in StepBenchmarkOptions.model_fields.values())


def test_contenders_take_turns() -> None:
    order: list[str] = []
    steppers = [Stepper(lambda k, name=name: None, lambda name=name: order.append(name)) for name in "ab"]
    timings = list(take_turns(steppers, [1, 1], seconds=0.001, repeats=3))
    assert order == ["a", "b"] + ["a", "b"] * 3  # warm-up, then rounds
    assert [index for index, _ in timings] == [0, 1] * 3
    assert timings[-1][1].repeats == 3


def test_a_failed_interpreter_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerFailedError, match="ZeroDivisionError"):
        run_python("1 / 0", tmp_path, 60.0)


def test_stamp_names_this_machine() -> None:
    stamp = machine_stamp()
    assert stamp.cores >= 1
    assert stamp.libraries["numpy"] != "not installed"
    assert "pytest" in stamp.command or "python" in stamp.command


def test_a_disturbed_memcpy_does_not_flatter_the_windows(finished: tuple[StepReport, str, Path]) -> None:
    report = finished[0].model_copy(deep=True)
    rows = {(row.label, row.threads): row for row in report.measurements if row.num_envs == 16}
    template = rows["velodrome", 1]

    def row(label: str, threads: int, speed: float) -> Measurement:
        return template.model_copy(
            update={"label": label, "threads": threads, "steps_per_second": speed, "floats": 256}
        )

    measured = [row(BLOCKS, 1, 30e6), row(BLOCKS, 2, 2e6), row(WHOLE, 1, 40e6), row(WHOLE, 2, 2e6)]
    for threads in (1, 2):
        measured += [row("velodrome", threads, 6e6), row(ALONE, threads, 20e6)]
    one, two = window_rates(measured)
    assert one.share == pytest.approx(0.5)
    assert two.share == pytest.approx(0.5)
    assert one.windows_alone == pytest.approx(20e6 * 256 * 4 / 1e9)
