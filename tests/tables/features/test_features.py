"""Feature names, columns and functions: what is understood, what is computed and what is refused."""

from __future__ import annotations

import datetime
import zoneinfo

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.tables.price_data import MINUTE, START, gappy_series
from velodrome.errors import ConfigError
from velodrome.tables import describe_features
from velodrome.tables.features import clock, indicators
from velodrome.tables.features.families import DEFAULT_FEATURES, FAMILIES
from velodrome.tables.features.features import compute_features, parse_features

SERIES = gappy_series(200, 1)


def compute(*specs, series=SERIES, timezone="UTC"):
    return compute_features(series, parse_features(specs, tuple(series.extra)), timezone)


def test_every_family_is_described_and_can_be_computed():
    described = describe_features()
    assert {family.example for family in FAMILIES.values()} < set(described)
    for name in [name for name in described if not name.startswith("column:")]:
        values, names = compute(name)
        assert names == (name,)
        assert values.shape == (200, 1)
        assert np.isfinite(values[-1, 0]), name
        assert described[name]


def test_every_family_is_prefix_stable():
    for name in [name for name in describe_features() if not name.startswith("column:")]:
        whole, _ = compute(name)
        for length in (1, 40, 77, 199):
            part, _ = compute(name, series=SERIES.slice(0, length))
            assert_array_equal(part.view(np.int64), whole[:length].view(np.int64), err_msg=name)


def test_there_are_eight_default_features_and_none_follows_the_price_level():
    assert len(DEFAULT_FEATURES) == 8
    doubled = gappy_series(200, 1)
    for name in ("open", "high", "low", "close"):
        object.__setattr__(doubled, name, getattr(doubled, name) * 2.0)
    np.testing.assert_allclose(compute(*DEFAULT_FEATURES, series=doubled)[0], compute(*DEFAULT_FEATURES)[0], rtol=1e-9)


def test_names_mean_what_they_say():
    assert_array_equal(compute("rsi_7")[0][:, 0], indicators.rsi(SERIES.close, 7))
    assert_array_equal(compute("rsi")[0][:, 0], indicators.rsi(SERIES.close, 14))
    assert_array_equal(compute("macd_5_35_5")[0][:, 0], indicators.macd(SERIES.close, 5, 35, 5)[0])
    assert_array_equal(compute("bollinger_10_2.5")[0][:, 0], indicators.bollinger(SERIES.close, 10, 2.5)[0])
    assert_array_equal(compute("log_return_3")[0][:, 0], indicators.log_return(SERIES.close, 3))
    assert_array_equal(compute("close", "funding_rate")[0], np.stack([SERIES.close, SERIES.extra["funding_rate"]], 1))
    assert_array_equal(compute("column:volume")[0][:, 0], SERIES.volume)
    assert_array_equal(compute("ema_distance_10")[0][:, 0], SERIES.close / indicators.ema(SERIES.close, 10) - 1)


def test_a_column_that_is_named_like_a_feature_is_reached_by_its_prefix():
    series = SERIES.slice(0, 50)
    object.__setattr__(series, "extra", {"rsi_14": np.arange(50.0)})
    assert compute("rsi_14", series=series)[0][-1, 0] != 49.0
    assert compute("column:rsi_14", series=series)[0][-1, 0] == 49.0


