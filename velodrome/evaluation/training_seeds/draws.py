"""Resamples of a metric over training seeds.

All of them play the same bars. A resample therefore draws blocks of the data once, the same for every agent; data drawn
anew for each would average its own chance away. Besides it draws agents with replacement, whose distances from the mean
are those on the data as it was: in a resample they would hold the chance of the data twice. A handful of seeds says
little about all that could have been. Resampling them gives intervals that are too narrow, by √((n − 1) / n) and by
what Student's quantile exceeds the normal one; the distances are stretched by both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from velodrome.evaluation.intervals import Bootstrap, Interval, percentile_interval, student_quantile
from velodrome.evaluation.measures import SPACES, mean_of_known
from velodrome.evaluation.training_seeds.results import FEWEST_TRIMMED, SeedSpread

LIMITS = {  # of what seeds that are far apart would be stretched beyond
    **dict.fromkeys(("max_drawdown", "win_rate", "winning_holdings"), (0.0, 1.0)),
    **dict.fromkeys(("annual_volatility", "profit_factor", "holdings_profit_factor", "episode_length"), (0.0, np.inf)),
    "correlation": (-1.0, 1.0),
}
Over = Literal["mean", "iqm"]


class SeedDraws:
    """Which training seeds each resample consists of, and what becomes of figures that were resampled seed by seed."""

    def __init__(self, seeds: int, drawn: Bootstrap) -> None:
        rng = np.random.default_rng([drawn.seed, 2])
        self.chosen = rng.integers(0, seeds, (drawn.samples, seeds))  # [N, seeds]
        self.drawn, self.stretch = drawn, stretch_of(seeds, drawn.confidence)

    def resampled(
        self,
        name: str,
        points: NDArray[np.float64],
        values: NDArray[np.float64],
        widening: float = 1.0,
        over: Over = "mean",
    ) -> NDArray[np.float64]:
        """Return a metric over seeds in every resample, [N].

        points: [seeds] the metric of each seed. values: [seeds, N] the same in the resamples of the data.
        widening: by which the interval of these numbers will be stretched for the data's sake; seeds are not.
        """
        if len(values) == 1:
            return values[0]
        everyone = averaged(values, over)
        mean = float(averaged(points[:, None], over)[0])
        picked = averaged(points[self.chosen.T], over)
        stretch = self.stretch / widening
        with np.errstate(invalid="ignore", over="ignore"):
            if SPACES.get(name) != "growth":
                return np.clip(everyone + stretch * (picked - mean), *LIMITS.get(name, (-np.inf, np.inf)))
            # A total loss is the most that can be lost, however far apart the seeds are.
            ratio = np.maximum(1.0 + picked, 0.0) / (1.0 + mean) if mean > -1.0 else np.ones_like(picked)
            return (1.0 + everyone) * ratio**stretch - 1.0

    def of_intervals(self, each: Sequence[Mapping[str, Interval]]) -> dict[str, NDArray[np.float64]]:
        """Return resamples, [seeds, N] by name, of figures whose intervals of the data are known without any.

        The same chance of the data moves all seeds.
        """
        reach = NormalDist().inv_cdf(0.5 + 0.5 * self.drawn.confidence)
        chance = np.random.default_rng([self.drawn.seed, 3]).standard_normal(self.drawn.samples)
        names = [name for name in each[0] if all(name in own for own in each)]
        return {
            name: np.stack(
                [own[name].value + (own[name].high - own[name].low) / (2.0 * reach) * chance for own in each]
            )
            for name in names
        }


def stretch_of(seeds: int, confidence: float) -> float:
    """Return by how much distances between resampled seeds are stretched, so that few of them get a fair interval."""
    if seeds < 2:
        return 1.0
    tail = 0.5 + 0.5 * confidence
    return math.sqrt(seeds / (seeds - 1)) * student_quantile(tail, seeds - 1) / NormalDist().inv_cdf(tail)


def averaged(values: NDArray[np.float64], over: Over = "mean") -> NDArray[np.float64]:
    """Return the mean over the first axis of what is not NaN, or the interquartile mean, NaN where anything is."""
    if over == "mean":
        return mean_of_known(values)
    cut = len(values) // 4
    middle = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return np.where(np.isnan(values).any(axis=0), math.nan, middle)


def mean_figures(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over seeds of every figure that all of them have."""
    names = [name for name in figures[0] if all(name in own for own in figures)]
    means = mean_of_known(np.array([[own[name] for name in names] for own in figures], np.float64))
    return dict(zip(names, map(float, means), strict=True))


def mean_influences(each: Sequence[Mapping[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
    """Return how each bar moves the means over seeds, [T] by name, of what is known for all of them."""
    if len(each) == 1:
        return dict(each[0])
    names = [name for name in each[0] if all(name in own for own in each)]
    return {name: np.mean([own[name] for own in each], axis=0) for name in names}


def spread_of(
    name: str, points: NDArray[np.float64], values: NDArray[np.float64], draws: SeedDraws, confidence: float
) -> SeedSpread:
    """Return how far training seeds are apart in a metric.

    points: [seeds] the metric of each. values: [seeds, N] the same in the resamples of the data.
    """
    known = points[np.isfinite(points)]
    ends = (float(known.min()), float(known.max())) if len(known) else (math.nan, math.nan)
    deviation = float(known.std(ddof=1)) if len(known) > 1 else math.nan
    both, data = draws.resampled(name, points, values), averaged(values)
    finite = np.isfinite(both) & np.isfinite(data)
    whole = float(both[finite].var()) if finite.any() else 0.0
    share = float(np.clip(1.0 - data[finite].var() / whole, 0.0, 1.0)) if whole > 0.0 else math.nan
    middle = (math.nan, math.nan, math.nan)
    if len(points) >= FEWEST_TRIMMED:
        value = float(averaged(points[:, None], "iqm")[0])
        middle = percentile_interval(value, draws.resampled(name, points, values, over="iqm"), confidence)
    return SeedSpread(name, *ends, deviation, share, *middle)
