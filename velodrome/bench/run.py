"""How any benchmark runs: it is prepared, measures while a bar moves, and is shown and written, even if interrupted."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import psutil
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from velodrome.bench.machine import machine_stamp, threading_layer
from velodrome.bench.options import BenchmarkOptions, Peer
from velodrome.bench.plot import Draw, write_plot
from velodrome.bench.render import comparison_parts, last_lines, machine_lines
from velodrome.bench.report import Report
from velodrome.errors import MissingDependencyError
from velodrome.outside.screen import Screen

DESCRIPTION_WIDTH = 40  # characters, so that the bar stays where it is


class Turns:
    """The progress bar of a benchmark."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def expect(self, turns: int) -> None:
        """Say how many turns there will be, or nearly."""
        self._progress.update(self._task, total=turns)

    def __call__(self, done: str, turns: int = 1) -> None:
        """Say what is done, and move the bar."""
        shown = f"{done[:DESCRIPTION_WIDTH]:<{DESCRIPTION_WIDTH}}"
        self._progress.update(self._task, advance=turns, description=shown)


class Benchmark(ABC):
    """What is measured and against whom. It fills a report; everything else is the same for all."""

    title: ClassVar[str]  # of the plot
    report_type: ClassVar[type[Report]] = Report

    def __init__(self, kind: str, options: BenchmarkOptions) -> None:
        self.options: Any = options.resolved()
        asked = self.options.model_dump(mode="json")
        self.report: Any = self.report_type(kind=kind, machine=machine_stamp(), options=asked)
        self.peers: dict[str, Peer] = {}  # that are asked for and can be measured
        for name, peer in self.options.peers.items():
            if reason := peer.missing():
                self.report.note_missing(name, reason)
            else:
                self.peers[name] = peer
        self.report.note_load()

    @abstractmethod
    def measure(self, tell: Turns) -> None:
        """Fill the report, measurement by measurement, so that an interrupted run keeps what it has."""

    @abstractmethod
    def conclude(self) -> None:
        """Fill in what follows from the measurements: ratios, lines, targets."""

    def more(self) -> Sequence[RenderableType]:
        """Return what is shown below the tables."""
        return ()

    def more_panels(self) -> Sequence[Draw]:
        """Return what is drawn beside the comparisons."""
        return ()


def run_benchmark(benchmark: Benchmark, console: Console | None = None) -> Any:
    """Measure, show the report on the console, and write the files that were asked for.

    Raises `ParityError` before anything is timed if contenders differ. Ctrl-C ends the measuring; what was measured
    until then is shown and written.
    """
    console = console or Screen(stderr=True)
    report, options = benchmark.report, benchmark.options
    started = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        try:
            benchmark.measure(Turns(progress, progress.add_task("starting", total=None)))
        except KeyboardInterrupt:
            report.interrupted = True
    report.machine["threading_layer"] = threading_layer()
    report.load_average_after = psutil.getloadavg()
    report.seconds = time.perf_counter() - started
    benchmark.conclude()
    tables = [part for comparison in report.comparisons for part in comparison_parts(comparison)]
    console.print(Group(machine_lines(report), *tables, *benchmark.more(), last_lines(report)))
    if options.json_path:
        report.write(options.json_path)
        console.print(f"Everything: {options.json_path}")
    if options.plot_path:
        try:
            write_plot(report, benchmark.title, options.plot_path, benchmark.more_panels())
            console.print(f"Plot: {options.plot_path}")
        except MissingDependencyError as error:
            console.print(f"Plot: {error}")
    return report
