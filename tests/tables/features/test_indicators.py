"""Every indicator against TA-Lib, against its own prefixes bit for bit, and over a million rows without drift."""

from __future__ import annotations

import math

import numpy as np
import pytest
import talib

from velodrome.tables.features import indicators, rolling
from velodrome.tables.features.families import FAMILIES


def random_columns(rows: int, seed: int = 0, price: float = 100.0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    close = price * np.exp(np.cumsum(generator.normal(0, 0.01, rows)))
    open_ = close * np.exp(generator.normal(0, 0.004, rows))
    high = np.maximum(open_, close) * (1 + generator.uniform(0, 0.01, rows))
    low = np.minimum(open_, close) * (1 - generator.uniform(0, 0.01, rows))
    volume = np.round(generator.uniform(1_000, 50_000, rows))
    columns = {"open_": open_, "high": high, "low": low, "close": close, "volume": volume}
    for column in columns.values():
        column.flags.writeable = False
    return columns


def log_returns(close):
    return np.concatenate([[np.nan], np.diff(np.log(close))])


# name: (ours, TA-Lib's); both take the columns
PARITY = {
    "return": (lambda c: indicators.return_(c["close"], 3), lambda c: talib.ROCP(c["close"], 3)),
    "momentum": (lambda c: indicators.momentum(c["close"], 10), lambda c: talib.MOM(c["close"], 10)),
    "sma": (lambda c: indicators.sma(c["close"], 20), lambda c: talib.SMA(c["close"], 20)),
    "sma_1": (lambda c: indicators.sma(c["close"], 1), lambda c: c["close"]),
    "ema": (lambda c: indicators.ema(c["close"], 10), lambda c: talib.EMA(c["close"], 10)),
    "rsi": (lambda c: indicators.rsi(c["close"], 14), lambda c: talib.RSI(c["close"], 14)),
    "macd": (lambda c: indicators.macd(c["close"])[0], lambda c: talib.MACD(c["close"])[0]),
    "macd_signal": (lambda c: indicators.macd(c["close"])[1], lambda c: talib.MACD(c["close"])[1]),
    "macd_hist": (lambda c: indicators.macd(c["close"])[2], lambda c: talib.MACD(c["close"])[2]),
    "macd_5_35_5": (lambda c: indicators.macd(c["close"], 5, 35, 5)[2], lambda c: talib.MACD(c["close"], 5, 35, 5)[2]),
    "bollinger_upper": (lambda c: indicators.bollinger(c["close"], 20)[3], lambda c: talib.BBANDS(c["close"], 20)[0]),
    "bollinger_middle": (lambda c: indicators.bollinger(c["close"], 20)[2], lambda c: talib.BBANDS(c["close"], 20)[1]),
    "bollinger_lower": (lambda c: indicators.bollinger(c["close"], 20)[1], lambda c: talib.BBANDS(c["close"], 20)[2]),
    "deviation": (lambda c: rolling.rolling_moments(c["close"], 7)[1], lambda c: talib.STDDEV(c["close"], 7)),
    "atr": (
        lambda c: indicators.atr(c["high"], c["low"], c["close"], 14),
        lambda c: talib.ATR(c["high"], c["low"], c["close"], 14),
    ),
    "natr": (
        lambda c: indicators.natr(c["high"], c["low"], c["close"], 14),
        lambda c: talib.NATR(c["high"], c["low"], c["close"], 14),
    ),
    "max": (lambda c: indicators.highest(c["high"], 9), lambda c: talib.MAX(c["high"], 9)),
    "min": (lambda c: indicators.lowest(c["low"], 9), lambda c: talib.MIN(c["low"], 9)),
    "stochastic_d": (
        lambda c: indicators.stochastic(c["high"], c["low"], c["close"], 14)[1],
        lambda c: talib.STOCHF(c["high"], c["low"], c["close"], 14, 3)[1],
    ),
    "williams_r": (
        lambda c: indicators.williams_r(c["high"], c["low"], c["close"], 14),
        lambda c: talib.WILLR(c["high"], c["low"], c["close"], 14),
    ),
    "cci": (
        lambda c: indicators.cci(c["high"], c["low"], c["close"], 20),
        lambda c: talib.CCI(c["high"], c["low"], c["close"], 20),
    ),
    "obv": (lambda c: indicators.obv(c["close"], c["volume"]), lambda c: talib.OBV(c["close"], c["volume"])),
    "adx": (
        lambda c: indicators.adx(c["high"], c["low"], c["close"], 14),
        lambda c: talib.ADX(c["high"], c["low"], c["close"], 14),
    ),
    "mfi": (
        lambda c: indicators.mfi(c["high"], c["low"], c["close"], c["volume"], 14),
        lambda c: talib.MFI(c["high"], c["low"], c["close"], c["volume"], 14),
    ),
    "volatility": (
        lambda c: indicators.volatility(c["close"], 20),
        lambda c: np.concatenate([[np.nan], talib.STDDEV(log_returns(c["close"])[1:], 20)]),
    ),
    "zscore": (
        lambda c: indicators.zscore(c["volume"], 50),
        lambda c: (c["volume"] - talib.SMA(c["volume"], 50)) / talib.STDDEV(c["volume"], 50),
    ),
    "log_return": (lambda c: indicators.log_return(c["close"]), lambda c: log_returns(c["close"])),
}

# name: ours, where TA-Lib has nothing like it or another warm-up
OTHERS = {
    "bollinger": lambda c: indicators.bollinger(c["close"], 20)[0],
    "stochastic_k": lambda c: indicators.stochastic(c["high"], c["low"], c["close"], 14)[0],
    "sma_distance": lambda c: FAMILIES["sma_distance"].function(c["close"], c["close"], 50),
    "ema_distance": lambda c: FAMILIES["ema_distance"].function(c["close"], c["close"], 50),
    "gap": lambda c: indicators.gap(c["open_"], c["close"]),
    "range": lambda c: FAMILIES["range"].function(c["high"], c["low"], c["close"]),
    "body": lambda c: FAMILIES["body"].function(c["open_"], c["close"]),
    "atr_from_first_row": lambda c: indicators.atr_from_first_row(c["high"], c["low"], c["close"]),
}


@pytest.mark.parametrize("name", PARITY)
def test_agrees_with_talib_and_has_its_warm_up(name):
    ours, theirs = PARITY[name]
    columns = random_columns(400)
    value, expected = ours(columns), theirs(columns)
    np.testing.assert_array_equal(np.isnan(value), np.isnan(expected))
    # The absolute part is for values near zero (a MACD that crosses it), in units of the prices.
    np.testing.assert_allclose(value, expected, rtol=1e-8, atol=1e-10)


def test_fast_stochastic_agrees_after_talibs_warm_up():
    columns = random_columns(200)
    prices = columns["high"], columns["low"], columns["close"]
    fast = indicators.stochastic(*prices, 14)[0]
    np.testing.assert_allclose(fast[15:], talib.STOCHF(*prices, 14, 3)[0][15:], rtol=1e-8)
    assert np.isnan(fast[:13]).all()
    assert not np.isnan(fast[13:]).any()


@pytest.mark.parametrize("name", [*PARITY, *OTHERS])
def test_a_prefix_gives_the_same_bits(name):
    ours = PARITY[name][0] if name in PARITY else OTHERS[name]
    columns = random_columns(300, seed=3)
    whole = ours(columns)
    assert whole.dtype == np.float64
    for length in [0, 1, 2, 13, 14, 15, 33, 34, 35, 59, 60, 61, 127, 200, 299]:
        prefix = {key: column[:length] for key, column in columns.items()}
        np.testing.assert_array_equal(ours(prefix).view(np.int64), whole[:length].view(np.int64))


def test_no_drift_over_a_million_rows():
    generator = np.random.default_rng(1)
    values = 1e5 + np.cumsum(generator.normal(0, 1, 1_000_000)) * 0.01
    total = rolling.rolling_total(values, 50, False)
    mean, deviation = rolling.rolling_moments(values, 50)
    for t in (49, 50, 99_999, 523_456, 999_999):
        window = [float(value) for value in values[t - 49 : t + 1]]
        exact = math.fsum(window)
        square = math.fsum((value - exact / 50) ** 2 for value in window)
        assert total[t] == pytest.approx(exact, rel=1e-14)
        assert mean[t] == pytest.approx(exact / 50, rel=1e-14)
        assert deviation[t] == pytest.approx(math.sqrt(square / 50), rel=1e-9)


def test_logarithm_is_within_one_unit_in_the_last_place():
    generator = np.random.default_rng(2)
    values = np.concatenate([np.exp(generator.uniform(-300, 300, 5000)), 1 + generator.normal(0, 1e-3, 5000), [1.0]])
    expected = np.array([math.log(value) for value in values])
    assert np.all(np.abs(rolling.natural_log(values) - expected) <= 1.01 * np.spacing(np.abs(expected)))
    special = rolling.natural_log(np.array([0.0, -1.0, np.nan, np.inf]))
    assert np.isnan(special[:3]).all()
    assert special[3] == np.inf


def test_flat_prices_give_neutral_values():
    flat = {name: np.full(60, 100.0) for name in ("open_", "high", "low", "close", "volume")}
    prices = flat["high"], flat["low"], flat["close"]
    assert indicators.rsi(flat["close"], 14)[-1] == 50.0
    assert indicators.stochastic(*prices, 14)[0][-1] == 50.0
    assert indicators.williams_r(*prices, 14)[-1] == -50.0
    assert indicators.mfi(*prices, flat["volume"], 14)[-1] == 50.0
    assert indicators.cci(*prices, 20)[-1] == 0.0
    assert indicators.zscore(flat["close"], 20)[-1] == 0.0
    assert indicators.bollinger(flat["close"], 20)[0][-1] == 0.0
    assert indicators.adx(*prices, 14)[-1] == 0.0


def test_atr_without_warm_up_is_the_running_mean_and_then_wilders():
    columns = random_columns(40)
    prices = columns["high"], columns["low"], columns["close"]
    value = indicators.atr_from_first_row(*prices)
    ranges = indicators.true_range(*prices)
    assert value[0] == columns["high"][0] - columns["low"][0]
    assert value[5] == pytest.approx(ranges[:6].mean())
    np.testing.assert_allclose(value[14:], talib.ATR(*prices, 14)[14:], rtol=1e-12)
    assert not np.isnan(value).any()
