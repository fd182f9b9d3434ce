"""The exponential of numbers up to 0, by additions, multiplications and divisions: the same bits on every machine."""

from __future__ import annotations

import math

# Coefficients of the fdlibm exponential (Sun Microsystems, 2004); its error is below one unit in the last place.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_PER_LN2 = 1.44269504088896338700
_P1, _P2, _P3 = 1.66666666666666019037e-01, -2.77777777770155933842e-03, 6.61375632143793436117e-05
_P4, _P5 = -1.65339022054652515390e-06, 4.13813679705723846039e-08
_SMALLEST = -700.0  # e^−700 is still a normal number
_BIT_16, _BIT_4, _BIT_1 = 1.0 / 65536.0, 1.0 / 16.0, 0.5


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
