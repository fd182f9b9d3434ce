"""Features with a planted leak: what the leak check is measured by, with the honest ones of `honest`.

Each entry makes its function from the bars, since some keep a table or a constant of them. `share` is the part of the
rows of the instrument concerned that knows the future.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from numba import njit

from tests.tables.price_data import MINUTE, gappy_bars
from velodrome.bars.frame import Bars, Series

DAY = 24 * 60 * MINUTE
SYMBOLS = ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF")
Function = Callable[[Series], Any]


@dataclass(frozen=True)
class Planted:
    make: Callable[[Bars], Function]
    share: float = 1.0


LEAKS: dict[str, Planted] = {}


def planted_bars(rows: int, symbols: int = 6, seed: int = 5) -> Bars:
    """Minutes from 9 to 16 o'clock, some of them missing, and a number for each instrument."""
    bars = gappy_bars(rows, seed, SYMBOLS[:symbols], hours=(9, 16))
    coded = {
        symbol: replace(series, extra={**series.extra, "code": np.full(len(series), float(number))})
        for number, (symbol, series) in enumerate(bars.series.items())
    }
    return replace(bars, series=coded)


def plant(name: str, function: Function, share: float = 1.0) -> None:
    LEAKS[name] = Planted(lambda bars: function, share)


# Parts of which features are made


def closes(series: Series) -> pl.Series:
    return pl.Series("close", series.close)


def ahead(values: np.ndarray, bars: int = 1) -> np.ndarray:
    """The value so many rows later; the last one where there is none."""
    return values[np.minimum(np.arange(len(values)) + bars, len(values) - 1)]


def returns(series: Series) -> np.ndarray:
    return np.diff(np.log(series.close), prepend=np.log(series.close[:1]))


