"""Activations and their gradients between the matrix products, compiled."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from velodrome.learn.engines.cpu.compiled import loop
from velodrome.learn.engines.cpu.elementary import fast_normal, fast_sigmoid, fast_tanh
from velodrome.learn.engines.formulas import FLOAT, ONE, ZERO

INVERSE_ROOT_TWO_PI = FLOAT(1.0 / math.sqrt(2.0 * math.pi))

# Forward kernels turn products [rows, ≥ width] into activations of product + bias in place; the width is the bias's.
# Where the derivative cannot be had from the activation, they leave it in `slopes`, which is empty for the others.
# Backward kernels turn gradients of activations into gradients of their arguments, and sum those for the bias.


@loop
def tanh_forward(hidden, slopes, bias, rows):
    """Write tanh(x)."""
    for i in range(rows):
        row = hidden[i]
        for j in range(bias.size):
            row[j] = fast_tanh(row[j] + bias[j])


@loop
def relu_forward(hidden, slopes, bias, rows):
    """Write max(0, x)."""
    for i in range(rows):
        row = hidden[i]
        for j in range(bias.size):
            x = row[j] + bias[j]
            row[j] = ZERO if x < ZERO else x


@loop
def silu_forward(hidden, slopes, bias, rows):
    """Write x · sigmoid(x)."""
    for i in range(rows):
        row, slope = hidden[i], slopes[i]
        for j in range(bias.size):
            x = row[j] + bias[j]
            gate = fast_sigmoid(x)
            row[j] = x * gate
            slope[j] = gate * (ONE + x * (ONE - gate))


@loop
def gelu_forward(hidden, slopes, bias, rows):
    """Write x · Φ(x) with the normal distribution function Φ."""
    for i in range(rows):
        row, slope = hidden[i], slopes[i]
        for j in range(bias.size):
            x = row[j] + bias[j]
            normal, bell = fast_normal(x)
            row[j] = x * normal
            slope[j] = normal + x * bell * INVERSE_ROOT_TWO_PI


@loop
def tanh_backward(gradient, hidden, slopes, bias_gradient, rows, accumulate):
    """Multiply by 1 − tanh²."""
    if not accumulate:
        bias_gradient[:] = ZERO
    for i in range(rows):
        row, activation = gradient[i], hidden[i]
        for j in range(bias_gradient.size):
            slope = row[j] * (ONE - activation[j] * activation[j])
            row[j] = slope
            bias_gradient[j] += slope


@loop
def relu_backward(gradient, hidden, slopes, bias_gradient, rows, accumulate):
    """Multiply by 1 where the activation is positive, by 0 elsewhere."""
    if not accumulate:
        bias_gradient[:] = ZERO
    for i in range(rows):
        row, activation = gradient[i], hidden[i]
        for j in range(bias_gradient.size):
            slope = row[j] if activation[j] > ZERO else ZERO
            row[j] = slope
            bias_gradient[j] += slope


@loop
def stored_backward(gradient, hidden, slopes, bias_gradient, rows, accumulate):
    """Multiply by the derivatives that the forward kernel left."""
    if not accumulate:
        bias_gradient[:] = ZERO
    for i in range(rows):
        row, slope = gradient[i], slopes[i]
        for j in range(bias_gradient.size):
            product = row[j] * slope[j]
            row[j] = product
            bias_gradient[j] += product


class Activation(NamedTuple):
    """The kernels of an activation."""

    forward: Any
    backward: Any
    stores_slopes: bool


ACTIVATIONS = {
    "tanh": Activation(tanh_forward, tanh_backward, False),
    "relu": Activation(relu_forward, relu_backward, False),
    "silu": Activation(silu_forward, stored_backward, True),
    "gelu": Activation(gelu_forward, stored_backward, True),
}
