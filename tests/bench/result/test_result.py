"""`bench result`: what is on which clock, what counts as reached, and how it is told; trainings here are made up."""

from __future__ import annotations

import contextlib
import inspect
import io
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console

from velodrome.bench.peers.jax_ppo import JaxPpo, Settings
from velodrome.bench.result import benchmark as benchmark_module
from velodrome.bench.result import timeline as timeline_module
from velodrome.bench.result.benchmark import ResultBenchmark, ResultOptions, ResultReport, level_times, shared_cores
from velodrome.bench.result.contenders import Entrant, Learning, check_jax, entrants, market_tables, open_ours
from velodrome.bench.result.problems import PROBLEMS, Given, ResultProblem
from velodrome.bench.result.timeline import Look, Timeline, learn, looks
from velodrome.bench.run import run_benchmark
from velodrome.cli import REFUSED, run
from velodrome.errors import BackendError, RunError
from velodrome.runs import setup
from velodrome.runs.config.files import load_run_config

OURS, PEER = ("velodrome", "velodrome, CPU"), ("sb3", "SB3 PPO, zoo")


def line(who: tuple[str, str], seed: int, scores: dict[float, float], **more: Any) -> Timeline:
    """Return a training that was ready after 2 s; scores by seconds of learning."""
    seen = [Look(seconds=at, whole=at + 2.0, steps=int(1000 * at), score=score) for at, score in scores.items()]
    about = {"problem": "ar1", "peer": who[0], "label": who[1], "about": "8 environments", "ready": 2.0, "end": "time"}
    return Timeline(**{**about, "seed": seed, "looks": seen, **more})


QUICK = {0.0: 0.0, 1.0: 0.85, 2.0: 0.96, 4.0: 0.995}
SLOW = {0.0: 0.0, 8.0: 0.5, 20.0: 0.81}


class MadeUp(ResultBenchmark):
    def measure(self, tell: Any) -> None:
        slower = {2.0 * at: score for at, score in QUICK.items()}
        self.report.timelines = [line(OURS, 1, QUICK), line(OURS, 2, slower), line(OURS, 3, slower)]
        self.report.timelines += [line(PEER, 1, SLOW), line(PEER, 2, {0.0: 0.0, 20.0: 0.6}), line(PEER, 3, SLOW)]


def told(width: int = 80, **options: Any) -> tuple[ResultReport, str]:
    console = Console(file=io.StringIO(), width=width)
    report = run_benchmark(MadeUp(ResultOptions(**{"seeds": 3, "seconds": 20.0, **options})), console)
    return report, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_level_is_reached_at_the_first_look_and_never_is_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = {"json_path": tmp_path / "new" / "result.json", "plot_path": tmp_path / "result.png"}
    report, text = told(**files)
    times = {(time.label, time.level): time for time in report.times}
    ours, theirs = times[OURS[1], "90%"], times[PEER[1], "80%"]
    assert (ours.reached, ours.runs, ours.median("seconds"), ours.median("whole")) == (3, 3, 4.0, 6.0)
    assert (theirs.reached, theirs.runs, theirs.median("seconds")) == (2, 3, 20.0)
    assert theirs.shown("seconds") == "20 (20–never)"
    assert times[PEER[1], "99%"].shown("whole") == "never"
    assert ours.shown("whole") == "6.0 (4.0–6.0)"
    assert not [written for written in text.splitlines() if "…" in written]
    for wanted in ("6.0 (4.0–6.0)", "never", "Looks at a policy are on no clock", "SB3 PPO, zoo: 8 environments"):
        assert " ".join(wanted.split()) in " ".join(text.split())
    assert ResultReport.model_validate_json(files["json_path"].read_text()) == report
    assert files["plot_path"].read_bytes().startswith(b"\x89PNG")


def test_we_are_judged_beside_every_peer_at_every_level() -> None:
    report = told()[0]
    reached = {target.name: target.reached for target in report.targets}
    assert reached["ar1, 80%: times as fast as SB3 PPO, zoo"] == pytest.approx(22.0 / 4.0)
    assert reached["ar1, 99%: times as fast as SB3 PPO, zoo, who never reached it"] == 22.0 / 10.0
    assert all(target.met for target in report.targets)


