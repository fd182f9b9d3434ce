"""The features known by name: families such as `rsi`, whose members are written with their numbers, `rsi_14`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import Series
from velodrome.tables.features import clock, indicators

Indicator: TypeAlias = Callable[..., NDArray[np.float64]]


class NumberInName(NamedTuple):
    """A number in a feature's name; without a default it must be written."""

    name: str
    default: float | None = None
    minimum: float = 1
    whole: bool = True


@dataclass(frozen=True)
class Family:
    """Features of one kind, each with one value a bar."""

    name: str
    inputs: str  # columns of the bars that `function` takes, or "timezone", before the numbers of the name
    numbers: tuple[NumberInName, ...]
    explanation: str
    function: Indicator

    def compute(self, series: Series, timezone: str, *numbers: float) -> NDArray[np.float64]:
        """Return the values of a member of the family."""
        inputs: list[Any] = [timezone if name == "timezone" else getattr(series, name) for name in self.inputs.split()]
        return self.function(*inputs, *numbers)

    @property
    def example(self) -> str:
        """A member of the family, as it is usually written: with its numbers, unless they are those of `SHORT`."""
        shown = [number.default or 20 for number in self.numbers if number.minimum > 0]
        return self.name if self.numbers in SHORT else "_".join([self.name, *(f"{value:g}" for value in shown)])


def period(default: int | None = None, minimum: int = 1) -> tuple[NumberInName, ...]:
    return (NumberInName("period", default, minimum),)


MACD = (NumberInName("fast", 12), NumberInName("slow", 26, 2), NumberInName("signal", 9))
BANDS = (NumberInName("period", 20, 2), NumberInName("width", 2, 0, whole=False))
SHORT = (period(1), MACD)
HLC = "high low close"


def part(function: Callable[..., Any], index: int) -> Indicator:
    """Return one of the results of an indicator that has several."""
    return lambda *inputs: function(*inputs)[index]


def distance(function: Indicator) -> Indicator:
    """Return by how much the close lies above the result of an indicator, as a fraction of that."""
    return lambda values, close, period: close / function(values, period) - 1.0


def bollinger_width(close: NDArray[np.float64], *numbers: float) -> NDArray[np.float64]:
    _, lower, middle, upper = indicators.bollinger(close, *numbers)  # type: ignore[arg-type]
    return (upper - lower) / middle


SMA, EMA, HIGHEST, LOWEST = indicators.sma, indicators.ema, indicators.highest, indicators.lowest
BOLLINGER = [part(indicators.bollinger, index) for index in range(4)]  # place, lower, middle and upper band
STOCHASTIC = [part(indicators.stochastic, index) for index in range(2)]  # %K, %D


def _cycles(name: str, length: int, position: Callable[..., NDArray[np.int64]], text: str) -> list[Family]:
    def family(end: str, wave: str, explanation: str) -> Family:
        return Family(
            name + end, "time timezone", (), explanation, lambda *inputs: clock.cycle(position(*inputs), length, wave)
        )

    return [
        family("", "fraction", f"{text} of the bar's open in the bars' time zone, as a fraction 0 … 1"),
        family("_sin", "sin", f"sine of {name} on its circle"),
        family("_cos", "cos", f"cosine of {name} on its circle"),
    ]


