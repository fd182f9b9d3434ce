"""Autoscaling on simulated throughput: noisy, saturating, peaked; memory that runs out, load that comes and goes."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velodrome.errors import ConfigError
from velodrome.vector.fleet.autoscale import Autoscaler

Curve = Callable[[int], float]
MEGABYTE = 2**20


class Machine:
    """Plays as many environments as it is told; its rate follows a curve, with noise."""

    def __init__(
        self, curve: Curve, num_envs: int, noise: float = 0.0, seed: int = 0, base: float = 0.0, each: float = 0.0
    ) -> None:
        self.curve, self.num_envs, self.noise = curve, num_envs, noise
        self.base, self.each = base, each  # bytes: of the process, and of an environment
        self.generator = np.random.default_rng(seed)
        self.played = [num_envs]
        self.stays_up = False  # freed memory is not given back
        self.peak = 0.0

    @property
    def memory(self) -> float:
        return self.base + self.each * self.num_envs

    def run(self, autoscaler: Autoscaler, observations: int) -> int:
        """Train for some iterations and return the size at the end."""
        for _ in range(observations):
            rate = self.curve(self.num_envs) * math.exp(self.noise * self.generator.normal())
            steps = 32 * self.num_envs
            self.peak = max(self.peak, self.memory)
            memory = self.peak if self.stays_up else self.memory
            wanted = autoscaler.observe(self.num_envs, steps, steps / rate, memory)
            if wanted is not None:
                assert wanted != self.num_envs
                self.num_envs = wanted
                self.played.append(wanted)
        return self.num_envs

    def settle(self, autoscaler: Autoscaler) -> int:
        """Train until the first search is over."""
        for _ in range(2000):
            self.run(autoscaler, 1)
            if not autoscaler.searching:
                return self.num_envs
        raise AssertionError(f"still searching after {self.played}")


def saturating(half: float) -> Curve:
    return lambda n: 1e5 * n / (n + half)


def peaked(half: float, crowd: float) -> Curve:
    return lambda n: 1e5 * n / (n + half) / (1.0 + (n / crowd) ** 2)


def powers(least: int, most: int) -> list[int]:
    return [2**k for k in range(20) if least <= 2**k <= most]


curves = st.one_of(
    st.floats(0.1, 3000.0).map(saturating),
    st.tuples(st.floats(0.1, 300.0), st.floats(2.0, 20_000.0)).map(lambda pair: peaked(*pair)),
    st.just(lambda n: 1e5),  # nothing helps
    st.just(lambda n: 10.0 * n),  # everything helps
    st.just(lambda n: 1e5 / n),
)
bounds = st.tuples(st.integers(0, 6), st.integers(0, 8)).map(lambda pair: (2 ** pair[0], 2 ** sum(pair)))


@given(curves, bounds, st.integers(0, 14), st.sampled_from([0.0, 0.01, 0.03, 0.05]), st.integers(0, 1000))
@settings(max_examples=300)
def test_it_finds_a_size_close_to_the_best(curve, limits, start, noise, seed):
    least, most = limits
    machine = Machine(curve, min(max(2**start, least), most), noise, seed)
    found = machine.settle(Autoscaler(least, most))
    assert curve(found) >= 0.9 * max(map(curve, powers(least, most)))
    assert all(least <= size <= most for size in machine.played)


@given(
    curves, st.integers(1, 100), st.integers(0, 3000), st.integers(1, 5000), st.floats(0.0, 1e9), st.floats(0.0, 1e7),
    st.floats(1.0, 2e9), st.booleans(), st.sampled_from([0.0, 0.2]),
)  # fmt: skip
@settings(max_examples=300)
def test_it_stays_within_bounds_and_grows_into_no_more_memory_than_allowed(
    curve, least, width, start, base, each, limit, stays_up, noise
):
    machine = Machine(curve, start, noise, base=base, each=each)
    machine.stays_up = stays_up
    machine.run(Autoscaler(least, least + width, memory_limit=limit, rest=20), 300)
    for before, size in itertools.pairwise(machine.played):
        assert least <= size <= least + width
        # It may begin with too many, and the lower bound may be too many: but it grows into nothing that does not fit.
        assert size <= max(before, least) or base + each * size <= limit + 1.0


@given(st.integers(1, 64), st.floats(1e5, 1e7), st.floats(1.1, 200.0))
def test_memory_that_is_short_lets_it_shrink_until_it_fits(least, each, times):
    """Of everything helps, but not that much fits."""
    base, start = 3e8, 64 * 64
    limit = base + each * max(start / times, least)
    machine = Machine(lambda n: 10.0 * n, start, base=base, each=each)
    autoscaler = Autoscaler(least, 2**16, memory_limit=limit)
    machine.run(autoscaler, 1)
    assert machine.num_envs < start
    machine.settle(autoscaler)
    assert machine.memory <= limit
    assert machine.num_envs > 0.49 * (limit - base) / each  # nor smaller than need be


def test_memory_that_is_given_back_late_does_not_let_it_shrink_to_nothing_at_once():
    machine = Machine(saturating(1.0), 1024, base=0.0, each=MEGABYTE)
    machine.stays_up = True
    autoscaler = Autoscaler(1, 1024, memory_limit=600 * MEGABYTE, observations=5)
    assert machine.run(autoscaler, 5) == 512
    assert machine.run(autoscaler, 5) < 512  # it was not given back in the meantime


def test_a_large_process_with_small_environments_grows_past_the_first_cautious_step():
    machine = Machine(lambda n: 10.0 * n, 8, base=800 * MEGABYTE, each=MEGABYTE / 64)
    machine.settle(Autoscaler(1, 4096, memory_limit=1000 * MEGABYTE))
    assert machine.played[1] == 9  # all memory is taken for theirs: 8 · 1000 / 800 would be 10 of them
    assert machine.num_envs == 4096


def test_what_is_known_of_environments_is_used_from_the_start():
    machine = Machine(lambda n: 10.0 * n, 8, base=800 * MEGABYTE, each=MEGABYTE)
    machine.settle(Autoscaler(1, 4096, memory_limit=1000 * MEGABYTE, environment_bytes=MEGABYTE))
    assert machine.played[:4] == [8, 16, 32, 64]
    assert machine.memory <= 1000 * MEGABYTE


def test_nothing_faster_leaves_the_size_and_rests_longer_each_time():
    machine = Machine(lambda n: 1e5, 64, noise=0.01)
    autoscaler = Autoscaler(1, 4096, rest=20)
    machine.run(autoscaler, 4000)
    assert machine.num_envs == 64
    assert set(machine.played) == {16, 32, 64, 128, 256}
    assert machine.played.count(128) <= 14  # without rests that grow it would be 50


def test_it_follows_a_load_that_comes_and_goes():
    machine = Machine(peaked(64.0, 4000.0), 64, noise=0.02)
    autoscaler = Autoscaler(4, 4096, rest=20)
    alone = machine.settle(autoscaler)
    machine.curve = peaked(4.0, 60.0)  # another program has taken most of the machine
    crowded = {size: machine.curve(size) for size in powers(4, 4096)}
    machine.run(autoscaler, 600)
    assert machine.curve(machine.num_envs) >= 0.9 * max(crowded.values())
    assert machine.num_envs < alone / 4
    machine.curve = peaked(64.0, 4000.0)
    machine.run(autoscaler, 1500)
    assert machine.curve(machine.num_envs) >= 0.9 * max(map(machine.curve, powers(4, 4096)))


def test_an_outlier_decides_nothing():
    """One iteration in five takes ten times as long: a checkpoint is written."""
    autoscaler = Autoscaler(8, 32)
    size, count = 8, 0
    while autoscaler.searching:
        count += 1
        rate = saturating(40.0)(size) / (10.0 if count % 5 == 0 else 1.0)
        size = autoscaler.observe(size, 100, 100 / rate, 0) or size
    assert size == 32


def test_the_first_iteration_of_a_size_is_not_counted():
    """In it memory is allocated and graphs are captured."""
    autoscaler, size, last = Autoscaler(8, 64, observations=1), 8, 0
    while autoscaler.searching:
        rate = 1.0 if size != last else saturating(100.0)(size)
        last = size
        size = autoscaler.observe(size, 100, 100 / rate, 0) or size
    assert size == 64
    assert autoscaler.tried[8].rate == pytest.approx(saturating(100.0)(8))


def test_someone_who_does_not_follow_is_taken_as_they_are():
    autoscaler = Autoscaler(1, 1024)
    wanted = [autoscaler.observe(64, 100, 1.0, 0) for _ in range(30)]
    assert set(wanted) == {None, 128}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"least": 0}, "least = 0"), ({"most": 2}, "most = 2 is less than least = 4"), ({"least": 1.5}, "least = 1.5"),
        ({"memory_limit": 0}, "memory_limit = 0"), ({"memory_limit": math.nan}, "memory_limit = nan"),
        ({"environment_bytes": -1}, "environment_bytes"), ({"margin": 1.0}, "margin"), ({"rest": 0}, "rest"),
        ({"observations": 0}, "observations"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Autoscaler(**{"least": 4, "most": 8, **arguments})


@pytest.mark.parametrize(
    "observed", [(0, 1, 1.0, 0), (4, 0, 1.0, 0), (4, 1, 0.0, 0), (4, 1, 1.0, -1), (4, 1, math.nan, 0)]
)
def test_observations_that_make_no_sense_are_refused(observed):
    with pytest.raises(ConfigError, match="needs"):
        Autoscaler(1, 8).observe(*observed)


# Held in a process of its own: a test process that has freed memory before may be given it again without growing.
HOLDING = f"""
import subprocess, sys
from velodrome.vector.fleet.autoscale import bytes_in_use

def child():
    script = "held = bytearray({64 * MEGABYTE}); print('held', flush=True); input()"
    started = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout.readline() == "held\\n"
    return started

counts = [bytes_in_use()]
held = bytearray({64 * MEGABYTE})
counts.append(bytes_in_use())
started = child()
counts.append(bytes_in_use())
started.communicate("\\n", timeout=60)
counts.append(bytes_in_use())
print(*counts)
"""


def test_bytes_in_use_count_this_process_and_its_children():
    done = subprocess.run([sys.executable, "-c", HOLDING], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, alone, with_child, after = (int(count) / MEGABYTE for count in done.stdout.split())
    assert alone - before > 50
    assert with_child - alone > 50
    assert after - alone < 14
