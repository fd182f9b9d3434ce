"""Phases: every second counts once, for the innermost phase; a device is synchronised once per reading."""

from __future__ import annotations

import time
import timeit
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velodrome.errors import BackendError, ConfigError
from velodrome.rollout import phases
from velodrome.rollout.phases import PHASES, PhaseClock


class FakeTime:
    """A clock that only moves when told to, for the host and for events on a pretended device."""

    def __init__(self) -> None:
        self.now = 100.0
        self.synchronisations = 0
        self.made = 0

    def perf_counter(self) -> float:
        return self.now

    def event(self, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        self.made += 1
        return FakeEvent(self)

    def synchronize(self, device: torch.device) -> None:
        self.synchronisations += 1


class FakeEvent:
    """What torch.cuda.Event offers: recording again overwrites the time."""

    def __init__(self, clock: FakeTime) -> None:
        self.clock = clock
        self.time = float("nan")

    def record(self, stream: object) -> None:
        self.time = self.clock.now

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.time - self.time) * 1000.0


@pytest.fixture
def fake_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTime]:
    clock = FakeTime()
    monkeypatch.setattr(phases, "perf_counter", clock.perf_counter)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", clock.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", clock.synchronize)
    return clock


# A program is a list of steps: time passes (whole seconds), or a phase with a program inside, or a take.
_WAIT = st.integers(0, 9)
_PROGRAM: st.SearchStrategy[list[Any]] = st.recursive(
    st.lists(st.one_of(_WAIT, st.just("take")), max_size=4),
    lambda inner: st.lists(
        st.one_of(_WAIT, st.just("take"), st.tuples(st.sampled_from(PHASES), inner)), min_size=1, max_size=6
    ),
    max_leaves=12,
)


def _play(program: list[Any], clock: PhaseClock, passing: FakeTime, taken: list[dict[str, float]]) -> None:
    for step in program:
        if step == "take":
            taken.append(clock.take())
        elif isinstance(step, tuple):
            with clock(step[0]):
                _play(step[1], clock, passing, taken)
        else:
            passing.now += step


def _expected(program: list[Any]) -> list[dict[str, float]]:
    """Every second on its own, given to the innermost phase that is open."""
    takes = [dict.fromkeys((*PHASES, "other", "total"), 0.0)]

    def walk(steps: list[Any], innermost: str) -> None:
        for step in steps:
            if step == "take":
                takes.append(dict.fromkeys((*PHASES, "other", "total"), 0.0))
            elif isinstance(step, tuple):
                walk(step[1], step[0])
            else:
                for _ in range(step):
                    takes[-1][innermost] += 1.0
                    takes[-1]["total"] += 1.0

    walk(program, "other")
    return takes


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(program=_PROGRAM)
def test_every_second_counts_once_for_the_innermost_phase(device: str, program: list[Any], fake_time: FakeTime) -> None:
    clock = PhaseClock(device)
    taken: list[dict[str, float]] = []
    _play(program, clock, fake_time, taken)
    taken.append(clock.take())
    assert taken == _expected(program)


def test_a_device_is_synchronised_once_per_take_and_events_are_used_again(fake_time: FakeTime) -> None:
    clock = PhaseClock("cuda")
    for _ in range(5):
        for _ in range(32):
            with clock("inference"):
                fake_time.now += 1
            with clock("environment"):
                fake_time.now += 2
        seconds = clock.take()
        assert (seconds["inference"], seconds["environment"]) == (32, 64)
    assert fake_time.synchronisations == 5
    assert fake_time.made <= 2 * 64 + 2


def test_unread_events_stay_bounded_without_losing_time(fake_time: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "MOST_PENDING", 10)
    clock = PhaseClock("cuda")
    for _ in range(1000):
        with clock("learning"):
            fake_time.now += 1
    assert fake_time.made < 40
    assert clock.take()["learning"] == 1000


def test_a_phase_that_fails_is_closed() -> None:
    clock = PhaseClock()
    with pytest.raises(RuntimeError, match="boom"), clock("learning"), clock("inference"):
        raise RuntimeError("boom")
    clock.take()
    time.sleep(0.01)
    seconds = clock.take()
    assert seconds["learning"] == seconds["inference"] == 0.0
    assert seconds["other"] >= 0.01


def test_an_unknown_phase_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'enviroment'.*inference.*Did you mean 'environment'"):
        PhaseClock()("enviroment")


def test_a_missing_or_unknown_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendError, match="No CUDA device is visible"):
        PhaseClock("cuda")
    with pytest.raises(BackendError, match="device=meta"):
        PhaseClock("meta")


def test_a_phase_costs_microseconds_at_most() -> None:
    clock = PhaseClock()

    def enter() -> None:
        with clock("environment"):
            pass

    # About 0.6 µs on an idle core of a server; the bound leaves room for a busy one.
    assert min(timeit.repeat(enter, number=2000, repeat=5)) / 2000 < 5e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_queued_work_counts_for_the_phase_that_queued_it() -> None:
    left = torch.randn(8192, 8192, device="cuda")
    clock = PhaseClock("cuda")
    for _ in range(2):  # the first round warms up
        clock.take()
        begin = time.perf_counter()
        with clock("learning"):
            for _ in range(10):
                left @ left
        with clock("environment"):
            time.sleep(0.0)
        queued = time.perf_counter() - begin
        seconds = clock.take()
    assert seconds["learning"] > 5 * queued
    assert seconds["environment"] < 0.1 * seconds["learning"]
    assert seconds["learning"] == pytest.approx(seconds["total"], rel=0.1)
