"""Bar sizes and resampling, the latter against a slow and obvious oracle."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velodrome.bars.frame import Series
from velodrome.bars.timeframe import (
    DAY,
    HOUR,
    MINUTE,
    bin_edges,
    describe_time,
    infer_timeframe,
    parse_timeframe,
    resample,
    without_gaps,
)
from velodrome.errors import ConfigError


def nanoseconds(text: str) -> int:
    return int(np.datetime64(text, "ns").astype(np.int64))


def series_at(time, seed: int = 0) -> Series:
    stream = np.random.default_rng(seed)
    time = np.asarray(time, np.int64)
    opened, closed = stream.uniform(90, 110, (2, len(time)))
    high = np.maximum(opened, closed) + stream.uniform(0, 1, len(time))
    low = np.minimum(opened, closed) - stream.uniform(0, 1, len(time))
    volume = stream.integers(0, 50, len(time)).astype(float)
    return Series(time, opened, high, low, closed, volume, {"spread": stream.uniform(0, 1, len(time))})


@pytest.mark.parametrize(
    ("spelled", "text"),
    [
        ("1m", "1m"),
        ("1min", "1m"),
        ("1Min", "1m"),
        ("5T", "5m"),
        ("M5", "5m"),
        ("60m", "1h"),
        ("1H", "1h"),
        ("1hour", "1h"),
        ("4h", "4h"),
        ("90 minutes", "90m"),
        ("1D", "1d"),
        ("24h", "1d"),
        ("D1", "1d"),
        ("7d", "1w"),
        ("1W", "1w"),
        ("1mo", "1mo"),
        ("MN1", "1mo"),
        ("1MS", "1mo"),
        ("250ms", "250ms"),
        ("day", "1d"),
    ],
)
def test_spellings(spelled, text):
    assert parse_timeframe(spelled).text == text
    assert parse_timeframe(parse_timeframe(spelled)) == parse_timeframe(text)


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("1M", "Write '1m' or '1mo'"),
        ("5x", "unknown unit 'x'"),
        ("1hou", "Did you mean 'hour'"),
        ("0m", "not positive"),
        ("m5m", "not a count and a unit"),
        (5, "a text is needed"),
    ],
)
def test_spellings_refused(spelled, message):
    with pytest.raises(ConfigError, match=message):
        parse_timeframe(spelled)


def test_order_and_length():
    sizes = [parse_timeframe(text) for text in ("1mo", "1m", "1w", "1d", "90m", "1h", "1s")]
    assert [size.text for size in sorted(sizes)] == ["1s", "1m", "1h", "90m", "1d", "1w", "1mo"]
    assert parse_timeframe("5m").nanoseconds == 5 * MINUTE
    assert parse_timeframe("1mo").nanoseconds is None
    assert parse_timeframe("5m").divides(parse_timeframe("1h"))
    assert parse_timeframe("1h").divides(parse_timeframe("1mo"))
    assert parse_timeframe("1mo").divides(parse_timeframe("3mo"))
    assert not parse_timeframe("7m").divides(parse_timeframe("1h"))
    assert not parse_timeframe("1w").divides(parse_timeframe("1mo"))


@pytest.mark.parametrize("text", ["1s", "1m", "5m", "15m", "1h", "4h", "1d", "1w"])
def test_infer_fixed_sizes_with_gaps(text):
    length = parse_timeframe(text).typical_nanoseconds
    steps = np.array([1, 1, 3, 1, 2, 1, 1])
    assert infer_timeframe(np.r_[0, np.cumsum(steps)] * length).text == text


def test_infer_months_and_local_days():
    months = np.arange("2019-11", "2021-02", dtype="datetime64[M]").astype("datetime64[ns]").astype(np.int64)
    assert infer_timeframe(months).text == "1mo"
    assert infer_timeframe(np.arange(9) * 28 * DAY).text == "4w"
    quarters = months[::3]
    assert infer_timeframe(quarters).text == "3mo"
    days, _ = bin_edges(nanoseconds("2020-03-05T12:00") + np.arange(9) * DAY, parse_timeframe("1d"), "America/New_York")
    assert infer_timeframe(days).text == "1d"


def next_date(day: date, text: str) -> date:
    if text == "1mo":
        return date(day.year + day.month // 12, day.month % 12 + 1, 1)
    return day + timedelta(days=7 if text == "1w" else 1)


def bin_of(time: int, text: str, zone: str) -> tuple[int, int]:
    """Return start and end of the bin by Python's own calendar."""
    fixed = {"5m": 5 * MINUTE, "1h": HOUR, "4h": 4 * HOUR}
    if text in fixed:
        start = time // fixed[text] * fixed[text]
        return start, start + fixed[text]
    local = datetime.fromtimestamp(time / 1e9, UTC).astimezone(ZoneInfo(zone)).date()
    if text == "1w":
        local -= timedelta(days=local.weekday())
    if text == "1mo":
        local = local.replace(day=1)
    edges = [datetime(d.year, d.month, d.day, tzinfo=ZoneInfo(zone)) for d in (local, next_date(local, text))]
    return tuple(int(edge.timestamp()) * 10**9 for edge in edges)


