"""Synthetic bars from processes whose best achievable return is known, to tell whether an agent learns at all.

With r the log return of a bar and z standard normal, independent from bar to bar:

| kind | process | best return a bar known |
|---|---|---|
| gbm | r = drift + volatility·z | yes |
| ar1 | r = drift + phi·(r_before − drift) + volatility·z | yes |
| ou | log price x: r = −reversion·(x_before − log price₀) + volatility·z | yes |
| regimes | r = drift_s + volatility_s·z, the state s a hidden Markov chain | no |
| factors | as ar1, where z has a part that all instruments share: `velodrome/bars/factors.py` | yes, of a portfolio |

`Bars.optimum` is the best expected log return a bar without costs for positions of −1, 0 and 1 times the equity, chosen
at each bar. A position does not move the price, so the best one maximises the next bar's expectation given what is
known (the last return for ar1, the price for ou). With m the conditional mean of r these expectations are m for long,
0 for flat and E[ln(2 − e^r)] ≈ −m − m² − volatility² for short, which is integrated numerically; m follows its
stationary distribution. A short position can lose everything where r reaches ln 2: if that is within 8 standard
deviations the optimum is not finite in any useful sense and is None. It is None too for regimes, whose state is hidden.
The optimum of factors is that of a portfolio, of weights on the simplex of all instruments and cash: see
`Bars.optimum_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from velodrome.bars.factors import LARGEST_COMMON, combined_noise, portfolio_optimum
from velodrome.bars.frame import Bars, Series
from velodrome.bars.timeframe import parse_timeframe
from velodrome.errors import ConfigError, did_you_mean

Floats = NDArray[np.float64]

KINDS = ("gbm", "ou", "ar1", "regimes", "factors")
WITH_DRIFT = ("gbm", "ar1", "factors")
SHARED_STREAM = 0x66616374  # of the shocks that all instruments share, beside the seed
RUIN = np.log(2.0)  # log return at which a position of −1 has lost all its equity
MEAN_VOLUME = 1_000.0


def synthetic_bars(
    kind: str,
    length: int,
    seed: int = 0,
    *,
    timeframe: str = "1m",
    symbols: int | Sequence[str] = 1,
    start: str = "2020-01-01",
    price: float = 100.0,
    volatility: float = 1e-3,
    drift: float = 0.0,
    phi: float = 0.3,
    reversion: float = 0.05,
    persistence: float = 0.99,
    states: Sequence[tuple[float, float]] | None = None,
    common: float = 0.5,
) -> Bars:
    """Return seeded bars of one or many symbols, independent of each other but for "factors".

    Args:
        kind: "gbm", "ou", "ar1", "regimes" or "factors"; the module's docstring has the equations.
        length: Bars of each symbol. A shorter series is the beginning of a longer one of the same seed.
        seed: Same seed, same bits. Each symbol has its own stream, whatever the number of symbols.
        timeframe: Bar size; it only sets the times, all parameters are per bar.
        symbols: Names, or a number n for the names "gbm_0" … "gbm_{n−1}".
        start: UTC open time of the first bar.
        price: First open; for ou the level to which the price returns.
        volatility: Standard deviation of the noise in a bar's log return.
        drift: Mean log return of a bar (gbm, ar1, factors). The default 0 makes gbm a control in which nothing can be
            learned.
        phi: Dependence of a bar's return on the last one (ar1, factors). At 0.3 the sign of the last return foretells
            the next one 59.7 % of the time (1/2 + arcsin(phi)/π): soon found by an agent that learns, while 91 % of
            the variance stays noise.
        reversion: Share of the distance to `price`, in logs, that a bar returns on average (ou).
        persistence: Probability of staying in the state from bar to bar (regimes); the others are equally likely next.
        states: Drift and volatility of 2 or 3 states (regimes). By default a calm rise, a turbulent fall, and a flat
            state: (0.1, 0.7), (−0.1, 1.8) and (0, 1) times `volatility`.
        common: Share of the noise's variance that an instrument with a loading of 1 has in common with the others
            (factors); loadings lie between 0.75 and 1.25.

    Opens equal the previous close. High and low are the extremes of a Brownian path between open and close, drawn from
    their exact distributions, independently of each other. Volume is log-normal, larger in bars that move.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind {kind!r} is unknown; there are {', '.join(KINDS)}.{did_you_mean(str(kind), KINDS)}")
    check_range("length", length, length >= 2 and int(length) == length, "a whole number from 2 up")
    check_range("price", price, price > 0, "above 0")
    check_range("volatility", volatility, volatility > 0, "above 0")
    check_range("phi", phi, -1 < phi < 1, "between −1 and 1, both excluded, so that returns are stationary")
    check_range("reversion", reversion, 0 < reversion < 2, "between 0 and 2, both excluded, so that prices return")
    check_range("persistence", persistence, 0 <= persistence <= 1, "a probability from 0 to 1")
    with_drift = drift == 0 or kind in WITH_DRIFT
    check_range("drift", drift, with_drift, f"0 for {kind!r}: only gbm, ar1 and factors have one")
    check_range("common", common, 0 <= common <= LARGEST_COMMON, f"from 0 to {LARGEST_COMMON}")
    if states is None:
        states = ((0.1 * volatility, 0.7 * volatility), (-0.1 * volatility, 1.8 * volatility), (0.0, volatility))
    enough = len(states) in (2, 3) and all(len(state) == 2 and state[1] > 0 for state in states)
    check_range("states", states, enough, "2 or 3 pairs of drift and volatility, the volatility above 0")

    names = tuple(f"{kind}_{i}" for i in range(symbols)) if isinstance(symbols, int) else tuple(symbols)
    check_range("symbols", symbols, 0 < len(set(names)) == len(names), "a number from 1 up, or distinct names")
    time = bar_times(start, timeframe, length)
    series = {}
    shared = np.zeros(0)
    if kind == "factors":
        shared = np.random.default_rng([seed, SHARED_STREAM]).standard_normal(length + 1)
    for place, (name, stream) in enumerate(zip(names, np.random.SeedSequence(seed).spawn(len(names)), strict=True)):
        shock_stream, state_stream, *streams = (np.random.default_rng(s) for s in stream.spawn(4))
        noise = shock_stream.standard_normal(length + 1)  # the first one draws the stationary start
        deviation: Floats | float = volatility
        if kind == "gbm":
            path = np.cumsum(np.r_[0.0, drift + volatility * noise[1:]])
        elif kind in ("ar1", "factors"):
            if kind == "factors":
                noise = combined_noise(shared, noise, place, common)
            first = volatility / np.sqrt(1 - phi**2) * noise[0]
            path = np.cumsum(np.r_[0.0, drift + autoregression(first, phi, volatility * noise[1:])])
        elif kind == "ou":
            level = volatility / np.sqrt(reversion * (2 - reversion)) * noise[0]
            path = np.r_[level, autoregression(level, 1 - reversion, volatility * noise[1:])]
        else:
            visited = markov_chain(state_stream.random(length + 1), len(states), persistence)
            means, deviations = np.array(states, np.float64).T
            deviation = deviations[visited]
            path = np.cumsum(np.r_[0.0, means[visited] + deviation * noise[1:]])
        series[name] = bars_along(time, price, path, deviation, streams)
    bars = Bars(series, parse_timeframe(timeframe).text, source=f"synthetic {kind}, seed {seed}")
    if kind == "factors":
        best = portfolio_optimum(len(names), volatility, drift, phi, common)
        return replace(bars, optimum=best, optimum_of="portfolio")
    return replace(bars, optimum=known_optimum(kind, volatility, drift, phi, reversion))


