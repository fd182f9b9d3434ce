"""What `auto` chooses and why: the cost model by itself, the choice on real environments, the sweep it must meet."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import statistics
import time
from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velodrome.bench.hosts.environments import TimedEnv
from velodrome.errors import ConfigError
from velodrome.vector.make import make_vec
from velodrome.vector.messages import seconds_text
from velodrome.vector.workers import autotune
from velodrome.vector.workers.autotune import (
    Recommendation,
    candidate_name,
    chosen,
    predict,
    recommend,
    recommend_backend,
    worker_counts,
    worth_a_trial,
)
from velodrome.vector.workers.env_maker import environment_makers
from velodrome.vector.workers.faults import EnvironmentFaultError
from velodrome.vector.workers.measuring import RING, Clocks, RowCost, seconds_of
from velodrome.vector.workers.options import WorkerOptions
from velodrome.vector.workers.process import ProcessVectorEnv
from velodrome.vector.workers.serial import SerialVectorEnv

BUSY = 20.0  # % of the cores taken by other programs, above which speeds cannot be judged
SECONDS = 0.3  # of measuring, in tests that are not about speed


def row_cost(wall: float, cpu: float | None = None, call: float = 5e-6) -> RowCost:
    cpu = wall if cpu is None else cpu
    return RowCost(wall, cpu, call, wall, cpu, 1e-5, 1e-3, None)


class Failing(gymnasium.Env):
    """Fails in its tenth step."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        if self.steps == 10:
            raise ValueError("the simulator is on fire")
        return np.zeros(1, np.float32), 0.0, False, False, {}


def descendants() -> set[int]:
    """Processes of ours other than the fork server and the resource tracker, which live as long as we do."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and child.parent() != psutil.Process():
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


# The model


@given(n=st.integers(1, 300))
def test_worker_counts_are_those_that_change_the_most_rows_of_a_worker(n: int) -> None:
    counts = worker_counts(n)
    # The slow obvious way: of all counts that give the same number of rows, the smallest.
    smallest: dict[int, int] = {}
    for workers in range(2, n + 1):
        smallest.setdefault(math.ceil(n / workers), workers)
    assert counts == sorted(smallest.values())


@settings(deadline=None)
@given(
    wall=st.floats(1e-6, 1e-1), share=st.floats(0.01, 1.0), trip=st.floats(1e-6, 1e-3), n=st.integers(2, 128),
    cores=st.integers(1, 64),
)  # fmt: skip
def test_no_prediction_exceeds_what_the_machine_can_do(
    wall: float, share: float, trip: float, n: int, cores: int
) -> None:
    cost = row_cost(wall, share * wall)
    for workers in worker_counts(n):
        rate = predict(cost, trip, n, workers, cores, min(cores, n))
        assert rate <= cores / cost.cpu * (1.0 + 1e-9)
        assert rate <= workers / cost.wall * (1.0 + 1e-9)
        assert rate <= n / trip


def test_computing_environments_are_best_served_by_a_worker_for_each_core() -> None:
    cost = row_cost(1e-3)
    rates = {workers: predict(cost, 50e-6, 64, workers, 8, 8) for workers in worker_counts(64)}
    assert max(rates, key=rates.__getitem__) == 8


def test_waiting_environments_are_best_served_by_a_worker_each() -> None:
    cost = row_cost(1e-3, 1e-5)
    rates = {workers: predict(cost, 50e-6, 32, workers, 2, 2) for workers in worker_counts(32)}
    assert max(rates, key=rates.__getitem__) == 32


def test_candidates_far_from_the_best_are_not_tried_but_serial_is() -> None:
    predicted = {"serial": 100.0, "process, 2": 190.0, "process, 4": 1000.0, "process, 8": 900.0, "process, 16": 700.0}
    assert worth_a_trial(predicted, [0, 2, 4, 8, 16], first=2) == [0, 4, 8, 16]
    assert worth_a_trial(predicted, [0, 2, 4, 8, 16], first=2, with_serial=False) == [4, 8, 16]
    assert worth_a_trial({"serial": 100.0, "process, 2": 40.0}, [0, 2], first=2) == [0]


def test_serial_is_chosen_where_the_model_promised_too_much_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine: the model takes all cores for free."""
    tried: list[str] = []

    def busy(batches: dict[str, Any], seconds: float) -> dict[str, float]:
        tried.extend(batches)
        return {name: 125e3 if name == "serial" else 98e3 for name in batches}

    monkeypatch.setattr(autotune, "available_cores", lambda: 4)
    monkeypatch.setattr(autotune, "measure_round_trip", lambda envs, seconds: 1e-6)
    monkeypatch.setattr(autotune, "measure_row", lambda makers, seconds: row_cost(1e-3))
    monkeypatch.setattr(autotune, "take_turns", busy)
    found = recommend(functools.partial(TimedEnv, 1e-3), 8, seconds=SECONDS)
    assert tried[0] == "serial"
    assert max(found.predicted, key=found.predicted.__getitem__) != "serial"
    assert found.backend == "serial"
    assert found.reason.endswith(" workers 98,000)")


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), float("inf"), "2", True])
def test_what_is_no_time_to_measure_is_refused(seconds: Any) -> None:
    with pytest.raises(ConfigError, match=r"seconds = .*positive"):
        recommend("CartPole-v1", 4, seconds=seconds)


