"""What the benchmark of CAGE-2 found, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from velodrome.bench.render import compact, last_lines, narrow_table
from velodrome.errors import MissingDependencyError

if TYPE_CHECKING:
    from velodrome.bench.cage2_step import Cage2Report


def show_cage2_report(report: Cage2Report, console: Console) -> None:
    """Print the table and the verdicts."""
    sizes = sorted({row.num_envs for row in report.measurements})
    names = ("contender", "threads", *(f"{size:,}" for size in sizes))
    table = narrow_table("CAGE-2: steps per second by environments in a batch", names)
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


def write_cage2_plot(report: Cage2Report, path: Path) -> None:
    """Draw steps per second over the number of environments."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("a plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for label, threads in dict.fromkeys((row.label, row.threads) for row in report.measurements):
        rows = [row for row in report.measurements if (row.label, row.threads) == (label, threads)]
        axes.plot([row.num_envs for row in rows], [row.steps_per_second for row in rows], marker="o",
                  label=f"{label}, {threads} thread{'s' if threads > 1 else ''}")  # fmt: skip
    stamp = report.machine
    axes.set(xscale="log", yscale="log", xlabel="environments in a batch", ylabel="steps per second",
             title=f"CAGE-2 on {stamp.cpu}, {stamp.cores} cores ({stamp.time[:10]})")  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
