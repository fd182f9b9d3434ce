"""Every recorded TorchTrade trajectory replays through the trading rule within the tolerances of its FORMAT.md."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.shared_data import shared_folder
from velodrome.compat.torchtrade import replay, torchtrade_market
from velodrome.errors import ConfigError, DataError

PUBLIC = shared_folder("data/torchtrade/public")
FILES = sorted(path for path in PUBLIC.glob("*.npz") if not path.stem.startswith("data_")) if PUBLIC else []
needs_recordings = pytest.mark.skipif(not FILES, reason="the recorded trajectories in ../shared are not here")

EXACT = (
    "ep_offset", "ep_start_index", "ep_end_index", "ep_reset_ts", "ep_reset_ohlcv", "ep_complete", "bar_index",
    "bar_ts", "bar_ohlcv", "hold_counter", "terminated", "truncated", "soft",
)  # fmt: skip


@needs_recordings
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recording_replays(path):
    recorded = dict(np.load(path, allow_pickle=False))
    header = json.loads(str(recorded["config"]))
    ours = replay(path)
    assert set(recorded) <= set(ours)
    for name, array in recorded.items():
        assert ours[name].shape == array.shape, name
        assert ours[name].dtype == array.dtype, name
    for name in (*EXACT, *header["windows"]):
        np.testing.assert_array_equal(ours[name], recorded[name], err_msg=name)
    cash = 1e-9 * max(1.0, header["config"]["initial_cash"])
    hard = ~recorded["soft"]
    for name in ("balance", "portfolio_value"):
        np.testing.assert_allclose(ours[name][hard], recorded[name][hard], rtol=0, atol=cash, err_msg=name)
    for name in ("position_size", "entry_price", "liquidation_price", "stop_loss", "take_profit"):
        np.testing.assert_allclose(ours[name][hard], recorded[name][hard], rtol=1e-9, atol=0, err_msg=name)
    np.testing.assert_allclose(ours["reward64"][hard], recorded["reward64"][hard], rtol=0, atol=1e-9)
    for name in ("reward", "account_state"):
        tolerance = 1.2e-7 * np.maximum(1.0, np.abs(recorded[name][hard]))
        assert (np.abs(ours[name][hard] - recorded[name][hard]) <= tolerance).all(), name
    np.testing.assert_array_equal(ours["ep_reset_account_state"], recorded["ep_reset_account_state"])
    np.testing.assert_array_equal(ours["ep_reset_portfolio_value"], recorded["ep_reset_portfolio_value"])
    soft = recorded["soft"]
    assert (np.abs(ours["portfolio_value"][soft]) <= 1e-6 * header["config"]["initial_cash"]).all()


@needs_recordings
def test_the_event_labels_are_those_of_the_package():
    differing = []
    for path in FILES:
        recorded = np.load(path, allow_pickle=False)
        differing.append(int((replay(path)["event"] != recorded["event"]).sum()))
    assert sum(differing) == 0, dict(zip([path.stem for path in FILES], differing, strict=True))


@needs_recordings
def test_the_uncompiled_rule_replays_too():
    path = PUBLIC / "spot_max_traj_2.npz"
    ours, theirs = replay(path, compiled=False), replay(path)
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


@needs_recordings
def test_a_recording_without_its_data_file_says_what_is_missing(tmp_path):
    copy = tmp_path / "spot_max_traj_2.npz"
    copy.write_bytes((PUBLIC / copy.name).read_bytes())
    with pytest.raises(DataError, match=r"recorded over data_a.*missing beside it"):
        replay(copy)


def _minutes(count):
    price = np.full(count, 100.0)
    time = np.arange(count) * 60_000_000_000
    return {"timestamp": time, "open": price, "high": price, "low": price, "close": price, "volume": price}


def test_windows_longer_than_the_data_are_refused():
    with pytest.raises(DataError, match="leave no usable bar"):
        torchtrade_market(_minutes(100), ["1h"], [10], "1h")


def test_each_time_frame_needs_a_window_size():
    with pytest.raises(ConfigError, match="2 time frames but 1 window sizes"):
        torchtrade_market(_minutes(100), ["1min", "5min"], [10], "1min")
