"""Weights chosen on the training split: against slow searches, on a basket whose optimum is known, in its limits."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.evaluation.portfolio.test_baselines import baselines, played
from tests.learn.portfolios import factors_basket
from velodrome.evaluation.baselines import CASH, FORECAST, MOMENTUM
from velodrome.evaluation.portfolio.forecasts import (
    Limits,
    Terms,
    mean_variance,
    net_growth,
    patient,
    project,
    shrunk_covariance,
)

BASKET = factors_basket(3000)


def share_of_optimum(name, **params):
    account = played(name, BASKET, **params)
    grown = np.log(account.equity[-1, 0] / account.equity[0, 0])
    return grown / (len(account.time) - 1) / BASKET.optimum


@pytest.mark.parametrize(("room", "most"), [(1.0, 1.0), (0.9, 0.4), (2.0, 1.0)])
def test_weights_are_the_best_within_the_limits(room, most):
    rng = np.random.default_rng(5)
    factors = rng.normal(size=(4, 4))
    covariance = 1e-4 * (factors @ factors.T + np.eye(4))
    expected = rng.normal(0.0, 3e-4, (6, 4))
    listed = np.ones((6, 4), bool)
    listed[2, 1] = False
    found = mean_variance(expected, covariance, listed, Limits(room, most, 0.0))
    for row in range(6):
        bounds = [(0.0, most if there else 0.0) for there in listed[row]]
        own = minimize(
            lambda w, mean=expected[row]: 1e4 * (0.5 * w @ covariance @ w - w @ mean),
            np.full(4, 0.1), bounds=bounds, constraints={"type": "ineq", "fun": lambda w: room - w.sum()}, tol=1e-14,
        )  # fmt: skip
        assert np.allclose(found[row], own.x, atol=2e-3), row


def test_projection_is_the_closest_point():
    rng = np.random.default_rng(0)
    asked = rng.normal(0.3, 0.6, (50, 5))
    most = np.full((50, 5), 0.5)
    found = project(asked, 1.0, most)
    assert (found >= 0.0).all()
    assert (found <= 0.5).all()
    assert (found.sum(axis=1) <= 1.0 + 1e-9).all()
    others = project(rng.uniform(0.0, 0.5, (50, 5)), 1.0, most)
    assert (((found - asked) ** 2).sum(1) <= ((others - asked) ** 2).sum(1) + 1e-9).all()


def test_covariance_is_shrunk_more_where_there_is_less_to_learn_it_from():
    rng = np.random.default_rng(1)
    mixed = rng.normal(size=(8, 8))
    returns = rng.normal(size=(4000, 8)) @ mixed
    truth = mixed.T @ mixed
    errors = []
    for rows in (12, 4000):
        sample, shrunk = np.cov(returns[:rows].T, ddof=0), shrunk_covariance(returns[:rows])
        errors.append((((shrunk - truth) ** 2).sum(), ((sample - truth) ** 2).sum()))
        assert np.trace(shrunk) == pytest.approx(np.trace(sample))
    assert errors[0][0] < errors[0][1]
    assert errors[1][0] == pytest.approx(errors[1][1], rel=0.1)


def test_patience_decides_whether_a_change_is_worth_its_costs():
    wanted, expected = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.002, 0.0], [0.001, 0.0015]])
    found = patient(wanted, expected, Terms(np.zeros((2, 2)), 0.001), np.array([1.0, 5.0]))
    assert found.tolist() == [[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]]
    gains = np.array([[0.01, np.nan], [0.02, -0.01]])
    assert net_growth(found[1], gains, 0.001) == pytest.approx((np.log(1.009) + np.log(1 - 0.01 - 0.002)) / 2)


def test_the_forecast_nearly_finds_the_best_without_costs_and_gains_with_them():
    assert share_of_optimum(FORECAST) > 0.85
    assert share_of_optimum(FORECAST, fee=0.001) > 0.3
    assert share_of_optimum(MOMENTUM) > 0.0
    assert "within" in baselines(BASKET)[FORECAST].note
    assert "bars (which gained most on the training split" in baselines(BASKET)[MOMENTUM].note


def test_where_costs_eat_everything_it_stays_in_cash():
    assert baselines(BASKET, fee=0.05)[FORECAST].note.endswith("all in cash")
    assert np.array_equal(played(FORECAST, BASKET, fee=0.05).equity, played(CASH, BASKET, fee=0.05).equity)


def test_limits_are_kept():
    account = played(FORECAST, BASKET, max_weight=0.5, cash_reserve=0.2)
    weights = account.units[:, :, 0] * account.price / account.equity[:, :1]
    assert weights.sum(axis=1).max() < 0.85
    assert weights.max() < 0.55
    assert weights.min() >= 0.0