def test_functions_of_the_bars():
    def spread(series):
        return series.high - series.low

    def pair(series):
        return np.stack([series.open, series.close], axis=1)

    values, names = compute("close", spread, pair, ("mine", lambda series: (series.close > 100).tolist()))
    assert names == ("close", "spread", "pair_0", "pair_1", "mine")
    assert_array_equal(values[:, 1], SERIES.high - SERIES.low)
    assert_array_equal(values[:, 3], SERIES.close)
    assert set(values[:, 4]) <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rsi_0", "period '0'; it must be a whole number of at least 1, as in 'rsi_14'"),
        ("rsi_x", "period 'x'; it must be a whole number"),
        ("rsi_2.5", "period '2.5'"),
        ("rsi_-3", "period '-3'"),
        ("volatility_1", "at least 2"),
        ("ema", "needs its period: write it as 'ema_20'"),
        ("rsi_14_2", "has 2 numbers; rsi takes period"),
        ("gap_3", "has 1 numbers; gap takes none"),
        ("macd_26_12", "fast 26 and slow 12"),
        ("bollinger_20_0", "a number above 0"),
        ("rsl_14", "Did you mean 'rsi'.*Features: log_return.*columns: open.*funding_rate"),
        ("fundng_rate", "Did you mean 'funding_rate'"),
        ("column:foo", "no column 'foo'; there are open, high, low, close, volume, funding_rate"),
        (3, "feature 3 is none of"),
        (("a", "b"), "none of"),
    ],
)
def test_refused_specifications(spec, message):
    with pytest.raises(ConfigError, match=message):
        parse_features([spec], ("funding_rate",))


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ("rsi_14", "a list is needed"),
        ([], "features is empty"),
        (["close", "close"], "close more than once"),
        ([lambda s: s.close, lambda s: s.open], r"lambda more than once.*\('name', function\)"),
    ],
)
def test_refused_lists(specs, message):
    with pytest.raises(ConfigError, match=message):
        parse_features(specs)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda series: series.close[1:], r"returned shape \(199,\) for 200 bars"),
        (lambda series: 3.0, r"returned shape \(\) for 200 bars"),
        (lambda series: np.zeros((200, 2, 2)), r"returned shape \(200, 2, 2\)"),
        (lambda series: np.zeros((200, 0)), r"returned shape \(200, 0\)"),
        (lambda series: None, "returned NoneType|not an array of numbers|returned shape"),
        (lambda series: ["a"] * 200, "not an array of numbers"),
    ],
)
def test_refused_results_of_functions(function, message):
    with pytest.raises(ConfigError, match=message):
        compute(("mine", function))


def test_two_columns_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="mine_0 more than once"):
        compute(("mine", lambda s: np.zeros((len(s), 2))), ("mine_0", lambda s: s.close))


def test_an_error_inside_a_function_says_where():
    def broken(series):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError) as caught:
        compute(broken)
    assert "feature 'broken' on 200 bars" in caught.value.__notes__[0]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo", "Pacific/Auckland", "Pacific/Pago_Pago"])
def test_local_time(zone):
    time = START + np.arange(0, 400 * 24 * 60, 37) * MINUTE
    expected = [datetime.datetime.fromtimestamp(t // 10**9, zoneinfo.ZoneInfo(zone)) for t in time.tolist()]
    assert_array_equal(clock.minute_of_day(time, zone), [moment.hour * 60 + moment.minute for moment in expected])
    assert_array_equal(clock.day_of_week(time, zone), [moment.weekday() for moment in expected])


def test_time_features_lie_on_a_circle():
    values, _ = compute("minute_of_day", "minute_of_day_sin", "minute_of_day_cos", "hour", "day_of_week")
    assert values[:, 0].min() >= 0
    assert values[:, 0].max() < 1
    np.testing.assert_allclose(values[:, 1] ** 2 + values[:, 2] ** 2, 1.0, atol=1e-11)
    np.testing.assert_allclose(values[:, 1], np.sin(2 * np.pi * values[:, 0]), atol=1e-11)
    assert_array_equal(np.floor(values[:, 0] * 24 + 1e-9) / 24, values[:, 3])
    assert set(values[:, 4]) == {0.0}


def test_sessions():
    time = START + np.array([0, 1, 2, 60, 61, 24 * 60, 24 * 60 + 1]) * MINUTE
    close = time + MINUTE
    assert_array_equal(clock.session_ends(time, close, "day", "UTC"), [0, 0, 0, 0, 1, 0, 1])
    assert_array_equal(clock.session_ends(time, close, "30m", "UTC"), [0, 0, 1, 0, 1, 0, 1])
    assert_array_equal(clock.session_ends(time, close, "6h", "UTC"), [0, 0, 0, 0, 1, 0, 1])
    # Midnight in Tokyo is at 15:00 UTC.
    afternoon = time + 14 * 60 * MINUTE
    assert_array_equal(clock.session_ends(afternoon, close, "day", "Asia/Tokyo"), [0, 0, 1, 0, 0, 0, 1])
    assert_array_equal(clock.session_ends(time[:1], close[:1], "day", "UTC"), [1])


@pytest.mark.parametrize("session", ["week", "", "-6h", "0h", 6])
def test_refused_sessions(session):
    with pytest.raises(ConfigError, match="write 'day'"):
        clock.session_gap(session)
