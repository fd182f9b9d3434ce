"""The features known by name: families such as `rsi`, whose members are written with their numbers, `rsi_14`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.tables.features import clock, indicators


@dataclass(frozen=True)
class Number:
    """A number in a feature's name; without a default it must be written."""

    name: str
    default: float | None = None
    minimum: float = 1
    whole: bool = True


@dataclass(frozen=True)
class Family:
    """Features of one kind. `compute` takes the bars, their time zone and the numbers, and returns one value a bar."""

    name: str
    numbers: tuple[Number, ...]
    explanation: str
    compute: Callable[..., NDArray[np.float64]]

    @property
    def example(self) -> str:
        """A member of the family, as it is written."""
        shown = [number.default or 20 for number in self.numbers if number.minimum > 0]
        return "_".join([self.name, *(f"{value:g}" for value in shown)]) if self.name not in SHORT else self.name


# Families that are usually written without their numbers.
SHORT = (
    "log_return", "return", "macd", "macd_signal", "macd_hist", "macd_relative", "macd_hist_relative",
)  # fmt: skip


def period(default: int | None = None, minimum: int = 1) -> tuple[Number, ...]:
    return (Number("period", default, minimum),)


MACD_NUMBERS = (Number("fast", 12), Number("slow", 26, 2), Number("signal", 9))
BAND_NUMBERS = (Number("period", 20, 2), Number("width", 2, 0, whole=False))


def _hlc(series: Series) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    return series.high, series.low, series.close


def _cycles(name: str, length: int, position: Callable[[Series, str], NDArray[np.int64]], text: str) -> list[Family]:
    def member(wave: str) -> Callable[..., NDArray[np.float64]]:
        return lambda series, timezone: clock.cycle(position(series, timezone), length, wave)

    return [
        Family(name, (), f"{text} of the bar's open in the bars' time zone, as a fraction 0 … 1", member("fraction")),
        Family(f"{name}_sin", (), f"sine of {name} on its circle", member("sin")),
        Family(f"{name}_cos", (), f"cosine of {name} on its circle", member("cos")),
    ]


