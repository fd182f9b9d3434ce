"""The step benchmark end to end, on sizes that say nothing about speed but everything about the machinery."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError
from rich.console import Console

import velodrome as vd
from velodrome.bench import options as options_module
from velodrome.bench.machine import machine_stamp
from velodrome.bench.peers import torchtrade
from velodrome.bench.problems.footprint import ALONE, MEMCPY, run_python, window_rates
from velodrome.bench.problems.trading import TradingBenchmark, TradingOptions
from velodrome.bench.report import Comparison, Measurement, Report
from velodrome.bench.run import run_benchmark
from velodrome.bench.step import StepBenchmark, step_benchmark
from velodrome.bench.timing import Contender, PeerFailedError, Stepper, take_turns
from velodrome.cli import REFUSED, run
from velodrome.envs._template import template_world
from velodrome.envs.catalog import CATALOG
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ConfigError
from velodrome.outside.extras import install

PEERS = TradingOptions.PEERS
SLOW_PEERS = {"torchtrade", "parallelenv"}
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def tiny(**values: Any) -> TradingOptions:
    chosen = {"sizes": (4, 16), "seconds": 0.02, "repeats": 2, "bars": 3_000, "processes": (2,), "quick": True}
    return TradingOptions(**{**chosen, **values})


def measured(options: TradingOptions, console: Console | None = None) -> Report:
    return run_benchmark(TradingBenchmark(CATALOG.get("trading"), options), console or silent_console())


def silent_console() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, str, Path]:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("bench")
    console = silent_console()
    against = tuple(name for name in PEERS if name not in SLOW_PEERS)
    options = tiny(json_path=folder / "new" / "step.json", plot_path=folder / "new" / "step.png", against=against)
    report = measured(options, console)
    return report, console.file.getvalue(), folder / "new"


def test_every_contender_is_measured_or_reported_missing(finished: tuple[Report, str, Path]) -> None:
    report, text, _ = finished
    found = {row.peer for row in report.measurements}
    missing = {peer.peer for peer in report.missing}
    assert found | missing == {"velodrome", "memcpy", *PEERS} - SLOW_PEERS
    assert not found & missing
    for row in report.measurements:
        assert 0.0 < row.slowest <= row.steps_per_second <= row.fastest
        assert len(row.rounds) == 2
    for peer in found - {"memcpy", "velodrome"}:
        assert PEERS[peer].label in text


def test_native_has_both_observations_and_all_sizes(finished: tuple[Report, str, Path]) -> None:
    report, _, _ = finished
    native = {(row.num_envs, row.kind) for row in report.measurements if row.peer == "velodrome"}
    assert native == {(size, kind) for size in (4, 16) for kind in ("flat", "cursor")}
    widths = {row.floats for row in report.measurements if row.kind != "cursor"}
    assert widths == {32 * 8, 32 * 8 + 8}  # memcpy copies the windows only
    assert {row.floats for row in report.measurements if row.kind == "cursor"} == {8}


def test_ratios_are_to_the_faster_native_row(finished: tuple[Report, str, Path]) -> None:
    comparison = finished[0].comparisons[0]
    for row in comparison.measurements:
        if row.peer == "memcpy":
            assert row.ratios == {}
        else:
            native = comparison.best(peer="velodrome", kind="flat", num_envs=row.num_envs)
            assert native is not None
            assert row.ratios["native"] == pytest.approx(native / row.steps_per_second)


def test_process_peers_say_how_many_processes_they_had(finished: tuple[Report, str, Path]) -> None:
    report, text, _ = finished
    for peer in ("async", "subproc"):
        rows = [row for row in report.measurements if row.peer == peer]
        assert {row.num_envs for row in rows} == {4, 16}
        assert {row.processes for row in rows} == {2} == {row.steps_per_call for row in rows}
    assert "2 processes" in text


def test_json_holds_everything(finished: tuple[Report, str, Path]) -> None:
    report, _, folder = finished
    written = json.loads((folder / "step.json").read_text())
    assert Report.model_validate(written) == report
    assert written["schema_version"] == 2
    for name in ("cpu", "cores", "memory_gib", "python", "libraries", "threading_layer", "load_average", "command"):
        assert written["machine"][name]
    parity = written["comparisons"][0]["parity"]["counts"]
    assert parity["liquidations"] > 0
    assert parity["bankruptcies"] > 0
    assert written["facts"]["memory"]["bytes_allocated"] > 0
    assert {"stepping", "windows_alone", "memcpy", "share"} <= written["facts"]["window_rates"][0].keys()
    assert written["options"]["sizes"] == [4, 16]


def test_plot_is_a_png(finished: tuple[Report, str, Path]) -> None:
    assert (finished[2] / "step.png").read_bytes().startswith(b"\x89PNG")


def test_the_results_of_before_are_still_there() -> None:
    for path in sorted(RESULTS.glob("*.json")):
        assert json.loads(path.read_text()), path


@pytest.mark.usefixtures("parity_is_taken_for_granted")
def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = options_module.importlib.util.find_spec
    absent = ("stable_baselines3", "torchtrade")
    monkeypatch.setattr(
        options_module.importlib.util, "find_spec", lambda name, *rest: None if name in absent else found(name, *rest)
    )
    console = silent_console()
    report = measured(tiny(against=("dummy", "subproc", "torchtrade"), sizes=(4,)), console)
    assert {peer.peer for peer in report.missing} == {"dummy", "subproc", "torchtrade"}
    for extra in ("sb3", "torchtrade"):
        assert f"not installed: {install(extra)}" in console.file.getvalue()
    assert {row.peer for row in report.measurements} == {"velodrome", "memcpy"}


@pytest.mark.usefixtures("parity_is_taken_for_granted")
def test_interrupt_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("velodrome.bench.step.Host", interrupt)
    report = measured(tiny(against=("async",), sizes=(4,), json_path=tmp_path / "step.json"))
    assert report.interrupted
    assert json.loads((tmp_path / "step.json").read_text())["comparisons"][0]["measurements"]


@pytest.mark.usefixtures("parity_is_taken_for_granted")
def test_a_failing_peer_is_reported_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise PeerFailedError("failed: out of memory")

    monkeypatch.setattr("velodrome.bench.step.Host", fail)
    report = measured(tiny(against=("async",), sizes=(4,)))
    assert [peer.peer for peer in report.missing] == ["async"]
    assert report.missing[0].reason == "gymnasium AsyncVectorEnv with 2 environments failed: out of memory"
    assert "memory" in report.facts


def test_quick_leaves_given_options_alone() -> None:
    options = TradingOptions(quick=True, bars=5_000).resolved()
    assert options.bars == 5_000
    assert options.sizes == (64, 1024)
    assert TradingOptions().resolved().sizes == (64, 1024, 16384)


@pytest.mark.parametrize("values", [{"against": ("dumy",)}, {"sizes": ()}, {"sizes": (0,)}, {"seconds": 0.0}])
def test_illegal_options_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TradingOptions(**values)


def test_a_wrong_peer_name_is_corrected() -> None:
    with pytest.raises(ValidationError, match="Did you mean 'dummy'"):
        TradingOptions(against=("dumy",))


def test_every_option_is_described() -> None:
    assert all(field.description for field in TradingOptions.model_fields.values())


@pytest.fixture
def parity_is_taken_for_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of the time of a tiny run, and not what some tests are about."""
    monkeypatch.setattr(TradingBenchmark, "check_parity", lambda *_: None)