@pytest.mark.parametrize("engine", ["auto", "autograd"])
def test_what_is_rehearsed_before_the_clock_of_learning_is_taken_back(engine: str, tmp_path: Path) -> None:
    changes = {"market.length": 3000, "num_envs": 8, "ppo.average_weights": True, "ppo.engine": engine}
    config = load_run_config("demo", {**changes, "teacher.policy": None})
    given = Given(config, setup.build_market(config), 0)  # type: ignore[arg-type]
    with contextlib.ExitStack() as stack:
        worlds = stack.enter_context(setup.learning_worlds(config, given.market, "cpu"))
        fresh = setup.make_learner(config, worlds)
        rehearsed = open_ours(given, stack, tmp_path)
        learner = inspect.getclosurevars(rehearsed.steps).nonlocals["learner"]
        assert rehearsed.steps() == 0
        assert learner.average.updates == 0
        for _ in range(2):
            fresh.iterate()
            rehearsed.iterate()
        assert rehearsed.steps() == fresh.steps > 0
        for network in ("policy", "acting"):
            one, other = (getattr(each, network).state_dict() for each in (learner, fresh))
            assert all(torch.equal(one[name], other[name]) for name in one)


def test_processes_side_by_side_have_cores_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5, 6, 9})
    assert shared_cores(1) == [{3, 4, 5, 6, 9}]
    assert shared_cores(2) == [{3, 4}, {5, 6}]
    assert shared_cores(6) == [{3}, {4}, {5}, {6}, {9}, {3}]


def test_a_peer_need_not_wait_for_what_only_velodrome_imports() -> None:
    command = "import sys, velodrome.bench.result.timeline; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0


def test_who_was_interrupted_has_not_failed_to_reach() -> None:
    found = level_times([line(OURS, 1, QUICK, end="interrupted"), line(OURS, 2, {1.0: 0.5}, end="interrupted")])
    by_level = {time.level: (time.reached, time.runs) for time in found}
    assert by_level == {"80%": (1, 1), "90%": (1, 1), "95%": (1, 1), "99%": (1, 1)}


# One training


def made_up_problem(clock: list[float]) -> ResultProblem:
    """A problem whose judge takes 100 s a look, and shows what it is handed."""

    def judge(given: Any) -> Any:
        def look(act: Any) -> float:
            clock[0] += 100.0
            return act(None)

        return look

    class Problem(ResultProblem):
        def given(self, device: str, seed: int, taught: bool) -> Any:
            return None

    return Problem("made up", "", {}, {}, {"half": 0.5, "most": 0.8}, True, judge, ())


def followed(monkeypatch: pytest.MonkeyPatch, limit: float, gain: float, total: float = 1e9) -> list[tuple[str, Any]]:
    """Return what a training tells that takes 1 s for an iteration of 10 steps and becomes better by `gain` in it."""
    clock, done = [0.0], [0]
    monkeypatch.setattr(timeline_module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(timeline_module.time, "time", lambda: clock[0] + 3.0)
    monkeypatch.setitem(PROBLEMS, "made up", made_up_problem(clock))

    def iterate() -> None:
        clock[0] += 1.0
        done[0] += 1

    def opened(*_: Any) -> Learning:
        return Learning(iterate, lambda: lambda seen: gain * done[0], lambda: 10 * done[0], total, "as told")

    with contextlib.ExitStack() as stack:
        return list(looks(Entrant("sb3", "fake", opened), "made up", 0, limit, Path(), 0.0, stack))


def test_looks_are_on_no_clock_and_the_highest_level_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = followed(monkeypatch, 100.0, 0.2)
    seen = [value for name, value in found if name == "look"]
    assert [(look.seconds, look.whole, look.steps) for look in seen] == [(n, n + 3.0, 10 * n) for n in range(5)]
    assert found[0] == ("about", "as told")
    assert found[-1] == ("end", "reached")


@pytest.mark.parametrize(("limit", "total", "end", "last"), [(30.0, 1e9, "time", 31), (100.0, 200, "steps", 20)])
def test_a_training_ends_with_a_look(
    monkeypatch: pytest.MonkeyPatch, limit: float, total: float, end: str, last: int
) -> None:
    found = followed(monkeypatch, limit, 0.01, total)
    seen = [value for name, value in found if name == "look"]
    assert found[-1] == ("end", end)
    assert seen[-1].steps == 10 * last
    assert len(seen) < last + 1  # they become rarer


def test_a_process_says_why_it_failed() -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no room\nat all")

    sent: list[Any] = []
    connection = type("Line", (), {"send": lambda self, said: sent.append(said)})()
    learn(connection, Entrant("sb3", "SB3", fail, taught=True), "cage2", 0, 1.0, Path(), 0.0, os.sched_getaffinity(0))
    assert sent == [("failed", "RuntimeError: no room")]


@pytest.mark.parametrize("peer", ["sb3", "velodrome"])
def test_a_peer_that_fails_is_missing_and_one_of_ours_is_an_error(monkeypatch: pytest.MonkeyPatch, peer: str) -> None:
    class Failing:
        def __init__(self, entrant: Entrant, told: Timeline, *_: Any) -> None:
            self.line, theirs = multiprocessing.Pipe(duplex=False)
            theirs.send("anything")
            self.timeline, self.error, self.cores = told, "", {0}

        def hear(self) -> bool:
            self.timeline.end, self.error = "failed", "failed: no such spec"
            return True

        def close(self) -> None:
            self.line.close()

    monkeypatch.setattr(benchmark_module, "Contest", Failing)
    benchmark = ResultBenchmark(ResultOptions())
    learnt = [Timeline(problem="ar1", peer=peer, label="them", seed=seed) for seed in range(3)]
    trainings = [(Entrant(peer, "them", None), line) for line in learnt]  # type: ignore[arg-type]
    if peer == "velodrome":
        with pytest.raises(RunError, match="them failed: no such spec"):
            benchmark._learn(trainings, 1, 1.0, Path(), lambda done, count: None)  # type: ignore[arg-type]
        return
    benchmark._learn(trainings, 2, 1.0, Path(), lambda done, count: None)  # type: ignore[arg-type]
    assert ("sb3", "them failed: no such spec") in [(one.peer, one.reason) for one in benchmark.report.missing]


# Who and what


def test_everybody_takes_part_where_they_can() -> None:
    peers = {"sb3": ResultOptions.PEERS["sb3"], "jax": ResultOptions.PEERS["jax"]}
    labels = [entrant.label for entrant in entrants("cage2", peers, ("cpu", "cuda"))]
    assert labels == ["velodrome, CPU", "velodrome, GPU", "SB3 PPO, zoo"]
    on_market = [entrant.label for entrant in entrants("ar1", peers, ("cpu",))]
    assert on_market[0] == "velodrome, CPU"
    assert on_market[-2:] == ["SB3 PPO, zoo", "JAX PPO"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"problems": ("ar2",)}, "there is no 'ar2'; legal are ar1, cage2. Did you mean 'ar1'"),
        ({"problems": ()}, "needs one or more of ar1, cage2"),
        ({"repeats": 3}, "repeats: nobody takes turns here; give seeds"),
        ({"seconds": 0.0}, "greater than 0"),
        ({"against": ("sb4",)}, "Did you mean 'sb3'"),
    ],
)
def test_illegal_options_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ResultOptions(**given)


