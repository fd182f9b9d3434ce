"""Synthetic bars: the same bits again, the stated process, and the stated optimum."""

from __future__ import annotations

import numpy as np
import pytest

from velodrome.bars import synthetic_bars
from velodrome.bars.synthetic import KINDS, short_log_return
from velodrome.errors import ConfigError

COLUMNS = ("time", "open", "high", "low", "close", "volume")


def log_returns(series) -> np.ndarray:
    return np.diff(np.log(np.r_[series.open[0], series.close]))


def log_return_of(position, returns) -> float:
    return float(np.log1p(position * np.expm1(returns)).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_bits_and_prefix(kind):
    long, again = synthetic_bars(kind, 5000, 7), synthetic_bars(kind, 5000, 7)
    short, other = synthetic_bars(kind, 1234, 7), synthetic_bars(kind, 5000, 8)
    name = f"{kind}_0"
    for column in COLUMNS:
        assert np.array_equal(getattr(long[name], column), getattr(again[name], column))
        assert np.array_equal(getattr(short[name], column), getattr(long[name], column)[:1234])
    assert not np.array_equal(long[name].close, other[name].close)


@pytest.mark.parametrize("kind", KINDS)
def test_bars_are_consistent(kind):
    series = synthetic_bars(kind, 20_000, 1)[f"{kind}_0"]
    assert np.array_equal(series.open[1:], series.close[:-1])
    assert np.all(series.high >= np.maximum(series.open, series.close))
    assert np.all(series.low <= np.minimum(series.open, series.close))
    assert np.all(series.low > 0)
    assert np.all(series.volume > 0)
    assert np.mean(series.high > np.maximum(series.open, series.close)) > 0.99
    assert np.all(np.diff(series.time) == 60 * 10**9)


def test_symbols_have_their_own_streams():
    three, two = synthetic_bars("gbm", 500, symbols=3), synthetic_bars("gbm", 500, symbols=["gbm_0", "second"])
    assert three.symbols == ("gbm_0", "gbm_1", "gbm_2")
    assert np.array_equal(three["gbm_1"].close, two["second"].close)
    correlation = np.corrcoef(log_returns(three["gbm_0"]), log_returns(three["gbm_1"]))[0, 1]
    assert abs(correlation) < 0.2


def test_times_follow_timeframe_and_start():
    monthly = synthetic_bars("gbm", 3, timeframe="1mo", start="2020-02-10")["gbm_0"]
    assert monthly.time.astype("datetime64[ns]").astype("datetime64[D]").astype(str).tolist() == [
        "2020-02-01",
        "2020-03-01",
        "2020-04-01",
    ]
    bars = synthetic_bars("gbm", 3, timeframe="1Min", start="2020-02-10T09:30")
    assert bars.timeframe == "1m"
    assert str(bars["gbm_0"].time.astype("datetime64[ns]")[1]) == "2020-02-10T09:31:00.000000000"


def test_stated_moments():
    returns = log_returns(synthetic_bars("gbm", 400_000, drift=2e-5)["gbm_0"])
    assert returns.mean() == pytest.approx(2e-5, abs=5e-6)
    assert returns.std() == pytest.approx(1e-3, rel=0.01)

    returns = log_returns(synthetic_bars("ar1", 400_000)["ar1_0"])
    assert np.corrcoef(returns[1:], returns[:-1])[0, 1] == pytest.approx(0.3, abs=0.01)
    assert returns.std() == pytest.approx(1e-3 / np.sqrt(1 - 0.09), rel=0.01)
    assert np.mean(np.sign(returns[1:]) == np.sign(returns[:-1])) == pytest.approx(0.597, abs=0.005)

    log_price = np.log(synthetic_bars("ou", 400_000)["ou_0"].close / 100)
    assert log_price.std() == pytest.approx(1e-3 / np.sqrt(1 - 0.95**2), rel=0.05)
    assert np.corrcoef(log_price[1:], log_price[:-1])[0, 1] == pytest.approx(0.95, abs=0.01)

    up_and_down = ((1e-3, 1e-4), (-1e-3, 1e-4))
    returns = log_returns(synthetic_bars("regimes", 400_000, persistence=0.9, states=up_and_down)["regimes_0"])
    assert np.mean((returns[1:] > 0) == (returns[:-1] > 0)) == pytest.approx(0.9, abs=0.01)
    assert np.mean(returns > 0) == pytest.approx(0.5, abs=0.02)


def test_gbm_optimum():
    assert synthetic_bars("gbm", 2).optimum == 0
    assert synthetic_bars("gbm", 2, drift=1e-4).optimum == pytest.approx(1e-4)
    falling = synthetic_bars("gbm", 400_000, drift=-1e-3, volatility=1e-2)
    assert falling.optimum == pytest.approx(1e-3 - 1e-6 - 1e-4, rel=1e-3)  # −m − m² − volatility²
    simulated = np.log(2 - np.exp(np.random.default_rng(0).normal(-1e-3, 1e-2, 10_000_000))).mean()
    assert falling.optimum == pytest.approx(simulated, rel=0.01)


@pytest.mark.parametrize("settings", [{}, {"phi": -0.5, "volatility": 0.01}, {"phi": 0.2, "drift": 1e-4}])
def test_ar1_optimum_matches_monte_carlo(settings):
    bars = synthetic_bars("ar1", 1_000_000, 5, **settings)
    phi, volatility = settings.get("phi", 0.3), settings.get("volatility", 1e-3)
    drift = settings.get("drift", 0.0)
    returns = log_returns(bars["ar1_0"])
    mean = drift + phi * (returns[:-1] - drift)
    position = np.where(mean > 0, 1, np.where(short_log_return(mean, volatility) > 0, -1, 0))
    assert bars.optimum == pytest.approx(log_return_of(position, returns[1:]), rel=0.01)


def test_ou_optimum_matches_monte_carlo():
    bars = synthetic_bars("ou", 1_000_000, 5, reversion=0.5)
    series = bars["ou_0"]
    mean = -0.5 * np.log(series.open / 100)
    position = np.where(mean > 0, 1, np.where(short_log_return(mean, 1e-3) > 0, -1, 0))
    assert bars.optimum == pytest.approx(log_return_of(position, log_returns(series)), rel=0.01)


def test_optimum_is_none_where_it_is_not_known():
    assert synthetic_bars("regimes", 2).optimum is None
    assert synthetic_bars("gbm", 2, volatility=0.1).optimum is None  # a short position may be ruined


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "gmb"}, "Did you mean 'gbm'"),
        ({"length": 1}, "length is 1"),
        ({"price": 0.0}, "price is 0.0"),
        ({"volatility": -1.0}, "volatility is -1.0"),
        ({"phi": 1.0}, "phi is 1.0"),
        ({"reversion": 0.0}, "reversion is 0.0"),
        ({"kind": "ou", "drift": 1e-4}, "only gbm, ar1 and factors"),
        ({"symbols": 0}, "symbols is 0"),
        ({"symbols": ["a", "a"]}, "distinct names"),
        ({"states": [(0.0, 1.0)]}, "2 or 3 pairs"),
        ({"start": "yesterday"}, "start is 'yesterday'"),
        ({"timeframe": "1M"}, "minutes or months"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        synthetic_bars(**{"kind": "gbm", "length": 10, **arguments})
