"""Agents that differ only in their training seed: what they are worth together, and how far they are apart.

All of them play the same bars. A resample therefore draws blocks of the data once, the same for every agent; data drawn
anew for each would average its own chance away. Besides it draws agents with replacement, whose distances from the mean
are those on the data as it was: in a resample they would hold the chance of the data twice. A handful of seeds says
little about all that could have been. Resampling them gives intervals that are too narrow, by √((n − 1) / n) and by
what Student's quantile exceeds the normal one; the distances are stretched by both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.evaluation.evaluator import Played
from velodrome.evaluation.intervals import Bootstrap, percentile_interval, student_quantile
from velodrome.evaluation.measures import BY_NAME, SPACES, Curve, format_figure, mean_of_known
from velodrome.evaluation.play import Policy

if TYPE_CHECKING:
    from velodrome.evaluation.result import Evaluation, Row

FEWEST_TRIMMED = 4  # seeds; with fewer, the interquartile mean is the mean
MAIN = {"backtest": "return", "episodes": "episode_return"}  # the metric in which the spread is told
SEED_COLUMN = "agent_seed_"  # begins the name of a training seed's column among the equity curves
LIMITS = {  # of what seeds that are far apart would be stretched beyond
    **dict.fromkeys(("max_drawdown", "win_rate"), (0.0, 1.0)),
    **dict.fromkeys(("annual_volatility", "profit_factor", "episode_length"), (0.0, np.inf)),
}
Over = Literal["mean", "iqm"]


@dataclass(frozen=True)
class SeedResult:
    """What the agent of one training seed did; its intervals are about the data alone."""

    seed: int
    rows: tuple[Row, ...]  # without baselines

    def row(self, name: str) -> Row | None:
        """Return the row of one metric, None if it has none."""
        return next((row for row in self.rows if row.name == name), None)


@dataclass(frozen=True)
class SeedSpread:
    """How far the agents of several training seeds are apart in a metric."""

    metric: str
    lowest: float
    highest: float
    deviation: float  # standard deviation (n − 1) between seeds
    share: float  # of the variance behind the interval of the mean: the part that is chance in training
    value: float  # interquartile mean over seeds, with its interval; NaN with fewer than four seeds
    low: float
    high: float


# Policies and seeds


def by_training_seed(
    policy: Policy | Sequence[Policy], seeds: Sequence[int]
) -> tuple[tuple[Policy, ...], tuple[int, ...]]:
    """Return policies and their training seeds; those of a single policy, which nobody told of, are not known."""
    policies: tuple[Policy, ...] = tuple(policy) if isinstance(policy, Sequence) else (policy,)
    trained = tuple(seeds) or (tuple(range(len(policies))) if len(policies) > 1 else ())
    if not policies or (trained and (len(trained) != len(policies) or len(set(trained)) != len(trained))):
        raise ConfigError(
            f"training_seeds = {tuple(seeds)!r} of {len(policies)} policies: each needs one of its own, and at least "
            "one policy is needed"
        )
    return policies, trained


class SeedDraws:
    """Which training seeds each resample consists of, and what becomes of figures that were resampled seed by seed."""

    def __init__(self, seeds: int, drawn: Bootstrap) -> None:
        rng = np.random.default_rng([drawn.seed, 2])
        self.chosen = rng.integers(0, seeds, (drawn.samples, seeds))  # [N, seeds]
        self.stretch = stretch_of(seeds, drawn.confidence)

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


# The agents as one


def joined(agents: Sequence[Played], seeds: Sequence[int]) -> Played:
    """Return several agents as one policy that was played: their curves side by side, their trades one after the other.

    What cannot be averaged (the account bar by bar) is that of the first.
    """
    first = agents[0]
    if len(agents) == 1:
        return first
    curves = [agent.curve for agent in agents]
    per_bar = {name: np.hstack([curve.per_bar[name] for curve in curves]) for name in first.curve.per_bar}
    together = Curve(first.curve.time, np.hstack([curve.growth for curve in curves]), per_bar)
    trades = pl.concat(
        agent.trades.with_columns(training_seed=pl.lit(seed, pl.Int64))
        for agent, seed in zip(agents, seeds, strict=True)
    )
    figures = mean_figures([agent.figures for agent in agents])
    return Played(first.name, first.backtest, together, trades, first.traded_seeds, figures)


def mean_actions(each: Sequence[tuple[tuple[str, float], ...]]) -> tuple[tuple[str, float], ...]:
    """Return the share of each action over all agents."""
    shares: dict[str, list[float]] = {}
    for actions in each:
        for name, share in actions:
            shares.setdefault(name, []).append(share)
    return tuple((name, sum(own) / len(each)) for name, own in shares.items())


# What is said of them


def told_spread(kind: str, seeds: Sequence[SeedResult], spread: Sequence[SeedSpread]) -> str:
    """Return how far training seeds are apart, in one sentence."""
    found = next(one for one in spread if one.metric == MAIN[kind])
    metric = BY_NAME[found.metric]
    places = {row.value: one.seed for one in seeds if (row := one.row(found.metric)) is not None}

    def end(value: float) -> str:
        return f"{format_figure(value, metric.unit)} (seed {places.get(value, '–')})"

    deviation = format_figure(found.deviation, "share" if metric.unit == "change" else metric.unit)
    sentence = (
        f"{len(seeds)} training seeds: {metric.label.lower()} from {end(found.lowest)} to {end(found.highest)}, "
        f"standard deviation {deviation}"
    )
    if math.isnan(found.share):
        return sentence
    return f"{sentence}; {found.share:.0%} of the variance behind the interval is chance in training"


def seed_doubts(kind: str, seeds: Sequence[SeedResult], spread: Sequence[SeedSpread]) -> Iterator[str]:
    """Yield what the training seeds have against trusting the result."""
    found = next((one for one in spread if one.metric == MAIN[kind]), None)
    if found is not None and kind == "backtest" and found.lowest < 0.0 < found.highest:
        lost = sum(row.value < 0.0 for one in seeds if (row := one.row(found.metric)) is not None)
        yield f"{lost} of {len(seeds)} training seeds lost and the others gained: a single one would have told either"


def seed_notes(seeds: Sequence[int]) -> tuple[str, ...]:
    """Return what intervals are about, by how many agents were trained; nothing for a policy without known seed."""
    if not seeds:
        return ()
    if len(seeds) == 1:
        return (
            f"one training seed ({seeds[0]}): the intervals cover the data, not chance in training; "
            "`velodrome train --seeds 5` trains several",
        )
    return (
        f"figures are means over all {len(seeds)} training seeds, none of them chosen; the intervals cover the data "
        f"and the seeds, and are wider because {len(seeds)} seeds are few (Student's t)",
    )


def seeds_rows(evaluation: Evaluation, shown: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and cells of a table with a line for each training seed, then the means over them.

    The first metric that is shown has its interval beside it.
    """
    names = [name for name in shown if name in evaluation.metrics]
    labels = [BY_NAME[name].label for name in names]
    headings = ["training seed", labels[0], f"{evaluation.information['confidence']:.0%} interval", *labels[1:]]

    def cells(label: str, rows: Iterable[Row | SeedSpread]) -> list[str]:
        found = {row.metric if isinstance(row, SeedSpread) else row.name: row for row in rows}
        values = [format_figure(found[name].value if name in found else None, BY_NAME[name].unit) for name in names]
        low, high = (format_figure(end, BY_NAME[names[0]].unit) for end in (found[names[0]].low, found[names[0]].high))
        return [label, values[0], "–" if low == "–" else f"{low} … {high}", *values[1:]]

    lines = [cells(str(one.seed), one.rows) for one in evaluation.seeds]
    lines.append(cells("mean", evaluation.rows))
    if len(evaluation.seeds) >= FEWEST_TRIMMED:
        lines.append(cells("interquartile mean", evaluation.spread))
    return headings, lines
