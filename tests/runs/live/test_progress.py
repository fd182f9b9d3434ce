"""What is shown without a terminal: plain lines, JSON, nothing; and the numbers behind every view."""

from __future__ import annotations

import io
import json
import math
import timeit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from velodrome.runs.live.display import LINE_EVERY, LiveView
from velodrome.runs.live.progress import (
    LONGEST_HISTORY,
    RECENT,
    REPORT_SECONDS,
    Besides,
    Curve,
    Progress,
    compact,
    duration,
    json_line,
    sparkline,
)


class Clock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def lines_of(target: Console) -> list[str]:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue().splitlines()


def iteration(seconds: float, learning: float = 0.9) -> dict[str, float]:
    return {
        "episode/return": 0.25,
        "episode/turnover": 12.5,
        "time/environment": (1 - learning) * seconds,
        "time/learning": learning * seconds,
    }


def test_plain_lines_come_every_few_seconds_and_events_at_once(clock: Clock) -> None:
    target = Console(file=io.StringIO(), width=60)
    with LiveView(1_000_000, "ppo on trading", target, "plain", clock=clock) as view:
        for index in range(100):
            clock.now += LINE_EVERY / 10
            view.update(1000 * (index + 1), iteration(LINE_EVERY / 10))
            if index == 50:
                view.note("checkpoint at 51,000 steps [not markup]")
                view.evaluated("validation", {"return": -0.125, "sharpe": math.nan, "max_drawdown": 0.2})
    lines = lines_of(target)
    progress = [line for line in lines if "steps/s" in line and "left" in line]
    assert lines[0] == "ppo on trading: 1,000,000 steps"
    assert len(progress) == 10
    assert progress[0] == (
        "  0%  1.00 k/1.00 M steps  2.00 k steps/s  8:20 left  return 0.25  turnover 12.5  learning 90% of the time"
    )
    assert "validation return -12.50% (used for selection)" in progress[-1]
    assert "checkpoint at 51,000 steps [not markup]" in lines
    told = "return -12.50%  Sharpe nan  max drawdown 20.00%"
    assert f"evaluation at 51,000 steps on validation (used for selection): {told}" in lines
    assert all(line.isascii() for line in lines)
    assert lines[-1].startswith(
        "done: 100,000 of 1,000,000 steps in 50 s, 2.00 k steps/s on average. Learning 90% of the time"
    )


def test_the_return_of_an_account_is_that_of_its_equity_and_not_the_sum_of_rewards() -> None:
    target = Console(file=io.StringIO(), width=60)
    with LiveView(1000, "ppo on trading", target, "plain") as view:
        view.update(500, {"episode/return": 896.27, "episode/equity_return": 0.0108, "episode/max_drawdown": 0.1})
    assert "  return +1.08%" in lines_of(target)[1]
    assert "896" not in lines_of(target)[1]


def test_plain_lines_survive_a_terminal_of_ascii() -> None:
    class Ascii(io.StringIO):
        encoding = "ascii"

    target = Console(file=Ascii())
    with LiveView(10, "größe", target, "plain") as view:
        view.note("Kontrollpunkt für später …")
    assert all(line.isascii() for line in lines_of(target))


def test_json_is_one_object_per_line_and_nothing_else(clock: Clock) -> None:
    target = Console(file=io.StringIO(), width=20)
    numbers = {"loss/value": math.nan, "numpy": np.float64(0.5), "single": np.float32(2)}

    def train() -> None:
        with LiveView(4000, "training", target, "json", clock=clock) as view:
            clock.now += 2.0
            view.update(1000, {**iteration(2.0), **numbers})
            view.note("checkpoint für 1,000")
            view.evaluated("validation", {"return": math.inf})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert all(line.isascii() for line in lines_of(target))
    update, note, evaluation, end = (json.loads(line) for line in lines_of(target))
    assert (update["event"], update["steps"], update["total_steps"]) == ("update", 1000, 4000)
    assert (update["seconds"], update["seconds_left"], update["steps_per_second"]) == (2.0, 6.0, 500.0)
    assert update["metrics"]["loss/value"] is None
    assert (update["metrics"]["numpy"], update["metrics"]["single"]) == (0.5, 2.0)
    assert update["bottleneck"]["kind"] == "learning"
    assert note == {"event": "note", "steps": 1000, "text": "checkpoint für 1,000"}
    about = {"event": "evaluation", "steps": 1000, "split": "validation", "used_for_selection": True}
    assert evaluation == {**about, "results": {"return": None}}
    assert (end["event"], end["error"]) == ("end", "KeyboardInterrupt")
    assert end["text"].startswith("interrupted: 1,000 of 4,000 steps in 2 s, 500 steps/s")


def test_quiet_prints_nothing() -> None:
    target = Console(file=io.StringIO())
    with LiveView(1000, "training", target, "quiet") as view:
        view.update(10, iteration(1.0))
        view.note("checkpoint")
        view.evaluated("validation", {"return": 1.0})
    assert lines_of(target) == []


