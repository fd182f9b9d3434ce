"""What a monitor reports: its numbers, their names in a log, and a table for people."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.vector.fleet.step_times import quantile
from velodrome.vector.messages import seconds_text

if TYPE_CHECKING:
    from rich.table import Table

SLOWEST = 5  # environments that are named


class SlowEnvironment(NamedTuple):
    """One of the slowest environments."""

    environment: int
    mean_seconds: float
    p99_seconds: float


@dataclass(frozen=True)
class MonitorStatistics:
    """What a monitor has seen so far. Means and medians are NaN before the first episode."""

    episodes: int
    window: int  # episodes that means and medians cover
    mean_return: float
    median_return: float
    mean_length: float  # steps
    median_length: float
    mean_seconds: float  # of an episode
    info_means: dict[str, float]  # of the info keys whose values are numbers
    steps: int  # of single environments
    steps_per_second: float  # over the last seconds
    step_seconds_edges: NDArray[np.float64]  # [bins + 1]
    step_seconds_counts: NDArray[np.int64]  # [n, bins] steps of each environment
    step_seconds_p50: float
    step_seconds_p99: float
    slowest: tuple[SlowEnvironment, ...]  # slowest first; empty if the backend cannot time them one by one
    restarts: int  # of environments
    worker_restarts: int
    faults: int
    lost: int  # environments that are gone and were not replaced


# All that are numbers.
LOGGED = [
    field.name for field in fields(MonitorStatistics) if field.type in ("int", "float") and field.name != "window"
]


def metrics_of(seen: MonitorStatistics) -> dict[str, float]:
    """Return the numbers by their names in a log; those that are not known yet are left out."""
    found = {f"monitor/{name}": float(getattr(seen, name)) for name in LOGGED}
    found |= {f"monitor/info/{key}": value for key, value in seen.info_means.items()}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def table_of(seen: MonitorStatistics, title: str) -> Table:
    """Return a table for people, to be printed with rich."""
    from rich.table import Table

    table = Table("", "", title=title, show_header=False)
    table.columns[1].justify = "right"
    rows = [
        ("episodes", f"{seen.episodes:,}"),
        (f"return, mean of the last {seen.window}", _number(seen.mean_return)),
        ("return, median", _number(seen.median_return)),
        ("length, mean", _number(seen.mean_length)),
        ("length, median", _number(seen.median_length)),
        *((f"{key}, mean", _number(value)) for key, value in seen.info_means.items()),
        ("steps", f"{seen.steps:,}"),
        ("steps per second", f"{seen.steps_per_second:,.0f}"),
        ("a step, median", seconds_text(seen.step_seconds_p50)),
        ("a step, 99 of 100 within", seconds_text(seen.step_seconds_p99)),
        *(
            (f"slowest: environment {slow.environment}", f"{seconds_text(slow.mean_seconds)} on average")
            for slow in seen.slowest
        ),
        ("faults", f"{seen.faults:,}"),
        ("restarts of environments", f"{seen.restarts:,}"),
        ("restarts of workers", f"{seen.worker_restarts:,}"),
        ("environments lost", f"{seen.lost:,}"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    return table


def slowest_of(counts: NDArray[np.int64], means: NDArray[np.float64]) -> tuple[SlowEnvironment, ...]:
    """Return the slowest environments, given histograms, [n, bins], and mean seconds, [n]."""
    stepped = np.flatnonzero(~np.isnan(means))
    order = stepped[np.argsort(-means[stepped], kind="stable")][:SLOWEST]
    return tuple(SlowEnvironment(int(row), float(means[row]), quantile(counts[row], 0.99)) for row in order)


def mean_of(values: NDArray[np.float64], mean: Callable[[Any], Any] = np.mean) -> float:
    """Return the mean, or another such number; NaN if there are no values."""
    return float(mean(values)) if len(values) else math.nan


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.4g}"
