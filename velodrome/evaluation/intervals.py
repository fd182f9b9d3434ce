"""Confidence intervals for dependent series: the stationary bootstrap of Politis and Romano (1994), widened.

A resample is a chain of blocks of the series, each beginning anywhere and of geometric length, wrapped at the end. The
mean block length is chosen from the data after Politis and White (2004), with the correction of Patton, Politis and
White (2009). Blocks cut what depends on each other, so that the resamples of an autocorrelated series differ too
little. What is known of its variance over the long run (`dependence`) says by how much, and the interval is widened to
that (`widening`). Everything is seeded: same seed, same intervals.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError

FEWEST_FINITE = 0.5  # share of the resamples that must have a value, or there is no interval
FEWEST_VALUES = 10  # of a series whose dependence is looked at
FEWEST_DEGREES = 2.0  # of freedom; with fewer an interval would hold everything
STRONGEST_CORRELATION = 0.97  # of neighbours that is believed; near 1 a series has no mean to speak of
DOUBTFUL_SHARE = 0.3  # of effective values; about that of an autocorrelation of 0.54

# Where differences from a value are widened: as they are; of 1 + value, for changes, which compound; of logarithms, for
# what is above 0. The function and its inverse.
Space = Literal["plain", "growth", "size"]
SPACES: Mapping[Space, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "plain": (float, float),
    "growth": (lambda value: math.log1p(value) if value > -1.0 else -math.inf, lambda log: float(np.expm1(log))),
    "size": (lambda value: math.log(value) if value > 0.0 else -math.inf, lambda log: float(np.exp(log))),
}


class Bootstrap(NamedTuple):
    """How intervals are made: the number of resamples, the level of confidence, the seed of the draws."""

    samples: int = 1000
    confidence: float = 0.95
    seed: int = 0


class Interval(NamedTuple):
    """A value and the interval around it."""

    value: float
    low: float
    high: float

    @property
    def includes_zero(self) -> bool:
        """Whether zero lies within the interval; an interval that is not known includes everything."""
        return not (self.low > 0.0 or self.high < 0.0)


class Blocks(NamedTuple):
    """The blocks of a resample: the place at which each begins, the first is 0, and the row of the series there."""

    begin: NDArray[np.int64]
    row: NDArray[np.uint32]


def stationary_blocks(length: int, block: float, samples: int, seed: int) -> Iterator[Blocks]:
    """Yield the blocks of each resample; from where one begins the rows follow one another."""
    if length < 1 or samples < 1 or not block >= 1.0:
        raise ConfigError(
            f"a bootstrap of {length} values with blocks of {block} and {samples} samples: "
            "needs at least one value, one sample, and blocks of at least 1"
        )
    rng, draws, everywhere = np.random.default_rng(seed), np.empty(length), np.arange(length)
    for _ in range(samples):
        if block == 1.0:  # every row begins a block, whatever is drawn
            _pass_over(rng, length)
            yield Blocks(everywhere, rng.integers(0, length, length, np.uint32))
            continue
        rng.random(out=draws)
        draws[0] = 0.0
        begin = np.flatnonzero(draws * block < 1.0)
        yield Blocks(begin, rng.integers(0, length, length, np.uint32)[begin])


def _pass_over(rng: np.random.Generator, count: int) -> None:
    """Leave out so many uniform numbers, without drawing them."""
    generator: Any = rng.bit_generator
    before = generator.state
    generator.advance(count)
    # Of the last word half may be left for the next whole number.
    generator.state = {**generator.state, "has_uint32": before["has_uint32"], "uinteger": before["uinteger"]}


def stationary_orders(length: int, block: float, samples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield for each resample the rows of the series that it consists of, [length], in order."""
    position = np.arange(length)
    for begin, row in stationary_blocks(length, block, samples, seed):
        yield (np.repeat(row - begin, np.diff(begin, append=length)) + position) % length


def varies(values: NDArray[np.float64]) -> bool:
    """Tell whether a series is long enough, finite, and not constant but for rounding."""
    if len(values) < FEWEST_VALUES or not np.isfinite(values).all():
        return False
    return bool(values.var() > 1e-20 * max(float(values.mean()) ** 2, 1e-280))


