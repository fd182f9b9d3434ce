"""Several instruments on one grid, against a slow build that looks up one value at a time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import velodrome as vd
from tests.tables.price_data import MINUTE, START, gappy_bars, gappy_series
from velodrome.bars.frame import Bars, Series
from velodrome.errors import ConfigError, DataError, LeakError
from velodrome.tables import prepare, stretches
from velodrome.tables.basket import per_instrument
from velodrome.tables.choices import Choices, OnGrid
from velodrome.tables.features import cross_section
from velodrome.tables.leaks import find_leaks
from velodrome.tables.windows import window_at

FEATURES = ["log_return", "rsi_14", "rank:log_return", "zscore:range", "market_return"]


def ragged_bars(rows: int = 300) -> Bars:
    """Three instruments with gaps; the second is listed late, the third ends early."""
    first, second, third = (gappy_series(rows, seed) for seed in (1, 2, 3))
    return Bars({"AAA": first, "BBB": second.slice(90, rows), "CCC": third.slice(0, rows - 60)}, "1m", "UTC")


@pytest.fixture(scope="module")
def bars() -> Bars:
    return ragged_bars()


def unscaled(bars: Bars, features=FEATURES, windows=3, **choices):
    return vd.build_basket(bars, features=features, windows=windows, splits={}, scaler="none", **choices)


def test_the_grid_has_a_row_wherever_any_instrument_has_a_bar(bars):
    basket = unscaled(bars)
    times = sorted({int(time) for symbol in bars for time in bars[symbol].time})
    np.testing.assert_array_equal(basket.time, times)
    for row, time in enumerate(times):
        for column, symbol in enumerate(bars):
            series = bars[symbol]
            at = {int(time): place for place, time in enumerate(series.time)}
            before = [place for place, earlier in enumerate(series.time) if earlier <= time]
            assert basket.tradable[row, column] == (time in at)
            assert basket.close[row, column] == (series.close[before[-1]] if before else 0.0)
            opened = series.open[at[time]] if time in at else basket.close[row, column]
            assert basket.open[row, column] == opened
    assert 0 < basket.tradable.mean() < 1
    assert not basket.tradable[0, 1]
    assert not basket.tradable[-1, 2]


def slow_rows(bars: Bars, basket: vd.Basket) -> np.ndarray:
    """[T, K, F] of FEATURES, one bar at a time."""
    market = {
        symbol: vd.build_market(
            Bars({symbol: bars[symbol]}, "1m", "UTC"),
            features=["log_return", "rsi_14", "range", "return"],
            windows=1,
            splits={},
            scaler="none",
            check_leaks=False,
        )
        for symbol in bars
    }
    own = np.full((len(basket), len(bars.symbols), 4), np.nan)
    for column, symbol in enumerate(bars):
        for place, time in enumerate(bars[symbol].time):
            row = int(np.searchsorted(basket.time, time))
            known = place >= market[symbol].begin[0]
            values = window_at(market[symbol].windows, 0, place)[0].astype(float)
            # The warm-up of rsi_14 is longest: before it the market shows 0, and the others are worked out here.
            close = bars[symbol].close
            simple = close[place] / close[place - 1] - 1.0 if place else np.nan
            spread = (bars[symbol].high[place] - bars[symbol].low[place]) / close[place]
            own[row, column] = np.log1p(simple), values[1] if known else np.nan, spread, simple
    rows = np.full((len(basket), len(bars.symbols), len(FEATURES)), np.nan)
    for row in range(len(basket)):
        rows[row] = rows[row - 1] if row else np.nan
        here = [column for column in range(own.shape[1]) if basket.tradable[row, column]]
        returns = {column: own[row, column, 0] for column in here if not np.isnan(own[row, column, 0])}
        spreads = [own[row, column, 2] for column in here]
        simple = [own[row, column, 3] for column in here if not np.isnan(own[row, column, 3])]
        for column in here:
            rows[row, column, :2] = own[row, column, :2]
            others = [value for other, value in returns.items() if other != column]
            mine = returns.get(column, np.nan)
            rows[row, column, 2] = np.mean([mine > other for other in others]) if others else 0.5
            if column not in returns:
                rows[row, column, 2] = np.nan
            deviation = np.std(spreads)
            rows[row, column, 3] = (own[row, column, 2] - np.mean(spreads)) / deviation if deviation > 1e-12 else 0.0
        rows[row, :, 4] = np.mean(simple) if simple else np.nan
    return rows


def test_features_and_comparisons_are_those_of_a_slow_build(bars):
    basket = unscaled(bars)
    expected = slow_rows(bars, basket)
    known = ~np.isnan(expected)
    for cursor in range(int(basket.begin[0]), int(basket.end[0])):
        shown = per_instrument(window_at(basket.windows, 0, cursor), 3).astype(float)
        assert shown.shape == (3, 3, len(FEATURES))
        for age in range(3):
            row = cursor - 2 + age
            wanted = np.where(known[row], expected[row], 0.0)
            np.testing.assert_allclose(shown[:, age], wanted, rtol=2e-5, atol=2e-6)
    assert basket.feature_names[0][:3] == ("AAA log_return", "AAA rsi_14", "AAA rank:log_return")
    assert len(basket.feature_names[0]) == 15


def test_a_coarser_window_ends_at_a_bar_that_every_present_instrument_had_closed(bars):
    basket = unscaled(bars, ["close", "rank:close"], {"1m": 2, "5m": 2})
    for cursor in range(int(basket.begin[0]), int(basket.end[0]), 7):
        shown = per_instrument(window_at(basket.windows, 1, cursor), 3)
        moment = int(basket.time[cursor]) + MINUTE
        for column, symbol in enumerate(bars):
            series = bars[symbol]
            bins = series.time // (5 * MINUTE)
            over = np.flatnonzero((bins + 1) * 5 * MINUTE <= moment)
            if len(over):
                assert shown[column, -1, 0] == np.float32(series.close[over[-1]])


def test_decisions_begin_when_enough_instruments_have_complete_windows(bars):
    starts = [int(unscaled(bars, min_instruments=count).begin[0]) for count in (1, 2, 3)]
    assert starts[0] <= starts[1] < starts[2]
    late = int(np.argmax(unscaled(bars).tradable[:, 1]))
    assert starts[2] >= late + 14
    with pytest.raises(ConfigError, match=r"min_instruments is 4; legal: 1 … 3"):
        unscaled(bars, min_instruments=4)


def test_an_instrument_that_has_ended_does_not_count_among_those_with_complete_windows():
    first, second, third = (gappy_series(rows=300, seed=seed) for seed in (1, 2, 3))
    # The second begins after the first has ended, so two at a time are there from the third's beginning only.
    bars = Bars({"AAA": first.slice(0, 100), "BBB": second.slice(120, 300), "CCC": third.slice(150, 300)}, "1m", "UTC")
    basket = unscaled(bars, ["log_return"], min_instruments=2)
    alive = [int(np.argmax(basket.tradable[:, column])) for column in range(3)]
    assert alive[1] < alive[2] <= int(basket.begin[0])
    with pytest.raises(ConfigError, match="no row on which 3 of 3 instruments have complete windows"):
        unscaled(bars, ["log_return"], min_instruments=3)


def test_scalers_see_the_training_split_only_and_each_bar_once(bars):
    basket = vd.build_basket(bars, features=["log_return"], windows=2)
    begin, end = basket.splits["train"][0]
    shown = np.zeros((0, 1))
    for symbol in bars:
        series = bars[symbol]
        returns = np.r_[np.nan, np.diff(np.log(series.close))]
        inside = (series.time >= basket.time[begin - 1]) & (series.time <= basket.time[end - 1]) & ~np.isnan(returns)
        shown = np.concatenate([shown, returns[inside, None]])
    np.testing.assert_allclose(basket.scalers[0].centre[0], shown.mean(axis=0), rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(basket.scalers[0].scale[0], shown.std(axis=0), rtol=1e-9)
    each = vd.build_basket(bars, features=["log_return"], windows=2, per_instrument=True)
    assert each.scalers[0].centre.shape == (3, 1)
    again = vd.build_basket(bars, features=["log_return"], windows=2, scalers=each.scalers)
    np.testing.assert_array_equal(again.windows.values, each.windows.values)


def test_an_instrument_that_is_listed_after_the_training_split_cannot_have_a_scaler_of_its_own(bars):
    late = Bars({**bars.series, "DDD": bars["AAA"].slice(270, 300)}, "1m", "UTC")
    vd.build_basket(late, features=["log_return"], windows=2)
    with pytest.raises(ConfigError, match=r"DDD has no bar with every feature.*per_instrument=False"):
        vd.build_basket(late, features=["log_return"], windows=2, per_instrument=True)


def test_a_split_restricts_the_rows(bars):
    basket = vd.build_basket(bars, features=["log_return"], windows=2)
    test = basket.split("test")
    assert (int(test.begin[0]), int(test.end[0])) == basket.splits["test"][0]
    assert test.stretches == ("the grid",)
    with pytest.raises(ConfigError, match="Did you mean 'test'"):
        basket.split("tset")


def test_the_content_hash_follows_data_and_choices(bars):
    def digest(source: Bars = bars, **choices) -> str:
        return vd.build_basket(source, **{"features": ["log_return"], "windows": 2, **choices}).content_hash

    series = bars["AAA"]
    close = series.close.copy()
    close[-1] = (close[-1] + series.high[-1]) / 2.0
    changed = Series(series.time, series.open, series.high, series.low, close, series.volume)
    digests = [
        digest(), digest(windows=3), digest(features=["log_return", "market_return"]), digest(scaler="robust"),
        digest(Bars({**bars.series, "AAA": changed}, "1m", "UTC")), digest(embargo=2),
    ]  # fmt: skip
    assert len(set(digests)) == len(digests)
    assert digest() == digests[0]


def test_a_basket_is_read_from_a_folder(tmp_path):
    for symbol in ("AAA", "BBB"):
        series = gappy_series(80, len(symbol))
        lines = ["time,open,high,low,close,volume"]
        for row in range(80):
            time = np.datetime64(int(series.time[row]), "ns").astype("datetime64[s]")
            prices = ",".join(repr(float(getattr(series, name)[row])) for name in ("open", "high", "low", "close"))
            lines.append(f"{time},{prices},{series.volume[row]}")
        (tmp_path / f"{symbol}.csv").write_text("\n".join(lines))
    basket = vd.build_basket(str(tmp_path), features=["log_return"], windows=2)
    assert basket.symbols == ("AAA", "BBB")
    with pytest.raises(ValueError, match="read-only"):
        basket.close[0, 0] = 1.0


def two_columns(series: Series) -> np.ndarray:
    return np.column_stack([series.close, series.open])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (["ranc:close"], "Did you mean 'rank'"),
        (["rank:"], "needs a feature of one instrument after the colon"),
        (["rank:mean:close"], "needs a feature of one instrument after the colon"),
        (["rank:close", "rank:close"], "rank:close more than once"),
        ("rank:close", "a list is needed"),
        (["rank:clos"], "no feature or column 'clos'"),
        ([two_columns, "rank:two_columns"], "compares 'two_columns', .* the columns two_columns_0, two_columns_1"),
    ],
)
def test_a_wrong_comparison_is_refused(features, message, bars):
    with pytest.raises(ConfigError, match=message):
        unscaled(bars, features)


def test_a_listing_that_is_too_short_for_its_features_can_be_left_out(bars):
    brief = Bars({"AAA": bars["AAA"], "NEW": bars["BBB"].slice(0, 10)}, "1m", "UTC")
    with pytest.raises(ConfigError, match=r"of NEW: .* or leave it out \(symbols= without NEW\)"):
        unscaled(brief)


def test_ranks_share_their_place_when_values_are_equal():
    values = np.array([[1.0, 2.0, 2.0, np.nan], [3.0, np.nan, np.nan, np.nan], [np.nan] * 4, [5.0, 4.0, 3.0, 2.0]])
    expected = [[0.0, 0.75, 0.75, np.nan], [0.5] + [np.nan] * 3, [np.nan] * 4, [1.0, 2 / 3, 1 / 3, 0.0]]
    np.testing.assert_allclose(cross_section.rank(values), expected)


def test_a_zscore_of_equal_values_is_nothing():
    values = np.array([[0.1, 0.1, 0.1], [np.nan, 7.0, np.nan], [1.0, 3.0, np.nan]])
    expected = [[0.0, 0.0, 0.0], [np.nan, 0.0, np.nan], [-1.0, 1.0, np.nan]]
    np.testing.assert_array_equal(cross_section.zscore(values), expected)


def tomorrow(series):
    return np.append(series.close[1:] / series.close[:-1] - 1.0, 0.0)


def test_a_feature_that_looks_ahead_is_caught(bars):
    with pytest.raises(LeakError, match="tomorrow"):
        vd.build_basket(bars, features=["log_return", tomorrow], windows=2)
    with pytest.raises(LeakError, match="tomorrow"):
        vd.build_basket(bars, features=["log_return", ("tomorrow", tomorrow), "rank:tomorrow"], windows=2)


def test_a_comparison_that_looks_ahead_is_caught(bars, monkeypatch):
    def hasty(values):
        return cross_section.rank(values) + np.nanmax(values, initial=-1.0)

    monkeypatch.setitem(cross_section.COMPARISONS, "rank", cross_section.Comparison("", hasty))
    with pytest.raises(LeakError, match="rank:log_return"):
        vd.build_basket(bars, features=["rank:log_return"], windows=2)


def test_an_alignment_that_looks_ahead_is_caught(bars, monkeypatch):
    honest = stretches.carried_rows

    def hasty(present):
        """Fill a hole with the bar after it."""
        following = len(present) - 1 - honest(present[::-1])[::-1]
        return np.where(following < len(present), following, honest(present))

    monkeypatch.setattr(stretches, "carried_rows", hasty)
    choices = Choices(bars, OnGrid(), ["close"], 2, splits={"train": 0.7}, scaler="none")
    assert not find_leaks(prepare.prepare(choices)).passed


def test_a_scaler_that_is_fitted_on_everything_is_caught(bars, monkeypatch):
    honest = prepare.training_rows

    def everything(made, spans, train, *rest):
        return honest(made, spans, ((train[0][0], len(made[0].time)),), *rest)

    monkeypatch.setattr(prepare, "training_rows", everything)
    with pytest.raises(LeakError, match="scaler 'log_return'"):
        vd.build_basket(bars, features=["log_return"], windows=2)


def test_coarse_windows_and_sessions_do_not_leak():
    hours = gappy_bars(400, seed=5, symbols=("AAA", "BBB"), hours=(9, 16), timezone="America/New_York")
    late = Bars({**hours.series, "CCC": gappy_series(200, 9).slice(120, 200)}, "1m", "America/New_York")
    basket = vd.build_basket(late, features=["log_return", "zscore:close"], windows={"1m": 3, "15m": 2, "1h": 2})
    assert basket.time[0] >= START
    assert [shape[0] for shape in zip(basket.windows.length, strict=True)] == [3, 2, 2]


def days_from(hour: int, rows: int = 400) -> Series:
    """A random walk by hours, cut into days that begin at some hour."""
    hourly = 100.0 * np.exp(np.cumsum(np.random.default_rng(5).normal(0.0, 0.01, 24 * (rows + 2))))
    parts = hourly[hour : hour + 24 * rows].reshape(rows, 24)
    time = START + (np.arange(rows) * 24 + hour) * 60 * MINUTE
    return Series(time, parts[:, 0], parts.max(axis=1), parts.min(axis=1), parts[:, -1], np.ones(rows))


def test_bars_that_overlap_are_refused():
    """The day from midnight closes after the day from five o'clock has opened: that open would be known in advance."""
    apart = Bars({"BTC": days_from(0), "SPY": days_from(5)}, "1d", "UTC")
    with pytest.raises(DataError, match=r"begin at different times.*05:00.*finer bars"):
        vd.build_basket(apart, features=["log_return"], windows=3)
    together = Bars({"BTC": days_from(5), "SPY": days_from(5)}, "1d", "UTC")
    assert len(vd.build_basket(together, features=["log_return"], windows=3)) == 400


def test_a_row_that_holds_a_bar_which_closes_after_it_is_refused():
    """An hourly bar from 03:30 reaches into the next four hours, whose first price of others is known by then."""
    hours = [gappy_series(300, seed, minutes=60, missing=0.0) for seed in (1, 2)]
    late = dataclasses.replace(hours[1], time=hours[1].time + 30 * MINUTE)
    odd = Bars({"AAA": hours[0], "BBB": late}, "1h", "UTC")
    with pytest.raises(LeakError, match=r"of 4h, BBB.*closes after the row does"):
        vd.build_basket(odd, ["log_return"], {"1d": 2}, "4h")
