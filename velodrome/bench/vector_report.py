"""What a run of the vector benchmark measured, what follows from it, and its file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from velodrome.bench.benchmark import BenchmarkReport, Target
from velodrome.bench.train_report import median_ratio
from velodrome.bench.vector_options import CHEAP

# Steps of milliseconds leave nothing for a vectoriser to gain: two that are equal differ by noise of about this much.
NOISE = 0.03
WANTED_OF_CHEAP = {"subproc": 3.0, "async": 2.0}  # process over these, on environments of microseconds
WANTED_OF_ASYNC = 3.0  # over process, where one environment holds up the others


class VectorMeasurement(BaseModel):
    """Steps per second of one contender."""

    peer: str = Field(description="'velodrome' or the name of a peer")
    kind: str
    label: str
    num_envs: int
    workers: int = Field(description="worker processes; 0: none")
    received: int | None = Field(None, description="environments that one recv of async waited for")
    steps_per_second: float = Field(description="single environments' steps, median of the rounds")
    slowest: float = Field(description="slowest round")
    fastest: float = Field(description="fastest round")
    rounds: list[float] = Field(description="steps per second, round by round")
    calls: int = Field(description="batches in all rounds")
    cores: float = Field(description="cores kept busy by all its processes, mean of the rounds")
    memory: int | None = Field(None, description="bytes by which all its processes grew with the environments")
    gpu: float | None = Field(
        None, description="share of the time in which the GPU was busy, mean; none: no policy on it"
    )
    ratios: dict[str, float] = Field({}, description="times the speed of each peer, median of the rounds")


class TrajectoryParity(BaseModel):
    """What was compared before anything was timed."""

    contenders: list[str] = Field(description="labels of what was compared with gymnasium.vector.SyncVectorEnv")
    steps: int = Field(description="environment steps that were compared")
    episodes: int = Field(description="episodes that ended in them")
    reproducible: bool = Field(description="whether the same seeds gave the same twice; if not, nothing was compared")


class EnvironmentResult(BaseModel):
    """One environment: who steps it how fast."""

    env: str
    num_envs: int
    recommendation: dict[str, Any] | None = Field(None, description="what vd.recommend returns, and its sentence")
    parity: TrajectoryParity | None = None
    measurements: list[VectorMeasurement] = []
    sweep_share: float | None = Field(None, description="speed of what was recommended over the best of the sweep")
    sweep_best: str | None = None

    def row(self, kind: str, workers: int | None = None) -> VectorMeasurement | None:
        """Return the first measurement of a kind, with so many workers."""
        rows = (row for row in self.measurements if row.kind == kind and workers in (None, row.workers))
        return next(rows, None)

    def peer(self, name: str) -> VectorMeasurement | None:
        """Return the measurement of a peer."""
        return next((row for row in self.measurements if row.peer == name), None)

    def process_row(self) -> VectorMeasurement | None:
        """Return process as a user gets it: with the workers that are recommended, else one for each core."""
        found = self.recommendation
        wanted = found["workers"] if found and found["backend"] == "process" else None
        return (self.row("process", wanted) if wanted else None) or self.row("process")

    def recommended_row(self) -> VectorMeasurement | None:
        """Return the measurement of what is recommended."""
        found = self.recommendation
        return self.row(found["backend"], found["workers"]) if found else None

    def conclude(self, sweep: bool) -> None:
        """Fill in ratios, and how near the recommendation comes to the best of a sweep."""
        for row in self.measurements:
            for other in self.measurements:
                ratio = median_ratio(row.rounds, other.rounds) if other.peer != "velodrome" else None
                if ratio is not None:
                    row.ratios[other.peer] = ratio
        rows = [row for row in self.measurements if row.kind in ("serial", "process")]
        own = self.recommended_row()
        if sweep and own is not None:
            best = max(rows, key=lambda row: row.steps_per_second)
            self.sweep_best = f"{best.kind}, {best.workers} workers" if best.workers else best.kind
            self.sweep_share = median_ratio(own.rounds, best.rounds)


class StragglerResult(BaseModel):
    """One environment is many times slower than the rest: asynchronous beside synchronous."""

    env: str = Field(description="the environments that are not slow")
    num_envs: int
    workers: int
    received: int = Field(description="environments that one recv of async waited for")
    judged: bool = Field(description="whether something is promised of this setting")
    note: str = ""
    measurements: list[VectorMeasurement] = []
    ratio: float | None = Field(None, description="async over process, median of the rounds")

    def conclude(self) -> None:
        """Fill in the ratio."""
        rows = {row.kind: row for row in self.measurements}
        if {"process", "async"} <= rows.keys():
            self.ratio = median_ratio(rows["async"].rounds, rows["process"].rounds)


class VectorReport(BenchmarkReport):
    """Everything that a run of the vector benchmark found out."""

    kind: str = "vector"
    environments: list[EnvironmentResult] = Field(default_factory=list)
    stragglers: list[StragglerResult] = Field(default_factory=list)

    def conclude(self) -> None:
        """Fill in what follows from the measurements: ratios and targets."""
        for result in self.environments:
            result.conclude(self.options["sweep"])
        for straggler in self.stragglers:
            straggler.conclude()
        # A quick run is too coarse to judge by, and a policy is not what was promised.
        judged = self.options["suite"] and not self.options["quick"] and self.options["policy"] == "none"
        self.targets = targets(self) if judged else []


def targets(report: VectorReport) -> list[Target]:
    """Compare what was reached with what is promised, as far as it was measured."""
    found = []

    def judge(name: str, wanted: float, reached: float | None) -> None:
        if reached is not None:
            found.append(Target(name=name, wanted=wanted, reached=reached, met=reached >= wanted))

    for result in report.environments:
        cheap = result.env in CHEAP
        level = 1.0 - NOISE
        process, serial = result.process_row(), result.row("serial")
        for peer, more in WANTED_OF_CHEAP.items():
            row = result.peer(peer)
            if process is not None and row is not None:
                what = "over" if cheap else f"not slower, within {NOISE:.0%}, than"
                name = f"{result.env}: process ({process.workers} workers) {what} {row.label}"
                judge(name, more if cheap else level, process.ratios.get(peer))
        if serial is not None:
            what = "over" if cheap else f"not slower, within {NOISE:.0%}, than"
            judge(f"{result.env}: serial {what} SB3 DummyVecEnv", 1.0 if cheap else level, serial.ratios.get("dummy"))
    for straggler in report.stragglers:
        if straggler.judged:
            name = (
                f"one of {straggler.num_envs} × {straggler.env} 10 × slower: async over process, "
                f"{straggler.workers} workers"
            )
            judge(name, WANTED_OF_ASYNC, straggler.ratio)
    return found