def known(**values: Any) -> Recommendation:
    told = {"step_seconds": 210e-6, "step_cpu_seconds": 210e-6, "round_trip_seconds": 40e-6}
    return Recommendation("serial", 0, 16, "", 16, 2, **{**told, **values})


def test_a_simpler_candidate_is_taken_unless_it_is_clearly_slower() -> None:
    near = {"serial": 98.0, "process, 2": 100.0}
    assert chosen(known(measured=near, predicted=near), near, [0, 2]).backend == "serial"
    apart = {"serial": 90.0, "process, 2": 100.0, "process, 4": 101.0}
    found = chosen(known(measured=apart, predicted=apart), apart, [0, 2, 4])
    assert (found.backend, found.workers, found.envs_per_worker) == ("process", 2, 8)


def test_the_sentence_has_the_choice_and_the_numbers() -> None:
    rates = {"serial": 4_700.0, "process, 2": 9_400.0}
    found = chosen(known(measured=rates, predicted=rates), rates, [0, 2])
    assert found.sentence() == (
        "process, 2 workers × 8 environments: a step takes 210 µs and waking workers 40 µs "
        "(9,400 steps/s; serial 4,700)"
    )
    waiting = chosen(known(step_cpu_seconds=21e-6, predicted=rates), rates, [2])
    assert "(90% of it waiting)" in waiting.sentence()
    assert "serial 4,700, both by the model" in waiting.sentence()


def test_what_was_measured_is_compared_with_what_was_measured() -> None:
    measured = {"serial": 123e3, "process, 2": 87e3}
    promised = {**measured, "process, 5": 178e3}
    found = chosen(known(measured=measured, predicted=promised), measured, [0, 2])
    assert found.reason.endswith("(123,000 steps/s; process with 2 workers 87,000)")
    unlike = {"process, 2": 400.0, "process, 4": 800.0}  # a step of all in turn took too long to be tried
    found = chosen(known(measured=unlike, predicted={"serial": 200.0, **unlike}), unlike, [2, 4])
    assert found.reason.endswith("(800 steps/s; process with 2 workers 400)")


@pytest.mark.parametrize(("seconds", "text"), [(45.6e-6, "45.6 µs"), (2e-3, "2 ms"), (0.9996, "1 s"), (1.25, "1.25 s")])
def test_durations_are_in_three_digits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_sleeping_is_waiting_and_computing_is_not() -> None:
    clocks = Clocks()
    time.sleep(0.1)
    assert clocks.computing_share() < 0.5
    clocks = Clocks()
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass
    # However many others want the core meanwhile.
    assert clocks.computing_share() > 0.8


