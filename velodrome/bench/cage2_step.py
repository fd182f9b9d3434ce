"""`velodrome bench step --env cage2`: steps per second of CAGE-2, after checking that compiled and plain rule agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, NamedTuple

import numba
import numpy as np
import psutil
from pydantic import BaseModel, Field, field_validator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from velodrome.bench.benchmark import BenchmarkOptions, BenchmarkReport, Target
from velodrome.bench.cage2_peers import RECORDED, cyborg_stepper, mini_cage_stepper, missing_peer
from velodrome.bench.files import write_files
from velodrome.bench.machine import machine_stamp, threading_layer
from velodrome.bench.parity import ParityError
from velodrome.bench.timing import Stepper, take_turns
from velodrome.vector.make import make_vec

ACTIONS = 145
RING = 16  # batches of actions that are cycled through
RED_AGENTS = ("b_line", "meander", "sleep", "mixture")
PARITY_ENVS, PARITY_STEPS = 64, 220
LARGEST_MINI_CAGE = 10_000
TARGET_SIZE, TARGET_RATE = 1_000, 5e6


class Cage2Options(BenchmarkOptions):
    """What to measure."""

    PEER_NAMES = ("cyborg", "mini_cage")
    QUICK = MappingProxyType({"seconds": 0.2, "repeats": 2})

    sizes: tuple[int, ...] = Field((1, 100, 1_000, 10_000), description="environments in a batch")
    seconds: float = Field(2.0, gt=0.0, le=600.0, description="seconds of stepping per measurement, all repeats")
    repeats: int = Field(5, ge=1, le=100, description="repeats per measurement; the median counts")

    @field_validator("sizes")
    @classmethod
    def _sizes_are_legal(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or not all(1 <= size <= 10_000_000 for size in sizes):
            raise ValueError("needs one or more whole numbers from 1 to 10,000,000")
        return tuple(sorted(set(sizes)))


class Cage2Measurement(BaseModel):
    """Steps per second of one contender at one size."""

    label: str
    num_envs: int
    threads: int
    steps_per_second: float
    slowest: float
    fastest: float


class Cage2Report(BenchmarkReport):
    """Everything that a run of this benchmark found out."""

    kind: str = "step, cage2"
    parity: str = ""
    measurements: list[Cage2Measurement] = Field(default_factory=list)

    def best(self, start: str, num_envs: int | None = None) -> float | None:
        """Return the fastest rate of the contenders whose label begins so, at one size or at any."""
        rates = [
            row.steps_per_second
            for row in self.measurements
            if row.label.startswith(start) and num_envs in (None, row.num_envs)
        ]
        return max(rates, default=None)

    def conclude(self) -> None:
        """Judge by what was promised; against rates on record where a peer is not installed."""
        ours = self.best("velodrome", TARGET_SIZE)
        if ours is None:
            return
        self.targets = [_target(f"steps per second, {TARGET_SIZE:,} environments", ours, TARGET_RATE)]
        for name, prefix, wanted in (("CybORG through ChallengeWrapper", "CybORG", 15_000.0),
                                     ("mini-CAGE, best batch (1,000)", "mini-CAGE", 100.0)):  # fmt: skip
            here = self.best(prefix)
            rate = here or RECORDED[name][1]
            how = "measured here" if here else f"on record, {rate:,.0f}/s on 2 cores"
            self.targets.append(_target(f"times {prefix} ({how})", ours / rate, wanted))


class Row(NamedTuple):
    """A contender of one size."""

    label: str
    threads: int
    ready: Callable[[ExitStack], Stepper]


def run_cage2_benchmark(options: Cage2Options, console: Console | None = None) -> Cage2Report:
    """Check, measure, show and write; Ctrl-C ends the measuring and keeps what there is."""
    console = console or Console(stderr=True)
    started = time.perf_counter()
    options = options.resolved()
    report = Cage2Report(machine=machine_stamp(), options=options.model_dump(mode="json"))
    report.note_missing((peer, missing_peer(peer)) for peer in options.peers)
    report.note_load("those of several threads most of all")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("parity", total=None)
        report.parity = check_parity(options.seed)
        try:
            for size in options.sizes:
                rows = contenders(size, options, report.active_peers(options))
                _measure(rows, size, options, report, lambda text: progress.update(task, advance=1, description=text))
        except KeyboardInterrupt:
            report.interrupted = True
    report.machine.threading_layer = threading_layer()
    report.load_average_after = psutil.getloadavg()
    report.seconds = time.perf_counter() - started
    report.conclude()
    from velodrome.bench.cage2_render import show_cage2_report, write_cage2_plot

    show_cage2_report(report, console)
    write_files(options, report, write_cage2_plot, console)
    return report


def check_parity(seed: int) -> str:
    """Run the compiled and the plain rule side by side; raise if anything differs."""
    rng = np.random.default_rng(seed)
    steps = 0
    for red in RED_AGENTS:
        batches = [
            make_vec("cage2", PARITY_ENVS, backend=name, seed=seed, red_agent=red, green=red == "mixture", copy=True)
            for name in ("python", "native")
        ]
        for envs in batches:
            envs.reset()
        for k in range(PARITY_STEPS):
            actions = rng.integers(0, ACTIONS, PARITY_ENVS)
            plain, compiled = (envs.step(actions) for envs in batches)
            if not all(np.array_equal(one, other) for one, other in zip(plain[:4], compiled[:4], strict=True)):
                raise ParityError(f"compiled and plain CAGE-2 against {red} differ in step {k}")
            steps += PARITY_ENVS
        for envs in batches:
            envs.close()
    return f"compiled and plain rule agree to the bit over {steps:,} steps against {', '.join(RED_AGENTS)}"


def contenders(size: int, options: Cage2Options, peers: tuple[str, ...]) -> list[Row]:
    """Return who is measured at a size."""
    rng = np.random.default_rng((options.seed, size))
    actions = [rng.integers(0, ACTIONS, size) for _ in range(RING)]

    def native(red: str, threads: int, **more: Any) -> Callable[[ExitStack], Stepper]:
        def ready(stack: ExitStack) -> Stepper:
            envs = make_vec("cage2", size, backend="native", seed=options.seed, red_agent=red, threads=threads, **more)
            stack.callback(envs.close)
            envs.reset()
            return Stepper(lambda k: envs.step(actions[k % RING]))

        return ready

    rows = [Row(f"velodrome, {red}", 1, native(red, 1)) for red in ("b_line", "meander")]
    available = numba.config.NUMBA_NUM_THREADS
    if available > 1 and size >= 100:
        rows += [Row(f"velodrome, {red}", available, native(red, available)) for red in ("b_line", "meander")]
    rows.append(Row("velodrome, b_line, specialised", 1, native("b_line", 1, specialise=True)))
    if "cyborg" in peers and size == 1:
        rows.append(Row("CybORG, b_line", 1, lambda stack: cyborg_stepper(stack, actions)))
    if "mini_cage" in peers and size <= LARGEST_MINI_CAGE:
        rows.append(Row("mini-CAGE, b_line", 1, lambda stack: mini_cage_stepper(stack, actions, size)))
    return rows


def _measure(
    rows: list[Row], size: int, options: Cage2Options, report: Cage2Report, tell: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        steppers = [row.ready(stack) for row in rows]
        places: dict[int, int] = {}
        for index, timing in take_turns(steppers, [size] * len(rows), options.seconds, options.repeats):
            row = Cage2Measurement(
                label=rows[index].label, num_envs=size, threads=rows[index].threads, steps_per_second=timing.median,
                slowest=timing.low, fastest=timing.high,
            )  # fmt: skip
            if index in places:
                report.measurements[places[index]] = row
            else:
                places[index] = len(report.measurements)
                report.measurements.append(row)
            tell(f"{size:,} × {row.label}")


def _target(name: str, reached: float, wanted: float) -> Target:
    return Target(name=name, reached=reached, wanted=wanted, met=reached >= wanted)
