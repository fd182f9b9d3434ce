"""Confidence intervals for dependent series: the stationary bootstrap of Politis and Romano (1994).

A resample is a chain of blocks of the series, each beginning anywhere and of geometric length, wrapped at the end. The
mean block length is chosen from the data after Politis and White (2004), with the correction of Patton, Politis and
White (2009). Everything is seeded: same seed, same intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError

FEWEST_FINITE = 0.5  # share of the resamples that must have a value, or there is no interval


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


def stationary_orders(length: int, block: float, samples: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield for each resample the rows of the series that it consists of, [length], in order."""
    if length < 1 or samples < 1 or not block >= 1.0:
        raise ConfigError(
            f"a bootstrap of {length} values with blocks of {block} and {samples} samples: "
            "needs at least one value, one sample, and blocks of at least 1"
        )
    rng = np.random.default_rng(seed)
    position = np.arange(length)
    for _ in range(samples):
        begins = rng.random(length) * block < 1.0
        begins[0] = True
        first = rng.integers(0, length, length)
        since = np.maximum.accumulate(np.where(begins, position, 0))
        yield (first[since] + position - since) % length


def block_length(series: NDArray[np.float64]) -> float:
    """Return the mean block length that suits a series' autocorrelation; 1 for a constant or very short one.

    With R(k) the autocovariance and λ the flat-top window 1 on [0, ½], falling to 0 at 1, of half-width M:
    (G / g)^⅔ · n^⅓ with G = Σ λ(k/M)·|k|·R(k) and g = Σ λ(k/M)·R(k), at most min(3·√n, n/3). M is twice the last lag
    before a run of max(5, √log₁₀ n) lags whose correlations all lie within ±2·√(log₁₀ n / n).
    """
    values = np.asarray(series, np.float64)
    count = len(values)
    if count < 10:
        return 1.0
    centred = values - values.mean()
    variance = float(centred @ centred) / count
    if not variance > 1e-20 * max(float(values.mean()) ** 2, 1e-280):
        return 1.0
    quiet_run = max(5, math.isqrt(int(math.log10(count))))
    largest_lag = min(math.isqrt(count - 1) + 1 + quiet_run, count - 1)
    # By Fourier transform, padded so that the ends do not meet.
    spectrum = np.fft.rfft(centred, 2 * count)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, 2 * count)[: largest_lag + 1] / count
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


def percentile_interval(value: float, resampled: NDArray[np.float64], confidence: float) -> Interval:
    """Return the interval between the percentiles of the resampled values; NaN where too few of them are defined."""
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
    return Interval(value, float(low), float(high))