def check_range(name: str, received: object, holds: bool, legal: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is {received!r}; it must be {legal}.")


def bar_times(start: str, timeframe: str, length: int) -> NDArray[np.int64]:
    """Return the open times; months begin at their first day."""
    size = parse_timeframe(timeframe)
    try:
        first = np.datetime64(start, "ns")
    except ValueError as error:
        raise ConfigError(f"start is {start!r}; write it as '2020-01-01' or '2020-01-01T09:30'.") from error
    if size.nanoseconds is None:
        months = first.astype("datetime64[M]") + size.count * np.arange(length)
        return months.astype("datetime64[ns]").astype(np.int64)
    return first.astype(np.int64) + size.nanoseconds * np.arange(length)


def autoregression(first: float, phi: float, shocks: Floats) -> Floats:
    """Return x_t = phi·x_{t−1} + shock_t for t = 1 …, from x_0 = first."""
    path = accumulate(shocks.tolist(), lambda before, shock: phi * before + shock, initial=float(first))
    return np.fromiter(path, np.float64, len(shocks) + 1)[1:]


def markov_chain(uniform: Floats, count: int, persistence: float) -> NDArray[np.int64]:
    """Return the state in each bar; the chain is symmetric, so the first state is uniform."""
    # A leaving draw, rescaled to [0, 1), also says where to: 1 … count − 1 states further on.
    leaving = np.maximum(uniform[1:] - persistence, 0) / max(1 - persistence, np.finfo(float).tiny)
    jump = np.where(uniform[1:] < persistence, 0, 1 + np.minimum(leaving * (count - 1), count - 2).astype(np.int64))
    return (int(uniform[0] * count) + np.cumsum(jump)) % count


def bars_along(
    time: NDArray[np.int64], price: float, path: Floats, deviation: Floats | float, streams: Sequence[Generator]
) -> Series:
    """Return bars whose opens and closes are price·exp(path); `path` has one entry more than there are bars."""
    range_stream, volume_stream = streams
    edges = price * np.exp(path)
    opened, closed = edges[:-1], edges[1:]
    begin, end = path[:-1], path[1:]
    # P(max of a Brownian bridge from a to b ≤ m) = 1 − exp(−2(m − a)(m − b)/σ²), solved for m at a uniform draw. One
    # draw of two numbers a bar keeps shorter series the beginning of longer ones.
    log_uniform = np.log1p(-range_stream.random((len(time), 2)))
    reach = np.sqrt((end - begin)[:, None] ** 2 - 2 * (np.asarray(deviation) ** 2).reshape(-1, 1) * log_uniform)
    highest = price * np.exp((begin + end + reach[:, 0]) / 2)
    lowest = price * np.exp((begin + end - reach[:, 1]) / 2)
    high = np.maximum(highest, np.maximum(opened, closed))
    low = np.minimum(lowest, np.minimum(opened, closed))
    activity = 1 + np.abs(end - begin) / deviation
    volume = MEAN_VOLUME * np.exp(0.5 * volume_stream.standard_normal(len(time))) * activity
    return Series(time, opened, high, low, closed, volume)


def known_optimum(kind: str, volatility: float, drift: float, phi: float, reversion: float) -> float | None:
    """Return the best expected log return a bar, or None where it is not known."""
    if kind == "gbm":
        spread = 0.0
    elif kind == "ar1":
        spread = abs(phi) * volatility / np.sqrt(1 - phi**2)
    elif kind == "ou":
        spread = reversion * volatility / np.sqrt(reversion * (2 - reversion))
    else:
        return None
    if abs(drift) + 8 * np.hypot(spread, volatility) >= RUIN:
        return None
    # The mean over normal m, on a fine grid, because the best of three positions has kinks.
    z = np.linspace(-9, 9, 18_001)
    weight, mean = np.exp(-(z**2) / 2), drift + spread * z
    best = np.maximum(np.maximum(mean, 0.0), short_log_return(mean, volatility))
    return float(np.sum(best * weight) / np.sum(weight))


def short_log_return(mean: Floats, volatility: float) -> Floats:
    """Return E[ln(2 − e^r)], the expected log return of a position of −1, for r normal about each mean."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)  # for the density exp(−z²/2), up to √(2π)
    # Nodes beyond 8 deviations carry weights below 1e-14; the cap keeps their logarithm finite.
    gross = np.maximum(2 - np.exp(mean[..., None] + volatility * nodes), np.finfo(float).tiny)
    return np.log(gross) @ weights / np.sqrt(2 * np.pi)
