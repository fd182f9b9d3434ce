"""What a run of the training benchmark measured, what follows from it, and its file."""

from __future__ import annotations

import statistics
from typing import Any

from pydantic import BaseModel, Field

from velodrome.bench.benchmark import BenchmarkReport, Target
from velodrome.bench.parity import ParityResult
from velodrome.bench.sgemm import Operations
from velodrome.bench.train_contenders import NATIVE
from velodrome.bench.train_options import YARDSTICKS

WANTED_RATIO = 10.0  # times the yardstick
WANTED_SHARE = 0.5  # of what sgemm allows
# What is promised is about this setting.
STANDARD = {"sizes": 256, "batch": 8192, "epochs": 4, "minibatches": 4, "hidden": [64, 64]}


class TrainMeasurement(BaseModel):
    """Steps per second of one contender, collecting and learning together."""

    peer: str = Field(description="'native' or the name of a peer")
    label: str
    num_envs: int
    rollout_length: int = Field(description="steps of each environment in a batch")
    processes: int = Field(0, description="worker processes; 0: none")
    threads: int = Field(description="of torch")
    engine: str = Field("", description="what Velodrome's PPO learned by")
    steps_per_second: float = Field(description="median of the rounds")
    slowest: float = Field(description="slowest round")
    fastest: float = Field(description="fastest round")
    rounds: list[float] = Field(description="steps per second, round by round")
    iterations: int = Field(description="batches in all rounds")
    phases: dict[str, float] = Field(description="seconds of an iteration by phase, mean of all rounds")
    yardstick_ratio: float | None = Field(
        None, description="times the speed of the faster SB3 PPO with DummyVecEnv(8), median of the rounds"
    )

    @property
    def layout(self) -> str:
        """Environments and steps, for people."""
        return f"{self.num_envs:,} × {self.rollout_length:,}"


class Bound(BaseModel):
    """What sgemm's speed allows if nothing but the matrix products took time."""

    threads: int
    operations: Operations
    flops: list[float] = Field(description="operations per second of sgemm, round by round")
    best_flops: float = 0.0
    steps_per_second: float = Field(0.0, description="at the best of these rates")
    share: float | None = Field(None, description="reached by Velodrome: of each round's own bound, median")
    share_of_best: float | None = Field(None, description="reached by Velodrome's median, of the best round's bound")


class RacePoint(BaseModel):
    """Where a policy stood."""

    seconds: float = Field(description="spent training until then; evaluations do not count")
    steps: int
    share: float = Field(description="mean log return a bar on the test split, over the known optimum")


class RaceRun(BaseModel):
    """One training until it reached the aim, or until its time was up."""

    peer: str
    label: str
    num_envs: int
    seed: int
    seconds: float = 0.0
    steps: int = 0
    reached: bool = False
    points: list[RacePoint] = []


class RaceResult(BaseModel):
    """How long a contender took to the aim, over its seeds."""

    peer: str
    label: str
    num_envs: int
    runs: int
    reached: int
    seconds: float | None = Field(description="median over the seeds; none if half of them or more did not get there")
    steps: float | None = Field(description="the same in steps")
    best_share: float = Field(description="the best that any of its seeds came to")


class Race(BaseModel):
    """Time to a fraction of the known optimum."""

    fraction: float
    limit_seconds: float
    optimum: float = Field(description="best expected log return a bar")
    best_rule_share: float = Field(description="what the best rule reaches on the bars of the test split, over it")
    runs: list[RaceRun] = []
    results: list[RaceResult] = []


class TrainReport(BenchmarkReport):
    """Everything that a run of the training benchmark found out."""

    kind: str = "train"
    settings: dict[str, Any] = Field(description="PPO's settings, the same for every contender")
    observation_floats: int
    parameters: int | None = Field(None, description="trainable numbers of the networks, the same for every contender")
    parity: ParityResult | None = None
    measurements: list[TrainMeasurement] = Field(default_factory=list)
    bound: Bound
    race: Race | None = None

    def own(self) -> TrainMeasurement | None:
        """Return the measurement that the promises are about: Velodrome in the first layout."""
        return next((row for row in self.measurements if row.label == NATIVE), None)

    def yardstick(self) -> TrainMeasurement | None:
        """Return the measurement that ratios are about: the faster SB3 PPO with DummyVecEnv(8)."""
        rows = [row for row in self.measurements if row.peer in YARDSTICKS]
        return max(rows, key=lambda row: row.steps_per_second, default=None)

    def conclude(self) -> None:
        """Fill in what follows from the measurements: ratios, the share of the bound, the race and the targets."""
        yardstick = self.yardstick()
        for row in self.measurements:
            row.yardstick_ratio = median_ratio(row.rounds, yardstick.rounds) if yardstick else None
        bound, own = self.bound, self.own()
        if bound.flops:
            bound.best_flops = max(bound.flops)
            bound.steps_per_second = bound.best_flops / bound.operations.total
        if own is not None and bound.flops:
            bound.share = median_ratio(own.rounds, [rate / bound.operations.total for rate in bound.flops])
            bound.share_of_best = own.steps_per_second / bound.steps_per_second
        if self.race is not None:
            self.race.results = race_results(self.race)
        # A quick run is too coarse to judge by, and another setting is not what was promised.
        standard = all(self.options[name] == value for name, value in STANDARD.items() if name != "sizes")
        standard = standard and self.options["sizes"][0] == STANDARD["sizes"]
        self.targets = targets(self) if standard and not self.options["quick"] else []


def median_ratio(ours: list[float], theirs: list[float]) -> float | None:
    """Return the median over the rounds that both have of the ratio within a round: load falls on both alike."""
    ratios = [own / other for own, other in zip(ours, theirs, strict=False)]
    return statistics.median(ratios) if ratios else None


def race_results(race: Race) -> list[RaceResult]:
    """Summarise the seeds of each contender; a seed that did not get there took longer than any that did."""
    found = []
    # Where a person stopped the benchmark, some had time left.
    ended = [run for run in race.runs if run.reached or run.seconds >= race.limit_seconds]
    for peer in dict.fromkeys(run.peer for run in ended):
        runs = [run for run in ended if run.peer == peer]
        reached = [run for run in runs if run.reached]
        most = 2 * len(reached) > len(runs)
        never = float("inf")
        found.append(
            RaceResult(
                peer=peer, label=runs[0].label, num_envs=runs[0].num_envs, runs=len(runs), reached=len(reached),
                seconds=statistics.median(run.seconds if run.reached else never for run in runs) if most else None,
                steps=statistics.median(run.steps if run.reached else never for run in runs) if most else None,
                best_share=max((point.share for run in runs for point in run.points), default=0.0),
            )
        )  # fmt: skip
    return found


def targets(report: TrainReport) -> list[Target]:
    """Compare what was reached with what is promised, as far as it was measured."""
    found = []
    own = report.own()
    for row in report.measurements:
        ratio = median_ratio(own.rounds, row.rounds) if own is not None and row.peer in YARDSTICKS else None
        if own is not None and ratio is not None:
            threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}"
            name = f"velodrome {own.layout} over SB3 PPO with DummyVecEnv(8), torch on {threads}, steps per second"
            found.append(Target(name=name, wanted=WANTED_RATIO, reached=ratio, met=ratio >= WANTED_RATIO))
    if own is not None and report.bound.share is not None:
        share = report.bound.share
        name = f"velodrome {own.layout} over the bound that sgemm sets"
        found.append(Target(name=name, wanted=WANTED_SHARE, reached=share, met=share >= WANTED_SHARE))
    return found