def slow_resample(series: Series, text: str, zone: str) -> list[tuple]:
    bars: dict[tuple[int, int], list[int]] = {}
    for row, time in enumerate(series.time.tolist()):
        bars.setdefault(bin_of(time, text, zone), []).append(row)
    return [
        (
            start,
            end,
            series.open[rows[0]],
            max(series.high[rows]),
            min(series.low[rows]),
            series.close[rows[-1]],
            sum(series.volume[rows]),
            series.extra["spread"][rows[-1]],
        )
        for (start, end), rows in sorted(bars.items())
    ]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    begin=st.sampled_from(["2020-03-06T13:30", "2020-10-30T13:30", "2020-12-30T23:57"]),
    text=st.sampled_from(["5m", "1h", "4h", "1d", "1w", "1mo"]),
    zone=st.sampled_from(["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata"]),
    step=st.sampled_from([MINUTE, 30 * MINUTE]),
)
def test_resample_matches_the_oracle(seed, begin, text, zone, step):
    stream = np.random.default_rng(seed)
    slots = np.flatnonzero(stream.random(400) < 0.5)  # half of the bars are missing
    slots = slots[(slots < 100) | (slots > 250)]
    series = series_at(nanoseconds(begin) + slots * step, seed)
    bars, close_time = resample(series, text, zone)
    expected = slow_resample(series, text, zone)
    columns = (bars.time, close_time, bars.open, bars.high, bars.low, bars.close, bars.volume, bars.extra["spread"])
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    assert close_time.dtype == np.int64


def test_days_have_23_and_25_hours_when_clocks_change():
    hours = nanoseconds("2020-03-07T12:00") + np.arange(60) * HOUR
    bars, close_time = resample(series_at(hours), "1d", "America/New_York")
    assert ((close_time - bars.time) // HOUR).tolist() == [24, 23, 24]
    hours = nanoseconds("2020-10-31T12:00") + np.arange(60) * HOUR
    bars, close_time = resample(series_at(hours), "1d", "America/New_York")
    assert ((close_time - bars.time) // HOUR).tolist() == [24, 25, 24]


def test_midnight_that_clocks_skip_gives_a_day_of_23_hours():
    hours = nanoseconds("2018-11-03T12:00") + np.arange(48) * HOUR
    bars, close_time = resample(series_at(hours), "1d", "America/Sao_Paulo")
    assert ((close_time - bars.time) // HOUR).tolist() == [24, 23, 24]
    assert np.array_equal(close_time[:-1], bars.time[1:])


def test_resample_to_the_own_size_changes_nothing():
    series = series_at(nanoseconds("2020-01-01") + np.array([0, 1, 2, 5, 6]) * 5 * MINUTE)
    bars, close_time = resample(series, "5m")
    assert np.array_equal(bars.time, series.time)
    assert np.array_equal(bars.high, series.high)
    assert np.array_equal(close_time, series.time + 5 * MINUTE)


def test_resample_of_nothing_and_of_unknown_zone():
    bars, close_time = resample(series_at([]), "1d")
    assert len(bars) == len(close_time) == 0
    with pytest.raises(ConfigError, match="Did you mean 'America/New_York'"):
        resample(series_at([0, HOUR]), "1d", "America/NewYork")


def test_missing_bars_are_filled_with_the_last_close():
    columns = {"open": [1.0, 4.0], "high": [3.0, 6.0], "low": [0.5, 3.5], "close": [2.0, 5.0], "volume": [7.0, 8.0]}
    filled = without_gaps(Series(np.array([0, 3 * HOUR]), **columns), HOUR)
    np.testing.assert_array_equal(filled.time, np.arange(4) * HOUR)
    np.testing.assert_array_equal(filled.open, [1.0, 2.0, 2.0, 4.0])
    np.testing.assert_array_equal(filled.high, [3.0, 2.0, 2.0, 6.0])
    np.testing.assert_array_equal(filled.low, [0.5, 2.0, 2.0, 3.5])
    np.testing.assert_array_equal(filled.close, [2.0, 2.0, 2.0, 5.0])
    np.testing.assert_array_equal(filled.volume, [7.0, 0.0, 0.0, 8.0])


def test_a_time_is_told_to_the_second_or_as_fine_as_it_is():
    noon = 1_577_880_000_000_000_000
    assert describe_time(noon) == "2020-01-01 12:00:00"
    assert describe_time(noon + 6_000_000) == "2020-01-01 12:00:00.006"