def contender(name: str, stepper: Stepper) -> Contender:
    return Contender(Measurement(peer=name, label=name, num_envs=1, steps_per_call=1), lambda: stepper)


def made_up_report() -> Report:
    return Report(kind="made up", machine=machine_stamp(), options={})


def test_contenders_take_turns() -> None:
    order: list[str] = []
    steppers = {name: Stepper(lambda k: None, lambda name=name: order.append(name)) for name in "ab"}
    rows: list[Measurement] = []
    options = TradingOptions(seconds=0.001, repeats=3)
    take_turns([contender(*pair) for pair in steppers.items()], options, made_up_report(), rows)
    assert order == ["a", "b"] + ["a", "b"] * 3  # warm-up, then rounds
    assert [(row.peer, len(row.rounds)) for row in rows] == [("a", 3), ("b", 3)]


def test_a_peer_that_fails_in_a_round_drops_out_and_ours_is_an_error() -> None:
    def fails_when_timed() -> Any:
        class Failing:
            def warm_up(self, seconds: float) -> float:
                return 1.0

            def time(self, calls: int) -> dict[str, float]:
                raise RuntimeError("no more")

            def close(self) -> None:
                pass

        return Failing()

    rows: list[Measurement] = []
    report, options = made_up_report(), TradingOptions(seconds=0.001, repeats=3)
    good = contender("good", Stepper(lambda k: None))
    take_turns([contender("bad", fails_when_timed()), good], options, report, rows)
    assert [(row.peer, len(row.rounds)) for row in rows] == [("good", 3)]
    assert [peer.reason for peer in report.missing] == ["bad with 1 environments failed: RuntimeError: no more"]
    with pytest.raises(RuntimeError, match="no more"):
        take_turns([contender("velodrome", fails_when_timed())], options, report, rows)


