"""Indicators as plain functions of float64 columns: row t uses rows up to t only, and is NaN while there are too few.

Conventions are TA-Lib's (and checked against it) unless a docstring says otherwise. The loops are the kernels of
`rolling`; what is written in NumPy here is elementwise arithmetic, which gives the same bits on any prefix.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.tables.features import rolling

Values: TypeAlias = NDArray[np.float64]


def _ratio(numerator: Values, denominator: Values, when_zero: float) -> Values:
    """Divide, with a neutral value where the denominator is 0; NaN stays NaN."""
    zero = denominator == 0.0
    return np.where(zero, when_zero, numerator / np.where(zero, 1.0, denominator))


def _previous(values: Values, period: int = 1) -> Values:
    """The value `period` rows ago; NaN on the first rows."""
    out = np.full(len(values), np.nan)
    out[period:] = values[: max(len(values) - period, 0)]
    return out


def _after(first: int, values: Values) -> Values:
    """Put `first` rows of NaN in front of values that are known from that row on."""
    return np.concatenate([np.full(first, np.nan), values])


def return_(close: Values, period: int = 1) -> Values:
    """Simple return over `period` rows, as a fraction (TA-Lib ROCP)."""
    return close / _previous(close, period) - 1.0


def rate_of_change(close: Values, period: int) -> Values:
    return 100.0 * return_(close, period)


def momentum(close: Values, period: int) -> Values:
    return close - _previous(close, period)


def log_return(close: Values, period: int = 1) -> Values:
    return rolling.natural_log(close / _previous(close, period))


def sma(values: Values, period: int) -> Values:
    return rolling.rolling_total(values, period, False) / period


def ema(values: Values, period: int, seed_row: int | None = None) -> Values:
    """Exponential mean with weight 2/(period + 1), seeded by the mean of the first `period` rows or up to a row."""
    return rolling.recursive_mean(values, period, period - 1 if seed_row is None else seed_row, False)


def _wilder(values: Values, period: int) -> Values:
    """Wilder's mean with weight 1/period, seeded by the mean of `period` rows after the first."""
    return rolling.recursive_mean(values, period, period, True)


def zscore(values: Values, period: int) -> Values:
    """Distance from the rolling mean in rolling standard deviations (population); 0 where that deviation is 0."""
    mean, deviation = rolling.rolling_moments(values, period)
    return _ratio(values - mean, deviation, 0.0)


def highest(values: Values, period: int) -> Values:
    return rolling.rolling_total(values, period, True)


def lowest(values: Values, period: int) -> Values:
    return -rolling.rolling_total(-values, period, True)


def rsi(close: Values, period: int) -> Values:
    """Wilder's relative strength index, 0 … 100. Without any movement it is 50 (TA-Lib: 0)."""
    change = close - _previous(close)
    gain = _wilder(np.maximum(change, 0.0), period)
    loss = _wilder(np.maximum(-change, 0.0), period)
    return _ratio(100.0 * gain, gain + loss, 50.0)


def macd(close: Values, fast: int = 12, slow: int = 26, signal: int = 9) -> tuple[Values, Values, Values]:
    """Line, signal and histogram, all three known from row slow + signal − 2, as in TA-Lib.

    As there, the fast mean is seeded on the same row as the slow one.
    """
    seed_row = slow - 1
    line = ema(close, fast, seed_row) - ema(close, slow, seed_row)
    smooth = _after(min(seed_row, len(close)), ema(line[seed_row:], signal))
    line = np.where(np.isnan(smooth), np.nan, line)
    return line, smooth, line - smooth


def bollinger(close: Values, period: int, width: float = 2.0) -> tuple[Values, Values, Values, Values]:
    """Position within the band (close − middle)/(width·deviation), then lower, middle and upper band.

    The deviation is the population's; the position is 0 where it is 0.
    """
    middle, deviation = rolling.rolling_moments(close, period)
    half = width * deviation
    return _ratio(close - middle, half, 0.0), middle - half, middle, middle + half


def volatility(close: Values, period: int) -> Values:
    """Population standard deviation of the last `period` log returns."""
    if len(close) == 0:
        return np.zeros(0)
    return _after(1, rolling.rolling_moments(log_return(close)[1:], period)[1])


def true_range(high: Values, low: Values, close: Values) -> Values:
    """Largest of high − low and the distances of high and low from the previous close; high − low on the first row."""
    before = _previous(close)
    spread = high - low
    return np.fmax(spread, np.fmax(np.abs(high - before), np.abs(low - before)))


def atr(high: Values, low: Values, close: Values, period: int) -> Values:
    """Wilder's average true range in price units, known from row `period` on (the first row has no previous close)."""
    return _wilder(true_range(high, low, close), period)


def natr(high: Values, low: Values, close: Values, period: int) -> Values:
    """Average true range as a percentage of the close."""
    return 100.0 * atr(high, low, close, period) / close


def atr_from_first_row(high: Values, low: Values, close: Values, period: int = 14) -> Values:
    """`atr`, with the mean of the true ranges so far while that has no value; never NaN."""
    ranges = true_range(high, low, close)
    so_far = np.cumsum(ranges[:period]) / np.arange(1, min(period, len(ranges)) + 1)
    out = _wilder(ranges, period)
    out[:period] = so_far
    return out


def stochastic(high: Values, low: Values, close: Values, period: int, smooth: int = 3) -> tuple[Values, Values]:
    """Fast %K and %D, 0 … 100. %K is known from row period − 1 on (TA-Lib withholds it until %D is known too).

    50 where the range is 0 (TA-Lib: 0).
    """
    bottom = lowest(low, period)
    fast = _ratio(100.0 * (close - bottom), highest(high, period) - bottom, 50.0)
    first = min(period - 1, len(close))
    return fast, _after(first, sma(fast[first:], smooth))


def williams_r(high: Values, low: Values, close: Values, period: int) -> Values:
    """Williams %R, −100 … 0; −50 where the range is 0 (TA-Lib: 0)."""
    top = highest(high, period)
    return _ratio(-100.0 * (top - close), top - lowest(low, period), -50.0)


def cci(high: Values, low: Values, close: Values, period: int) -> Values:
    """Commodity channel index of the typical price; 0 where nothing moves."""
    typical = (high + low + close) / 3.0
    mean = sma(typical, period)
    return _ratio(typical - mean, 0.015 * rolling.rolling_mean_deviation(typical, mean, period), 0.0)


def obv(close: Values, volume: Values) -> Values:
    """On-balance volume; starts at the first bar's volume."""
    flow = np.sign(close[1:] - close[:-1]) * volume[1:]
    return np.cumsum(np.concatenate([volume[:1], flow]))


def adx(high: Values, low: Values, close: Values, period: int) -> Values:
    """Wilder's average directional index, 0 … 100."""
    return rolling.directional_index(high, low, true_range(high, low, close), period)


def mfi(high: Values, low: Values, close: Values, volume: Values, period: int) -> Values:
    """Money flow index, 0 … 100; 50 where no money flowed (TA-Lib: 0 where the flow is below 1)."""
    if len(close) == 0:
        return np.zeros(0)
    typical = (high + low + close) / 3.0
    change = typical[1:] - typical[:-1]
    flow = typical[1:] * volume[1:]
    rising = rolling.rolling_total(np.where(change > 0.0, flow, 0.0), period, False)
    falling = rolling.rolling_total(np.where(change < 0.0, flow, 0.0), period, False)
    return _after(1, _ratio(100.0 * rising, rising + falling, 50.0))


def gap(open_: Values, close: Values) -> Values:
    """Log of the open over the previous close."""
    return rolling.natural_log(open_ / _previous(close))