_LISTED = [
    Family("log_return", "close", period(1), "log of close over the close n bars ago", indicators.log_return),
    Family("return", "close", period(1), "close over the close n bars ago, minus 1", indicators.return_),
    Family("roc", "close", period(10), "rate of change: return in per cent", indicators.rate_of_change),
    Family("momentum", "close", period(10), "close minus the close n bars ago, in price units", indicators.momentum),
    Family("gap", "open close", (), "log of the open over the previous close", indicators.gap),
    Family("range", HLC, (), "high minus low, as a fraction of the close", lambda high, low, c: (high - low) / c),
    Family("body", "open close", (), "close over open, minus 1", lambda o, c: c / o - 1.0),
    Family("sma", "close", period(), "simple mean of closes, in price units", SMA),
    Family("ema", "close", period(), "exponential mean of closes, in price units", EMA),
    Family("sma_distance", "close close", period(), "close over its simple mean, minus 1", distance(SMA)),
    Family("ema_distance", "close close", period(), "close over its exponential mean, minus 1", distance(EMA)),
    Family("highest", "high", period(), "highest high, in price units", HIGHEST),
    Family("lowest", "low", period(), "lowest low, in price units", LOWEST),
    Family("highest_distance", "high close", period(), "close over the highest high, minus 1", distance(HIGHEST)),
    Family("lowest_distance", "low close", period(), "close over the lowest low, minus 1", distance(LOWEST)),
    Family("rsi", "close", period(14), "Wilder's relative strength index, 0 … 100", indicators.rsi),
    Family("macd", "close", MACD, "fast minus slow exponential mean, in price units", part(indicators.macd, 0)),
    Family("macd_signal", "close", MACD, "exponential mean of macd, in price units", part(indicators.macd, 1)),
    Family("macd_hist", "close", MACD, "macd minus macd_signal, in price units", part(indicators.macd, 2)),
    Family("macd_relative", "close", MACD, "macd over the close", lambda c, *n: indicators.macd(c, *n)[0] / c),
    Family("macd_hist_relative", "close", MACD, "macd_hist over close", lambda c, *n: indicators.macd(c, *n)[2] / c),
    Family("bollinger", "close", BANDS, "(close − mean)/(width · deviation): the bands are −1 and 1", BOLLINGER[0]),
    Family("bollinger_lower", "close", BANDS, "lower band, in price units", BOLLINGER[1]),
    Family("bollinger_upper", "close", BANDS, "upper band, in price units", BOLLINGER[3]),
    Family("bollinger_width", "close", BANDS, "distance between the bands as a fraction of the mean", bollinger_width),
    Family("atr", HLC, period(14), "Wilder's average true range, in price units", indicators.atr),
    Family("natr", HLC, period(14), "average true range in per cent of the close", indicators.natr),
    Family("volatility", "close", period(20, 2), "standard deviation of log returns", indicators.volatility),
    Family("close_z", "close", period(50, 2), "close minus its rolling mean, in rolling deviations", indicators.zscore),
    Family("volume_z", "volume", period(50, 2), "volume minus its mean, in rolling deviations", indicators.zscore),
    Family("stochastic", HLC, period(14), "fast %K: close between lowest low, 0, and highest high, 100", STOCHASTIC[0]),
    Family("stochastic_d", HLC, period(14), "fast %D: mean of three %K", STOCHASTIC[1]),
    Family("williams_r", HLC, period(14), "Williams %R, −100 … 0", indicators.williams_r),
    Family("cci", HLC, period(20, 2), "commodity channel index", indicators.cci),
    Family("adx", HLC, period(14, 2), "Wilder's average directional index, 0 … 100", indicators.adx),
    Family("mfi", f"{HLC} volume", period(14, 2), "money flow index, 0 … 100", indicators.mfi),
    Family("obv", "close volume", (), "on-balance volume, in units of volume", indicators.obv),
    *_cycles("minute_of_day", 1440, clock.minute_of_day, "minute of the day"),
    *_cycles("hour", 24, clock.hour_of_day, "hour"),
    *_cycles("day_of_week", 7, clock.day_of_week, "day of the week (Monday 0)"),
]

FAMILIES: dict[str, Family] = {family.name: family for family in _LISTED}

# Eight inputs that keep their distribution while prices wander; benchmarks rely on there being eight.
DEFAULT_FEATURES = (
    *("log_return", "range", "rsi_14", "macd_hist_relative"),
    *("bollinger_20", "volatility_20", "volume_z_50", "sma_distance_50"),
)
