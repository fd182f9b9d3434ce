"""Honest features that look suspicious: the leak check must let them pass."""

from __future__ import annotations

import numpy as np
import polars as pl
from numba import njit
from numpy.lib.stride_tricks import sliding_window_view

from tests.tables.planted import (
    DAY,
    Function,
    Planted,
    average,
    closes,
    ewm,
    expanding_z,
    first_of,
    hysteresis,
    joined,
    remembering,
    returns,
    very_slow,
    within,
)
from tests.tables.price_data import MINUTE
from velodrome.bars.frame import Bars, Series

HONEST: dict[str, Planted] = {}


def allow(name: str, function: Function) -> None:
    HONEST[name] = Planted(lambda bars: function)


@njit
def kalman(values: np.ndarray) -> np.ndarray:
    level, variance, result = values[0] if len(values) else 0.0, 1.0, np.empty(len(values))
    for t in range(len(values)):
        variance += 1e-3
        gain = variance / (variance + 0.1)
        level += gain * (values[t] - level)
        variance *= 1.0 - gain
        result[t] = level
    return result


@njit
def since_high(values: np.ndarray) -> np.ndarray:
    highest, at, result = -np.inf, 0, np.empty(len(values))
    for t in range(len(values)):
        if values[t] > highest:
            highest, at = values[t], t
        result[t] = t - at
    return result


def one_sided_fourier(series: Series) -> np.ndarray:
    """A causal filter by multiplication of spectra, padded so that nothing wraps around."""
    weights = 0.8 ** np.arange(64)
    size = 2 ** int(np.ceil(np.log2(len(series) + 64)))
    spectrum = np.fft.rfft(series.close, size) * np.fft.rfft(weights / weights.sum(), size)
    return np.fft.irfft(spectrum, size)[: len(series)]


def windows_times_weights(series: Series) -> np.ndarray:
    padded = np.concatenate([np.full(19, series.close[0] if len(series) else 0.0), series.close])
    return sliding_window_view(padded, 20) @ np.linspace(0.1, 1.0, 20) if len(series) else np.zeros(0)


def means_by_weekday(series: Series) -> np.ndarray:
    frame = pl.DataFrame({"value": returns(series), "weekday": series.time // DAY % 7})
    running = pl.col("value").cum_sum() / pl.int_range(1, pl.len() + 1)
    return frame.select(running.over("weekday")).to_series().to_numpy()


def hour(series: Series) -> np.ndarray:
    return (series.time // (60 * MINUTE) % 24).astype(float)


allow("lagged close", lambda s: closes(s).shift(1))
allow("rolling mean", lambda s: closes(s).rolling_mean(20))
allow("rolling z-score", lambda s: (closes(s) - closes(s).rolling_mean(50)) / (closes(s).rolling_std(50) + 1e-9))
allow(
    "rolling rank",
    lambda s: np.append(
        np.full(min(29, len(s)), np.nan),
        (sliding_window_view(s.close, 30) <= s.close[29:, None]).mean(1) if len(s) > 29 else [],
    ),
)
allow("rolling median of a day", lambda s: closes(s).rolling_median(360, min_samples=1))
allow("exponential average", average)
allow("slow exponential average", lambda s: ewm(s.close, 5000.0))
allow("average of pandas' kind", lambda s: closes(s).ewm_mean(span=10, adjust=False))
allow("expanding z-score", expanding_z)
allow(
    "expanding minimum and maximum",
    lambda s: (
        (s.close - np.minimum.accumulate(s.close))
        / (np.maximum.accumulate(s.close) - np.minimum.accumulate(s.close) + 1e-9)
    ),
)
allow("running volume", lambda s: np.cumsum(s.volume))
allow("balance of volume", lambda s: np.cumsum(np.sign(returns(s)) * s.volume))
allow("convolution", lambda s: np.convolve(s.close, np.ones(7) / 7)[: len(s)])
allow("long convolution", lambda s: np.convolve(returns(s), 0.97 ** np.arange(200))[: len(s)])
allow("one-sided Fourier filter", one_sided_fourier)
allow("windows times weights", windows_times_weights)
allow("Kalman filter", lambda s: kalman(s.close))
allow("very slow loop", lambda s: very_slow(s, np.zeros(len(s), int)))
allow("hour of the day", hour)
allow("weekday in circles", lambda s: np.stack([np.sin(s.time // DAY % 7), np.cos(s.time // DAY % 7)], axis=1))
allow("month", lambda s: s.time.astype("datetime64[ns]").astype("datetime64[M]").astype(float) % 12)
allow("drawdown from the highest", lambda s: s.close / np.maximum.accumulate(s.close) - 1.0)
allow("time since the highest", lambda s: since_high(s.close))
allow(
    "session price by volume",
    lambda s: within(s, (pl.col("close") * pl.col("volume")).cum_sum() / (pl.col("volume").cum_sum() + 1e-9)),
)
allow("running volume of the day", lambda s: within(s, pl.col("volume").cum_sum()))
allow("bar of the day", lambda s: within(s, pl.int_range(pl.len())).astype(float))
allow("means by weekday", means_by_weekday)
allow("hysteresis", lambda s: hysteresis(returns(s)))
allow("threshold", lambda s: (returns(s) > 0.002).astype(float))
allow("constant", lambda s: np.full(len(s), 0.25))
allow("row number", lambda s: np.arange(len(s), dtype=float))
allow("long warm-up", lambda s: closes(s).rolling_mean(700))
allow("funding and volume", lambda s: np.stack([s.extra["funding_rate"], np.log1p(s.volume)], axis=1))
allow("plain loop", lambda s: [s.close[max(0, t - 3)] for t in range(len(s))])
allow("needs forty bars", lambda s: s.close if len(s) >= 40 else [][1])
allow("gap before the bar", lambda s: np.diff(s.time, prepend=s.time[:1]) / MINUTE)
allow("change over a day", lambda s: s.close / closes(s).shift(360).to_numpy() - 1.0)
allow("sums of differences", lambda s: np.cumsum(np.append(returns(s)[:1], np.diff(returns(s)))))
allow("clipped outliers", lambda s: np.clip(returns(s), -0.004, 0.004))
allow("a fixed scale", lambda s: (s.close - 100.0) / 25.0)


def other_data(bars: Bars) -> Function:
    return joined(bars, lambda series: np.random.default_rng(8).normal(size=len(series)).cumsum())


def scaled_by_first_tenth(bars: Bars) -> Function:
    early = first_of(bars).close[: len(first_of(bars)) // 10]
    mean, deviation = early.mean(), early.std()
    return lambda series: (series.close - mean) / deviation


HONEST |= {
    "joined table of other data": Planted(other_data),
    "joined own past": Planted(lambda bars: joined(bars, lambda s: ewm(returns(s), 10))),
    "kept by what the bars hold": Planted(lambda bars: remembering(bars, lambda s: s.close.tobytes(), average)),
    "scaled by the first tenth": Planted(scaled_by_first_tenth),
}
