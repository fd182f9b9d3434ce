"""What a monitor reports: statistics, metrics, a table; step times and their histogram, throughput."""

from __future__ import annotations

import math
import os
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.vector.fleet.monitored import counting, play, zeros
from tests.vector.foreign_envs import Counting
from velodrome.vector.fleet.monitor import VecMonitor
from velodrome.vector.fleet.step_times import BINS, EDGES, SPAN, StepTimes, Throughput, quantile
from velodrome.vector.messages import seconds_text


@settings(max_examples=40)
@given(st.lists(st.floats(1e-7, 50.0), min_size=1, max_size=100), st.sampled_from([0.5, 0.99]))
def test_quantiles_are_right_to_within_a_bin(seconds, share):
    times = StepTimes(1, one_each=True)
    for value in seconds:
        times.add(np.array([value]), slice(None), None)
    bin_width = 10 ** (1 / 10)
    exact = np.sort(seconds)[max(math.ceil(share * len(seconds)) - 1, 0)]
    assert exact / bin_width * 0.999 <= quantile(times.counts()[0], share) <= exact * bin_width * 1.001
    assert times.means()[0] == pytest.approx(np.mean(seconds))


@given(st.lists(st.tuples(st.floats(1e-9, 1e3), st.floats(1e-9, 1e3), st.booleans()), max_size=150), st.integers(1, 4))
def test_histograms_count_every_step_once(steps, after):
    times = StepTimes(2, one_each=True)
    for first, second, skipped in steps:
        times.add(np.array([first, second]), slice(None), np.array([skipped, False]))
    wanted = np.zeros((2, BINS), int)
    for first, second, skipped in steps:
        for row, value in ((0, first), (1, second)):
            if not (row == 0 and skipped):
                wanted[row, np.clip(np.searchsorted(EDGES, value, side="right") - 1, 0, BINS - 1)] += 1
    counts = times.counts()
    np.testing.assert_array_equal(counts.sum(axis=1), wanted.sum(axis=1))
    # A time on an edge may fall on either side of it.
    assert np.abs(np.cumsum(counts, axis=1) - np.cumsum(wanted, axis=1)).max(initial=0) <= len(steps)
    interior = [step for step in steps if all(np.abs(np.log10(EDGES) - np.log10(v)).min() > 1e-9 for v in step[:2])]
    if len(interior) == len(steps):
        np.testing.assert_array_equal(counts, wanted)
    times.resize(after)
    np.testing.assert_array_equal(times.counts()[: min(after, 2)], counts[:after])


def test_environments_that_only_the_batch_can_time_share_a_histogram():
    envs = VecMonitor(vd.make_vec("template", 64, seed=0, threads=1))
    envs.reset()
    play(envs, 30)
    seen = envs.statistics()
    assert seen.step_seconds_counts.shape == (64, BINS)
    assert (seen.step_seconds_counts.sum(axis=1) == 30).all()
    assert seen.slowest == ()
    assert 0 < seen.step_seconds_p50 <= seen.step_seconds_p99 < 1


def test_throughput_is_of_the_last_seconds():
    rate = Throughput()
    assert rate.rate(5.0) == 0.0
    rate.begin(10.0)
    for k in range(1, 101):  # 100 steps each tenth of a second, then 10
        rate.add(10.0 + k / 10, 100)
    assert rate.rate(20.0) == pytest.approx(1000)
    for k in range(1, 201):
        rate.add(20.0 + k / 10, 10)
    assert rate.rate(40.0) == pytest.approx(100)
    assert rate.rate(41.0) == pytest.approx(100 * (SPAN - 1) / SPAN, rel=0.05)
    assert rate.rate(100.0) == 0.0
    assert rate.steps == 12_000


def test_means_are_over_the_window():
    envs = VecMonitor(counting((1,)), window=3)
    envs.reset()
    for action in (0, 1, 2, 3, 4):
        envs.step(np.array([action]))
    seen = envs.statistics()
    assert (seen.episodes, seen.window) == (5, 3)
    assert seen.mean_return == pytest.approx(1.3)
    assert seen.median_return == pytest.approx(1.3)


def test_before_the_first_episode_there_is_nothing_to_report():
    envs = VecMonitor(counting((5,)))
    found = envs.metrics()
    assert found["monitor/episodes"] == found["monitor/steps"] == found["monitor/steps_per_second"] == 0.0
    assert "monitor/mean_return" not in found
    assert "monitor/step_seconds_p50" not in found
    envs.reset()
    envs.step(zeros(envs))
    assert {"monitor/step_seconds_p50", "monitor/step_seconds_p99", "monitor/restarts"} <= set(envs.metrics())
    assert envs.metrics()["monitor/steps_per_second"] > 0


def test_people_get_a_table():
    from rich.console import Console

    envs = VecMonitor(vd.make_vec(partial(Counting, 2), 3, backend="serial"))
    envs.reset()
    play(envs, 4)
    console = Console(width=100, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(envs.rich_table())
    text = console.export_text()
    console.file.close()
    for part in ("3 × ", "episodes", "6", "steps per second", "slowest: environment", "environments lost", "µs"):
        assert part in text
    assert [seconds_text(value) for value in (2.5, 0.0031, 4.2e-5, 7e-9, math.nan)] == [
        "2.5 s", "3.1 ms", "42 µs", "7 ns", "–"
    ]  # fmt: skip


def test_statistics_may_be_asked_for_from_another_thread():
    envs = VecMonitor(vd.make_vec("template", 16, seed=0, threads=1, length=3), window=500)
    envs.reset()
    failures, done = [], threading.Event()

    def watch() -> None:
        while not done.is_set():
            try:
                seen = envs.statistics()
                assert math.isnan(seen.mean_length) or 1 <= seen.mean_length <= 3
            except Exception as error:
                failures.append(error)
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    play(envs, 1500)
    done.set()
    watcher.join()
    assert not failures
