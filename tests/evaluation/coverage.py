"""How often intervals hold the truth, on series whose truth is known; benchmarks/interval_coverage.py prints a table.

Thousands of series are resampled at once: a resample is a row of counts, how often each value was drawn, and a matrix
of counts times the series are all means. For that, series share their resamples, and mean block lengths are rounded
to steps of a fifth. What is compared, `widening` and `percentile_interval`, is what an evaluation calls.
"""

from __future__ import annotations

import math

import numpy as np

from velodrome.evaluation.intervals import block_length, percentile_interval, stationary_orders, widening
from velodrome.evaluation.measures import influences

WARM_UP = 300
SAMPLES = 400
CONFIDENCE = 0.95
KINDS = ("independent", "t(3)", "GARCH", "0.3", "0.5", "0.8", "0.95", "-0.3", "MA 0.7", "AR(2)")
HIDDEN = "hidden drift"  # noise, and 5 % of the variance an autoregression of 0.98: too slow to be seen


def filtered(noise: np.ndarray, *coefficients: float) -> np.ndarray:
    """Return autoregressions [N, n] driven by noise [N, WARM_UP + n]."""
    values = np.zeros_like(noise)
    for t in range(noise.shape[1]):
        values[:, t] = noise[:, t] + sum(c * values[:, t - 1 - k] for k, c in enumerate(coefficients) if t > k)
    return values[:, WARM_UP:]


def many_series(kind: str, series: int, length: int, seed: int = 0) -> np.ndarray:
    """Return series [N, n] with a mean of 0: one of KINDS, where a number is an autocorrelation."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(series, WARM_UP + length))
    if kind == "independent":
        return noise[:, WARM_UP:]
    if kind == "t(3)":
        return rng.standard_t(3, (series, length))
    if kind == "GARCH":
        variance, values = np.ones(series), np.zeros_like(noise)
        for t in range(noise.shape[1]):
            variance = 0.02 + 0.08 * values[:, t - 1] ** 2 + 0.9 * variance
            values[:, t] = np.sqrt(variance) * noise[:, t]
        return values[:, WARM_UP:]
    if kind == "MA 0.7":
        return (noise[:, 1:] + 0.7 * noise[:, :-1])[:, WARM_UP - 1 :]
    if kind == HIDDEN:
        drift = filtered(rng.normal(size=noise.shape), 0.98)
        return math.sqrt(0.95) * noise[:, WARM_UP:] + math.sqrt(0.05 * (1.0 - 0.98**2)) * drift
    return filtered(noise, *((0.3, 0.3) if kind == "AR(2)" else (float(kind),)))


def covered(values: np.ndarray, sharpe: float | None = None, widened: bool = True) -> float:
    """Return the share of the series [N, n] whose interval holds the true mean, 0.

    sharpe: a true Sharpe ratio to add to each and to look for instead. widened: False for the percentiles alone.
    """
    count, length = values.shape
    if sharpe is not None:
        values = values + sharpe * values.std()
    # As an evaluation chooses it: long enough for the values and for their clusters of volatility.
    wanted = [max(block_length(own), block_length(own**2)) for own in values]
    steps = np.round(5 * np.log(wanted)).astype(int)
    held = 0
    for step in np.unique(steps):
        block = math.exp(step / 5)
        orders = stationary_orders(length, block, SAMPLES, int(step))
        counts = np.stack([np.bincount(order, minlength=length) for order in orders]).astype(float)
        own = values[steps == step]
        means = own @ counts.T / length  # [N, samples]
        deviations = np.sqrt((own**2 @ counts.T / length - means**2) * length / (length - 1))
        for k, series in enumerate(own):
            moved, point, resampled, truth = series, series.mean(), means[k], 0.0
            if sharpe is not None:
                moved, point = influences(series, series)["sharpe"], series.mean() / series.std(ddof=1)
                resampled, truth = means[k] / deviations[k], sharpe
            stretch = widening(moved, block, CONFIDENCE) if widened else 1.0
            found = percentile_interval(point, resampled, CONFIDENCE, stretch)
            held += found.low <= truth <= found.high
    return held / count
