"""The factor model: what instruments share, and a known best return that slow and independent ways agree with."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.bars.test_synthetic import log_returns
from velodrome.bars import synthetic_bars
from velodrome.bars.factors import best_weights, covariance, loading, portfolio_optimum
from velodrome.errors import ConfigError


def returns_of(bars) -> np.ndarray:
    return np.stack([log_returns(bars[symbol]) for symbol in bars], axis=1)


def test_instruments_share_shocks_and_depend_on_their_own_past():
    returns = returns_of(synthetic_bars("factors", 200_000, 1, symbols=3, volatility=0.01, common=0.4))
    noise = returns[1:] - 0.3 * returns[:-1]
    assert np.allclose(noise.std(axis=0), 0.01, rtol=0.01)
    wanted = covariance(3, 0.01, 0.4) / 0.01**2
    assert np.allclose(np.corrcoef(noise.T), wanted, atol=0.01)
    assert wanted[0, 1] == pytest.approx(0.4 * loading(0) * loading(1))
    lagged = np.corrcoef(returns[1:].T, returns[:-1].T)[:3, 3:]
    assert np.allclose(np.diag(lagged), 0.3, atol=0.01)


def test_nothing_in_common_is_ar1():
    shared = synthetic_bars("factors", 500, 3, symbols=2, common=0.0)
    alone = synthetic_bars("ar1", 500, 3, symbols=2)
    for own, other in zip(shared, alone, strict=True):
        assert np.array_equal(shared[own].close, alone[other].close)


def test_an_instrument_is_the_same_among_few_and_among_many():
    few, many = (synthetic_bars("factors", 300, 5, symbols=count) for count in (2, 7))
    for symbol in few:
        assert np.array_equal(few[symbol].close, many[symbol].close)
    loadings = [loading(k) for k in range(100)]
    assert min(loadings) >= 0.75
    assert max(loadings) <= 1.25
    assert np.mean(loadings) == pytest.approx(1.0, abs=0.01)


def slow_best(mean: np.ndarray, noise: np.ndarray) -> float:
    """Maximise the simulated expectation of the logarithm itself with a general solver."""

    def loss(weights: np.ndarray) -> float:
        return -float(np.log1p(np.expm1(mean + noise) @ weights).mean())

    count = len(mean)
    starts = [np.full(count, 0.5 / count), np.eye(count)[int(np.argmax(mean))] * 0.98]
    found = [
        minimize(
            loss, start, bounds=[(0.0, 1.0)] * count, method="SLSQP", options={"ftol": 1e-12, "maxiter": 200},
            constraints=[{"type": "ineq", "fun": lambda w: 1.0 - w.sum()}],
        )
        for start in starts
    ]  # fmt: skip
    return -min(float(one.fun) for one in found)


@pytest.mark.parametrize(("volatility", "drift", "phi"), [(0.01, 0.0, 0.3), (0.05, 1e-3, 0.1)])
def test_the_best_weights_reach_what_a_general_solver_finds_for_the_true_expectation(volatility, drift, phi):
    rng = np.random.default_rng(7)
    risk = covariance(3, volatility, 0.5)
    root = np.linalg.cholesky(risk)
    half = rng.standard_normal((1500, 3)) @ root.T
    # Moments that are exact: what is compared is the solution, not the luck of the draws.
    half = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / len(half))).T @ root.T
    noise = np.concatenate([half, -half])
    means = drift + phi / np.sqrt(1 - phi**2) * rng.standard_normal((60, 3)) @ root.T
    gain = means + np.diag(risk) / 2
    weights = best_weights(gain, risk, 1e-7 * volatility)
    assert (weights >= 0).all()
    assert (weights.sum(axis=1) <= 1 + 1e-12).all()
    expanded = (weights * gain).sum(axis=1) - ((weights @ risk) * weights).sum(axis=1) / 2
    slow = np.array([slow_best(mean, noise) for mean in means])
    assert expanded.mean() == pytest.approx(slow.mean(), rel=0.015)


def test_no_exchange_of_weight_improves_the_best():
    rng = np.random.default_rng(2)
    risk = covariance(20, 0.05, 0.2)
    gain = 2e-3 + 1e-3 * rng.standard_normal((50, 20))
    weights = best_weights(gain, risk, 1e-9)

    def value(w: np.ndarray) -> np.ndarray:
        return (w * gain).sum(axis=1) - ((w @ risk) * w).sum(axis=1) / 2

    assert (weights > 1e-6).sum(axis=1).max() > 3
    for _ in range(200):
        other = rng.dirichlet(np.ones(21), 50)[:, :20]
        toward = weights + 0.01 * (other - weights)
        assert (value(toward) <= value(weights) + 1e-8).all()


@pytest.mark.parametrize("instruments", [2, 7, 100])
def test_the_draws_behind_the_optimum_are_enough(instruments):
    risk = covariance(instruments, 0.01, 0.5)
    draws = np.random.default_rng(11).standard_normal((40_000, instruments)) @ np.linalg.cholesky(risk).T
    gain = 0.3 / np.sqrt(1 - 0.09) * draws + np.diag(risk) / 2
    weights = best_weights(gain, risk, 1e-7)
    value = (weights * gain).sum(axis=1) - ((weights @ risk) * weights).sum(axis=1) / 2
    assert portfolio_optimum(instruments, 0.01, 0.0, 0.3, 0.5) == pytest.approx(value.mean(), rel=0.015)


def test_a_policy_that_knows_the_mean_reaches_the_optimum():
    bars = synthetic_bars("factors", 200_000, 4, symbols=7, volatility=0.01)
    returns = returns_of(bars)
    risk = covariance(7, 0.01, 0.5)
    weights = best_weights(0.3 * returns[:-1] + np.diag(risk) / 2, risk, 1e-6)
    reached = np.log1p((weights * np.expm1(returns[1:])).sum(axis=1)).mean()
    assert 0.97 < reached / bars.optimum < 1.03


def test_known_cases():
    assert portfolio_optimum(1, 0.01, 2e-4, 0.0, 0.5) == pytest.approx(2e-4)
    assert portfolio_optimum(3, 0.01, -1e-3, 0.0, 0.5) == 0.0
    # Drift above the risk and nothing to foretell: diversified, better than the drift of one.
    assert portfolio_optimum(5, 0.02, 1e-3, 0.0, 0.0) == pytest.approx(1e-3 + 0.02**2 / 2 * (1 - 1 / 5))
    assert portfolio_optimum(7, 0.2, 0.0, 0.3, 0.5) is None


def test_bars_say_of_what_their_optimum_is():
    assert synthetic_bars("factors", 10, symbols=3).optimum_of == "portfolio"
    assert synthetic_bars("ar1", 10, symbols=3).optimum_of == "instrument"
    with pytest.raises(ConfigError, match=r"common is 0.7; it must be from 0 to 0.6"):
        synthetic_bars("factors", 10, common=0.7)
