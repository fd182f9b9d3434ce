"""Every recorded trajectory of the multi-coin environment replays through the portfolio rule as FORMAT.md asks."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.shared_data import shared_folder
from velodrome.compat.alpaca_crypto import alpaca_crypto_basket, replay
from velodrome.errors import DataError

PUBLIC = shared_folder("data/alpaca_crypto/public")
FILES = sorted(PUBLIC.glob("*.npz")) if PUBLIC else []
needs_recordings = pytest.mark.skipif(not FILES, reason="the recorded trajectories in ../shared are not here")

EXACT = ("time", "done", "buys", "sells", "ep_offset", "obs_offset", "action")
MONEY = ("cash", "total_asset", "equal_weight_asset", "fees_paid")
TOLERANCE = 1e-5


@needs_recordings
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recording_replays(path):
    recorded = dict(np.load(path, allow_pickle=False))
    config = json.loads(str(recorded["config"]))
    ours = replay(path)
    assert set(recorded) == set(ours)
    for name, array in recorded.items():
        assert ours[name].shape == array.shape, name
        assert ours[name].dtype == array.dtype, name
    for name in EXACT:
        np.testing.assert_array_equal(ours[name], recorded[name], err_msg=name)
    for name in MONEY:
        atol = TOLERANCE * config["initial_capital"]
        np.testing.assert_allclose(ours[name], recorded[name], rtol=0, atol=atol, err_msg=name)
    np.testing.assert_allclose(ours["holdings"], recorded["holdings"], rtol=TOLERANCE, atol=0)
    tolerance = TOLERANCE * np.maximum(1e-3, np.abs(recorded["reward"]))
    assert (np.abs(ours["reward"] - recorded["reward"]) <= tolerance).all()
    np.testing.assert_allclose(ours["obs"], recorded["obs"], rtol=TOLERANCE, atol=1e-7)
    assert recorded["buys"].max() > 0 < recorded["sells"].max()


@needs_recordings
def test_the_uncompiled_rule_replays_too():
    path = PUBLIC / "three_assets.npz"
    ours, theirs = replay(path, compiled=False), replay(path)
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


@needs_recordings
def test_the_recordings_reach_what_they_are_for():
    reached = {path.stem: json.loads(str(np.load(path)["config"])) for path in FILES}
    for name in ("trailing_stop_pct", "min_cash_reserve", "concentration_penalty", "time_decay_floor"):
        assert any(config.get(name) for config in reached.values()), name
    assert any((np.load(path)["price"] == 0.0).any() for path in FILES)


def test_another_file_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", price=np.ones((9, 2)))
    with pytest.raises(DataError, match=r"no recording of this environment: it has no config"):
        replay(tmp_path / "other.npz")


def test_data_that_the_original_could_not_play_is_refused():
    with pytest.raises(DataError, match="at least 11"):
        alpaca_crypto_basket(np.ones((10, 2)), np.ones((10, 4)), lookback=5)
    price = np.ones((20, 2))
    price[0, 1] = 0.0
    with pytest.raises(DataError, match="the first row has a missing price"):
        alpaca_crypto_basket(price, np.ones((20, 4)), lookback=5)