def test_a_failed_interpreter_says_why() -> None:
    with pytest.raises(PeerFailedError, match="ZeroDivisionError"):
        run_python("1 / 0", 60.0)


def test_stamp_names_this_machine() -> None:
    stamp = machine_stamp()
    assert stamp["cores"] >= 1
    assert stamp["libraries"]["numpy"] != "not installed"
    assert "pytest" in stamp["command"] or "python" in stamp["command"]


def test_a_disturbed_memcpy_does_not_flatter_the_windows() -> None:
    def row(label: str, threads: int, speed: float) -> Measurement:
        return Measurement(peer="memcpy", label=label, threads=threads, num_envs=16, rounds=[speed], floats=256)

    rows = [row(MEMCPY, 1, 40e6), row(MEMCPY, 2, 2e6)]
    for threads in (1, 2):
        rows += [row("velodrome", threads, 6e6), row(ALONE, threads, 20e6)]
    one, two = window_rates(Comparison(name="", title="", measurements=rows))
    assert one["share"] == pytest.approx(0.5)
    assert two["share"] == pytest.approx(0.5)
    assert one["windows_alone"] == pytest.approx(20e6 * 256 * 4 / 1e9)


def test_the_promised_ratios_are_judged_but_not_of_a_quick_run() -> None:
    for quick, names in ((False, ["SB3 DummyVecEnv", "SB3 SubprocVecEnv"]), (True, [])):
        benchmark = TradingBenchmark(CATALOG.get("trading"), TradingOptions(quick=quick))
        rows = [
            Measurement(peer=peer, label=label, num_envs=1_024, processes=processes, kind=kind, rounds=[speed])
            for peer, label, processes, kind, speed in (
                ("velodrome", "velodrome", 0, "flat", 20e6),
                ("dummy", "SB3 DummyVecEnv", 0, "", 0.1e6),
                ("subproc", "SB3 SubprocVecEnv", 1_024, "", 0.1e6),
            )
        ]
        benchmark.report.begin("same rule", "").measurements = rows
        benchmark.conclude()
        found = benchmark.report.targets
        assert [target.name for target in found] == [f"native over {name} at n = 1,024" for name in names]
        assert [(target.reached, target.met) for target in found] == [(200.0, True), (200.0, False)][: len(found)]


# Any environment of the catalogue


def outside_world(**values: Any) -> Any:
    return template_world(**values)


def outside_market_world(market: Any, split: str | None = None, **values: Any) -> Any:
    return trading_world(market=market, split=split, episode_length=200, **values)