_LISTED = [
    Family("log_return", period(1), "log of close over the close so many bars ago",
           lambda s, z, n: indicators.log_return(s.close, n)),
    Family("return", period(1), "close over the close so many bars ago, minus 1",
           lambda s, z, n: indicators.return_(s.close, n)),
    Family("roc", period(10), "rate of change: the same in per cent",
           lambda s, z, n: 100.0 * indicators.return_(s.close, n)),
    Family("momentum", period(10), "close minus the close so many bars ago, in price units",
           lambda s, z, n: indicators.momentum(s.close, n)),
    Family("gap", (), "log of the open over the previous close",
           lambda s, z: indicators.gap(s.open, s.close)),
    Family("range", (), "high minus low, as a fraction of the close",
           lambda s, z: indicators.high_low_range(*_hlc(s))),
    Family("body", (), "close over open, minus 1",
           lambda s, z: indicators.body(s.open, s.close)),
    Family("sma", period(), "simple mean of closes, in price units",
           lambda s, z, n: indicators.sma(s.close, n)),
    Family("ema", period(), "exponential mean of closes, in price units",
           lambda s, z, n: indicators.ema(s.close, n)),
    Family("sma_distance", period(), "close over its simple mean, minus 1",
           lambda s, z, n: indicators.sma_distance(s.close, n)),
    Family("ema_distance", period(), "close over its exponential mean, minus 1",
           lambda s, z, n: indicators.ema_distance(s.close, n)),
    Family("highest", period(), "highest high, in price units",
           lambda s, z, n: indicators.rolling_max(s.high, n)),
    Family("lowest", period(), "lowest low, in price units",
           lambda s, z, n: indicators.rolling_min(s.low, n)),
    Family("highest_distance", period(), "close over the highest high, minus 1",
           lambda s, z, n: s.close / indicators.rolling_max(s.high, n) - 1.0),
    Family("lowest_distance", period(), "close over the lowest low, minus 1",
           lambda s, z, n: s.close / indicators.rolling_min(s.low, n) - 1.0),
    Family("rsi", period(14), "Wilder's relative strength index, 0 … 100",
           lambda s, z, n: indicators.rsi(s.close, n)),
    Family("macd", MACD_NUMBERS, "fast minus slow exponential mean, in price units",
           lambda s, z, *n: indicators.macd(s.close, *n)[0]),
    Family("macd_signal", MACD_NUMBERS, "exponential mean of macd, in price units",
           lambda s, z, *n: indicators.macd(s.close, *n)[1]),
    Family("macd_hist", MACD_NUMBERS, "macd minus macd_signal, in price units",
           lambda s, z, *n: indicators.macd(s.close, *n)[2]),
    Family("macd_relative", MACD_NUMBERS, "macd as a fraction of the close",
           lambda s, z, *n: indicators.macd(s.close, *n)[0] / s.close),
    Family("macd_hist_relative", MACD_NUMBERS, "macd_hist as a fraction of the close",
           lambda s, z, *n: indicators.macd(s.close, *n)[2] / s.close),
    Family("bollinger", BAND_NUMBERS, "(close − mean)/(width · deviation): the bands are −1 and 1; width 2 by default",
           lambda s, z, *n: indicators.bollinger(s.close, *n)[0]),
    Family("bollinger_lower", BAND_NUMBERS, "lower band, in price units",
           lambda s, z, *n: indicators.bollinger(s.close, *n)[1]),
    Family("bollinger_upper", BAND_NUMBERS, "upper band, in price units",
           lambda s, z, *n: indicators.bollinger(s.close, *n)[3]),
    Family("bollinger_width", BAND_NUMBERS, "distance between the bands as a fraction of the mean",
           lambda s, z, *n: (lambda band: (band[3] - band[1]) / band[2])(indicators.bollinger(s.close, *n))),
    Family("atr", period(14), "Wilder's average true range, in price units",
           lambda s, z, n: indicators.atr(*_hlc(s), n)),
    Family("natr", period(14), "average true range in per cent of the close",
           lambda s, z, n: indicators.natr(*_hlc(s), n)),
    Family("volatility", period(20, 2), "standard deviation of log returns",
           lambda s, z, n: indicators.volatility(s.close, n)),
    Family("close_z", period(50, 2), "distance of the close from its rolling mean in rolling deviations",
           lambda s, z, n: indicators.zscore(s.close, n)),
    Family("volume_z", period(50, 2), "distance of the volume from its rolling mean in rolling deviations",
           lambda s, z, n: indicators.zscore(s.volume, n)),
    Family("stochastic", period(14), "fast %K: place of the close between lowest low and highest high, 0 … 100",
           lambda s, z, n: indicators.stochastic(*_hlc(s), n)[0]),
    Family("stochastic_d", period(14), "fast %D: mean of three %K",
           lambda s, z, n: indicators.stochastic(*_hlc(s), n)[1]),
    Family("williams_r", period(14), "Williams %R, −100 … 0",
           lambda s, z, n: indicators.williams_r(*_hlc(s), n)),
    Family("cci", period(20, 2), "commodity channel index",
           lambda s, z, n: indicators.cci(*_hlc(s), n)),
    Family("adx", period(14, 2), "Wilder's average directional index, 0 … 100",
           lambda s, z, n: indicators.adx(*_hlc(s), n)),
    Family("mfi", period(14, 2), "money flow index, 0 … 100",
           lambda s, z, n: indicators.mfi(*_hlc(s), s.volume, n)),
    Family("obv", (), "on-balance volume, in units of volume",
           lambda s, z: indicators.obv(s.close, s.volume)),
    *_cycles("minute_of_day", 1440, lambda s, z: clock.minute_of_day(s.time, z), "minute of the day"),
    *_cycles("hour", 24, lambda s, z: clock.minute_of_day(s.time, z) // 60, "hour"),
    *_cycles("day_of_week", 7, lambda s, z: clock.day_of_week(s.time, z), "day of the week (Monday 0)"),
]  # fmt: skip

FAMILIES: dict[str, Family] = {family.name: family for family in _LISTED}

# Eight inputs that keep their distribution while prices wander; benchmarks rely on there being eight.
DEFAULT_FEATURES = (
    "log_return", "range", "rsi_14", "macd_hist_relative", "bollinger_20", "volatility_20", "volume_z_50",
    "sma_distance_50",
)  # fmt: skip
