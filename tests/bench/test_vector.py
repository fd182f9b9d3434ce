"""The vector benchmark end to end, on sizes that say nothing about speed but everything about the machinery."""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from pydantic import ValidationError
from rich.console import Console

from velodrome.bench import options as options_module
from velodrome.bench import vector
from velodrome.bench.hosts import batches
from velodrome.bench.hosts.batches import BatchSpec, Policy, open_batch, row_sums, stepper_of
from velodrome.bench.hosts.environments import TimedEnv, environment_source, straggler_sources, timed_environment
from velodrome.bench.hosts.host import Host
from velodrome.bench.parity import ParityError, check_trajectories, steps_to_compare
from velodrome.bench.peers.pufferlib import PUFFERLIB
from velodrome.bench.peers.vectorisers import VECTORISERS
from velodrome.bench.report import Measurement, Report
from velodrome.bench.run import run_benchmark
from velodrome.bench.timing import PeerFailedError, action_ring
from velodrome.bench.vector import (
    SUITE,
    Straggling,
    VectorBenchmark,
    VectorOptions,
    own_specs,
    straggler_settings,
    swept_counts,
)
from velodrome.cli import REFUSED, run
from velodrome.errors import ConfigError
from velodrome.outside.extras import install
from velodrome.vector.cores import available_cores


def tiny(**values: Any) -> VectorOptions:
    return VectorOptions(**{"num_envs": 2, "seconds": 0.05, "repeats": 2, "quick": True, **values})


def measured(options: VectorOptions, console: Console | None = None) -> Report:
    return run_benchmark(VectorBenchmark(options), console or silent_console())


def silent_console() -> Console:
    return Console(file=io.StringIO(), width=200)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, str, Path]:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("bench")
    console = silent_console()
    files = {"json_path": folder / "new" / "vector.json", "plot_path": folder / "new" / "vector.png"}
    report = measured(tiny(env="burn:20us", against=tuple(VECTORISERS), **files), console)
    return report, console.file.getvalue(), folder / "new"


def test_every_contender_is_measured(finished: tuple[Report, str, Path]) -> None:
    report, text, _ = finished
    (result,) = report.comparisons
    assert {row.peer for row in result.measurements} == {"velodrome", *VECTORISERS}
    assert {row.kind for row in result.measurements if row.peer == "velodrome"} == {"serial", "process", "async"}
    for row in result.measurements:
        assert 0.0 < row.slowest <= row.steps_per_second <= row.fastest
        assert len(row.rounds) == 2
        assert len(row.details["cores"]) == 2
        assert row.label in text
        assert (row.processes > 0) == (row.kind in ("process", "async") or row.peer in ("subproc", "async"))
    # Turns this short may take less than a tick of the system's clock of processor time.
    assert max(row.mean("cores") for row in result.measurements) > 0.0
    assert not report.missing


def test_processes_take_memory(finished: tuple[Report, str, Path]) -> None:
    rows = {row.kind: row for row in finished[0].comparisons[0].measurements}
    assert rows["process"].memory > 2**20
    assert rows["serial"].memory < rows["process"].memory


def test_parity_is_shown_and_covers_ends_of_episodes(finished: tuple[Report, str, Path]) -> None:
    report, text, _ = finished
    parity = report.comparisons[0].parity
    assert len(parity.contenders) == 6
    assert parity.counts["episodes"] > 0
    assert f"over {parity.steps:,} steps, {parity.counts['episodes']:,} episodes" in text


def test_the_recommendation_is_shown_with_its_reason(finished: tuple[Report, str, Path]) -> None:
    report, text, _ = finished
    advice = report.comparisons[0].facts["recommendation"]
    assert advice["backend"] in ("serial", "process")
    assert "recommended: " + advice["sentence"][:40] in text
    (row,) = report.comparisons[0].rows(recommended=True)
    assert (row.kind, row.processes) == (advice["backend"], advice["workers"])


def test_ratios_are_medians_of_the_ratios_within_rounds(finished: tuple[Report, str, Path]) -> None:
    result = finished[0].comparisons[0]
    (dummy,) = result.rows(peer="dummy")
    for row in result.measurements:
        wanted = np.median(np.array(row.rounds) / np.array(dummy.rounds))
        assert row.ratios["dummy"] == pytest.approx(wanted)
    assert dummy.ratios["dummy"] == 1.0


