"""How a benchmark's measuring begins and ends: a progress bar, Ctrl-C, and what is written down about the run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from velodrome.bench.benchmark import BenchmarkReport
from velodrome.bench.machine import threading_layer

DESCRIPTION_WIDTH = 52  # characters, so that the bar stays where it is


class Turns:
    """The progress bar of a benchmark."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def expect(self, total: int) -> None:
        """Say how many turns there will be, or nearly."""
        self._progress.update(self._task, total=total)

    def __call__(self, done: str, steps: int = 1) -> None:
        """Say what was done, and move the bar."""
        self._progress.update(self._task, advance=steps, description=f"{done:<{DESCRIPTION_WIDTH}}")


@contextmanager
def measuring(report: BenchmarkReport, console: Console) -> Iterator[Turns]:
    """Show a progress bar while the report is filled; Ctrl-C ends the measuring, and what there is is concluded."""
    started = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        try:
            yield Turns(progress, progress.add_task("starting", total=None))
        except KeyboardInterrupt:
            report.interrupted = True
    report.machine.threading_layer = threading_layer()
    report.load_average_after = psutil.getloadavg()
    report.seconds = time.perf_counter() - started
    report.conclude()
