"""The vectorised elementary functions, against double precision."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, ndtr

from velodrome.learn.engines.cpu import losses
from velodrome.learn.engines.cpu.elementary import fast_exp, fast_normal, fast_sigmoid, fast_tanh
from velodrome.learn.engines.cpu.kernels import ACTIVATIONS


def arguments(limit: float) -> np.ndarray:
    """Numbers of all sizes up to a limit, of both signs."""
    small = 10.0 ** np.linspace(-30, 0, 1500)
    wide = np.linspace(0.0, limit, 3000)
    return np.concatenate([-wide, -small, small, wide]).astype(np.float32)


def units_apart(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference in units in the last place of a float32."""
    return float(np.max(np.abs(found.astype(np.float64) - expected) / np.spacing(np.abs(expected).astype(np.float32))))


def activated(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the forward kernel makes of arguments, and their derivatives as the backward kernel sees them."""
    activation = ACTIVATIONS[name]
    hidden, slopes = x.reshape(1, -1).copy(), np.zeros((1, x.size), np.float32)
    activation.forward(hidden, slopes, np.zeros(x.size, np.float32), 1)
    gradient, bias_gradient = np.ones((1, x.size), np.float32), np.zeros(x.size, np.float32)
    activation.backward(gradient, hidden, slopes, bias_gradient, 1, False)
    np.testing.assert_array_equal(bias_gradient, gradient[0])
    return hidden[0], gradient[0]


def test_tanh_is_exact_to_a_few_units_in_the_last_place():
    x = arguments(12.0)
    found, slopes = activated("tanh", x)
    assert units_apart(found, np.tanh(x.astype(np.float64))) < 6
    assert np.abs(found).max() <= 1
    np.testing.assert_allclose(slopes, 1 - np.tanh(x.astype(np.float64)) ** 2, atol=1e-6)


def test_exp_is_exact_to_two_units_in_the_last_place():
    x = arguments(87.0)
    assert units_apart(np.array([fast_exp(number) for number in x]), np.exp(x.astype(np.float64))) < 2
    assert fast_exp(np.float32(0.0)) == 1.0


def test_silu_and_gelu_and_their_derivatives():
    x = arguments(20.0)
    exact = x.astype(np.float64)
    gate, bell = expit(exact), np.exp(-0.5 * exact**2) / np.sqrt(2 * np.pi)
    found, slopes = activated("silu", x)
    np.testing.assert_allclose(found, exact * gate, rtol=2e-6, atol=1e-30)
    np.testing.assert_allclose(slopes, gate * (1 + exact * (1 - gate)), rtol=0, atol=1.2e-6)
    found, slopes = activated("gelu", x)
    np.testing.assert_allclose(found, exact * ndtr(exact), rtol=3e-7, atol=5e-7)
    np.testing.assert_allclose(slopes, ndtr(exact) + exact * bell, rtol=0, atol=1e-6)


@pytest.mark.parametrize("function", [fast_tanh, fast_exp, fast_sigmoid, lambda x: fast_normal(x)[0]])
def test_infinities_have_their_limits_and_not_a_number_stays(function):
    numbers = [float(function(np.float32(x))) for x in (-np.inf, np.inf)]
    assert np.isfinite(numbers).all()
    assert numbers[0] < numbers[1]
    assert np.isnan(function(np.float32("nan")))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_not_a_number_passes_every_activation(name):
    found, _ = activated(name, np.full(40, np.nan, np.float32))
    assert np.isnan(found).all()


def test_softmax_of_large_and_equal_logits():
    logits = np.array([[1000.0, -1000.0, 0.0], [1000.0, 1000.0, 0.0], [-1000.0, 1000.0, 0.0]], np.float32)
    found, probabilities = logits.copy(), np.zeros((3, 3), np.float32)
    losses.softmax(found, 0, 3, probabilities, np.zeros(3, np.float32), np.zeros(3, np.float32), 3)
    np.testing.assert_allclose(probabilities.sum(0), 1.0, rtol=1e-6)
    np.testing.assert_allclose(probabilities[:, 2], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(found[:, 0], [-np.log(2), -np.log(2), -2000 - np.log(2)], rtol=1e-6)
