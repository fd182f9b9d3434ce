"""What is known of each training seed and of how far seeds are apart, and how that is told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from velodrome.evaluation.measures import BY_NAME, format_figure

if TYPE_CHECKING:
    from velodrome.evaluation.result import Evaluation, Row

FEWEST_TRIMMED = 4  # seeds; with fewer, the interquartile mean is the mean
MAIN = {"backtest": "return", "episodes": "episode_return"}  # the metric in which the spread is told


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
        each = [row.value for one in seeds if (row := one.row(found.metric)) is not None]
        lost, gained = sum(value < 0.0 for value in each), sum(value > 0.0 for value in each)
        yield f"{lost} of {len(seeds)} training seeds lost and {gained} gained: a single one would have told either"
    known = {row.name: 0 for one in seeds for row in one.rows if not BY_NAME[row.name].detail}
    for row in (row for one in seeds for row in one.rows if row.name in known):
        known[row.name] += not math.isnan(row.value)
    if partly := [f"{BY_NAME[name].label} ({n} of {len(seeds)})" for name, n in known.items() if 0 < n < len(seeds)]:
        told = ", ".join(partly)
        yield f"not defined for every training seed, such as one that never traded; the mean is of the others: {told}"


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