def test_the_command_refuses_what_is_not_legal(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "result", "--problems", "ar2"]) == REFUSED
    assert "Did you mean 'ar1'" in " ".join(capsys.readouterr().err.split())


def test_a_gpu_alone_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("velodrome.vector.cuda.unavailable_reason", lambda device: "no driver")
    with pytest.raises(BackendError, match=r"--devices cuda: no driver\. Take cpu, or leave"):
        ResultBenchmark(ResultOptions(devices=("cuda",)))
    assert ResultBenchmark(ResultOptions()).devices == ["cpu"]


def test_the_best_rule_is_the_known_optimum_on_the_same_bars() -> None:
    small = PROBLEMS["ar1"]._replace(settings={**PROBLEMS["ar1"].settings, "market.length": 10_000})
    given = small.given("cpu", 3, False)
    assert given.config.seed == given.config.market.seed == 3
    judge = small.judge(given)
    assert judge(lambda seen: np.ones(len(seen), np.int64)) == pytest.approx(0.0, abs=1e-12)  # flat


# Real ones


@pytest.mark.slow
def test_a_short_contest_from_end_to_end(tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    path = tmp_path / "result.json"
    command = ["bench", "result", "--seeds", "2", "--seconds", "2", "--against", "sb3_same", "--processes", "2"]
    assert run([*command, "--json", str(path)]) == 0
    report = ResultReport.model_validate_json(path.read_text())
    assert {line.peer for line in report.timelines} == {"velodrome", "sb3_same"}
    assert all(line.looks and line.ready > 0.0 and line.end != "failed" for line in report.timelines)
    assert max(line.best for line in report.timelines if line.peer == "velodrome") > 0.5


@pytest.mark.slow
def test_ppo_in_jax_plays_the_same_rule_and_learns() -> None:
    pytest.importorskip("jax")
    given = PROBLEMS["ar1"].given("cpu", 0, False)
    assert check_jax(given) > 10_000
    told = given.config.ppo.model_dump(include=set(Settings._fields))
    trainer = JaxPpo(market_tables(given), Settings(**told, num_envs=256, hidden=(64, 64), steps=1_000_000), 0)
    judge = PROBLEMS["ar1"].judge(given)
    for _ in range(12):
        trainer.iterate()
    assert judge(trainer.act) > 0.9
