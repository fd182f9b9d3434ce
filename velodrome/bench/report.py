"""What a benchmark measured, what follows from it, and its file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, computed_field

from velodrome.writing import replace_text

OURS, BESIDE = "velodrome", "memcpy"  # who is measured, if it is no peer
PHASES = ("environment", "inference", "learning", "other")  # of training
BUSY_SHARE = 0.5  # load average over cores from which numbers are doubtful


class Measurement(BaseModel):
    """Steps per second of one contender: who it is, and what each of its rounds gave."""

    peer: str = Field(description="'velodrome', the name of a peer, or 'memcpy'")
    label: str
    num_envs: int = Field(description="environments in a batch")
    threads: int = 1
    processes: int = Field(0, description="worker processes; 0: none")
    steps_per_call: int = Field(0, description="environment steps of one call, or of one iteration of training")
    kind: str = Field("", description="backend, observation or engine, where a contender has several")
    recommended: bool = Field(False, description="what `vd.recommend` chooses for the environment")
    rollout_length: int | None = Field(None, description="training: steps of each environment in a batch")
    floats: int | None = Field(None, description="floats in an observation")
    rounds: list[float] = Field(default_factory=list, description="steps of single environments per second")
    calls: int = Field(0, description="calls in all rounds")
    details: dict[str, list[float]] = Field(
        default_factory=dict, description="what else was measured, by round: busy cores, seconds of a phase, …"
    )
    memory: int | None = Field(None, description="bytes by which its processes grew with the environments")
    ratios: dict[str, float] = Field(default_factory=dict, description="times as fast as, by what it is compared with")

    def add(self, calls: int, found: dict[str, float]) -> None:
        """Add a round: what some calls took, in seconds, and what else is known of them."""
        self.rounds.append((calls * self.steps_per_call - found.get("uncounted", 0)) / found["seconds"])
        self.calls += calls
        for name, value in found.items():
            if name != "seconds":
                self.details.setdefault(name, []).append(value)

    @property
    def size(self) -> int:
        """Environments, where contenders of several numbers of them are told apart; those that train are not."""
        return 0 if self.rollout_length else self.num_envs

    @property
    def layout(self) -> str:
        """Environments × steps in a batch of training, for people."""
        return f"{self.num_envs:,} × {self.rollout_length:,}" if self.rollout_length else ""

    def mean(self, detail: str) -> float | None:
        """Return the mean of a detail over the rounds, None if it was not measured."""
        return statistics.fmean(self.details[detail]) if self.details.get(detail) else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def steps_per_second(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds) if self.rounds else 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def slowest(self) -> float:
        """Slowest round."""
        return min(self.rounds, default=0.0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def fastest(self) -> float:
        """Fastest round."""
        return max(self.rounds, default=0.0)


class Parity(BaseModel):
    """What was compared before anything was timed; a case that never came up was not compared."""

    contenders: list[str]
    reference: str = Field(description="what they were compared with")
    steps: int = Field(description="environment steps that were compared")
    counts: dict[str, int] = Field(default_factory=dict, description="what came up in them: episodes, bankruptcies, …")

    def sentence(self) -> str:
        """Return it for people."""
        few = len(self.contenders) <= 4
        who = " and ".join(self.contenders) if few else f"{len(self.contenders)} contenders"
        counts = "".join(f", {count:,} {name}" for name, count in self.counts.items())
        agree = "agree" if len(self.contenders) > 1 else "agrees"
        return f"Parity before timing: {who} {agree} with {self.reference} over {self.steps:,} steps{counts}"


class Comparison(BaseModel):
    """Contenders that are compared with each other: one table, and one panel of the plot."""

    name: str
    title: str = Field(description="heading of its table")
    parity: Parity | None = None
    lines: list[str] = Field(default_factory=list, description="what is said below its table")
    facts: dict[str, Any] = Field(default_factory=dict, description="what else is known of what was measured")
    measurements: list[Measurement] = Field(default_factory=list)

    @property
    def rows_to_show(self) -> list[Measurement]:
        """The measurements of environments; what else was timed beside them is not for the table."""
        return [row for row in self.measurements if row.peer != BESIDE and row.rounds]

    def rows(self, **wanted: Any) -> list[Measurement]:
        """Return the measurements that have these values."""
        return [row for row in self.measurements if all(getattr(row, name) == wanted[name] for name in wanted)]

    def relate(self, others: Mapping[str, Measurement]) -> None:
        """Fill in how many times as fast as others each row is: the median of the rounds, by the others' names."""
        for row in self.measurements:
            ratios = {name: median_ratio(row.rounds, other.rounds) for name, other in others.items()}
            row.ratios |= {name: found for name, found in ratios.items() if found is not None}

    def best(self, **wanted: Any) -> float | None:
        """Return the fastest rate among the measurements that have these values."""
        return max((row.steps_per_second for row in self.rows(**wanted)), default=None)


class MissingPeer(BaseModel):
    """A peer that was asked for and not measured."""

    peer: str
    reason: str


class Target(BaseModel):
    """What the product promises, and what this run reached."""

    name: str
    wanted: float
    reached: float
    met: bool


class Report(BaseModel):
    """Everything that a run of a benchmark found out."""

    schema_version: int = 2
    kind: str
    machine: dict[str, Any] = Field(description="the machine, the software and the moment; see bench/machine.py")
    options: dict[str, Any] = Field(description="what the run was asked for, defaults filled in")
    comparisons: list[Comparison] = Field(default_factory=list)
    facts: dict[str, Any] = Field(default_factory=dict, description="what else was measured, by name")
    missing: list[MissingPeer] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    interrupted: bool = Field(False, description="stopped by a person; holds what was measured until then")
    load_average_after: tuple[float, float, float] | None = None
    seconds: float = Field(0.0, description="duration of the run")
    targets: list[Target] = Field(default_factory=list)

    @property
    def measurements(self) -> list[Measurement]:
        """Those of all comparisons."""
        return [row for comparison in self.comparisons for row in comparison.measurements]

    def begin(self, name: str, title: str) -> Comparison:
        """Return a new comparison."""
        self.comparisons.append(Comparison(name=name, title=title))
        return self.comparisons[-1]

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, self.model_dump_json(indent=2, exclude_none=True) + "\n")

    def judge(self, name: str, reached: float | None, wanted: float) -> None:
        """Set what was reached beside what was promised; a quick run is too coarse to judge by."""
        if reached is not None and not self.options.get("quick"):
            self.targets.append(Target(name=name, wanted=wanted, reached=reached, met=reached >= wanted))

    def note_missing(self, peer: str, reason: str) -> None:
        """Write down that a peer was not measured, and why."""
        self.missing.append(MissingPeer(peer=peer, reason=reason))

    def note_load(self) -> None:
        """Warn of a machine that was busy when the run began."""
        load, cores = self.machine["load_average"][0], self.machine["cores"]
        if load > BUSY_SHARE * cores:
            self.notes.append(
                f"The machine was busy when this began (load {load:.1f} on {cores} cores): speeds are low, those of "
                f"several threads or processes most of all. Measure again when it is idle."
            )


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Return one rate over the other, None if either was not measured."""
    return ours / theirs if ours and theirs else None


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """Return the median of the ratios within rounds: other load on the machine falls on both sides of each."""
    ratios = [own / other for own, other in zip(ours, theirs, strict=False)]
    return statistics.median(ratios) if ratios else None
