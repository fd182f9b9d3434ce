"""How long it takes to learn: the time to a fraction of the known optimum, out of sample."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from pydantic import BaseModel, Field
from rich.table import Table

from velodrome.bench.plot import OTHERS, OWN, QUIET
from velodrome.bench.problems.ar1 import OutOfSample
from velodrome.bench.render import narrow_table
from velodrome.bench.report import OURS
from velodrome.bench.run import Turns
from velodrome.bench.timing import Contender
from velodrome.bench.trainer import Trainer


class RacePoint(BaseModel):
    """Where a policy stood."""

    seconds: float = Field(description="spent training until then; evaluations do not count")
    steps: int
    share: float = Field(description="mean log return a bar on the test split, over the known optimum")


class Racer(BaseModel):
    """Who trains."""

    peer: str
    label: str
    num_envs: int


class RaceRun(Racer):
    """One training until it reached the aim, or until its time was up."""

    seed: int
    seconds: float = 0.0
    steps: int = 0
    reached: bool = False
    points: list[RacePoint] = Field(default_factory=list)


class RaceResult(Racer):
    """How long a contender took to the aim, over its seeds."""

    runs: int
    reached: int
    seconds: float | None = Field(None, description="median of the seeds; none if half of them did not reach it")
    steps: float | None = Field(None, description="the same in steps")
    best_share: float = Field(description="the best that any of its seeds came to")


class Race(BaseModel):
    """Time to a fraction of the known optimum."""

    fraction: float
    limit_seconds: float
    evaluate_every: int = Field(1, description="iterations between two evaluations")
    optimum: float = Field(description="best expected log return a bar")
    best_rule_share: float = Field(description="what the best rule reaches on the bars of the test split, over it")
    runs: list[RaceRun] = Field(default_factory=list)
    results: list[RaceResult] = Field(default_factory=list)


def run_race(race: Race, racers: Sequence[Contender], seed: int, judge: OutOfSample, tell: Turns) -> None:
    """Race with one seed: who has trained least goes next, so that other load falls on all alike.

    The clock of a contender runs while it trains; getting ready and evaluations are not counted.
    """
    with ExitStack() as stack:
        going: list[tuple[RaceRun, Trainer, int]] = []
        for row, start in racers:
            trainer: Any = start()
            stack.callback(trainer.close)
            run = RaceRun(peer=row.peer, label=row.label, num_envs=row.num_envs, seed=seed)
            race.runs.append(run)
            going.append((run, trainer, row.steps_per_call))
            evaluate(run, trainer, judge)
        while going:
            run, trainer, batch = entry = min(going, key=lambda entry: entry[0].seconds)
            train(run, trainer, batch, race)
            share = evaluate(run, trainer, judge)
            run.reached = share >= race.fraction
            ended = run.reached or run.seconds >= race.limit_seconds
            tell(f"{run.label}: {share:.0%} after {run.seconds:.1f} s", int(ended))
            if ended:
                going.remove(entry)


def train(run: RaceRun, trainer: Trainer, batch: int, race: Race) -> None:
    """Train until the next evaluation or until the time is up, on the clock."""
    for _ in range(race.evaluate_every):
        began = time.perf_counter()
        trainer.iterate()
        run.seconds += time.perf_counter() - began
        run.steps += batch
        if run.seconds >= race.limit_seconds:
            return


def evaluate(run: RaceRun, trainer: Trainer, judge: OutOfSample) -> float:
    """Write down where a policy stands; return its share of the optimum."""
    share = judge.share(trainer.act)
    run.points.append(RacePoint(seconds=run.seconds, steps=run.steps, share=share))
    return share


def race_results(race: Race) -> list[RaceResult]:
    """Summarise the seeds of each contender; a seed that did not get there took longer than any that did."""
    found = []
    # Where a person stopped the benchmark, some had time left.
    ended = [run for run in race.runs if run.reached or run.seconds >= race.limit_seconds]
    for peer in dict.fromkeys(run.peer for run in ended):
        runs = [run for run in ended if run.peer == peer]
        reached = [run for run in runs if run.reached]
        shared = runs[0].model_dump(include={"peer", "label", "num_envs"})
        best = max((point.share for run in runs for point in run.points), default=0.0)
        result = RaceResult(**shared, runs=len(runs), reached=len(reached), best_share=best)
        if 2 * len(reached) > len(runs):
            never = [float("inf")] * (len(runs) - len(reached))
            result.seconds = statistics.median([*(run.seconds for run in reached), *never])
            result.steps = statistics.median([*(run.steps for run in reached), *never])
        found.append(result)
    return found


def race_table(race: Race) -> Table:
    """Return how long each contender took to learn."""
    title = f"Training time to {race.fraction:.0%} of the known optimum, out of sample"
    table = narrow_table(title, ("contender", "envs", "median seconds", "steps", "seeds", "best"))
    for result in sorted(race.results, key=lambda result: result.seconds or float("inf")):
        seconds = f"not reached in {race.limit_seconds:g} s" if result.seconds is None else f"{result.seconds:.1f}"
        steps = "" if result.steps is None else f"{result.steps:,.0f}"
        seeds = f"{result.reached} of {result.runs}"
        table.add_row(result.label, f"{result.num_envs:,}", seconds, steps, seeds, f"{result.best_share:.0%}")
    return table


def draw_race(race: Race, panel: Any) -> None:
    """Draw the learning curves of all seeds over the time spent training."""
    from matplotlib.ticker import LogLocator, NullFormatter

    colours: dict[str, str] = {}  # of who was drawn already
    others = itertools.cycle(OTHERS)
    for run in race.runs:
        points = [point for point in run.points if point.seconds > 0.0]  # a logarithmic axis has no 0
        label = f"{run.label}, {run.num_envs:,} environments"
        shown = None if label in colours else label
        if shown:
            colours[label] = OWN[0] if run.peer == OURS else next(others)
        style: dict[str, Any] = {"color": colours[label], "marker": ".", "markersize": 3}
        style |= {"linewidth": 1.3, "alpha": 0.8, "label": shown}
        panel.plot([point.seconds for point in points], [100.0 * point.share for point in points], **style)
    panel.axhline(100.0 * race.fraction, color=QUIET, linestyle="--", linewidth=1.2)
    panel.axhline(100.0, color=QUIET, linewidth=0.8)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
    panel.annotate("known optimum", (1.0, 100.0), (-2, 3), **place, fontsize=8, color=QUIET)
    panel.set(xscale="log", xlabel="seconds of training, log scale (evaluations not counted)")
    panel.set(ylabel="% of the known optimum, out of sample", title="Learning, one line per seed")
    # Within a decade or two there is no room for a number at each of the minor ticks.
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(top=112.0)
