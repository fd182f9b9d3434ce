"""Resampled histories: made of training bars alone, in blocks joined by returns, with features of their own bars."""

from __future__ import annotations

import numpy as np
import pytest

import velodrome as vd
from velodrome.bars.frame import Bars, Series
from velodrome.errors import ConfigError, LeakError
from velodrome.tables.resampled import DAY, Resampling, resampled_series, with_resampled
from velodrome.tables.windows import window_at

HOUR = DAY // 24
BARS, SPLITS, FEATURES = 2400, {"train": 0.5, "test": 0.5}, ["log_return", "funding"]


def hourly(bars=BARS, seed=0, later=1.0):
    """Bars of a random walk whose volume numbers them; `later` multiplies all prices of the second half."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.01, bars)))
    opened = np.concatenate([[100.0], close[:-1]]) * np.exp(rng.normal(0.0, 0.001, bars))
    high, low = np.maximum(opened, close) * 1.002, np.minimum(opened, close) * 0.998
    factor = np.where(np.arange(bars) < bars // 2, 1.0, later)
    prices = [factor * column for column in (opened, high, low, close)]
    return Series(np.arange(bars) * HOUR, *prices, np.arange(bars) + 1.0, {"funding": np.arange(bars) * 1e-6})


def market_of(series):
    return vd.build_market(Bars({"X": series}, "1h"), FEATURES, 8, splits=SPLITS, check_leaks=False)


@pytest.fixture(scope="module")
def market():
    return market_of(hourly())


def copy_of(market, how, seed=0):
    """The rows of the one copy: first row, prices, and by volume the number of the bar that each was."""
    joined = with_resampled(market, how._replace(copies=1), seed, FEATURES)
    first = len(market)
    return joined, joined.ohlc[first:], joined.volume[first:].astype(int) - 1


def test_a_copy_is_made_of_blocks_of_training_bars_joined_by_their_returns(market):
    block = 48
    _, prices, source = copy_of(market, Resampling(1, block, 0.0))
    begin, end = market.splits["train"][0]
    assert len(source) == end - begin
    assert begin <= source.min() <= source.max() < end
    seams = np.flatnonzero(np.diff(source) != 1) + 1
    assert len(seams) > 10
    assert np.diff(np.concatenate([[0], seams, [len(source)]])).max() <= 2 * block, "two may follow by chance"
    known = np.flatnonzero(source[1:] > begin) + 1  # the first bar of the split has no close before it
    theirs = market.ohlc[source[known]] / market.ohlc[source[known] - 1, 3][:, None]
    np.testing.assert_allclose(prices[known] / prices[known - 1, 3][:, None], theirs, rtol=1e-9)


def test_blocks_keep_their_time_of_day_where_there_are_days_enough(market):
    joined, _, source = copy_of(market, Resampling(1, 7, 0.0))
    assert np.array_equal(joined.time[len(market) :] % DAY, market.time[source] % DAY)
    short = market_of(hourly(360))
    joined, _, source = copy_of(short, Resampling(1, 7, 0.0))
    assert not np.array_equal(joined.time[len(short) :] % DAY, short.time[source] % DAY)


def test_features_are_those_of_the_copy_and_scaled_as_the_market(market):
    joined, prices, source = copy_of(market, Resampling(1, 5, 0.5))
    (scaler,), last = joined.scalers, joined.begin[1] + 40
    assert scaler == market.scalers[0]
    row = last - len(market)
    returns = np.log(prices[row - 7 : row + 1, 3] / prices[row - 8 : row, 3])
    expected = scaler.apply(np.stack([returns, source[row - 7 : row + 1] * 1e-6], 1), "X")
    windows = joined.windows
    end = int(windows.rows[0, last]) + 1
    np.testing.assert_allclose(windows.values.reshape(-1, 2)[end - 8 : end], expected, rtol=1e-4, atol=1e-5)


def test_nothing_of_a_copy_depends_on_what_comes_after_the_training_split(market):
    how = Resampling(2, 24, 0.3)
    one, other = (with_resampled(each, how, 0, FEATURES) for each in (market, market_of(hourly(later=3.0))))
    first = len(market)
    assert np.array_equal(one.ohlc[first:], other.ohlc[first:])
    assert np.array_equal(one.begin, other.begin)
    for cursor in range(one.begin[1], one.end[2], 97):
        (ours, theirs) = (int(each.windows.rows[0, cursor]) for each in (one, other))
        assert np.array_equal(
            one.windows.values[2 * ours : 2 * ours + 2], other.windows.values[2 * theirs : 2 * theirs + 2]
        )


def test_a_feature_that_knows_the_future_of_a_copy_is_found():
    def tomorrow(series):
        return np.append(series.close[1:] / series.close[:-1] - 1.0, 0.0)

    bars = Bars({"X": hourly()}, "1h")
    chosen = ["log_return", tomorrow]
    blind = vd.build_market(bars, chosen, 2, splits=SPLITS, check_leaks=False)
    with pytest.raises(LeakError, match="tomorrow"):
        with_resampled(blind, Resampling(1, 24, 0.0), 0, chosen)


def test_the_true_history_comes_first_and_is_the_market_itself(market):
    joined = with_resampled(market, Resampling(3, 24, 0.0), 0, FEATURES)
    begin, end = market.splits["train"][0]
    assert (joined.begin[0], joined.end[0]) == (begin, end)
    assert np.array_equal(joined.ohlc[: len(market)], market.ohlc)
    assert np.array_equal(joined.windows.values[: len(market.windows.values)], market.windows.values)
    assert joined.symbols == ("X", "X~1", "X~2", "X~3")
    assert not joined.splits
    assert not any(array.flags.writeable for array in (joined.ohlc, joined.begin, *joined.windows))


def test_windows_of_several_timeframes_and_none_at_all():
    bars = Bars({"X": hourly(), "Y": hourly(seed=1)}, "1h")
    market = vd.build_market(bars, ["log_return"], {"1h": 3, "4h": 2}, splits=SPLITS, check_leaks=False)
    joined = with_resampled(market, Resampling(1, 24, 0.0), 0, ["log_return"])
    assert joined.symbols == ("X", "Y", "X~1", "Y~1")
    windows, cursor = joined.windows, int(joined.begin[3]) + 50
    cursor += 3 - int(joined.time[cursor] // HOUR) % 4  # a coarse bar closes with this one
    closes = joined.ohlc[:, 3]
    mean, deviation = joined.scalers[0].centre[0, 0], joined.scalers[0].scale[0, 0]
    expected = (np.log(closes[cursor - 2 : cursor + 1] / closes[cursor - 3 : cursor]) - mean) / deviation
    np.testing.assert_allclose(window_at(windows, 0, cursor)[:, 0], expected, rtol=1e-4, atol=1e-5)
    mean, deviation = joined.scalers[1].centre[0, 0], joined.scalers[1].scale[0, 0]
    coarse = (np.log(closes[cursor] / closes[cursor - 4]) - mean) / deviation
    assert window_at(windows, 1, cursor)[-1, 0] == pytest.approx(coarse, rel=1e-3, abs=1e-4)
    blind = vd.build_market(bars, ["log_return"], {}, splits=SPLITS, check_leaks=False)
    joined = with_resampled(blind, Resampling(1, 24, 0.0), 0, ["log_return"])
    assert joined.windows.rows.shape == (0, len(joined))
    assert len(joined.begin) == 4


def test_noise_on_prices_is_noise_on_returns_and_bars_stay_bars(market):
    series = hourly()
    noisy = resampled_series(series, Resampling(1, None, 1.5), np.random.default_rng(0))
    plain, moved = (np.diff(np.log(each.close)) for each in (series, noisy))
    assert (moved - plain).std() == pytest.approx(1.5 * plain.std(), rel=0.05)
    assert abs(np.corrcoef(moved[1:], moved[:-1])[0, 1]) < 0.06, "noise on the level would come back in the next bar"
    assert (noisy.high >= np.maximum(noisy.open, noisy.close)).all()
    assert (noisy.low <= np.minimum(noisy.open, noisy.close)).all()


def test_the_same_seed_gives_the_same_bits(market):
    how = Resampling(2, 24, 0.1)
    one, again, other = (with_resampled(market, how, seed, FEATURES).ohlc for seed in (5, 5, 6))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    first, size = len(market), (len(one) - len(market)) // 2
    assert not np.array_equal(one[first : first + size], one[first + size :])


def test_features_that_cannot_be_made_anew_are_refused(market):
    with pytest.raises(ConfigError, match=r"augment.copies makes the features anew .* cannot be done: scalers are for"):
        with_resampled(market, Resampling(1, 24, 0.0), 0, ["log_return"])