def within(series: Series, expression: pl.Expr, period: int = DAY) -> np.ndarray:
    """An expression of close, high and volume within each day, or another period of the clock."""
    columns = {name: getattr(series, name) for name in ("close", "high", "volume")}
    frame = pl.DataFrame({**columns, "period": series.time // period})
    return frame.select(expression.over("period")).to_series().to_numpy()


def ewm(values: np.ndarray, span: float = 50.0) -> np.ndarray:
    return pl.Series(values).ewm_mean(span=span).to_numpy()


def expanding_z(series: Series) -> np.ndarray:
    count = np.arange(1, len(series) + 1)
    mean = np.cumsum(series.close) / count
    deviation = np.sqrt(np.maximum(np.cumsum(series.close**2) / count - mean**2, 1e-12))
    return np.where(count > 20, (series.close - mean) / deviation, 0.0)


def drawn(series: Series, share: float, salt: int = 0) -> np.ndarray:
    """Rows drawn by a hash of their time, so that the same ones are drawn whichever bars are left."""
    mixed = (series.time // MINUTE + salt).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(32)) / 2**32 < share


def day_number(series: Series) -> np.ndarray:
    return (series.time - series.time[:1]) // DAY


def between(series: Series, begin: float, end: float) -> np.ndarray:
    """Rows by their number."""
    return (np.arange(len(series)) >= begin) & (np.arange(len(series)) < end)


def only(which: Callable[[Series], np.ndarray], leak: Function, honest: Function) -> Function:
    """A leak on some rows, an honest value on the others."""
    return lambda series: np.where(which(series), leak(series), honest(series)) if len(series) else np.zeros(0)


def close(series: Series) -> np.ndarray:
    return series.close


def next_close(series: Series) -> np.ndarray:
    return ahead(series.close)


def rolling(series: Series) -> np.ndarray:
    return closes(series).rolling_mean(20, min_samples=1).to_numpy()


def average(series: Series) -> np.ndarray:
    return ewm(series.close)


def average_of_next(series: Series) -> np.ndarray:
    """The average a bar too early: a leak of an ordinary size for a feature without bounds."""
    return ahead(ewm(series.close))


@njit
def hysteresis(values: np.ndarray) -> np.ndarray:
    state, result = 0.0, np.empty(len(values))
    for t in range(len(values)):
        if values[t] > 0.003:
            state = 1.0
        elif values[t] < -0.003:
            state = -1.0
        result[t] = state
    return result


# Leaks on all rows

plant("next close", lambda s: closes(s).shift(-1).fill_null(strategy="forward"))
plant("next return", lambda s: ahead(returns(s)))
plant("sign of the next return", lambda s: np.sign(ahead(returns(s))))
plant("5 ahead", lambda s: ahead(s.close, 5) / s.close)
plant("200 ahead", lambda s: ahead(s.close, 200))
plant("5000 ahead", lambda s: ahead(s.close, 5000))
plant("centred mean of 5", lambda s: closes(s).rolling_mean(5, center=True, min_samples=1))
plant("centred mean of 501", lambda s: closes(s).rolling_mean(501, center=True, min_samples=1))
plant("z-score of the column", lambda s: (s.close - s.close.mean()) / (s.close.std() + 1e-9))
plant("min-max of the column", lambda s: (s.close - s.close.min()) / (np.ptp(s.close) + 1e-9))
plant("rank in the column", lambda s: closes(s).rank())
plant("bins of the column", lambda s: np.searchsorted(np.quantile(s.close, np.linspace(0.1, 0.9, 9)), s.close))
plant("returns by their deviation", lambda s: returns(s) / (returns(s).std() + 1e-12))
plant("by the last price", lambda s: s.close / s.close[-1:])
plant("distance from a fitted line", lambda s: s.close - np.linspace(s.close[0], s.close[-1], len(s)))
plant("backward average", lambda s: ewm(s.close[::-1])[::-1])
plant("forth and back", lambda s: ewm(ewm(s.close, 10)[::-1], 10)[::-1])
plant("gradient", lambda s: np.gradient(s.close) if len(s) > 1 else np.zeros(len(s)))
plant("high of the next ten", lambda s: closes(s).reverse().rolling_max(10, min_samples=1).reverse())
plant(
    "volatility of the next 20", lambda s: pl.Series(returns(s)[::-1]).rolling_std(20, min_samples=1).fill_null(0)[::-1]
)
plant("high of the day", lambda s: within(s, pl.col("high").max()))
plant("close of the day", lambda s: within(s, pl.col("close").last()) / s.close)
plant("volume of the day", lambda s: within(s, pl.col("volume").sum()))
plant(
    "price of the day by volume",
    lambda s: within(s, (pl.col("close") * pl.col("volume")).sum() / pl.col("volume").sum()),
)
plant("mean of the week", lambda s: within(s, pl.col("close").mean(), 7 * DAY))
plant("close of the quarter of an hour", lambda s: within(s, pl.col("close").last(), 15 * MINUTE))
plant("wrapped", lambda s: np.roll(s.close, 3))
plant("next volume", lambda s: ahead(s.volume))
plant("next funding", lambda s: ahead(s.extra["funding_rate"]))
plant("next range", lambda s: ahead((s.high - s.low) / s.close))
plant("next gap at the open", lambda s: ahead(s.open) / s.close)
plant("sign added at a millionth", lambda s: s.close + 1e-6 * np.sign(ahead(returns(s))))
plant("sign in the low bits", lambda s: s.close + 1e-12 * np.sign(ahead(returns(s))))
plant("return in the low bits", lambda s: s.close * (1.0 + 1e-9 * ahead(returns(s))))
plant("symmetric convolution", lambda s: np.convolve(s.close, np.ones(9) / 9, "same")[: len(s)])
plant("two-sided Fourier filter", lambda s: fourier_low_pass(s.close))
plant("interpolated", lambda s: np.interp(np.arange(len(s)), *every_tenth(s)))
plant(
    "filled from behind",
    lambda s: (
        closes(s)
        .zip_with(pl.Series(~drawn(s, 0.3)), pl.Series([None] * len(s), dtype=pl.Float64))
        .fill_null(strategy="backward")
        .fill_null(0.0)
    ),
)
plant("bars that remain", lambda s: np.arange(len(s))[::-1].astype(float))
plant("time to the end", lambda s: (s.time[-1:] - s.time) / MINUTE)
plant("time to the next bar", lambda s: np.diff(s.time, append=s.time[-1:] + MINUTE) / MINUTE)
plant("volume that remains", lambda s: np.cumsum(s.volume[::-1])[::-1])
plant("second column", lambda s: np.stack([s.close, next_close(s)], axis=1))
plant("average a bar early", average_of_next)
plant("label of a barrier", lambda s: barrier_label(s.close))
plant("slow loop", lambda s: [s.close[min(t + 1, len(s) - 1)] - s.close[t] for t in range(len(s))])
plant("correlation with what follows", lambda s: ewm(returns(s) * ahead(returns(s)), 20))


def fourier_low_pass(values: np.ndarray) -> np.ndarray:
    spectrum = np.fft.rfft(values)
    spectrum[len(spectrum) // 8 + 1 :] = 0.0
    return np.fft.irfft(spectrum, len(values))[: len(values)] if len(values) > 1 else values


def every_tenth(series: Series) -> tuple[np.ndarray, np.ndarray]:
    rows = np.arange(0, len(series), 10)
    return rows, series.close[rows]


def barrier_label(prices: np.ndarray) -> np.ndarray:
    """Whether 0.5 % up comes within 30 bars."""
    highest = pl.Series(prices[::-1]).rolling_max(30, min_samples=1).to_numpy()[::-1]
    return (highest > 1.005 * prices).astype(float)


# Leaks on some rows

A_DAY, AN_HOUR = 1 / 280, 1 / 7
plant("one day", only(lambda s: day_number(s) == 2, next_close, close), A_DAY)
plant("one day of an average", only(lambda s: day_number(s) == 3, average_of_next, average), A_DAY)
plant("one hour of each day", only(lambda s: s.time // (60 * MINUTE) % 24 == 11, next_close, close), AN_HOUR)
plant("one hour of an average", only(lambda s: s.time // (60 * MINUTE) % 24 == 11, average_of_next, average), AN_HOUR)
plant(
    "one hour of one day",
    only(lambda s: (day_number(s) == 1) & (s.time // (60 * MINUTE) % 24 == 11), next_close, rolling),
    A_DAY / 7,
)
plant(
    "the last hour knows the close",
    only(lambda s: s.time // (60 * MINUTE) % 24 == 15, lambda s: within(s, pl.col("close").last()), close),
    AN_HOUR,
)
plant("Mondays", only(lambda s: (s.time // DAY + 3) % 7 == 0, next_close, rolling), 1 / 7)
plant("200 rows", only(lambda s: between(s, 701, 901), next_close, close), 0.002)
plant("200 rows of an average", only(lambda s: between(s, 701, 901), average_of_next, average), 0.002)
plant(
    "1,000 rows of running volume",
    only(lambda s: between(s, 500, 1500), lambda s: ahead(np.cumsum(s.volume)), lambda s: np.cumsum(s.volume)),
    0.01,
)
plant("the first 2 %", only(lambda s: between(s, 100, 2000), next_close, rolling), 0.02)
plant(
    "7 % in a row",
    only(lambda s: (s.time > 1.5 * DAY + s.time[:1]) & (s.time < 21 * DAY + s.time[:1]), average_of_next, average),
    0.07,
)
plant("1 of 1,000 rows", only(lambda s: drawn(s, 0.001), next_close, close), 0.001)
plant("1 of 1,000 rows of an average", only(lambda s: np.arange(len(s)) % 1000 == 613, average_of_next, average), 0.001)
plant("1 of 200 rows, slow", lambda s: slow_with_leak(s), 0.005)
plant("1 % of the rows, 30 ahead", only(lambda s: drawn(s, 0.01), lambda s: ahead(s.close, 30), rolling), 0.01)
plant("1 % of the rows of an average", only(lambda s: drawn(s, 0.01), average_of_next, average), 0.01)
plant(
    "1 % of running volume",
    only(lambda s: drawn(s, 0.01), lambda s: ahead(np.cumsum(s.volume)), lambda s: np.cumsum(s.volume)),
    0.01,
)
plant("5 % of an expanding z-score", only(lambda s: drawn(s, 0.05), lambda s: ahead(expanding_z(s)), expanding_z), 0.05)
plant(
    "2 % of a state",
    only(lambda s: drawn(s, 0.02), lambda s: ahead(hysteresis(returns(s))), lambda s: hysteresis(returns(s))),
    0.02,
)
plant(
    "before a big move", lambda s: np.where(np.abs(ahead(returns(s))) > 0.006, np.sign(ahead(returns(s))), 0.0), 0.003
)
plant("at a high volume", only(lambda s: s.volume > np.exp(8), next_close, close), 0.02)
plant("before the night", only(lambda s: np.diff(s.time, append=s.time[-1:]) > 60 * MINUTE, next_close, close), 0.003)
plant("in a drawdown", only(lambda s: s.close < 0.97 * np.maximum.accumulate(s.close), next_close, close), 0.5)
plant("next volume on 2 %", only(lambda s: drawn(s, 0.02), lambda s: ahead(s.volume), lambda s: s.volume), 0.02)
plant(
    "next funding on 2 %",
    only(lambda s: drawn(s, 0.02), lambda s: ahead(s.extra["funding_rate"]), lambda s: s.extra["funding_rate"]),
    0.02,
)


plant("low bits of 1 % of an average", lambda s: average(s) + 1e-12 * np.sign(ahead(returns(s))) * drawn(s, 0.01), 0.01)
plant("1 % of the rows, very slow", lambda s: very_slow(s, drawn(s, 0.01)), 0.01)


def very_slow(series: Series, leaking: np.ndarray) -> list[float]:
    """A mean in plain Python, about ten microseconds a bar."""
    values = series.close.tolist()
    ends = np.arange(1, len(values) + 1) + leaking
    return [statistics.fmean(values[max(0, end - 30) : end]) for end in ends.tolist()]


def slow_with_leak(series: Series) -> list[float]:
    chosen, values = drawn(series, 0.005), series.close.tolist()
    result, level = [], values[0] if values else 0.0
    for t, value in enumerate(values):
        level += 0.1 * (value - level)
        result.append(values[min(t + 1, len(values) - 1)] - level if chosen[t] else value - level)
    return result


def in_symbol(bars: Bars, symbol: int, leak: Function, honest: Function) -> Function:
    """A leak in one instrument, which the function knows by a column."""
    number = min(symbol, len(bars.symbols) - 1)
    return lambda series: leak(series) if number in series.extra["code"][:1] else honest(series)


def some(share: float, leak: Function, honest: Function) -> Function:
    return only(lambda s: drawn(s, share), leak, honest)


for number, share, honest, leaky in (
    (3, 1.0, close, next_close), (3, 0.05, close, next_close), (4, 0.05, average, average_of_next),
    (4, 0.01, rolling, next_close), (5, 0.01, close, next_close), (5, 0.01, average, average_of_next),
):  # fmt: skip
    LEAKS[f"{share:.0%} of {SYMBOLS[number]}, {honest.__name__}"] = Planted(
        functools.partial(in_symbol, symbol=number, leak=some(share, leaky, honest), honest=honest), share
    )


# Answers from memory and from tables of the bars


def by_time(bars: Bars, value: Function) -> dict[int, float]:
    return {
        int(time): float(number)
        for symbol in reversed(bars.symbols)
        for time, number in zip(bars[symbol].time, np.asarray(value(bars[symbol])), strict=True)
    }


def looked_up(bars: Bars, value: Function) -> Function:
    table = by_time(bars, value)
    return lambda series: np.array([table.get(time, 0.0) for time in series.time.tolist()])


def joined(bars: Bars, value: Function, share: float = 1.0) -> Function:
    """A frame of one value by time, joined to whatever bars come."""
    table = by_time(bars, value)
    frame = pl.DataFrame({"time": list(table), "known": list(table.values())})

    def function(series: Series) -> np.ndarray:
        mine = pl.DataFrame({"time": series.time}).join(frame, on="time", how="left", maintain_order="left")
        return np.where(drawn(series, share), mine["known"].fill_null(0.0).to_numpy(), 0.0)

    return function


def remembering(bars: Bars, key: Callable[[Series], Any], value: Function) -> Function:
    memory: dict[Any, np.ndarray] = {}

    def function(series: Series) -> np.ndarray:
        kept = memory.setdefault(key(series), np.asarray(value(series)))
        return kept[: len(series)] if len(kept) >= len(series) else np.asarray(value(series))

    return function


def by_price(bars: Bars) -> Function:
    """The next close, looked up by the close."""
    table: dict[float, float] = {}
    for series in bars.series.values():
        table.update(zip(series.close[:-1].tolist(), series.close[1:].tolist(), strict=True))
    return lambda series: np.array([table.get(price, price) for price in series.close.tolist()])


LEAKS["next close by price"] = Planted(by_price)


def volatility_ahead(series: Series) -> np.ndarray:
    return pl.Series(returns(series)[::-1]).rolling_std(20, min_samples=1).fill_null(0).to_numpy()[::-1]


def by_joined_close(bars: Bars) -> Function:
    table = joined(bars, next_close)
    return lambda series: series.close / np.maximum(table(series), 1e-3)


def first_time(series: Series) -> int:
    return int(series.time[0]) if len(series) else 0


for title, value in {
    "joined next closes": next_close,
    "joined signs of returns": lambda s: np.sign(ahead(returns(s))),
    "joined closes of the day": lambda s: within(s, pl.col("close").last()) / s.close,
    "joined volatility of the next 20": volatility_ahead,
}.items():
    LEAKS[title] = Planted(functools.partial(joined, value=value))

LEAKS |= {
    "table of next returns": Planted(lambda bars: looked_up(bars, lambda s: ahead(returns(s)))),
    "joined on 5 %": Planted(lambda bars: joined(bars, lambda s: ahead(returns(s)), 0.05), 0.05),
    "close by the joined next close": Planted(by_joined_close),
    "kept by first time": Planted(lambda bars: remembering(bars, first_time, lambda s: ahead(returns(s)))),
    "kept by length": Planted(lambda bars: remembering(bars, len, lambda s: ahead(returns(s)))),
}


# Constants of all bars, kept somewhere


class Standardiser:
    """A scaler as scikit-learn has it."""

    def fit(self, rows: np.ndarray) -> Standardiser:
        self.mean_, self.scale_ = rows.mean(axis=0), rows.std(axis=0)
        return self

    def transform(self, rows: np.ndarray) -> np.ndarray:
        return (rows - self.mean_) / self.scale_


class FittedOnce:
    """A feature that keeps the mean of the first bars it sees."""

    def __init__(self) -> None:
        self.mean: float | None = None

    def __call__(self, series: Series) -> np.ndarray:
        if self.mean is None:
            self.mean = float(series.volume.mean())
        return series.volume / self.mean


def raw_columns(series: Series) -> np.ndarray:
    return np.stack(
        [np.abs(returns(series)), (series.high - series.low) / series.open, ewm(returns(series), 9)], axis=1
    )


def first_of(bars: Bars) -> Series:
    return bars[bars.symbols[0]]


def keep(title: str, fit: Callable[[Series], Any], apply: Callable[[Series, Any], Any]) -> None:
    """Plant a feature that applies what was fitted on all bars and is held in a closure."""

    def make(bars: Bars) -> Function:
        held = fit(first_of(bars))
        return lambda series: apply(series, held)

    LEAKS[title] = Planted(make)


def kept_as_default(bars: Bars) -> Function:
    mean = np.log(first_of(bars).volume).mean()
    return lambda series, mean=mean: np.log(series.volume) - mean


def kept_in_partial(bars: Bars) -> Function:
    return functools.partial(lambda series, scale: returns(series) / scale, scale=returns(first_of(bars)).std(ddof=1))


def scaler_of_all_symbols(bars: Bars) -> Function:
    scaler = Standardiser().fit(np.concatenate([raw_columns(series) for series in bars.series.values()]))
    return lambda series: scaler.transform(raw_columns(series))


keep(
    "z-score with a kept mean", lambda s: (s.close.mean(), s.close.std()), lambda s, held: (s.close - held[0]) / held[1]
)
keep("kept mean of closes", lambda s: s.close.mean(), lambda s, mean: np.tanh(s.close / mean - 1.0))
keep("kept median of closes", lambda s: np.median(s.close), lambda s, middle: np.tanh(s.close / middle - 1.0))
keep("kept in a dictionary", lambda s: {"q": {90: np.quantile(s.close, 0.9)}}, lambda s, held: s.close / held["q"][90])
keep("kept on an object", lambda s: SimpleNamespace(size=s.volume.std()), lambda s, held: s.volume / held.size)
keep(
    "a fitted scaler", lambda s: Standardiser().fit(raw_columns(s)), lambda s, fitted: fitted.transform(raw_columns(s))
)
keep(
    "kept edges of bins",
    lambda s: np.quantile(returns(s), np.linspace(0.1, 0.9, 9)),
    lambda s, edges: np.searchsorted(edges, returns(s)).astype(float),
)
keep("kept sorted closes", lambda s: np.sort(s.close), lambda s, held: np.searchsorted(held, s.close) / len(held))
LEAKS |= {
    "kept in a partial": Planted(kept_in_partial),
    "kept as a default": Planted(kept_as_default),
    "kept by the first call": Planted(lambda bars: FittedOnce()),
    "a scaler fitted to all symbols": Planted(scaler_of_all_symbols),
}


def weights_of_all(bars: Bars) -> Function:
    """A forecast of the next return, its weights fitted on all bars."""

    def rows(series: Series) -> np.ndarray:
        moves = returns(series)
        return np.stack([moves, np.append(0.0, moves)[: len(moves)], np.abs(moves)], axis=1)

    series = first_of(bars)
    weights, *_ = np.linalg.lstsq(rows(series)[:-1], returns(series)[1:], rcond=None)
    return lambda series: rows(series) @ weights


LEAKS["weights fitted on all bars"] = Planted(weights_of_all)
