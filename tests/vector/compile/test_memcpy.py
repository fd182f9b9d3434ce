"""Raw copies of windows, the windows in observations, and how much memory an environment takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import velodrome as vd
from tests.contracts.comparison import random_actions
from tests.markets import small_market
from velodrome.tables.windows import window_at
from velodrome.vector import batch, buffers
from velodrome.vector.compile.memcpy import copy_floats, stream_floats

# The raw copy


@st.composite
def copies(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """(floats of the source, first, count, floats of the target, at), all within bounds."""
    size, room = draw(st.integers(1, 300)), draw(st.integers(1, 300))
    first, at = draw(st.integers(0, size)), draw(st.integers(0, room))
    return size, first, draw(st.integers(0, min(size - first, room - at))), room, at


@pytest.mark.parametrize("copy", [copy_floats, stream_floats])
@settings(max_examples=300)
@given(sizes=copies(), seed=st.integers(0, 1000))
def test_the_raw_copy_is_a_copy_of_slices(copy, sizes, seed):
    size, first, count, room, at = sizes
    rng = np.random.default_rng(seed)
    # All bit patterns: NaNs of any payload, infinities and denormals are copied as they are.
    source, target = (rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32) for n in (size, room))
    expected, untouched = target.copy(), source.copy()
    batch.copy_floats(source, first, count, expected, at)
    copy(source, first, count, target, at)
    np.testing.assert_array_equal(target.view(np.uint32), expected.view(np.uint32))
    np.testing.assert_array_equal(source.view(np.uint32), untouched.view(np.uint32))
    np.testing.assert_array_equal(
        target[at : at + count].view(np.uint32), source[first : first + count].view(np.uint32)
    )


def test_the_raw_copy_reads_what_may_not_be_written_and_writes_into_rows():
    """The tables of a market are read-only, and the target is a row of the observations."""
    source = np.arange(20, dtype=np.float32)
    source.flags.writeable = False
    rows = np.zeros((3, 6), np.float32)
    copy_floats(source, 5, 4, rows[1], 1)
    np.testing.assert_array_equal(rows, [[0] * 6, [0, 5, 6, 7, 8, 0], [0] * 6])


# Windows in observations

SHAPES = ((5, 3), (2, 2), (17, 1), (1, 4))


def assert_windows(envs: Any, observations: Any, cursors: np.ndarray) -> None:
    """Compare every window of every environment with the readable form of the tables."""
    windows = envs.world.windows
    for row, cursor in enumerate(cursors):
        expected = [window_at(windows, index, int(cursor)) for index in range(len(windows.length))]
        if isinstance(observations, dict):
            for name, window in zip(envs.world.window_names, expected, strict=True):
                np.testing.assert_array_equal(observations[name][row], window, err_msg=f"{name} of {row}")
        else:
            floats = np.concatenate([window.ravel() for window in expected])
            np.testing.assert_array_equal(observations[row, : floats.size], floats, err_msg=f"row {row}")


@pytest.mark.parametrize("backend", ["native", "python"])
@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_windows_end_at_the_cursor(observation, backend):
    market = small_market(bars=60, instruments=3, windows=SHAPES)
    envs = vd.make_vec(
        "trading", 6, market=market, episode_length=7, seed=3, observation=observation, backend=backend
    )  # fmt: skip
    observations, _ = envs.reset()
    assert_windows(envs, observations, envs.column("cursor"))
    instruments, finals = set(), 0
    for actions in random_actions(envs.single_action_space, 6, 25, seed=5):
        last = envs.column("last")
        observations, _, terminated, truncated, infos = envs.step(actions)
        assert_windows(envs, observations, envs.column("cursor"))
        instruments |= set((envs.column("cursor") // 60).tolist())
        if "final_obs" in infos:
            # Nothing here ends an episode before its time, so the last bar is where its last observation was made.
            assert not terminated.any()
            rows = np.flatnonzero(truncated)
            finals += len(rows)
            final = infos["final_obs"]
            chosen = {name: part[rows] for name, part in final.items()} if observation == "dict" else final[rows]
            assert_windows(envs, chosen, last[rows])
    assert instruments == {0, 1, 2}
    assert finals >= 6


@pytest.mark.parametrize("threads", [1, 2])
def test_windows_written_past_the_caches_are_the_same(threads, monkeypatch):
    market = small_market(bars=300, windows=((40, 9),))
    made = []
    for limit in (0, 1 << 40):
        monkeypatch.setattr(buffers, "STREAMED_BYTES", limit)
        envs = vd.make_vec("trading", 200, market=market, episode_length=7, seed=3, threads=threads, copy=True)
        assert envs.buffers.out.streamed == (limit == 0)
        observations, _ = envs.reset()
        seen = [observations]
        for actions in random_actions(envs.single_action_space, 200, 20, seed=5):
            observations, _, _, _, infos = envs.step(actions)
            seen += [observations, *([infos["final_obs"][infos["_final_obs"]]] if infos else [])]
        made.append(np.concatenate(seen))
    np.testing.assert_array_equal(*made)


def test_windows_of_several_timeframes_and_instruments_end_at_the_cursor():
    """Tables as build_market makes them: the rows of a longer timeframe stand still between its bars."""
    bars = vd.synthetic_bars("gbm", 6000, seed=1, symbols=2)
    market = vd.build_market(bars, windows={"1m": 10, "5m": 6, "1h": 3}, check_leaks=False)
    envs = vd.make_vec("trading", 8, market=market, episode_length=5, seed=3, observation="dict")
    observations, _ = envs.reset()
    assert {name: part.shape[1] for name, part in observations.items() if name != "account"} == {
        "1m": 10, "5m": 6, "1h": 3,
    }  # fmt: skip
    for actions in random_actions(envs.single_action_space, 8, 20, seed=5):
        assert_windows(envs, observations, envs.column("cursor"))
        observations, *_ = envs.step(actions)


@settings(max_examples=25)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=4),
    instruments=st.integers(1, 3),
    num_envs=st.integers(1, 5),
    seed=st.integers(0, 100),
)
def test_windows_of_any_shape_end_at_the_cursor(shapes, instruments, num_envs, seed):
    market = small_market(bars=60, instruments=instruments, windows=tuple(shapes), seed=seed)
    envs = vd.make_vec("trading", num_envs, market=market, episode_length=4, seed=seed, threads=1)
    observations, _ = envs.reset()
    for actions in random_actions(envs.single_action_space, num_envs, 6, seed=seed):
        observations, *_ = envs.step(actions)
        assert_windows(envs, observations, envs.column("cursor"))


def test_a_cursor_observation_has_no_windows():
    market = small_market(bars=60, windows=SHAPES)
    envs = vd.make_vec("trading", 3, market=market, episode_length=5, seed=3, observation="cursor")
    observations, _ = envs.reset()
    for actions in random_actions(envs.single_action_space, 3, 12, seed=5):
        np.testing.assert_array_equal(observations["cursor"], envs.column("cursor"))
        assert observations["account"].shape == (3, 8)
        observations, *_ = envs.step(actions)


# Memory


@pytest.mark.parametrize("num_envs", [64, 1024, 4096])
@pytest.mark.parametrize("action", ["levels", "continuous", "brackets"])
def test_an_environment_takes_at_most_a_kibibyte(action, num_envs):
    envs = vd.make_vec("trading", num_envs, market=small_market(), action=action, leverage=(1.0, 5.0), threads=1)
    assert 0 < envs.buffers.bytes_per_environment <= 1024


@pytest.mark.parametrize("action", ["levels", "continuous", "brackets"])
@pytest.mark.parametrize("num_envs", [64, 1000])
def test_the_bytes_per_environment_are_those_of_the_arrays(action, num_envs):
    """Windows are not counted, so they are left out; every array of the batch is counted once."""
    envs = vd.make_vec(
        "trading", num_envs, market=small_market(), action=action, observation="cursor", threads=1
    )  # fmt: skip
    buffers = envs.buffers
    arrays = [value for value in buffers.out if isinstance(value, np.ndarray)]
    total = buffers.blocks.nbytes + sum(array.nbytes for array in arrays)
    assert buffers.bytes_per_environment == pytest.approx(total / num_envs)