def test_a_resumed_run_counts_only_its_own_steps_as_speed(clock: Clock) -> None:
    progress = Progress(10_000, 6000, clock=clock)
    progress.begin()
    assert math.isnan(progress.speed_mean())
    assert math.isnan(progress.seconds_left())
    assert progress.share == 0.6
    clock.now += 2.0
    progress.update(7000, {})
    assert progress.speed_now() == progress.speed_mean() == 500.0
    assert progress.seconds_left() == 6.0
    clock.now += 1.5
    assert progress.seconds_left() == 4.5
    clock.now += 100
    assert progress.seconds_left() == 0.0


def test_the_time_left_counts_validations_and_the_evaluation_at_the_end(clock: Clock) -> None:
    progress = Progress(10_000, clock=clock, besides=Besides(every=1000, final=20.0))
    progress.begin()
    for steps in (1000, 2000):
        clock.now += 2.0
        progress.update(steps, {})
        clock.now += 0.5
        progress.evaluated("validation", {"return": 0.1}, 0.5)
        # 500 steps a second, a validation of half a second every 1,000, then 20 times as long, and the report.
        learning, validations = (10_000 - steps) / 500.0, 0.5 * (10 - steps // 1000)
        assert progress.seconds_left() == pytest.approx(learning + validations + 10.0 + REPORT_SECONDS)
    without = Progress(10_000, clock=clock)
    without.begin()
    clock.now += 2.0
    without.update(1000, {})
    assert without.seconds_left() == 18.0


@given(
    times=st.lists(st.tuples(st.floats(0.001, 30.0), st.integers(1, 10**6), st.floats(0, 1)), min_size=1, max_size=60)
)
def test_speed_and_phases_agree_with_the_iterations_they_cover(times: list[tuple[float, int, float]]) -> None:
    clock = Clock()
    progress = Progress(10**9, clock=clock)
    done = 0
    history = [(clock.now, 0, 0.0)]
    for seconds, steps, learning in times:
        clock.now += seconds
        done += steps
        progress.update(done, {"time/learning": learning * seconds, "time/other": (1 - learning) * seconds})
        history.append((clock.now, done, history[-1][2] + learning * seconds))
    assert progress.speed_mean() == pytest.approx(done / (clock.now - 50.0))
    # The stretch covered begins where some iteration ended and is about RECENT long, or as long as there is.
    begin = clock.now - sum(progress.phases().values())
    start = min(history, key=lambda entry: abs(entry[0] - begin))
    assert start[0] == pytest.approx(begin, abs=1e-6)
    assert progress.phases()["learning"] == pytest.approx(history[-1][2] - start[2], abs=1e-6)
    if clock.now > start[0]:
        assert progress.speed_now() == pytest.approx((done - start[1]) / (clock.now - start[0]))
    longest = max(seconds for seconds, _, _ in times)
    assert min(RECENT, clock.now - 50.0) - 1e-6 <= clock.now - start[0] <= RECENT + longest + RECENT / 20


def test_an_update_costs_microseconds_and_does_not_grow(clock: Clock) -> None:
    progress = Progress(10**9, clock=clock)
    metrics = {**iteration(0.001), **{f"metric/{index}": 0.5 for index in range(20)}}

    def update() -> None:
        clock.now += 0.001
        progress.update(1, metrics)

    first = min(timeit.repeat(update, number=200, repeat=5)) / 200
    for _ in range(20_000):
        update()
    assert len(progress._recent) < 100
    later = min(timeit.repeat(update, number=200, repeat=5)) / 200
    assert later < max(3 * first, 200e-6)


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513, 1024, 1500, 5000])
def test_a_curve_stays_short_and_covers_everything_evenly(count: int) -> None:
    curve = Curve()
    for index in range(count):
        curve.add(float(index))
        curve.add(math.nan)
    assert min(count, LONGEST_HISTORY // 2) <= len(curve.values) <= LONGEST_HISTORY
    gaps = np.diff(curve.values)
    assert len(set(gaps.tolist())) <= 1
    if len(gaps):
        assert curve.values[0] < gaps[0]
        assert count - 1 - curve.values[-1] < gaps[0]


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ([], 5, ""),
        ([1.0, 2.0], 0, ""),
        ([3.0, 3.0, 3.0], 5, "ccc"),
        ([0.0, 1.0, 2.0, 3.0], 4, "abcd"),
        ([0.0, 0.0, 3.0, 3.0, 1.5, 1.5], 3, "adc"),
        ([-1.0, 1.0], 10, "ad"),
    ],
)
def test_a_sparkline_goes_from_the_lowest_to_the_highest(values: list[float], width: int, drawn: str) -> None:
    assert sparkline(values, width, "abcd") == drawn


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (912, "912"), (999.6, "1.00 k"), (45_600, "45.6 k"), (99_960, "100 k"), (999_600, "1.00 M"),
        (7.89e6, "7.89 M"), (8.2e7, "82.0 M"), (1.87e10, "18.7 G"), (-2500, "-2.50 k"), (math.nan, "-"),
    ],
)  # fmt: skip
def test_numbers_are_written_in_three_digits(number: float, text: str) -> None:
    assert compact(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (187, "3:07"), (7387, "2:03:07"), (5 * 86400 + 7300, "5 d 2 h"),
        (math.nan, "-"), (math.inf, "-"),
    ],
)  # fmt: skip
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_json_has_no_nan_at_any_depth() -> None:
    assert (
        json_line({"a": [1.0, math.nan, {"b": -math.inf}], "c": True}) == '{"a": [1.0, null, {"b": null}], "c": true}'
    )