def test_json_holds_everything(finished: tuple[Report, str, Path]) -> None:
    report, _, folder = finished
    written = json.loads((folder / "vector.json").read_text())
    assert Report.model_validate(written) == report
    assert written["options"]["num_envs"] == 2
    assert written["machine"]["cores"] == available_cores()
    assert written["targets"] == []  # a quick run is not judged


def test_plot_is_a_png(finished: tuple[Report, str, Path]) -> None:
    assert (finished[2] / "vector.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_an_interrupted_sweep_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(VectorBenchmark, "measure_straggler", interrupt)
    console = silent_console()
    options = tiny(env="trading-plain", against=("none",), sweep=True, straggler=True, json_path=tmp_path / "x.json")
    report = measured(options, console)
    assert report.interrupted
    assert "Interrupted" in console.file.getvalue()
    result, _ = Report.model_validate_json((tmp_path / "x.json").read_text()).comparisons
    assert {row.processes for row in result.measurements if row.kind == "process"} == {1, 2}
    assert 0.0 < result.facts["sweep_share"] <= 1.5
    assert result.parity is not None
    assert "of the best of all" in console.file.getvalue()


def test_async_is_not_held_up_by_a_straggler(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Straggling("sleep:4ms", 4, 4, 1, "a worker each")
    monkeypatch.setattr(vector, "straggler_settings", lambda: [setting])
    console = silent_console()
    report = measured(tiny(straggler=True, seconds=0.4), console)
    (row,) = report.comparisons[0].rows(kind="async")
    # Three at full speed and one at a tenth, beside four at a tenth: 7.75 at best.
    assert 2.0 < row.ratios["process"] < 12.0
    assert "10 × slower" in console.file.getvalue()


# Hosts


def module_with(folder: Path, name: str, code: str) -> None:
    head = "import os\nimport numpy as np, gymnasium\nfrom velodrome.bench.hosts.environments import TimedEnv\n"
    (folder / f"{name}.py").write_text(head + code)


def test_an_environment_that_fails_is_told_with_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "class Broken(TimedEnv):\n    def step(self, action):\n        raise ValueError('out of fuel')\n"
    module_with(tmp_path, "broken_env", code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code = "def make():\n    return Broken(1e-5)\n"
    with open(tmp_path / "broken_env.py", "a") as file:
        file.write(code)
    with pytest.raises(PeerFailedError, match=r"out of fuel[\s\S]*make failed while it was measured"):
        measured(tiny(env="broken_env:make", against=("none",)))
    sys.modules.pop("broken_env", None)


def test_a_host_that_dies_says_how_and_leaves_nothing() -> None:
    with Host(BatchSpec("velodrome", "CartPole-v1", 2, "serial")) as host:
        with pytest.raises(PeerFailedError, match="'nothing'"):
            host.ask("nothing")
        host.process.kill()
        with pytest.raises(PeerFailedError, match="ended by SIGKILL"):
            host.ask("memory")
    assert not host.process.is_alive()


def test_a_peer_that_cannot_be_opened_is_reported_and_ours_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from contextlib import ExitStack

    class Refusing(Host):
        def __init__(self, spec: Any) -> None:
            self.spec = spec

        def ask(self, *_: Any, **__: Any) -> None:
            raise PeerFailedError("failed: no such space\nand more")

        def close(self) -> None:
            pass

    monkeypatch.setattr(vector, "Host", Refusing)
    benchmark = VectorBenchmark(tiny(env="CartPole-v1"))
    benchmark.report.missing.clear()
    shared: dict[str, Any] = {"env": "CartPole-v1", "num_envs": 2}
    with ExitStack() as stack:
        assert benchmark.open_hosts([BatchSpec("subproc", **shared)], stack) == []
        (missing,) = benchmark.report.missing
        assert missing.reason == "SB3 SubprocVecEnv with 2 environments failed: no such space"
        with pytest.raises(PeerFailedError):
            benchmark.open_hosts([BatchSpec("velodrome", kind="serial", **shared)], stack)


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options_module.importlib.util, "find_spec", lambda *_: None)
    assert VECTORISERS["dummy"].missing() == f"not installed: {install('sb3')}"
    assert VECTORISERS["async"].missing() is None
    monkeypatch.setattr(VectorBenchmark, "measure", lambda *_: None)
    report = measured(tiny(env="CartPole-v1"))
    assert {peer.peer for peer in report.missing} == {"dummy", "subproc", *PUFFERLIB}


# Parity


class ScriptedHost:
    """Gives a trajectory that is told."""

    def __init__(self, label: str, *trajectories: list[dict[str, Any]]) -> None:
        self.spec = SimpleNamespace(label=label, num_envs=2)
        self.trajectories = list(trajectories)

    def ask(self, command: str, seconds: float, *, steps: int) -> list[dict[str, Any]]:
        assert command == "trajectory"
        return self.trajectories.pop(0)


def scripted(reward: float = 1.0, end: bool = False, first: float = 0.0) -> list[dict[str, Any]]:
    step = {"the reward": np.array([1.0, reward]), "ended": np.array([False, end])}
    shown = [{"the observation": np.array(values)} for values in ([first, 0.0], [1.0, 2.0])]
    return [shown[0], {**step, **shown[1]}]


def test_contenders_that_agree_pass() -> None:
    reference: Any = ScriptedHost("reference", scripted(end=True), scripted(end=True))
    other: Any = ScriptedHost("other", scripted(reward=1.0 + 1e-7, end=True))
    found = check_trajectories(reference, [reference, other], 1)
    assert found is not None
    assert (found.contenders, found.steps, found.counts) == (["other"], 2, {"episodes": 1})


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"reward": 1.1}, "the reward differs at step 1 of environment 1: 1.1"),
        ({"end": True}, "ended differs at step 1"),
        ({"first": 0.5}, "the observation differs at step 0 of environment 0"),
    ],
)
def test_a_contender_that_differs_stops_the_run(changed: dict[str, Any], what: str) -> None:
    reference: Any = ScriptedHost("reference", scripted(), scripted())
    other: Any = ScriptedHost("other", scripted(**changed))
    with pytest.raises(ParityError, match=rf"other does not step as reference does: {what}"):
        check_trajectories(reference, [other], 1)


