"""The exponential, sine and cosine in additions, multiplications and divisions: the same bits on every machine.

Those of `math` differ in the last bit between machines, and between a CPU and a GPU. The logarithm is in
`velodrome/tables/logarithm.py`, because features need it, too.
"""

from __future__ import annotations

import math

# Coefficients of the fdlibm exponential (Sun Microsystems, 2004); its error is below one unit in the last place.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_PER_LN2 = 1.44269504088896338700
_P1, _P2, _P3 = 1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05
_P4, _P5 = -1.65339022054652515390e-06, 4.13813679705723846039e-08
_SMALLEST = -700.0  # e^−700 is still a normal number
_BIT_16, _BIT_4, _BIT_1 = 1.0 / 65536.0, 1.0 / 16.0, 0.5

# Coefficients of the fdlibm sine and cosine, and a right angle in two parts, the first of 33 bits.
_PER_RIGHT = 6.36619772367581382433e-01
_RIGHT_HIGH, _RIGHT_LOW = 1.57079632673412561417e00, 6.07710050650619224932e-11
_S1, _S2, _S3 = -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04
_S4, _S5, _S6 = 2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10
_C1, _C2, _C3 = 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05
_C4, _C5, _C6 = -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11


def exponential(x: float) -> float:
    """Return e to the power of a number that is not above 0; below −700, e^−700."""
    x = max(x, _SMALLEST)
    halvings = math.floor(0.5 - x * _PER_LN2)
    high = x + halvings * _LN2_HIGH
    low = -halvings * _LN2_LOW
    r = high - low
    t = r * r
    c = r - t * (_P1 + t * (_P2 + t * (_P3 + t * (_P4 + t * _P5))))
    result = 1.0 - ((low - (r * c) / (2.0 - c)) - high)
    # Multiplications by powers of two are exact.
    while halvings >= 16:
        result *= _BIT_16
        halvings -= 16
    while halvings >= 4:
        result *= _BIT_4
        halvings -= 4
    while halvings >= 1:
        result *= _BIT_1
        halvings -= 1
    return result


def sine_and_cosine(angle: float) -> tuple[float, float]:
    """Return the sine and the cosine of an angle in radians, to 2.3e-16; of one beyond a million, less exactly."""
    whole = math.floor(angle * _PER_RIGHT + 0.5)  # right angles; what is left is at most half of one
    turns = int(whole)  # on a GPU `whole` is a float
    first = angle - turns * _RIGHT_HIGH
    second = turns * _RIGHT_LOW
    x = first - second
    rest = (first - x) - second
    z = x * x
    w = z * z
    half = 0.5 * z
    sine = x - ((z * (0.5 * rest - z * x * (_S2 + z * (_S3 + z * _S4) + z * w * (_S5 + z * _S6))) - rest) - z * x * _S1)
    near = 1.0 - half
    series = z * (_C1 + z * (_C2 + z * _C3)) + w * w * (_C4 + z * (_C5 + z * _C6))
    cosine = near + (((1.0 - near) - half) + (z * series - x * rest))
    odd = turns & 1 == 1
    one, other = (cosine if odd else sine), (sine if odd else cosine)
    return (-one if turns & 2 == 2 else one), (-other if (turns + 1) & 2 == 2 else other)
