"""What a run measured, what follows from it, and its file."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from velodrome.bench.benchmark import BenchmarkReport, Target
from velodrome.bench.memory import ALONE, BLOCKS, WHOLE, MemoryUse
from velodrome.bench.parity import ParityResult
from velodrome.bench.startup import FirstStep

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


class WindowRate(BaseModel):
    """How fast windows are written, in GB (1e9 bytes) of windows per second."""

    num_envs: int
    threads: int
    stepping: float = Field(description="by whole steps, rule included")
    windows_alone: float = Field(description="by the native environment's own loop over windows, nothing else done")
    memcpy_windows: float = Field(description="memcpy of the same windows from random bars")
    memcpy_block: float = Field(description="memcpy of as many bytes in one block, on so many threads or fewer")
    share: float = Field(description="windows_alone over memcpy_block, the machine's memcpy rate")


class StepReport(BenchmarkReport):
    """Everything that a run of the step benchmark found out."""

    kind: str = "step"
    parameters: dict[str, Any] = Field(description="of the trading environment, beside the defaults")
    observation_floats: int = Field(description="floats in an observation, the same for every contender")
    parity: ParityResult | None = None
    measurements: list[Measurement] = Field(default_factory=list)
    memory: MemoryUse | None = None
    first_step: FirstStep | None = None
    window_rates: list[WindowRate] = Field(default_factory=list)

    def native_rate(self, group: str, num_envs: int) -> float | None:
        """Return the native environment's steps per second with windows, however it was fastest."""
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
        # A quick run is too coarse to judge by.
        self.targets = [] if self.options.get("quick") else targets(self)


def window_rates(measurements: list[Measurement]) -> list[WindowRate]:
    """Set the native environment beside memcpy, for every size and number of threads for which both were measured."""
    found = []
    rows = {(row.label, row.num_envs, row.threads): row for row in measurements if row.group == "same rule"}
    for (label, num_envs, threads), alone in rows.items():
        native, blocks, whole = (rows.get((name, num_envs, threads)) for name in ("velodrome", BLOCKS, WHOLE))
        if label != ALONE or native is None or blocks is None or whole is None:
            continue
        gigabytes = alone.floats * 4 / 1e9  # in the windows of one environment
        # More threads do not make the machine's memcpy slower: where they seem to, other load took the cores, and a
        # share of that would flatter.
        copied = max(
            row.steps_per_second
            for (name, size, count), row in rows.items()
            if name == WHOLE and size == num_envs and count <= threads
        )
        found.append(
            WindowRate(
                num_envs=num_envs,
                threads=threads,
                stepping=gigabytes * native.steps_per_second,
                windows_alone=gigabytes * alone.steps_per_second,
                memcpy_windows=gigabytes * blocks.steps_per_second,
                memcpy_block=gigabytes * copied,
                share=alone.steps_per_second / copied,
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
        rows = [
            row
            for row in report.measurements
            if (row.peer, row.group, row.num_envs) == (peer, group, TARGET_SIZE) and row.processes in (0, TARGET_SIZE)
        ]
        ratios = [row.native_ratio for row in rows if row.native_ratio]
        if ratios:
            name = f"native over {rows[0].label} at n = {TARGET_SIZE:,}"
            found.append(Target(name=name, wanted=wanted, reached=min(ratios), met=min(ratios) >= wanted))
    rates = [rate for rate in report.window_rates if rate.num_envs == TARGET_SIZE]
    if rates:
        reached = max(rate.share for rate in rates)
        name = f"windows written over the machine's memcpy rate at n = {TARGET_SIZE:,}"
        found.append(Target(name=name, wanted=0.5, reached=reached, met=reached >= 0.5))
    return found