@pytest.fixture
def registered() -> None:
    vd.register_env("outside", outside_world, replace=True)
    vd.register_env("outside-market", outside_market_world, data="market", replace=True)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("name", "more"), [("outside", []), ("outside-market", ["--bars", "1000", "--window", "4"])])
def test_an_environment_from_outside_is_benchmarked(name: str, more: list[str], tmp_path: Path) -> None:
    path, plot = tmp_path / "step.json", tmp_path / "step.png"
    small = ["--quick", "--sizes", "8", "--seconds", "0.02", "--repeats", "2", "--against", "sync", *more]
    assert run(["bench", "step", "--env", name, *small, "--json", str(path), "--plot", str(plot)]) == 0
    report = Report.model_validate_json(path.read_text())
    (comparison,) = report.comparisons
    assert report.kind == f"step, {name}"
    assert comparison.parity is not None
    assert comparison.parity.contenders == ["the compiled rule"]
    assert {row.peer for row in report.measurements} == {"velodrome", "sync"}
    windows = {row.label for row in report.measurements if row.kind == "cursor"}
    assert windows == ({"velodrome, no windows"} if more else set())
    (sync,) = comparison.rows(peer="sync")
    assert sync.ratios["native"] > 1.0
    assert plot.read_bytes().startswith(b"\x89PNG")


class OwnBenchmark(StepBenchmark):
    PROMISED: ClassVar = {"sync": 1e9}
    TARGET_SIZE = 8


def test_an_entry_may_name_a_benchmark_of_its_own() -> None:
    entry = vd.register_env("outside-own", outside_world, benchmark=OwnBenchmark, replace=True)
    assert step_benchmark(entry) is OwnBenchmark
    options = OwnBenchmark.options_for(entry)(sizes=(8,), seconds=0.02, repeats=2, against=("sync",))
    report = run_benchmark(OwnBenchmark(entry, options), silent_console())
    (target,) = report.targets
    assert target.name == "native over gymnasium SyncVectorEnv at n = 8"
    assert not target.met


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--env", "tradin"], "Did you mean 'trading'"),
        (["--env", "cage2", "--bars", "5000"], "--bars has no effect here"),
        (["--env", "template", "--against", "numpy"], "no peer 'numpy'"),
        (["--env", "template", "--plot", "x.foo"], "x.foo is no picture by its ending; legal: .png"),
        (["--env", "template", "--plot", "/"], "/ is a folder"),
        (["--env", "template", "--json", f"{__file__}/new/x.json"], "is a file, not a folder"),
        (["--env", "template", "--threads", "4096"], "this machine offers 1 …"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "step", *arguments]) == REFUSED
    assert said in capsys.readouterr().err


def test_parallel_environments_are_measured_only_for_those_who_name_them():
    assert "parallelenv" not in tiny(against=("all",)).peers
    assert list(tiny(against=("parallelenv",)).peers) == ["parallelenv"]


def test_more_processes_than_memory_can_hold_are_refused_before_any_starts(monkeypatch):
    monkeypatch.setattr(torchtrade, "free_memory", lambda: 10 * 10**9)
    with pytest.raises(
        ConfigError, match=r"num_envs = 256: they take 17.9 GB.*10.0 GB are free: at most about 140 fit"
    ):
        torchtrade.open_parallel(range(100_000), 256, 1, list)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torchtrade") is None, reason="pip install --no-deps torchtrade (see the Makefile)")
def test_torchtrade_is_measured_vectorised_and_under_parallelenv():
    report = measured(tiny(against=tuple(SLOW_PEERS), sizes=(8,)), silent_console())
    rows = {row.peer: row for row in report.comparisons[-1].measurements}
    assert set(rows) == {"velodrome", *SLOW_PEERS}
    assert all(rows[name].num_envs == 8 and rows[name].ratios["native"] > 1.0 for name in SLOW_PEERS)
