"""`build_market`: contents, hash, protection against writing, and every refusal."""

from __future__ import annotations

import dataclasses
import functools
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from tests.tables.price_data import MINUTE, gappy_bars, gappy_series, with_series
from velodrome.bars.frame import Bars, Series
from velodrome.errors import ConfigError, DataError
from velodrome.tables import Market, build_market
from velodrome.tables.features import indicators
from velodrome.tables.hashing import content_hash
from velodrome.tables.windows import window_at


def test_defaults_are_eight_features_over_32_bars_in_three_splits():
    market = build_market(gappy_bars(1200))
    assert market.windows.length.tolist() == [32]
    assert market.windows.width.tolist() == [8]
    assert market.window_floats == 256
    assert list(market.splits) == ["train", "validation", "test"]
    assert market.timeframe == "1m"
    assert market.window_names == ("1m",)
    assert market.name == "AAA"
    assert market.begin.tolist() == [49 + 31]
    shown = market.windows.values.reshape(-1, 8)
    assert np.isfinite(shown).all()


def test_execution_arrays():
    bars = gappy_bars(700, symbols=("AAA", "BBB"), minutes=15, missing=0.0)
    market = build_market(bars, ["log_return"], 4, name="two")
    for column, name in enumerate(("open", "high", "low", "close")):
        expected = np.concatenate([getattr(bars[symbol], name) for symbol in bars])
        assert_array_equal(market.ohlc[:, column], expected)
    second = bars["BBB"]
    assert_array_equal(market.atr[700:], indicators.atr_from_first_row(second.high, second.low, second.close))
    assert_array_equal(market.columns["funding_rate"][700:], second.extra["funding_rate"])
    day = market.time // (24 * 60 * MINUTE)
    assert_array_equal(market.session_last[:699], day[1:700] != day[:699])
    assert market.session_last[699] == market.session_last[-1] == 1
    assert market.end.tolist() == [700, 1437]
    assert market.begin.tolist() == [4, 704]
    assert market.name == "two"
    assert not np.isnan(market.atr).any()


def test_columns_that_only_some_instruments_have_are_left_out():
    bars = gappy_bars(300, symbols=("AAA", "BBB"))
    plain = dataclasses.replace(bars["BBB"], extra={})
    both = with_series(bars, BBB=plain)
    assert dict(build_market(both, ["close"], 2).columns) == {}
    with pytest.raises(ConfigError, match="no feature or column 'funding_rate'"):
        build_market(both, ["funding_rate"], 2)


def test_features_by_timeframe_and_functions():
    def twice(series):
        return np.stack([series.close, 2 * series.close], axis=1)

    market = build_market(
        gappy_bars(), {"1m": ["close", twice], "5min": ["rsi_3"]}, {"1m": 3, "5m": 2}, scaler="none"
    )  # fmt: skip
    assert market.feature_names == (("close", "twice_0", "twice_1"), ("rsi_3",))
    window = window_at(market.windows, 0, 100)
    assert_array_equal(window[:, 2], 2 * window[:, 0])


def test_no_windows_at_all():
    market = build_market(gappy_bars(100), windows={})
    assert market.window_floats == 0
    assert market.begin.tolist() == [0]
    assert market.windows.rows.shape == (0, 100)


def test_every_array_is_contiguous_and_read_only():
    market = build_market(gappy_bars(300, symbols=("AAA", "BBB")), windows={"1m": 4, "5m": 2}, features=["close"])
    arrays = [getattr(market, field.name) for field in dataclasses.fields(market)]
    arrays += [*market.columns.values(), *market.windows, market.scalers[0].centre, market.scalers[0].scale]
    checked = 0
    for array in arrays:
        if isinstance(array, np.ndarray):
            checked += 1
            assert array.flags.c_contiguous
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    assert checked == 15
    assert market.ohlc.dtype == np.float64
    assert market.session_last.dtype == np.uint8


def test_a_market_survives_pickling():
    market = build_market(gappy_bars(300), ["close"], 2)
    again = pickle.loads(pickle.dumps(market))
    assert again.content_hash == market.content_hash
    assert again.scalers == market.scalers
    assert isinstance(again.split("train"), Market)


def test_the_optimum_belongs_to_the_source_timeframe_only():
    bars = dataclasses.replace(gappy_bars(600), optimum=0.1)
    assert build_market(bars, ["close"], 2).optimum == 0.1
    assert build_market(bars, ["close"], 2, "5m").optimum is None


