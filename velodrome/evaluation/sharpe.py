"""How much a Sharpe ratio is worth: the probabilistic and the deflated Sharpe ratio and the minimum track record.

After Bailey and López de Prado: "The Sharpe ratio efficient frontier" (2012) and "The deflated Sharpe ratio" (2014).
Sharpe ratios here are per bar, not annualised, and kurtosis is that of the definition (3 for a normal distribution).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError

EULER_MASCHERONI = 0.5772156649015329
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Trials:
    """The trials among which the best was chosen: how many, and the variance of their Sharpe ratios per bar."""

    count: int
    variance: float

    def __post_init__(self) -> None:
        if self.count < 1 or not self.variance >= 0.0:
            raise ConfigError(
                f"{self.count!r} trials with a variance of {self.variance!r}: needs at least one trial and a variance "
                "of their Sharpe ratios per bar of at least 0"
            )

    @classmethod
    def of(cls, sharpe_ratios: Sequence[float]) -> Trials:
        """Return the trials with these Sharpe ratios per bar; a trial with NaN made no bet and does not count."""
        known = [float(ratio) for ratio in sharpe_ratios if not math.isnan(ratio)]
        if not known:
            raise ConfigError("no trial has a Sharpe ratio; give the ratios of all that were tried")
        return cls(len(known), float(np.var(known, ddof=1)) if len(known) > 1 else 0.0)

    @classmethod
    def among(cls, sharpe_ratios: Sequence[float], count: int, bars: int) -> Trials:
        """Return so many trials over a number of bars, of which some Sharpe ratios per bar are known.

        How much ratios vary cannot be told from one of them. They are then taken to vary as chance makes those without
        skill vary, by 1 / (bars − 1) (Lo 2002): a variance of 0 would make any number of trials count for one.
        """
        known = [ratio for ratio in sharpe_ratios if not math.isnan(ratio)]
        by_chance = 1.0 / max(bars - 1, 1) if count > 1 else 0.0
        return cls(count, float(np.var(known, ddof=1)) if len(known) > 1 else by_chance)


@dataclass(frozen=True)
class Moments:
    """What the ratios below need to know about a series of returns."""

    count: int
    sharpe: float  # per bar
    skewness: float
    kurtosis: float  # 3 for a normal distribution


def moments(returns: NDArray[np.float64]) -> Moments:
    """Return the Sharpe ratio (deviation with n − 1), skewness and kurtosis of returns; NaN where they are constant."""
    values = np.asarray(returns, np.float64)
    count = len(values)
    if count < 2:
        return Moments(count, math.nan, math.nan, math.nan)
    mean = float(values.mean())
    centred = values - mean
    variance = float(np.mean(centred**2))
    if not variance > 1e-20 * max(mean * mean, 1e-280):
        return Moments(count, math.nan, math.nan, math.nan)
    scaled, sharpe = centred / math.sqrt(variance), mean / math.sqrt(variance * count / (count - 1))
    squares = scaled * scaled  # a power takes twenty times as long
    return Moments(count, sharpe, float(np.mean(squares * scaled)), float(np.mean(squares * squares)))


def _spread(found: Moments) -> float:
    """Return the variance of the estimated Sharpe ratio times n − 1; NaN where the moments contradict a large ratio."""
    spread = 1.0 - found.skewness * found.sharpe + 0.25 * (found.kurtosis - 1.0) * found.sharpe**2
    return spread if spread > 0.0 else math.nan


def probabilistic_sharpe(found: Moments, benchmark: float = 0.0) -> float:
    """Return the probability that the true Sharpe ratio lies above a benchmark (both per bar)."""
    if found.count < 2 or math.isnan(found.sharpe):
        return math.nan
    score = (found.sharpe - benchmark) * math.sqrt((found.count - 1) / _spread(found))
    return math.nan if math.isnan(score) else _NORMAL.cdf(score)


def expected_best_sharpe(trials: Trials) -> float:
    """Return the Sharpe ratio that the best of the trials would have without any skill."""
    if trials.count == 1:
        return 0.0
    first = _NORMAL.inv_cdf(1.0 - 1.0 / trials.count)
    second = _NORMAL.inv_cdf(1.0 - 1.0 / (trials.count * math.e))
    return math.sqrt(trials.variance) * ((1.0 - EULER_MASCHERONI) * first + EULER_MASCHERONI * second)


def deflated_sharpe(found: Moments, trials: Trials) -> float:
    """Return the probability that the true Sharpe ratio lies above what the best of the trials had by luck."""
    return probabilistic_sharpe(found, expected_best_sharpe(trials))


def minimum_track_record(found: Moments) -> float:
    """Return the bars needed to be 95 % sure that the Sharpe ratio is above 0; infinite if it is not."""
    if found.sharpe <= 0.0:
        return math.inf
    return 1.0 + _spread(found) * (_NORMAL.inv_cdf(0.95) / found.sharpe) ** 2
