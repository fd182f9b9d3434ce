"""When a forecast is worth its costs: the position changes sides where the forecast passes a threshold, else it stays.

With costs in proportion to what is traded, that is the form of the best rule. The threshold is chosen by what forecasts
of rows that were not fitted to promise after costs, scaled to what came true of them. What each threshold would have
gained there is mostly chance: with a few hundred rows, the best of 24 is the luckiest one.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.outside.kernels import cached_njit
from velodrome.vector.cores import available_cores

Values = NDArray[np.float64]
SHARES = np.r_[np.linspace(0.0, 0.9, 19), 0.95, 0.98, 0.99, 0.995]  # of the forecasts that a threshold lies above
ROWS_IN_A_PRODUCT = 16  # a growth is above a thousandth, and the product of so many far above the smallest number


class Stakes(NamedTuple):
    """What can be held, and what a change of it costs."""

    long: float  # exposure, a part of the equity
    short: float  # at most 0
    cost: float  # of one unit of exposure that is traded, a part of the equity


class Rule(NamedTuple):
    """A threshold, and what it earned on the rows that it was chosen on."""

    threshold: float  # in units of the forecast; infinite: nothing is worth trading
    earned: Values  # log return of each row, after costs


@cached_njit
def next_side(forecast, threshold, first, before):
    """Return the side of the last forecast beyond the threshold since a first row, 0 before it."""
    if forecast > threshold:
        return 1
    if forecast < -threshold:
        return -1
    return 0 if first else before


@cached_njit
def growth(held, before, gain, cost):
    """Return what the equity grows by in a row, after costs."""
    return 1.0 + max(held * gain - cost * abs(held - before), -0.999)


@cached_njit
def earned(forecast, gains, first, threshold, stakes):
    """Return the log return of each row, after costs.

    gains: of one unit held from this row's fill to the next. first: whether nothing is held before the row.
    """
    found, side, held = np.empty(len(forecast)), 0, 0.0
    for row in range(len(forecast)):
        side = next_side(forecast[row], threshold, first[row], side)
        before = 0.0 if first[row] else held
        held = stakes.long if side > 0 else stakes.short if side < 0 else 0.0
        found[row] = math.log(growth(held, before, gains[row], stakes.cost))
    return found


@cached_njit(nogil=True)
def promised(forecast, promise, deviation, first, threshold, stakes):
    """Return the sum of log returns if gains are as promised, once above and once below by their deviation.

    A logarithm is taken of the product of some rows' growth: it takes longer than all the rest.
    """
    total, above, below, side, held = 0.0, 1.0, 1.0, 0, 0.0
    for row in range(len(forecast)):
        side = next_side(forecast[row], threshold, first[row], side)
        before = 0.0 if first[row] else held
        held = stakes.long if side > 0 else stakes.short if side < 0 else 0.0
        above *= growth(held, before, promise[row] + deviation, stakes.cost)
        below *= growth(held, before, promise[row] - deviation, stakes.cost)
        if row % ROWS_IN_A_PRODUCT == 0:
            total += math.log(above) + math.log(below)
            above, below = 1.0, 1.0
    return total + math.log(above) + math.log(below)


def best_rule(forecast: Values, gains: Values, first: NDArray[np.bool_], stakes: Stakes, margin: float = 0.0) -> Rule:
    """Return the threshold that promises most; an infinite one where none promises anything, or did not keep it.

    margin: by how many standard errors it must have earned something.
    A forecast promises itself, times the slope of the gains over the forecasts, give or take the gains' deviation.
    """
    size = float(forecast @ forecast)
    promise = max(float(forecast @ gains) / size, 0.0) * forecast if size > 0.0 else np.zeros_like(forecast)
    deviation = float(gains.std()) if len(gains) else 0.0
    thresholds = [0.0, *(np.quantile(np.abs(forecast), SHARES).tolist() if len(forecast) else [])]
    with ThreadPoolExecutor(available_cores()) as threads:
        sums = list(threads.map(lambda own: promised(forecast, promise, deviation, first, own, stakes), thresholds))
    best = int(np.argmax(sums))  # the first of equals
    found = Rule(thresholds[best], earned(forecast, gains, first, thresholds[best], stakes))
    if sums[best] > 0.0 and found.earned.sum() > margin * found.earned.std() * np.sqrt(len(found.earned)):
        return found
    return Rule(np.inf, np.zeros_like(forecast))