def product_sum(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return Σ first·second on the calling thread: the threads behind `@` wait for each other on a busy machine."""
    return float(np.einsum("i,i->", first, second))


def quick_size(count: int) -> int:
    """Return the next number without prime factors above 5, of which Fourier transforms are quick."""
    powers = (
        3**a * 5**b for a in range(count.bit_length()) for b in range(count.bit_length()) if 3**a * 5**b < 2 * count
    )
    return min(odd << max(0, (-(-count // odd) - 1).bit_length()) for odd in powers)


def autocovariance(centred: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the autocovariance at every lag from 0 up, each a sum over the length of the whole series."""
    count = len(centred)
    size = quick_size(2 * count - 1)  # by Fourier transform, padded so that the ends do not meet
    return np.fft.irfft(np.abs(np.fft.rfft(centred, size)) ** 2, size)[:count] / count


def block_length(series: NDArray[np.float64]) -> float:
    """Return the mean block length that suits a series' autocorrelation; 1 for a constant or very short one.

    With R(k) the autocovariance and λ the flat-top window 1 on [0, ½], falling to 0 at 1, of half-width M:
    (G / g)^⅔ · n^⅓ with G = Σ λ(k/M)·|k|·R(k) and g = Σ λ(k/M)·R(k), at most min(3·√n, n/3). M is twice the last lag
    before a run of max(5, √log₁₀ n) lags whose correlations all lie within ±2·√(log₁₀ n / n).
    """
    values = np.asarray(series, np.float64)
    count = len(values)
    if not varies(values):
        return 1.0
    centred = values - values.mean()
    quiet_run = max(5, math.isqrt(int(math.log10(count))))
    largest_lag = min(math.isqrt(count - 1) + 1 + quiet_run, count - 1)
    covariance = autocovariance(centred)[: largest_lag + 1]
    variance = covariance[0]
    bound = 2.0 * math.sqrt(math.log10(count) / count)
    significant = np.flatnonzero(np.abs(covariance[1:] / variance) >= bound) + 1
    edges = np.concatenate([[0], significant, [largest_lag + 1]])
    followed_by_quiet = np.flatnonzero(np.diff(edges) > quiet_run)
    last = int(edges[followed_by_quiet[0]]) if len(followed_by_quiet) else int(edges[-2])
    width = min(2 * max(last, 1), largest_lag)
    lags = np.arange(1, width + 1)
    weight = np.minimum(1.0, 2.0 * (1.0 - lags / width))
    total = variance + 2.0 * float(weight @ covariance[1 : width + 1])
    slope = 2.0 * float((weight * lags) @ covariance[1 : width + 1])
    longest = math.ceil(min(3.0 * math.sqrt(count), count / 3.0))
    if not total > 0.0:
        # The estimate of the spectrum at zero can come out at or below it under strong alternation.
        return float(longest)
    return float(min(max(1.0, (abs(slope) / total) ** (2.0 / 3.0) * count ** (1.0 / 3.0)), longest))


class Dependence(NamedTuple):
    """What autocorrelation does to the mean of a series."""

    correlation: float  # of neighbours, corrected for its bias in short series
    variance: float  # over the long run: what the variance of the mean is times the length
    degrees: float  # of freedom, of Student's distribution
    effective: float  # as many independent values would say as much about the mean

    def is_doubtful(self, count: int) -> bool:
        """Tell whether an interval of the mean of this many values may be too narrow although it was widened."""
        return self.effective < DOUBTFUL_SHARE * count


def dependence(series: NDArray[np.float64]) -> Dependence | None:
    """Return the dependence within a series; None for one that is constant, very short, or not finite.

    The long-run variance is estimated after Andrews and Monahan (1992): an autoregression takes out the correlation φ
    of neighbours, cosines measure what slow movement is left, and 1 / (1 − φ)² puts back what was taken out. φ is
    corrected for its bias, −(1 + 3φ) / n. The first B = 0.4·n^⅔ cosines have equal weights (Lazarus, Lewis, Stock and
    Watson 2018), which gives Student's distribution with B degrees of freedom. That φ is estimated too takes some away:
    2 / degrees = 2 / B + 4·(1 + φ) / (n·(1 − φ)), the variance of the logarithm of the estimate.
    """
    values = np.asarray(series, np.float64)
    if not varies(values):
        return None
    count = len(values)
    centred = values - values.mean()
    found = product_sum(centred[1:], centred[:-1]) / product_sum(centred[:-1], centred[:-1])
    correlation = min(max((count * found + 1.0) / (count - 3.0), -STRONGEST_CORRELATION), STRONGEST_CORRELATION)
    left = centred[1:] - correlation * centred[:-1]
    terms = np.arange(1, max(1, round(0.4 * count ** (2.0 / 3.0))) + 1)
    # 2·Σ left(t)·cos(π·k·(t + ½) / m), by the Fourier transform of the even places and then the odd ones backwards
    # (Makhoul 1980), which is half as long as that of the series and its mirror image.
    folded = np.fft.rfft(np.r_[left[::2], left[1::2][::-1]])[terms] * np.exp(-0.5j * np.pi * terms / len(left))
    variance = float(np.mean((2.0 * folded.real) ** 2) / (2.0 * len(left)) / (1.0 - correlation) ** 2)
    degrees = 2.0 / (2.0 / len(terms) + 4.0 * (1.0 + correlation) / (count * (1.0 - correlation)))
    effective = count * float(values.var()) / variance if variance > 0.0 else float(count)
    return Dependence(correlation, variance, max(degrees, FEWEST_DEGREES), effective)


def widening(series: NDArray[np.float64], block: float, confidence: float) -> float:
    """Return by how much to stretch the percentiles of a bootstrap with this mean block length; 1 if nothing is known.

    series: how each value moves the figure (of a mean, the values themselves). The stretch is the root of the long-run
    variance over that of the resamples' means, which Politis and Romano give exactly, times Student's quantile over the
    normal one. It is at least 1.
    """
    values = np.asarray(series, np.float64)
    found = dependence(values)
    if found is None:
        return 1.0
    covariance = autocovariance(values - values.mean())
    resampled = float(covariance[0]) + 2.0 * product_sum(lag_weights(len(values), block)[1:], covariance[1:])
    if not resampled > 0.0:
        return 1.0
    tail = 0.5 + 0.5 * confidence
    stretch = math.sqrt(found.variance / resampled) * student_quantile(tail, found.degrees)
    return max(1.0, stretch / NormalDist().inv_cdf(tail))


@functools.lru_cache(maxsize=4)
def lag_weights(count: int, block: float) -> NDArray[np.float64]:
    """Return what the autocovariance at each lag counts for in the variance of a resample's mean, [count]."""
    lags = np.arange(count)
    kept = 1.0 - 1.0 / block  # chance that a block goes on
    return (1.0 - lags / count) * kept**lags + lags / count * kept ** (count - lags)


def influence_interval(value: float, series: NDArray[np.float64], confidence: float) -> Interval:
    """Return the interval of a figure without resampling, from how much each bar moves it; NaN if that is not known.

    series: the derivatives of the figure by the bars' weights, times their number; of a mean, the values.
    """
    found = dependence(series)
    if found is None:
        # A figure that no bar moves is sure.
        reach = 0.0 if len(series) >= FEWEST_VALUES and np.isfinite(series).all() else math.nan
    else:
        reach = student_quantile(0.5 + 0.5 * confidence, found.degrees) * math.sqrt(found.variance / len(series))
    return Interval(value, value - reach, value + reach)


def student_quantile(share: float, degrees: float) -> float:
    """Return the quantile of Student's distribution; degrees of freedom need not be whole.

    With t = √degrees·tan(angle) the density is cos(angle)^(degrees − 1).
    """
    if degrees > 1e3:
        return NormalDist().inv_cdf(share)
    angle = np.linspace(0.0, 0.5 * math.pi, 4_001)[:-1]
    density = np.cos(angle) ** (degrees - 1.0)
    total = np.r_[0.0, np.cumsum(0.5 * (density[1:] + density[:-1]))]
    return math.sqrt(degrees) * math.tan(float(np.interp((2.0 * share - 1.0) * total[-1], total, angle)))


def percentile_interval(
    value: float, resampled: NDArray[np.float64], confidence: float, stretch: float = 1.0, space: Space = "plain"
) -> Interval:
    """Return the interval between the percentiles of the resampled values; NaN where too few of them are defined.

    stretch: by which the distances of its ends from the value are multiplied, in that space.
    """
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence = {confidence!r}: needs a share between 0 and 1, for example 0.95")
    known = resampled[~np.isnan(resampled)]
    if len(known) == 0 or len(known) < FEWEST_FINITE * len(resampled) or math.isnan(value):
        return Interval(value, math.nan, math.nan)
    tail = 0.5 * (1.0 - confidence)
    ordered = np.sort(known)
    # Order statistics instead of an interpolation, which would make NaN of infinities.
    low = ordered[math.floor(tail * (len(ordered) - 1))]
    high = ordered[math.ceil((1.0 - tail) * (len(ordered) - 1))]
    there, back = SPACES[space]
    if stretch == 1.0 or not math.isfinite(there(value)):
        return Interval(value, float(low), float(high))
    # Annualised changes of a good day have no number; they are infinite.
    with np.errstate(over="ignore"):
        low, high = (back(there(value) + stretch * (there(float(end)) - there(value))) for end in (low, high))
    return Interval(value, low, high)
