"""When a forecast is worth its costs: the position changes sides where the forecast passes a threshold, else it stays.

With costs in proportion to what is traded, that is the form of the best rule. The threshold is chosen by what forecasts
of rows that were not fitted to promise after costs, scaled to what came true of them. What each threshold would have
gained there is mostly chance: with a few hundred rows, the best of 24 is the luckiest one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
SHARES = np.r_[np.linspace(0.0, 0.9, 19), 0.95, 0.98, 0.99, 0.995]  # of the forecasts that a threshold lies above


class Stakes(NamedTuple):
    """What can be held, and what a change of it costs."""

    long: float  # exposure, a part of the equity
    short: float  # at most 0
    cost: float  # of one unit of exposure that is traded, a part of the equity

    def exposures(self, sides: Values) -> Values:
        """Return the exposure on each side: 1 long, −1 short, 0 neither."""
        return np.where(sides > 0.0, self.long, np.where(sides < 0.0, self.short, 0.0))


class Rule(NamedTuple):
    """A threshold, and what it earned on the rows that it was chosen on."""

    threshold: float  # in units of the forecast; infinite: nothing is worth trading
    earned: Values  # log return of each row, after costs


def sides(forecast: Values, threshold: float, first: NDArray[np.bool_]) -> Values:
    """Return the side on each row: that of the last forecast beyond the threshold since a first row, 0 before it."""
    taken = np.where(forecast > threshold, 1.0, np.where(forecast < -threshold, -1.0, 0.0))
    rows = np.arange(len(taken))
    latest = np.maximum.accumulate(np.where((taken != 0.0) | first, rows, 0))
    return taken[latest]


def earned(forecast: Values, gains: Values, first: NDArray[np.bool_], threshold: float, stakes: Stakes) -> Values:
    """Return the log return of each row, after costs.

    gains: of one unit held from this row's fill to the next. first: whether nothing is held before the row.
    """
    held = stakes.exposures(sides(forecast, threshold, first))
    before = np.where(first, 0.0, np.r_[0.0, held[:-1]])
    change = held * gains - stakes.cost * np.abs(held - before)
    return np.log1p(np.maximum(change, -0.999))


def best_rule(forecast: Values, gains: Values, first: NDArray[np.bool_], stakes: Stakes) -> Rule:
    """Return the threshold that promises most; an infinite one where none promises anything, or did not keep it.

    A forecast promises itself, times the slope of the gains over the forecasts, give or take the gains' deviation.
    """
    size = float(forecast @ forecast)
    promise = max(float(forecast @ gains) / size, 0.0) * forecast if size > 0.0 else np.zeros_like(forecast)
    deviation = float(gains.std()) if len(gains) else 0.0

    def promised(threshold: float) -> float:
        ways = (earned(forecast, promise + way, first, threshold, stakes) for way in (deviation, -deviation))
        return sum(float(own.sum()) for own in ways)

    sizes = np.quantile(np.abs(forecast), SHARES).tolist() if len(forecast) else []
    threshold = max((0.0, *sizes), key=promised)
    found = Rule(threshold, earned(forecast, gains, first, threshold, stakes))
    if promised(threshold) > 0.0 and found.earned.sum() > 0.0:
        return found
    return Rule(np.inf, np.zeros_like(forecast))
