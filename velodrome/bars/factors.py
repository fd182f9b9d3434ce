"""The factor model of `synthetic_bars("factors", …)`: what instruments share, and the best that a portfolio can do.

With r the log returns of K instruments in a bar, z₀ a normal shock that all of them share and z their own:

    r = drift + phi·(r_before − drift) + volatility·(√common · loading · z₀ + √(1 − common · loading²) · z)

so that the noise of each has the deviation `volatility`, and that of two instruments the correlation
common · loading₁ · loading₂. The last returns are seen, so the mean m of the next ones is known.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

SMALLEST_LOADING, LARGEST_LOADING = 0.75, 1.25
LARGEST_COMMON = 0.6  # 0.6 · 1.25² leaves every instrument something of its own
LARGEST_VOLATILITY = 0.1  # up to which the expansion below is good to a few per cent
GOLDEN = (5**0.5 - 1) / 2
DRAWS = 600_000  # means that are drawn, times the number of instruments
FEWEST_DRAWS = 4_000
CLOSE_ENOUGH = 1e-5  # of the volatility: the most by which the weights of a draw may miss their best
MOST_EXCHANGES = 5_000


def loading(instrument: int) -> float:
    """Return an instrument's loading: spread evenly around 1, the same however many instruments there are."""
    return SMALLEST_LOADING + (LARGEST_LOADING - SMALLEST_LOADING) * ((0.5 + instrument * GOLDEN) % 1.0)


def combined_noise(shared: NDArray[np.float64], own: NDArray[np.float64], instrument: int, common: float) -> NDArray:
    """Return an instrument's noise, of deviation 1."""
    beta = loading(instrument)
    return np.sqrt(common) * beta * shared + np.sqrt(1 - common * beta**2) * own


def covariance(instruments: int, volatility: float, common: float) -> NDArray[np.float64]:
    """Return the covariance [K, K] of the noise in a bar."""
    betas = np.array([loading(k) for k in range(instruments)])
    shared = common * np.outer(betas, betas)
    np.fill_diagonal(shared, 1.0)
    return volatility**2 * shared


@functools.lru_cache(maxsize=64)
def portfolio_optimum(instruments: int, volatility: float, drift: float, phi: float, common: float) -> float | None:
    """Return the best expected log return a bar, without costs, of weights on the simplex of instruments and cash.

    Weights w do not move prices, so the best ones maximise the next bar's E[ln(1 + w·(e^r − 1))] given its mean m. To
    second order in r that is w·(m + diag(S)/2) − w·S·w/2 with S the covariance of the noise, which is maximised
    exactly; the expansion is exact for one instrument alone. m has the stationary distribution N(drift, phi²/(1 − phi²)
    S), over which the mean is taken by draws of a fixed seed in pairs around the drift. At a volatility of 0.01 the
    result is good to about 0.5 %; the draws cause most of that error. Above 0.1 the expansion no longer holds: None.
    """
    if volatility > LARGEST_VOLATILITY:
        return None
    noise = covariance(instruments, volatility, common)
    pairs = max(FEWEST_DRAWS, DRAWS // instruments) // 2 if phi else 1
    spread = abs(phi) / np.sqrt(1 - phi**2) * np.linalg.cholesky(noise)
    draws = np.random.default_rng(0).standard_normal((pairs, instruments)) @ spread.T
    means = drift + np.concatenate([draws, -draws])
    weights = best_weights(means + np.diag(noise) / 2, noise, CLOSE_ENOUGH * volatility)
    gains = np.einsum("nk,nk->n", weights, means + np.diag(noise) / 2)
    risks = np.einsum("nk,nk->n", weights @ noise, weights)
    return float(np.mean(gains - risks / 2))


def best_weights(gain: NDArray[np.float64], risk: NDArray[np.float64], tolerance: float) -> NDArray[np.float64]:
    """Return the weights [N, K], each at least 0 and together at most 1, that maximise w·gain − w·risk·w/2.

    Weight is moved from the holding with the lowest marginal value to the place with the highest, as far as that pays,
    until no two differ by more than the tolerance, which is then the most that the result can be below the best. Cash
    is a place with no gain and no risk.
    """
    count, instruments = gain.shape
    gain = np.column_stack([gain, np.zeros(count)])
    padded = np.zeros((instruments + 1, instruments + 1))
    padded[:-1, :-1] = risk
    weights = np.zeros_like(gain)
    rows = np.arange(count)
    weights[rows, np.argmax(gain - np.diag(padded) / 2, axis=1)] = 1.0
    for _ in range(MOST_EXCHANGES):
        own = weights[rows]
        marginal = gain[rows] - own @ padded
        best = np.argmax(marginal, axis=1)
        worst = np.argmin(np.where(own > 0.0, marginal, np.inf), axis=1)
        place = np.arange(len(rows))
        slope = marginal[place, best] - marginal[place, worst]
        going_on = slope > tolerance
        if not going_on.any():
            break
        rows, best, worst, slope = rows[going_on], best[going_on], worst[going_on], slope[going_on]
        curvature = padded[best, best] + padded[worst, worst] - 2 * padded[best, worst]
        moved = np.minimum(weights[rows, worst], slope / curvature)
        weights[rows, best] += moved
        weights[rows, worst] -= moved
    return weights[:, :-1]