def test_an_environment_that_does_not_repeat_itself_is_not_compared() -> None:
    reference: Any = ScriptedHost("reference", scripted(), scripted(reward=2.0))
    other: Any = ScriptedHost("other")
    assert check_trajectories(reference, [other], 1) is None


def test_a_changed_bit_of_an_observation_shows() -> None:
    observations = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, np.int64)}
    before = row_sums(observations)
    assert before.shape == (2,)
    observations["a"][1] = observations["a"][1][::-1].copy()  # a swap of values is a change too
    assert (row_sums(observations) != before).tolist() == [False, True]


def test_slow_environments_are_compared_for_fewer_steps() -> None:
    assert steps_to_compare(1e-7, 2) == 2000
    assert steps_to_compare(2e-3, 16) == 18
    assert steps_to_compare(10.0, 16) == 10


# Environments


def test_burning_takes_processor_time_and_sleeping_does_not() -> None:
    for waits in (False, True):
        env = TimedEnv(5e-3, waits)
        env.reset(seed=0)
        wall, processor = time.perf_counter(), time.thread_time()
        for _ in range(4):
            env.step(0)
        assert time.perf_counter() - wall >= 0.02
        assert (time.thread_time() - processor >= 0.02) != waits


def test_a_timed_environment_keeps_to_gymnasium() -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(TimedEnv(1e-6), skip_render_check=True)


@pytest.mark.parametrize(
    ("name", "parts"),
    [("burn:20us", (False, 20e-6)), ("burn:0.5µs", (False, 0.5e-6)), ("sleep:2ms", (True, 2e-3)),
     ("sleep:1s", (True, 1.0)), ("CartPole-v1", None)],
)  # fmt: skip
def test_durations_of_timed_environments(name: str, parts: Any) -> None:
    made = timed_environment(name)
    assert (made is None) == (parts is None)
    if made is not None:
        env = made()
        assert (env.waits, pytest.approx(env.seconds)) == parts


@pytest.mark.parametrize(
    ("name", "said"),
    [("burn:20", "a number and a unit"), ("sleep:3600s", "up to 60 s"), ("CartPol-v1", "no Gymnasium id"),
     ("no_such_module:Env", "cannot be imported"), ("gymnasium.envs:Nothing-v9", "no Gymnasium id")],
)  # fmt: skip
def test_names_that_are_no_environment_are_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        environment_source(name)


def test_classes_and_ids_are_found() -> None:
    assert environment_source("velodrome.bench.hosts.environments:TimedEnv") is TimedEnv
    assert environment_source("CartPole-v1") == "CartPole-v1"
    slow, *rest = straggler_sources("burn:2ms", 4)
    assert slow().seconds == pytest.approx(20e-3)
    assert [make().seconds for make in rest] == [2e-3] * 3
    with pytest.raises(ConfigError, match="straggler"):
        straggler_sources("CartPole-v1", 4)


