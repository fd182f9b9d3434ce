"""Windows of several timeframes against a plain loop that knows nothing of the package's resampling or alignment."""

from __future__ import annotations

import dataclasses
import datetime
import zoneinfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.tables.price_data import MINUTE, gappy_bars, gappy_series, with_series
from velodrome.bars.frame import Bars
from velodrome.tables import build_market
from velodrome.tables.leaks.cuts import altered_after
from velodrome.tables.windows import window_at


def bin_of(time: int, timeframe: str, timezone: str) -> tuple[int, int]:
    """Begin and end of the bin that a time falls in, one time at a time."""
    count, unit = int(timeframe[:-1]), timeframe[-1]
    if unit in "mh":
        length = count * MINUTE * (60 if unit == "h" else 1)
        return time - time % length, time - time % length + length
    assert timeframe == "1d"
    zone = zoneinfo.ZoneInfo(timezone)
    day = datetime.datetime.fromtimestamp(time // 10**9, zone).date()
    midnights = [
        datetime.datetime(each.year, each.month, each.day, tzinfo=zone)
        for each in (day, day + datetime.timedelta(days=1))
    ]
    return tuple(int(midnight.timestamp()) * 10**9 for midnight in midnights)  # type: ignore[return-value]


def slow_bars(series, source: str, timeframe: str, timezone: str) -> list[tuple[int, int, float, float, int]]:
    """(open time, close time, close, volume, last source row) of each finished bin; the source bars if it is theirs."""
    source_length = bin_of(0, source, timezone)[1]
    bars: list[list] = []
    for row, time in enumerate(series.time.tolist()):
        begin, end = (time, time + source_length) if timeframe == source else bin_of(time, timeframe, timezone)
        if bars and bars[-1][0] == begin:
            bars[-1][2], bars[-1][4] = series.close[row], row
            bars[-1][3] += series.volume[row]
        else:
            bars.append([begin, end, series.close[row], series.volume[row], row])
    known = int(series.time[-1]) + source_length
    return [tuple(bar) for bar in bars if bar[1] <= known]


def check_against_loop(bars: Bars, execution: str, windows: dict[str, int]) -> None:
    market = build_market(
        bars, ["close", "volume"], windows, execution, splits={}, scaler="none", check_leaks=True
    )  # fmt: skip
    row = 0
    for index, symbol in enumerate(bars):
        series = bars[symbol]
        traded = slow_bars(series, bars.timeframe, execution, bars.timezone)
        tables = {each: slow_bars(series, bars.timeframe, each, bars.timezone) for each in windows}
        first = row
        begin = None
        for open_time, close_time, close, volume, _ in traded:
            assert market.time[row] == open_time
            assert market.ohlc[row, 3] == close
            assert market.volume[row] == pytest.approx(volume)
            full = True
            for place, (timeframe, length) in enumerate(windows.items()):
                seen = [bar for bar in tables[timeframe] if bar[1] <= close_time]
                full &= len(seen) >= length
                expected = np.zeros((length, 2), np.float32)
                for back, bar in enumerate(reversed(seen[-length:])):
                    expected[length - 1 - back] = bar[2], bar[3]
                np.testing.assert_allclose(window_at(market.windows, place, row), expected, rtol=1e-6)
            begin = row if full and begin is None else begin
            row += 1
        assert market.begin[index] == begin
        assert market.end[index] == row
        assert_array_equal(market.session_last[row - 1], 1)
        assert row - first == len(traded)
    assert len(market) == row


@pytest.mark.parametrize(
    ("execution", "windows"),
    [
        ("1m", {"1m": 5, "5m": 4, "1h": 2}),
        ("5m", {"1m": 7, "5m": 3, "15m": 2}),
        ("15m", {"1m": 3}),
        ("1h", {"1h": 3, "1m": 30}),
        ("5m", {"7m": 3}),
    ],
)
def test_windows_with_gaps_and_two_instruments(execution, windows):
    check_against_loop(gappy_bars(500, 5, ("AAA", "BBB"), hours=(9, 13)), execution, windows)


def test_days_in_a_time_zone_over_a_change_of_clocks():
    # New York changes its clocks on 2024-03-10.
    bars = gappy_bars(1500, 2, timezone="America/New_York", minutes=15, missing=0.02)
    check_against_loop(bars, "15m", {"15m": 2, "1d": 3})
    check_against_loop(bars, "1d", {"1h": 5, "1d": 2})


def test_weeks_of_daily_bars():
    # Sundays 2024-03-10 and 2024-11-03 have 23 and 25 hours in New York; their bars close the week all the same.
    zone = zoneinfo.ZoneInfo("America/New_York")
    first = datetime.date(2024, 1, 1)
    days = [first + datetime.timedelta(days=day) for day in range(320)]
    midnights = [datetime.datetime(day.year, day.month, day.day, tzinfo=zone) for day in days]
    series = dataclasses.replace(
        gappy_series(320, 0), time=np.array([int(midnight.timestamp()) * 10**9 for midnight in midnights])
    )
    bars = Bars({"AAA": series}, "1d", "America/New_York")
    market = build_market(bars, ["close"], {"1w": 1, "1d": 1}, splits={}, scaler="none")
    for t in range(int(market.begin[0]), 320):
        sunday = t - (days[t].weekday() + 1) % 7
        assert window_at(market.windows, 0, t)[0, 0] == np.float32(series.close[sunday])
        assert window_at(market.windows, 1, t)[0, 0] == np.float32(series.close[t])


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    execution=st.sampled_from(["1m", "5m", "30m"]),
    others=st.sets(st.sampled_from(["1m", "3m", "15m", "1h"]), min_size=1),
    missing=st.floats(0.0, 0.6),
)
def test_windows_of_random_choices(seed, execution, others, missing):
    check_against_loop(gappy_bars(250, seed, missing=missing), execution, dict.fromkeys(sorted(others), 2))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 1000), share=st.floats(0.3, 0.99))
def test_altering_the_future_changes_no_window_until_then(seed, share):
    bars = gappy_bars(600, seed, hours=(9, 16))
    features = ["log_return", "rsi_5", "macd_hist_3_6_3", "volume_z_10", "funding_rate", "volatility_5"]
    choices = {"features": features, "windows": {"5m": 3, "1m": 8, "15m": 2}, "timeframe": "5m", "splits": {}}
    market = build_market(bars, **choices, scaler="none", check_leaks=False)
    bar = int(market.begin[0] + share * (len(market) - 1 - market.begin[0]))
    keep = int(np.searchsorted(bars["AAA"].time, market.time[bar] + 5 * MINUTE))
    later = with_series(bars, AAA=altered_after(bars["AAA"], keep))
    other = build_market(later, **choices, scaler="none", check_leaks=False)
    for t in range(int(market.begin[0]), bar + 1):
        for place in range(3):
            assert window_at(market.windows, place, t).tobytes() == window_at(other.windows, place, t).tobytes()
    assert_array_equal(market.atr[: bar + 1], other.atr[: bar + 1])
    if keep < len(bars["AAA"]):
        assert market.content_hash != other.content_hash


def test_a_coarse_bar_that_closes_with_the_execution_bar_is_shown_and_no_later_one():
    bars = gappy_bars(300, missing=0.0)
    market = build_market(bars, ["close"], {"5m": 1}, splits={}, scaler="none")
    for t in range(int(market.begin[0]), 60):
        minute = t % 5
        closed = t if minute == 4 else t - minute - 1
        assert window_at(market.windows, 0, t)[0, 0] == np.float32(market.ohlc[closed, 3])
