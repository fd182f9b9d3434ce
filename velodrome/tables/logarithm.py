"""The natural logarithm in additions, multiplications and divisions, which give the same bits on every machine.

Library logarithms differ in the last place between a CPU, a vectorised loop and a GPU. Rules call this function as it
is; `rolling` compiles it for columns.
"""

from __future__ import annotations

# Coefficients of the fdlibm logarithm (Sun Microsystems, 1993); its error is below one unit in the last place.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_L1, _L2, _L3 = 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01
_L4, _L5, _L6 = 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01
_L7 = 1.479819860511658591e-01
_HALF_ROOT, _ROOT = 0.7071067811865476, 1.4142135623730951

# log(1 + f) = f − f²·(½ − f/3 + f²/4 − …); for |f| ≤ NEAR.
_NEAR = 0.0625
_C3, _C4, _C5, _C6, _C7, _C8 = -1.0 / 3.0, 1.0 / 4.0, -1.0 / 5.0, 1.0 / 6.0, -1.0 / 7.0, 1.0 / 8.0
_C9, _C10, _C11, _C12, _C13, _C14 = -1.0 / 9.0, 1.0 / 10.0, -1.0 / 11.0, 1.0 / 12.0, -1.0 / 13.0, 1.0 / 14.0


def logarithm_of_growth(x: float) -> float:
    """Return the natural logarithm of a positive, finite number that is mostly close to 1; quicker there.

    A series without a division, summed in pairs, so that a GPU has something to do while it waits for a product.
    """
    f = x - 1.0
    if f > _NEAR or f < -_NEAR:
        return logarithm(x)
    f2 = f * f
    f4 = f2 * f2
    low = (0.5 + _C3 * f) + (_C4 + _C5 * f) * f2
    middle = (_C6 + _C7 * f) + (_C8 + _C9 * f) * f2
    high = (_C10 + _C11 * f) + (_C12 + _C13 * f) * f2
    return f - f2 * (low + middle * f4 + (high + _C14 * f4) * (f4 * f4))


def logarithm(x: float) -> float:
    """Return the natural logarithm of a positive, finite number."""
    exponent = 0.0
    while x < _HALF_ROOT:  # doubling and halving are exact
        x *= 2.0
        exponent -= 1.0
    while x >= _ROOT:
        x *= 0.5
        exponent += 1.0
    f = x - 1.0
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    series = z * (_L1 + w * (_L3 + w * (_L5 + w * _L7))) + w * (_L2 + w * (_L4 + w * _L6))
    half = 0.5 * f * f
    return exponent * _LN2_HIGH - ((half - (s * (half + series) + exponent * _LN2_LOW)) - f)
