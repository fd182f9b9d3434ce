"""The natural logarithm in additions, multiplications and divisions, which give the same bits on every machine.

Library logarithms differ in the last place between a CPU, a vectorised loop and a GPU. Rules call this function as it
is; `rolling` compiles it for columns.
"""

from __future__ import annotations

# Coefficients of the fdlibm logarithm (Sun Microsystems, 1993); its error is below one unit in the last place.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_L1, _L2, _L3, _L4 = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
)
_L5, _L6, _L7 = 1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01
_HALF_ROOT, _ROOT = 0.7071067811865476, 1.4142135623730951


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