def test_an_unfinished_last_bar_is_not_traded():
    bars = gappy_bars(303, missing=0.0)
    assert len(build_market(bars, ["close"], 2, "5m", splits={}, scaler="none")) == 60


def test_windows_with_bars_at_odd_times_know_nothing_early():
    # Hourly bars on the half hour lie across the edges of 4-hour bins.
    hourly = gappy_series(400, 0, minutes=60, missing=0.0)
    odd = dataclasses.replace(hourly, time=hourly.time + 30 * MINUTE)
    market = build_market(Bars({"AAA": odd}, "1h"), ["close"], {"4h": 2, "1h": 2}, splits={}, scaler="none")
    for t in range(int(market.begin[0]), 100):
        shown = window_at(market.windows, 0, t)[-1, 0]
        newest = max(row for row in range(len(odd)) if np.float32(odd.close[row]) == shown)
        assert newest <= t


def test_windows_with_bars_closer_than_their_size_know_nothing_early():
    # The hourly bar of 11:30 claims to close at 12:30, but another opens at 11:45, within the 4 hours until 12:00.
    hourly = gappy_series(400, 0, minutes=60, missing=0.0)
    time = hourly.time + 30 * MINUTE
    time[12::24] = time[11::24][: len(time[12::24])] + 15 * MINUTE
    market = build_market(
        Bars({"AAA": dataclasses.replace(hourly, time=time)}, "1h"), ["close"], {"4h": 1}, splits={}, scaler="none"
    )  # fmt: skip
    for t in range(int(market.begin[0]), 100):
        shown = window_at(market.windows, 0, t)[-1, 0]
        assert max(row for row in range(400) if np.float32(hourly.close[row]) == shown) <= t


HASH_SCRIPT = """
import numpy as np
from tests.tables.price_data import gappy_bars
from velodrome.tables import build_market

def chosen(series, names=("close",), weight=0.5):
    allowed = {"close", "open", "volume"}
    return np.where("close" in {"close", "open", "volume"}, series.close, 0.0) * weight * len(allowed)

features = [chosen, "rsi_5", "minute_of_day_sin", "log_return"]
print(build_market(gappy_bars(300), features, {"1m": 3, "5m": 2}).content_hash)
"""


def test_the_hash_is_the_same_in_other_processes():
    hashes = set()
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", HASH_SCRIPT],
            cwd=Path(__file__).parents[2],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        hashes.add(run.stdout.strip())
    assert len(hashes) == 1
    assert len(hashes.pop()) == 64


class Weighted:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, series):
        return series.close * self.weight


def weighted(series, weight=1.0):
    return series.close * weight


def heavier(series, weight=2.0):
    return series.close * weight


def test_the_hash_sees_what_functions_do():
    def closing_over(weight):
        return lambda series: series.close * weight

    different = [
        *(closing_over(1.0), closing_over(2.0), closing_over(np.arange(3)), closing_over(np.arange(1, 4))),
        *(weighted, heavier, functools.partial(weighted, weight=3.0), functools.partial(weighted, weight=4.0)),
        *(Weighted(1.0), Weighted(2.0), Weighted(1.0).__call__, njit(closing_over(3.0)), len, abs),
        *(lambda series: [each + 1 for each in series.close], lambda series: [each + 2 for each in series.close]),
        *(
            {"a": 1},
            {"b": 1},
            ["a", 1],
            "a",
            b"a",
            1,
            1.5,
            None,
            True,
            {"a", "b"},
            object(),
            np.float32([1]),
            np.ones(1),
        ),
    ]
    hashes = [content_hash({"value": value}) for value in different]
    assert len(set(hashes)) == len(hashes)
    assert content_hash({"value": closing_over(2.0)}) == hashes[1]
    assert content_hash({"value": np.float64(1.5)}) == content_hash({"value": 1.5})