@pytest.mark.parametrize(
    "space",
    [Discrete(3, start=2), MultiDiscrete([2, 5]), MultiBinary((2, 2)), Box(-0.1, 0.1, (3,), np.float32)],
    ids=str,
)
def test_a_policy_gives_legal_actions(space: gymnasium.Space) -> None:
    pytest.importorskip("torch")
    observations = {"a": np.random.default_rng(0).normal(size=(5, 2, 3)), "b": np.arange(5)}
    policy = Policy(space, observations, "cpu", 0)
    actions = policy(observations)
    assert all(space.contains(action) for action in actions)
    again = Policy(space, observations, "cpu", 0)(observations)
    np.testing.assert_array_equal(actions, again)  # the same weights for every contender


def test_a_policy_refuses_what_it_cannot_do() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(ConfigError, match="legal spaces"):
        Policy(Dict({"a": Discrete(2)}), np.zeros((2, 3)), "cpu", 0)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="no CUDA device"):
            measured(tiny(env="CartPole-v1", policy="cuda"))


@pytest.mark.parametrize(("kind", "received"), [("serial", None), ("async", 2)])
def test_a_policy_is_fed_with_what_was_just_observed(
    kind: str, received: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def policy(observations: np.ndarray) -> np.ndarray:
        seen.append(observations.copy())
        return np.zeros(len(observations), np.int64)

    monkeypatch.setattr(batches, "Policy", lambda *_: policy)
    given: dict[str, Any] = {"workers": 1, "received": received} if received else {}
    contender = BatchSpec("velodrome", "burn:1us", 3, kind, policy="cpu", **given)
    batch = open_batch(contender)
    try:
        stepper = stepper_of(batch, contender)
        for k in range(4):
            stepper.step(k)
    finally:
        batch.close()
    assert [len(observations) for observations in seen] == ([3] * 4 if received is None else [3, 2, 2, 2, 2])
    # The same environments one by one: actions do not change what they show.
    shown = []
    for row in range(3):
        env = TimedEnv(1e-6)
        first, _ = env.reset(seed=row)
        shown.append([first, *(env.step(0)[0] for _ in range(4))])
    if received is None:
        np.testing.assert_array_equal(np.array(seen), np.array(shown).swapaxes(0, 1)[:4])
    else:
        known = np.array(shown).reshape(-1, 8)
        assert all((known == observation).all(axis=1).any() for observation in np.concatenate(seen))


def test_what_async_finished_between_turns_does_not_count() -> None:
    contender = BatchSpec("velodrome", "sleep:20ms", 4, "async", workers=4, received=2)
    batch = open_batch(contender)
    try:
        stepper = stepper_of(batch, contender)
        for _ in range(2):
            stepper.prepare()
            assert not batch.envs.outstanding
            assert not batch.envs.ready
            began = time.perf_counter()
            stepper.step(0)
            assert time.perf_counter() - began >= 0.02  # no result was there already
            time.sleep(0.05)  # it is another contender's turn
    finally:
        batch.close()


def test_all_contenders_take_the_same_actions() -> None:
    first, second = (action_ring(Discrete(5), 4, 7) for _ in range(2))
    np.testing.assert_array_equal(first, second)


# Who is measured


def test_process_runs_with_the_cores_and_with_what_is_recommended() -> None:
    shared: dict[str, Any] = {"env": "sleep:2ms", "num_envs": 16}
    advice = {"backend": "process", "workers": 16}
    found = own_specs(VectorOptions(env="sleep:2ms"), advice, shared)
    assert [row.workers for row in found if row.kind == "process"] == sorted({min(available_cores(), 16), 16})
    (other,) = [row for row in found if row.kind == "async"]
    assert (other.workers, other.received, other.label) == (16, 8, "velodrome async, 8 of 16")
    assert swept_counts(16) == [1, 2, 3, 4, 6, 8, 16]


def test_only_what_was_received_counts_as_steps() -> None:
    contender = BatchSpec("velodrome", "CartPole-v1", 8, "async", workers=2, received=3)
    row = contender.row()
    for turn in ({"seconds": 1.0, "cores": 1.0, "gpu": 0.25}, {"seconds": 0.5, "cores": 2.0, "gpu": 0.75}):
        row.add(10, turn)
    assert row.rounds == [30.0, 60.0]
    assert (row.mean("cores"), row.mean("gpu"), row.calls) == (1.5, 0.5, 20)


# What follows


def fast_row(peer: str, kind: str, speed: float, workers: int = 0, label: str = "") -> Measurement:
    return Measurement(peer=peer, kind=kind, label=label or peer, num_envs=16, processes=workers, rounds=[speed])


def judged_report(process: float, serial: float, **options: Any) -> Report:
    chosen = VectorOptions(**{"suite": True, **options})
    benchmark = VectorBenchmark(chosen)
    advice = {"backend": "process", "workers": 4, "sentence": "", "cores": 2}
    advice |= dict.fromkeys(("reset_seconds", "episode_length", "bytes_per_worker", "bytes_per_environment"))
    for env in ("burn:20us", "burn:2ms"):
        comparison = benchmark.report.begin(env, env)
        comparison.facts["recommendation"] = advice
        comparison.measurements = [
            fast_row("velodrome", "serial", serial),
            fast_row("velodrome", "process", 1.0, 1),
            fast_row("velodrome", "process", process, 4),
            fast_row("dummy", "", 100.0),
            fast_row("subproc", "", 50.0, 16),
            fast_row("async", "", 80.0, 16),
        ]
    slow = benchmark.report.begin(vector.STRAGGLERS, "")
    for number, judged in ((4, True), (8, False)):
        setting = Straggling("burn:2ms", number, 4, 1, "", judged)
        slow.facts[setting.name] = setting._asdict()
        start = f"{setting.name},"
        slow.measurements += [
            fast_row("velodrome", "process", 10.0, 4, f"{start} process"),
            fast_row("velodrome", "async", 25.0, 4, f"{start} async"),
        ]
    benchmark.conclude()
    return benchmark.report


def test_promises_are_judged_on_the_workers_that_are_recommended() -> None:
    report = judged_report(process=155.0, serial=98.0)
    found = {target.name: (target.wanted, pytest.approx(target.reached), target.met) for target in report.targets}
    assert found == {
        "burn:20us: process (4 workers) over SB3 SubprocVecEnv": (3.0, 3.1, True),
        "burn:20us: process (4 workers) over gymnasium AsyncVectorEnv": (2.0, 1.9375, False),
        "burn:20us: serial over SB3 DummyVecEnv": (1.0, 0.98, False),
        "burn:2ms: process (4 workers) not slower, within 3%, than SB3 SubprocVecEnv": (0.97, 3.1, True),
        "burn:2ms: process (4 workers) not slower, within 3%, than gymnasium AsyncVectorEnv": (0.97, 1.9375, True),
        "burn:2ms: serial not slower, within 3%, than SB3 DummyVecEnv": (0.97, 0.98, True),
        "one of 4 × burn:2ms 10 × slower: async over process, 4 workers": (3.0, 2.5, False),
    }


@pytest.mark.parametrize("options", [{"quick": True}, {"suite": False, "env": "x"}, {"policy": "cpu"}])
def test_only_a_full_run_of_the_suite_is_judged(options: dict[str, Any]) -> None:
    assert judged_report(155.0, 98.0, **options).targets == []


def test_the_suite_is_what_was_promised() -> None:
    assert VectorOptions(suite=True).environments == SUITE
    assert {"trading-plain", "burn:20us", "burn:200us", "burn:2ms"} <= set(SUITE)
    judged = [setting for setting in straggler_settings() if setting.judged]
    assert {setting.env.split(":")[0] for setting in judged} == {"sleep", "burn"}


# Options


@pytest.mark.parametrize("values", [{"against": ("dumy",)}, {"num_envs": 0}, {"seconds": 0.0}, {"policy": "gpu"}])
def test_illegal_options_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        VectorOptions(**values)


def test_there_must_be_something_to_measure() -> None:
    with pytest.raises(ConfigError, match="nothing to measure"):
        VectorOptions().resolved()
    with pytest.raises(ConfigError, match="leave out CartPole-v1"):
        VectorOptions(env="CartPole-v1", suite=True).resolved()


def test_quick_leaves_given_options_alone() -> None:
    options = VectorOptions(env="burn:1ms", quick=True, repeats=9).resolved()
    assert (options.repeats, options.seconds) == (9, 0.5)


def test_every_option_is_described() -> None:
    assert all(field.description for field in VectorOptions.model_fields.values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["bench", "vector"], "nothing to measure"), (["bench", "vector", "burn:20"], "a number and a unit"),
     (["bench", "vector", "CartPole-v1", "--against", "dumy"], "Did you mean 'dummy'"),
     (["bench", "vector", "CartPole-v1", "--num-envs", "0"], "--num-envs 0")],
)  # fmt: skip
def test_the_command_says_what_is_wrong(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == REFUSED
    assert said in capsys.readouterr().err