# On real environments


def test_a_recommendation_has_everything_that_was_measured() -> None:
    found = recommend("CartPole-v1", 4, seconds=SECONDS)
    assert found.backend in ("serial", "process")
    for name in ("step_seconds", "step_cpu_seconds", "reset_seconds", "make_seconds", "round_trip_seconds"):
        assert 0.0 < getattr(found, name) < 1.0, name
    assert found.step_cpu_seconds <= found.step_seconds
    assert 8 < found.episode_length < 200  # random actions
    assert found.bytes_per_worker > 2**20
    assert found.num_envs == 4
    assert {"serial", "process, 2", "process, 4"} == set(found.predicted)
    assert set(found.measured) <= set(found.predicted)
    assert found.candidate in found.predicted
    assert "steps/s" in found.sentence()
    assert dataclasses.asdict(found)["reason"] == found.reason


def test_sleeping_environments_get_more_workers_than_cores() -> None:
    before = descendants()
    found = recommend_backend(environment_makers(functools.partial(TimedEnv, 5e-3, waits=True), {}), 8, SECONDS)
    assert (found.backend, found.workers, found.envs_per_worker) == ("process", 8, 1)
    assert found.step_cpu_seconds < 0.5 * found.step_seconds
    assert descendants() <= before


def test_one_environment_needs_no_worker_and_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "ProcessVectorEnv", None)
    found = recommend(functools.partial(TimedEnv, 1e-4), 1, seconds=SECONDS)
    assert (found.backend, found.workers) == ("serial", 0)
    assert "there is one environment" in found.reason


def test_a_computing_environment_on_one_core_needs_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "available_cores", lambda: 1)
    monkeypatch.setattr(Clocks, "computing_share", lambda _: 1.0)
    monkeypatch.setattr(autotune, "ProcessVectorEnv", None)
    found = recommend(functools.partial(TimedEnv, 1e-3), 4, seconds=SECONDS)
    assert found.backend == "serial"
    assert "there is 1 core" in found.reason


def test_an_environment_for_each_row_is_measured_too() -> None:
    makers = environment_makers([functools.partial(TimedEnv, 1e-3, waits=True)] * 4, {})
    found = recommend_backend(makers, 4, SECONDS)
    assert (found.backend, found.workers) == ("process", 4)


def test_what_cannot_be_sent_to_a_worker_stays_here() -> None:
    import threading

    lock = threading.Lock()

    def make() -> gymnasium.Env:
        env = TimedEnv(1e-3, waits=True)
        env.lock = lock
        return env

    found = recommend(make, 4, seconds=SECONDS)
    assert found.backend == "serial"
    assert "cannot be sent to another process" in found.reason


def test_an_environment_that_takes_long_to_make_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> gymnasium.Env:
        time.sleep(0.15)
        return TimedEnv(2e-3, waits=True)

    found = recommend(make, 8, seconds=SECONDS)
    assert found.make_seconds >= 0.15
    assert found.measured == {}
    assert (found.backend, found.workers) == ("process", 8)
    assert "by the model" in found.sentence()


def test_workers_that_do_not_fit_into_memory_are_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "fits", lambda workers, _: workers <= 2)
    found = recommend(functools.partial(TimedEnv, 2e-3, waits=True), 8, seconds=SECONDS)
    assert set(found.predicted) == {"serial", "process, 2"}
    assert found.workers == 2


def test_a_fault_goes_up_with_the_name_of_the_environment() -> None:
    before = descendants()
    with pytest.raises(EnvironmentFaultError, match="Failing failed while it was measured") as caught:
        recommend(Failing, 4, seconds=SECONDS)
    assert "the simulator is on fire" in str(caught.value)
    assert caught.value.faults[0].kind == "raised"
    assert descendants() <= before