def test_the_hash_sees_every_choice_and_every_number():
    bars = gappy_bars(400, symbols=("AAA", "BBB"))
    base = {"bars": bars, "features": ["close", "rsi_5"], "windows": {"1m": 4}}

    def scaled_by(weight):
        return lambda series: series.close * 0 + weight

    nudged = bars["AAA"].close.copy()
    nudged[200] = np.nextafter(nudged[200], 0)
    other = with_series(bars, AAA=dataclasses.replace(bars["AAA"], close=nudged))
    variants = [
        {},
        {"features": ["rsi_5", "close"]},
        {"features": ["close", "rsi_6"]},
        {"windows": {"1m": 5}},
        {"windows": {"1m": 4, "5m": 1}},
        {"timeframe": "5m"},
        {"splits": {"train": 0.5, "test": 0.5}},
        {"embargo": 3},
        {"scaler": "robust"},
        {"scaler": "none"},
        {"clip": 3.0},
        {"per_instrument": True},
        {"session": "1m"},
        {"bars": other},
        {"bars": dataclasses.replace(bars, timezone="Asia/Tokyo")},
        {"features": [("mine", lambda series: series.close * 2)]},
        {"features": [("mine", lambda series: series.close + series.close)]},
        {"features": [("mine", scaled_by(1.0))], "scaler": "none"},
        {"features": [("mine", scaled_by(2.0))], "scaler": "none"},
    ]
    hashes = [build_market(**{**base, **variant}, check_leaks=False).content_hash for variant in variants]
    assert len(set(hashes)) == len(hashes)
    assert build_market(**base).content_hash == hashes[0]
    assert build_market(**base, name="other").content_hash == hashes[0]


def test_a_value_that_goes_missing_later_is_refused():
    rate = gappy_series(300, 0).extra["funding_rate"].copy()
    rate[:10] = np.nan
    series = dataclasses.replace(gappy_series(300, 0), extra={"funding_rate": rate})
    market = build_market(Bars({"AAA": series}, "1m"), ["funding_rate"], 5)
    assert market.begin.tolist() == [14]
    rate[150] = np.nan
    broken = dataclasses.replace(series, extra={"funding_rate": rate})
    with pytest.raises(DataError, match=r"'funding_rate' of 1m is nan for AAA at 2024-03-04 .*row 150, and 1 rows"):
        build_market(Bars({"AAA": broken}, "1m"), ["funding_rate"], 5)
    with pytest.raises(DataError, match="'mine' of 1m is inf for AAA"):
        build_market(Bars({"AAA": series}, "1m"), [("mine", lambda s: np.full(len(s), np.inf))], 5)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"windows": 400}, r"window of 400 bars of 1m needs 401 bars for AAA \(1 of warm-up.*300 exist"),
        ({"windows": {"1h": 20}}, r"window of 20 bars of 1h needs 21 bars"),
        ({"features": ["sma_500"]}, "'sma_500' has no value on any of the 300 bars of 1m of AAA"),
        ({"windows": 299}, "windows are complete on the last 1 only"),
        ({"windows": 0}, "window of 1m is 0 bars long"),
        ({"windows": 2.5}, "window of 1m is 2.5 bars long"),
        ({"windows": {"60m": 2, "1h": 2}}, "windows has a timeframe twice: 60m, 1h are 1h, 1h"),
        ({"windows": {"30s": 2}}, "finer than the bars, which are 1m"),
        ({"timeframe": "30s"}, "execution timeframe 30s is finer"),
        ({"timeframe": "90s"}, "not a multiple of the bars' 1m"),
        ({"features": {"1m": ["close"], "5m": ["close"]}}, "features are given for 1m, 5m and windows for 1m"),
        ({"session": "weekly"}, "session is 'weekly'"),
        ({"scaler": "standrd"}, "Did you mean 'standard'"),
        ({"clip": -1.0}, "clip is -1.0"),
        ({"splits": {"learn": 1.0}}, "scaler 'standard' is fitted on the split 'train', and splits are learn"),
        ({"splits": {}}, "splits are none; add that split"),
    ],
)
def test_refusals(choices, message):
    with pytest.raises(ConfigError, match=message):
        build_market(gappy_bars(300), **{"features": ["log_return"], "windows": 4, **choices})


def test_instruments_that_differ_in_columns_are_refused():
    def odd(series):
        return np.zeros((len(series), 1 + len(series) % 2))

    with pytest.raises(ConfigError, match="gives other columns for BBB"):
        build_market(gappy_bars(300, symbols=("AAA", "BBB")), [odd], 4)


def test_empty_bars_are_refused():
    nothing = np.zeros(0)
    empty = Bars({"AAA": Series(nothing.astype(np.int64), nothing, nothing, nothing, nothing, nothing)}, "1m")
    for bars in (empty, Bars({}, "1m")):
        with pytest.raises(DataError, match="there are no bars"):
            build_market(bars)


def test_two_bars_are_enough_and_one_is_not():
    whole = gappy_bars(300)
    few = Bars({"AAA": whole["AAA"].slice(0, 2)}, "1m")
    assert len(build_market(few, ["close"], 1, splits={}, scaler="none")) == 2
    with pytest.raises(ConfigError, match="at least 2 are needed"):
        build_market(Bars({"AAA": whole["AAA"].slice(0, 1)}, "1m"), ["close"], 1, splits={}, scaler="none")
