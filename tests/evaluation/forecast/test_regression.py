"""Both regressions against slow ones written out, and the choices against trying them all."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from velodrome.evaluation.forecast.regression import BLOCKS, PENALTIES, Regression

ROWS, INPUTS = 900, 6


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(ROWS, INPUTS)) * np.array([1, 5, 0.1, 1, 2, 1]) + np.array([0, 9, 0, -3, 0, 0])).astype("f4")
    y = 0.002 * x[:, 0] + 0.02 * x[:, 2] + rng.normal(0.001, 0.01, ROWS)
    block = np.arange(ROWS) * BLOCKS // ROWS
    return x, y, block


def slow_ridge(x, y, penalty, mean, scale):
    """Solve the normal equations of centred inputs."""
    z = (x.astype(np.float64) - mean) / scale
    centred = z - z.mean(0)
    weights = np.linalg.solve(centred.T @ centred / len(z) + penalty * np.eye(z.shape[1]), centred.T @ y / len(z))
    return lambda new: y.mean() + ((new - mean) / scale - z.mean(0)) @ weights


def test_ridge_is_what_the_normal_equations_say_with_the_choice_that_trying_all_makes(data):
    x, y, block = data
    choices = [np.arange(2), np.arange(4), np.arange(INPUTS)]
    mean, scale = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    found = Regression(x, y, block, choices)

    def unseen_error(inputs, penalty):
        total = 0.0
        for own in range(1, BLOCKS):
            known, new = block < own, block == own
            model = slow_ridge(x[known][:, inputs], y[known], penalty, mean[inputs], scale[inputs])
            total += ((model(x[new][:, inputs]) - y[new]) ** 2).sum()
        return total

    errors = {(len(inputs), penalty): unseen_error(inputs, penalty) for inputs in choices for penalty in PENALTIES}
    best = min(errors, key=lambda key: errors[key])
    model = found.ridge()
    assert (model.inputs, model.penalty) == best
    inputs = np.arange(model.inputs)
    again = slow_ridge(x[:, inputs], y, model.penalty, mean[inputs], scale[inputs])
    assert np.allclose(model.expected(x), again(x[:, inputs]), rtol=1e-9, atol=1e-12)
    assert np.isnan(model.unseen[block == 0]).all()
    before = slow_ridge(x[block < 3][:, inputs], y[block < 3], model.penalty, mean[inputs], scale[inputs])
    assert np.allclose(model.unseen[block == 3], before(x[block == 3][:, inputs]), rtol=1e-9, atol=1e-12)


def test_logistic_regression_is_at_the_minimum_of_its_loss(data):
    x, y, block = data
    found = Regression(x, y, block, [np.arange(INPUTS)])
    z = found.standardised(x)
    centred, up, penalty = z - z.mean(0), y > 0.0, PENALTIES[found.place]

    def loss(values):
        odds = values[0] + centred @ values[1:]
        return np.logaddexp(0.0, np.where(up, -odds, odds)).mean() + 0.125 * penalty * values[1:] @ values[1:]

    best = minimize(loss, np.zeros(INPUTS + 1), tol=1e-12).x
    chance = 1.0 / (1.0 + np.exp(-(best[0] + centred @ best[1:])))
    assert np.allclose(found.logistic().expected(x), (2.0 * chance - 1.0) * np.abs(y).mean(), atol=2e-6)


def test_of_noise_nothing_but_the_mean_is_left():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3000, 40)).astype("f4"), rng.normal(0.0, 0.01, 3000)
    expected = Regression(x, y, np.arange(3000) * BLOCKS // 3000, [np.arange(40)]).ridge().expected(x)
    assert np.abs(expected).max() < 0.002


def test_a_constant_input_says_nothing(data):
    x, y, block = data
    constant = np.concatenate([x, np.full((ROWS, 1), 7.0, "f4")], axis=1)
    with_it = Regression(constant, y, block, [np.arange(INPUTS + 1)]).ridge()
    without = Regression(x, y, block, [np.arange(INPUTS)]).ridge()
    assert np.allclose(with_it.expected(constant), without.expected(x), atol=1e-12)


def test_an_adaptive_one_is_ridge_regression_on_inputs_stretched_by_their_weights(data):
    x, y, block = data
    found = Regression(x, y, block, [np.arange(INPUTS)], adaptive=True)
    z = found.standardised(x)
    first = np.linalg.solve(np.cov(z.T, bias=True) + 0.1 * np.eye(INPUTS), np.cov(z.T, y, bias=True)[:-1, -1])
    stretch = np.abs(first) / np.sqrt(np.mean(first**2))
    again = slow_ridge(z * stretch, y, found.ridge().penalty, 0.0, 1.0)
    assert found.ridge().name == "adaptive ridge"
    assert np.allclose(found.ridge().expected(x), again(z * stretch), rtol=1e-8, atol=1e-12)


def test_of_many_inputs_an_adaptive_one_keeps_what_tells_something():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1_200, 40)).astype("f4")
    y = 0.002 * x[:, 3] + rng.normal(0.0, 0.01, len(x))
    block, choices = np.arange(len(x)) * BLOCKS // len(x), [np.arange(40)]
    new = rng.normal(size=(5_000, 40)).astype("f4")
    for kind in ("ridge", "logistic"):
        plain, adaptive = (
            getattr(Regression(x, y, block, choices, (), own), kind)().expected(new) for own in (False, True)
        )
        missed = [float(np.mean((said - 0.002 * new[:, 3]) ** 2)) for said in (plain, adaptive)]
        assert missed[1] < 0.5 * missed[0]
