"""Benchmarks that give steps per second by contender and batch size: how they run, what they write and show."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numba
from pydantic import BaseModel, Field, field_validator
from rich.console import Console
from rich.text import Text

from velodrome.bench.benchmark import BenchmarkOptions, BenchmarkReport, Target
from velodrome.bench.files import write_files
from velodrome.bench.process_peers import PeerFailedError
from velodrome.bench.progress import Turns, measuring
from velodrome.bench.render import compact, last_lines, narrow_table
from velodrome.bench.timing import Stepper, Timing, take_turns
from velodrome.errors import MissingDependencyError
from velodrome.vector.make import make_vec

RING = 16  # batches of actions that are cycled through


class RateOptions(BenchmarkOptions):
    """What to measure."""

    sizes: tuple[int, ...] = Field((1, 100, 1_000, 10_000), description="environments in a batch")
    seconds: float = Field(2.0, gt=0.0, le=600.0, description="seconds of stepping per measurement, all repeats")
    repeats: int = Field(5, ge=1, le=100, description="repeats per measurement; the median counts")

    @field_validator("sizes")
    @classmethod
    def _sizes_are_legal(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if not sizes or not all(1 <= size <= 10_000_000 for size in sizes):
            raise ValueError("needs one or more whole numbers from 1 to 10,000,000")
        return tuple(sorted(set(sizes)))


class RateMeasurement(BaseModel):
    """Steps per second of one contender at one size."""

    label: str
    num_envs: int
    threads: int
    steps_per_second: float
    slowest: float
    fastest: float


class RateReport(BenchmarkReport):
    """Everything that such a benchmark found out."""

    parity: str = ""
    measurements: list[RateMeasurement] = Field(default_factory=list)

    def best(self, start: str, num_envs: int | None = None) -> float | None:
        """Return the fastest rate of the contenders whose label begins so, at one size or at any."""
        rates = [
            row.steps_per_second
            for row in self.measurements
            if row.label.startswith(start) and num_envs in (None, row.num_envs)
        ]
        return max(rates, default=None)

    def judge(self, name: str, reached: float | None, wanted: float) -> None:
        """Write down a promise and what was reached of it; what was not measured is not judged."""
        if reached is not None:
            self.targets.append(Target(name=name, reached=reached, wanted=wanted, met=reached >= wanted))


class Row(NamedTuple):
    """A contender of one size: something that takes turns with the others, or is measured in a process of its own."""

    label: str
    threads: int
    ready: Callable[[ExitStack], Stepper] | None = None  # what it opens is closed with the stack
    apart: Callable[[], Timing] | None = None


def native_row(label: str, env: Any, size: int, actions: list, threads: int, **values: Any) -> Row:
    """Return a native batch as a contender."""

    def ready(stack: ExitStack) -> Stepper:
        envs = make_vec(env, size, backend="native", threads=threads, **values)
        stack.callback(envs.close)
        envs.reset()
        return Stepper(lambda k: envs.step(actions[k % len(actions)]))

    return Row(label, threads, ready)


def thread_choices(size: int) -> tuple[int, ...]:
    """Return one thread, and all of them where a batch is large enough to share."""
    available = numba.config.NUMBA_NUM_THREADS
    return (1, available) if available > 1 and size >= 100 else (1,)


def run_rate_benchmark(
    title: str, options: RateOptions, report: RateReport, console: Console, check: Callable[[], str],
    contenders: Callable[[int], list[Row]],
) -> None:  # fmt: skip
    """Check, measure, show and write; Ctrl-C ends the measuring and keeps what there is."""
    report.note_load("those of several threads most of all")
    with measuring(report, console) as advance:
        report.parity = check()
        advance("parity")
        for size in options.sizes:
            measure(contenders(size), size, options, report, advance)
    show_rates(title, report, console)
    write_files(options, report, lambda found, path: write_rates_plot(title, found, path), console)


def measure(rows: list[Row], size: int, options: RateOptions, report: RateReport, tell: Turns) -> None:
    """Let the contenders of one size take turns; those with processes of their own follow."""
    places: dict[str, int] = {}

    def write(row: Row, timing: Timing) -> None:
        found = RateMeasurement(
            label=row.label, num_envs=size, threads=row.threads, steps_per_second=timing.median, slowest=timing.low,
            fastest=timing.high,
        )  # fmt: skip
        key = f"{row.label}, {row.threads}"
        if key in places:
            report.measurements[places[key]] = found
        else:
            places[key] = len(report.measurements)
            report.measurements.append(found)
        tell(f"{size:,} × {row.label}")

    with ExitStack() as stack:
        turning = [row for row in rows if row.ready is not None]
        steppers = [row.ready(stack) for row in turning if row.ready is not None]
        for index, timing in take_turns(steppers, [size] * len(turning), options.seconds, options.repeats):
            write(turning[index], timing)
    for row in rows:
        if row.apart is not None:
            try:
                write(row, row.apart())
            except PeerFailedError as error:
                report.notes.append(f"{row.label}, {size:,} environments: {error}")


def show_rates(title: str, report: RateReport, console: Console) -> None:
    """Print the table and the verdicts."""
    sizes = sorted({row.num_envs for row in report.measurements})
    names = ("contender", "threads", *(f"{size:,}" for size in sizes))
    table = narrow_table(f"{title}: steps per second by environments in a batch", names)
    for label, threads in dict.fromkeys((row.label, row.threads) for row in report.measurements):
        rates = {
            row.num_envs: row.steps_per_second
            for row in report.measurements
            if (row.label, row.threads) == (label, threads)
        }
        table.add_row(label, str(threads), *(compact(rates[size]) if size in rates else "" for size in sizes))
    stamp = report.machine
    console.print(table)
    console.print(Text("\n".join([f"{stamp.cpu}, {stamp.cores} cores; {report.parity}", *last_lines(report)])))


def write_rates_plot(title: str, report: RateReport, path: Path) -> None:
    """Draw steps per second over the number of environments."""
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("a plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.add_subplot()
    labels = list(dict.fromkeys(row.label for row in report.measurements))
    for label, threads in dict.fromkeys((row.label, row.threads) for row in report.measurements):
        rows = [row for row in report.measurements if (row.label, row.threads) == (label, threads)]
        # One colour for a contender, dashed on several threads.
        axes.plot([row.num_envs for row in rows], [row.steps_per_second for row in rows], marker="o",
                  color=colormaps["tab20"](labels.index(label) % 20),
                  linestyle="--" if threads > 1 else "-",
                  label=f"{label}, {threads} thread{'s' if threads > 1 else ''}")  # fmt: skip
    stamp = report.machine
    axes.set(xscale="log", yscale="log", xlabel="environments in a batch", ylabel="steps per second",
             title=f"{title} on {stamp.cpu}, {stamp.cores} cores ({stamp.time[:10]})")  # fmt: skip
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