def test_rules_of_velodrome_are_native() -> None:
    found = recommend("template", 1000)
    assert (found.backend, found.candidate) == ("native", "native")
    assert "template is a rule" in found.sentence()


@pytest.mark.parametrize("num_envs", [0, -1, True, 2.5, "4"])
@pytest.mark.parametrize("env", ["CartPole-v1", "template"])
def test_what_is_no_number_of_environments_is_refused(env: str, num_envs: Any) -> None:
    with pytest.raises(ConfigError, match="num_envs = "):
        recommend(env, num_envs)


def test_a_name_that_is_no_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="tradin"):
        recommend("tradin")


def test_auto_says_what_it_chose_and_leaves_no_process_behind(capfd: pytest.CaptureFixture[str]) -> None:
    before = descendants()
    began = time.perf_counter()
    envs = make_vec("CartPole-v1", 4, backend="auto", seed=0)
    seconds = time.perf_counter() - began
    try:
        assert envs.backend in ("serial", "process")
        workers = len(getattr(envs, "workers", ()))
        assert len(descendants() - before) == workers
    finally:
        envs.close()
    assert "CartPole-v1: " in capfd.readouterr().err
    # Two seconds on an idle machine; other load stretches everything.
    assert seconds < 2.0 * max(1.0, 2.0 * os.getloadavg()[0] / (os.cpu_count() or 1))


# The promise


def interleaved_rates(env: Any, num_envs: int, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Steps per second of serial and of process with every sensible number of workers, round by round."""
    makers = environment_makers(env, {})
    with ExitStack() as stack:
        batches: dict[str, Any] = {"serial": SerialVectorEnv(makers, num_envs)}
        for count in (1, *worker_counts(num_envs)):
            batches[candidate_name(count)] = ProcessVectorEnv(makers, num_envs, options=WorkerOptions(workers=count))
        for envs in batches.values():
            stack.callback(envs.close)
            envs.reset(seed=0)
        actions = [np.zeros(num_envs, np.int64)] * RING
        calls = {}
        for name, envs in batches.items():
            shortest = min(seconds_of(envs, actions, 1) for _ in range(3))
            calls[name] = max(1, round(seconds / rounds / shortest))
        rates: dict[str, list[float]] = {name: [] for name in batches}
        for _ in range(rounds):
            for name, envs in batches.items():
                rates[name].append(calls[name] * num_envs / seconds_of(envs, actions, calls[name]))
    return rates


@pytest.mark.slow
@pytest.mark.parametrize(
    "env",
    [
        functools.partial(TimedEnv, 20e-6), functools.partial(TimedEnv, 200e-6), functools.partial(TimedEnv, 2e-3),
        functools.partial(TimedEnv, 2e-3, waits=True),
    ],
    ids=["burn 20us", "burn 200us", "burn 2ms", "sleep 2ms"],
)  # fmt: skip
def test_the_recommendation_is_within_a_tenth_of_an_exhaustive_sweep(env: Any) -> None:
    shares, busy = [], []
    for _ in range(3):  # against noise: other load may come while one is chosen, or while all are measured
        busy.append(psutil.cpu_percent(interval=1.0))
        found = recommend(env, 16, seconds=2.0)
        rates = interleaved_rates(env, 16, seconds=1.5, rounds=9)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        best = max(medians, key=medians.__getitem__)
        # Within each round, so that load that comes and goes falls on both.
        share = statistics.median(own / other for own, other in zip(rates[found.candidate], rates[best], strict=True))
        shares.append((share, found.candidate, best, medians))
        if share >= 0.9:
            return
    if max(busy) > BUSY:
        pytest.skip(f"other programs used {max(busy):.0f} % of the cores: which backend is best changed meanwhile")
    raise AssertionError(f"at most {max(shares)[0]:.0%} of the best: {shares}")
