"""What a run measured, what follows from it, and its file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from velodrome.bench.machine import MachineStamp
from velodrome.bench.memory import BLOCKS, WHOLE, MemoryUse
from velodrome.bench.parity import ParityResult
from velodrome.bench.startup import FirstStep

SCHEMA = 1
TARGET_SIZE = 1024  # environments


class Measurement(BaseModel):
    """Steps per second of one contender at one size."""

    peer: str = Field(description="'native', 'memcpy' or the name of a peer")
    label: str
    group: str = Field(description="contenders of one group and size are compared with each other")
    num_envs: int = Field(description="size in whose comparison this stands")
    measured_envs: int = Field(description="environments that were stepped; fewer for process-based peers")
    threads: int
    processes: int = Field(0, description="worker processes; 0: none")
    observation: str = Field(description="'windows', or 'cursor' where no windows are written")
    floats: int = Field(description="floats in an observation")
    steps_per_second: float = Field(description="single environments' steps, median of the repeats")
    slowest: float = Field(description="slowest repeat, steps per second")
    fastest: float = Field(description="fastest repeat, steps per second")
    repeats: int
    calls: int = Field(description="batches stepped in all repeats")
    native_ratio: float | None = Field(None, description="how many times as fast the native environment is")


class MissingPeer(BaseModel):
    """A peer that was asked for and not measured."""

    peer: str
    reason: str


class WindowRate(BaseModel):
    """How fast windows are written, in GB (1e9 bytes) of windows per second."""

    num_envs: int
    threads: int
    stepping: float = Field(description="by whole steps, rule included")
    windows_alone: float | None = Field(description="in the time by which windows make a step longer; None: noise")
    memcpy_windows: float = Field(
        description="memcpy of the same windows from random bars, on so many threads or fewer"
    )
    memcpy_block: float = Field(description="memcpy of as many bytes in one block per thread")
    share: float = Field(description="stepping over memcpy_windows")
    share_alone: float | None = Field(description="windows_alone over memcpy_windows")


class Target(BaseModel):
    """What the product promises, and what this run reached."""

    name: str
    wanted: float
    reached: float
    met: bool


class StepReport(BaseModel):
    """Everything that a run of the step benchmark found out."""

    schema_version: int = SCHEMA
    kind: str = "step"
    machine: MachineStamp
    options: dict[str, Any] = Field(description="what the run was asked for, defaults filled in")
    parameters: dict[str, Any] = Field(description="of the trading environment, beside the defaults")
    observation_floats: int = Field(description="floats in an observation, the same for every contender")
    parity: ParityResult | None = None
    measurements: list[Measurement] = []
    missing: list[MissingPeer] = []
    notes: list[str] = []
    memory: MemoryUse | None = None
    first_step: FirstStep | None = None
    interrupted: bool = Field(False, description="stopped by a person; holds what was measured until then")
    load_average_after: tuple[float, float, float] | None = None
    seconds: float = Field(0.0, description="duration of the run")
    window_rates: list[WindowRate] = []
    targets: list[Target] = []

    def write(self, path: Path) -> None:
        """Write everything as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=2) + "\n")

    def native_rate(self, group: str, num_envs: int) -> float | None:
        """Return the native environment's steps per second with windows, on one thread or all, whichever is faster."""
        rates = [
            row.steps_per_second
            for row in self.measurements
            if (row.peer, row.group, row.num_envs, row.observation) == ("native", group, num_envs, "windows")
        ]
        return max(rates, default=None)

    def conclude(self) -> None:
        """Fill in what follows from the measurements: ratios, window rates and targets."""
        for row in self.measurements:
            native = self.native_rate(row.group, row.num_envs)
            row.native_ratio = native / row.steps_per_second if native and row.peer != "memcpy" else None
        self.window_rates = window_rates(self.measurements)
        self.targets = targets(self)


def window_rates(measurements: list[Measurement]) -> list[WindowRate]:
    """Set the native environment beside memcpy, for every size and number of threads for which both were measured."""
    found = []
    rows = {(row.label, row.num_envs, row.threads): row for row in measurements if row.group == "same rule"}
    for (label, num_envs, threads), blocks in rows.items():
        native = rows.get(("velodrome", num_envs, threads))
        cursor = rows.get(("velodrome, no windows", num_envs, threads))
        whole = rows.get((WHOLE, num_envs, threads))
        if label != BLOCKS or native is None or cursor is None or whole is None:
            continue
        gigabytes = blocks.floats * 4 / 1e9  # in a window
        # More threads do not make the machine's memcpy slower: where they seem to, other load took the cores, and a
        # share of that rate would flatter the environment.
        copied = gigabytes * max(
            row.steps_per_second
            for row in rows.values()
            if row.label == BLOCKS and row.num_envs == num_envs and row.threads <= threads
        )
        extra = 1.0 / native.steps_per_second - 1.0 / cursor.steps_per_second  # seconds a window takes
        alone = gigabytes / extra if extra > 0.0 else math.inf
        measurable = alone <= copied  # windows are copied with memcpy: what seems faster than it is noise
        found.append(
            WindowRate(
                num_envs=num_envs,
                threads=threads,
                stepping=gigabytes * native.steps_per_second,
                windows_alone=alone if measurable else None,
                memcpy_windows=copied,
                memcpy_block=gigabytes * whole.steps_per_second,
                share=gigabytes * native.steps_per_second / copied,
                share_alone=alone / copied if measurable else None,
            )
        )
    return found


def targets(report: StepReport) -> list[Target]:
    """Compare what was reached with what is promised, as far as it was measured."""
    found = []
    promised = (
        ("dummy", "same rule", 100.0),
        ("subproc", "same rule", 1000.0),
        ("torchtrade", "torchtrade default", 15.0),
    )
    for peer, group, wanted in promised:
        rows = [row for row in report.measurements if (row.peer, row.group, row.num_envs) == (peer, group, TARGET_SIZE)]
        ratios = [row.native_ratio for row in rows if row.native_ratio]
        if ratios:
            name = f"native over {rows[0].label} at n = {TARGET_SIZE:,}"
            found.append(Target(name=name, wanted=wanted, reached=min(ratios), met=min(ratios) >= wanted))
    rates = [rate for rate in report.window_rates if rate.num_envs == TARGET_SIZE]
    if rates:
        reached = max(rate.share for rate in rates)
        name = f"windows by whole steps, rule included, over memcpy at n = {TARGET_SIZE:,}"
        found.append(Target(name=name, wanted=0.5, reached=reached, met=reached >= 0.5))
    return found
