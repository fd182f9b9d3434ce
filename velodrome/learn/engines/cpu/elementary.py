"""Elementary functions of float32 in arithmetic that the compiler turns into vector code; the C library's it cannot."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from velodrome.learn.engines.cpu.compiled import inner
from velodrome.learn.engines.formulas import FLOAT, HALF, ONE, ZERO

# tanh(x) = x · P(x²) / Q(x²), the rational minimax approximation of Eigen. Beyond the limit it is 1 to a float.
TANH_LIMIT = FLOAT(7.90531110763549805)
P1, P3, P5 = FLOAT(4.89352455891786e-03), FLOAT(6.37261928875436e-04), FLOAT(1.48572235717979e-05)
P7, P9, P11 = FLOAT(5.12229709037114e-08), FLOAT(-8.60467152213735e-11), FLOAT(2.00018790482477e-13)
P13 = FLOAT(-2.76076847742355e-16)
Q0, Q2 = FLOAT(4.89352518554385e-03), FLOAT(2.26843463243900e-03)
Q4, Q6 = FLOAT(1.18534705686654e-04), FLOAT(1.19825839466702e-06)

# exp(x) = 2ⁿ · exp(x − n·ln 2), the polynomial of Cephes on [−½ ln 2, ½ ln 2]; within the limits 2ⁿ is a normal float.
EXP_LOW, EXP_HIGH = FLOAT(-87.3), FLOAT(88.0)
LOG2_E, LN2_HIGH, LN2_LOW = FLOAT(1.44269504088896341), FLOAT(0.693359375), FLOAT(-2.12194440e-4)
E2, E3, E4 = FLOAT(5.0000001201e-1), FLOAT(1.6666665459e-1), FLOAT(4.1665795894e-2)
E5, E6, E7 = FLOAT(8.3334519073e-3), FLOAT(1.3981999507e-3), FLOAT(1.9875691500e-4)
# Added to a small float, 1.5 · 2²³ leaves the nearest integer in the last bits.
ROUNDER = FLOAT(12582912.0)

# Φ(x) = 1 − ½ · polynomial(t) · exp(−x²/2) with t = 1 / (1 + T·|x|/√2), 7.1.26 of Abramowitz and Stegun: within 1e−7.
T = FLOAT(0.3275911 / 2.0**0.5)
N1, N2, N3 = FLOAT(0.254829592), FLOAT(-0.284496736), FLOAT(1.421413741)
N4, N5 = FLOAT(-1.453152027), FLOAT(1.061405429)


@intrinsic
def power_of_two(typing_context: Any, rounded: Any) -> Any:
    """Return 2ⁿ for n + ROUNDER: n moves from the last bits of a float into the exponent of another."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        integer = ir.IntType(32)
        bits = builder.bitcast(arguments[0], integer)
        return builder.bitcast(builder.add(builder.shl(bits, integer(23)), integer(127 << 23)), ir.FloatType())

    return types.float32(types.float32), generate


@inner
def fast_tanh(x):
    """Return tanh(x), within 5 units in the last place."""
    x = TANH_LIMIT if x > TANH_LIMIT else x
    x = -TANH_LIMIT if x < -TANH_LIMIT else x
    s = x * x
    p = (((((P13 * s + P11) * s + P9) * s + P7) * s + P5) * s + P3) * s + P1
    q = ((Q6 * s + Q4) * s + Q2) * s + Q0
    return x * p / q


@inner
def fast_exp(x):
    """Return exp(x), within 2 units in the last place; x is limited to [−87.3, 88]."""
    x = EXP_HIGH if x > EXP_HIGH else x
    x = EXP_LOW if x < EXP_LOW else x
    rounded = x * LOG2_E + ROUNDER
    n = rounded - ROUNDER
    r = x - n * LN2_HIGH - n * LN2_LOW
    tail = ((((E7 * r + E6) * r + E5) * r + E4) * r + E3) * r + E2
    return ((tail * r) * r + r + ONE) * power_of_two(rounded)


@inner
def fast_sigmoid(x):
    """Return 1 / (1 + exp(−x)), within 4 units in the last place above −87."""
    return ONE / (ONE + fast_exp(-x))


@inner
def fast_normal(x):
    """Return the normal distribution function, within 2e−7, and exp(−x²/2)."""
    size = -x if x < ZERO else x
    t = ONE / (ONE + T * size)
    bell = fast_exp(-HALF * x * x)
    tail = HALF * bell * t * ((((N5 * t + N4) * t + N3) * t + N2) * t + N1)
    return (tail if x < ZERO else ONE - tail), bell
