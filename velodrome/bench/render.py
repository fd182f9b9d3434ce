"""Any report for people at a terminal: tables that fit 80 characters, and the lines above and below them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from velodrome.bench.report import OURS, PHASES, Comparison, Measurement, Report
from velodrome.runs.live.progress import compact
from velodrome.vector.messages import seconds_text

BAR_WIDTH = 30  # characters
# What rows are compared with -> heading of the column. All ratios are in the JSON; these fit.
COMPARED = {
    "native": "native",
    "sb3": "× SB3",
    "process": "× process",
    "dummy": "×Dummy",
    "subproc": "×Subp",
    "async": "×Async",
    "ideal": "of ideal",
}


def three_digits(number: float) -> str:
    """Return a number of at least 1 with two decimals, one or none."""
    return f"{number:,.{0 if number >= 100 else 1 if number >= 10 else 2}f}"


def narrow_table(title: str, names: tuple[str, ...]) -> Table:
    """Return a table that fits a terminal of 80 characters; everything but the contender is a number."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0, show_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
    return table


# The table of a comparison. A column is shown where any row has something in it.


def _place(row: Measurement) -> str:
    if row.layout or row.memory is not None:  # other columns say it
        return ""
    return f"{row.processes} proc." if row.processes else f"{row.threads} thr."


def _spread(row: Measurement) -> str:
    return f"±{(row.fastest - row.slowest) / 2 / row.steps_per_second:.0%}"


def _batch_time(row: Measurement) -> str:
    shown = row.memory is None and not row.layout  # other columns take its place there
    return seconds_text(row.steps_per_call / row.steps_per_second) if shown else ""


def _phases(row: Measurement) -> str:
    means = [row.mean(phase) for phase in PHASES]
    total = sum(mean or 0.0 for mean in means)
    return "/".join(f"{100 * (mean or 0.0) / total:.0f}" for mean in means) if total else ""


def _ratio(name: str) -> Callable[[Measurement], str]:
    return lambda row: three_digits(row.ratios[name]) if name in row.ratios else ""


COLUMNS: dict[str, Callable[[Measurement], str]] = {
    "contender": lambda row: row.label + " *" * row.recommended,
    "layout": lambda row: row.layout,
    "on": _place,
    "proc.": lambda row: "" if row.memory is None or not row.processes else str(row.processes),
    "steps/s": lambda row: compact(row.steps_per_second),
    "spread": _spread,
    "batch": _batch_time,
    "time, %": _phases,
    **{heading: _ratio(name) for name, heading in COMPARED.items()},
    "cores": lambda row: "" if row.memory is None else f"{row.mean('cores'):.1f}",
    "MiB": lambda row: "" if row.memory is None else f"{row.memory / 2**20:,.0f}",
    "GPU": lambda row: f"{row.mean('gpu'):.0%}" if "gpu" in row.details else "",
}


def speed_table(comparison: Comparison) -> Table:
    """Return the contenders by size, the fastest first."""
    rows = sorted(comparison.rows_to_show, key=lambda row: (row.size, -row.steps_per_second))
    cells = {heading: [cell(row) for row in rows] for heading, cell in COLUMNS.items()}
    cells = {heading: column for heading, column in cells.items() if any(column)}
    sizes = [row.size for row in rows]
    if len(set(sizes)) > 1:
        firsts = [True, *(one != two for one, two in pairwise(sizes))]
        cells = {"envs": [f"{size:,}" * first for size, first in zip(sizes, firsts, strict=True)], **cells}
    table = narrow_table(comparison.title, tuple(cells))
    for place, row in enumerate(rows):
        if place and row.size != sizes[place - 1]:
            table.add_section()
        table.add_row(*(column[place] for column in cells.values()), style="bold" if row.peer == OURS else "")
    return table


def terminal_plot(comparison: Comparison) -> RenderableType:
    """Return bars of steps per second on a logarithmic scale, at the largest size where most were measured."""
    best = best_by_label(comparison)
    counts = {size: sum(size in speeds for speeds in best.values()) for size in {s for b in best.values() for s in b}}
    size = max(counts, key=lambda size: (counts[size], size))
    speeds = {label: found[size] for label, found in best.items() if size in found}
    low, high = math.log(min(speeds.values()) / 2), math.log(max(speeds.values()))
    table = Table.grid(padding=(0, 1))
    table.add_row(Text(f"{size:,} environments, log scale", style="italic"), "", "")
    for label, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        length = max(1, round(BAR_WIDTH * (math.log(speed) - low) / (high - low)))
        bar = Text("█" * length, style="green" if label.startswith(OURS) else "blue")
        table.add_row(Text(label), bar, f"{compact(speed)}/s")
    return table


def best_by_label(comparison: Comparison) -> dict[str, dict[int, float]]:
    """Return steps per second by label and size, over all numbers of threads."""
    best: dict[str, dict[int, float]] = {}
    for row in comparison.rows_to_show:
        sizes = best.setdefault(row.label, {})
        sizes[row.size] = max(sizes.get(row.size, 0.0), row.steps_per_second)
    return best


# The lines around it


def machine_lines(report: Report) -> Text:
    """Return what the numbers were measured on."""
    stamp = report.machine
    installed = (f"{name} {version}" for name, version in stamp["libraries"].items() if version != "not installed")
    steered = "".join(f", {name}={value}" for name, value in stamp["environment"].items())
    load = " ".join(f"{value:.2f}" for value in stamp["load_average"])
    numba = f"Numba on {stamp['threading_layer']} with {stamp['numba_threads']} threads{steered}"
    return Text(
        f"{stamp['cpu']}, {stamp['cores']} cores, {stamp['memory_gib']:g} GiB, {stamp['system']}, load {load}\n"
        f"Python {stamp['python']}, {', '.join(installed)}; {numba}\n"
        f"Velodrome {stamp['velodrome']} ({stamp['git_commit']}), {stamp['time']}: {stamp['command']}"
    )


def comparison_parts(comparison: Comparison) -> list[RenderableType]:
    """Return a table and what is said below it."""
    if not comparison.rows_to_show:
        return []
    said = [*comparison.lines, *([comparison.parity.sentence()] if comparison.parity else [])]
    return [speed_table(comparison), Text("\n".join(said) + "\n")] if said else [speed_table(comparison)]


def last_lines(report: Report) -> Text:
    """Return notes, peers that are missing, what was promised and reached."""
    lines = [*report.notes, *(f"{peer.peer}: {peer.reason}" for peer in report.missing)]
    for target in report.targets:
        verdict = "met" if target.met else f"MISSED by {1.0 - target.reached / target.wanted:.0%}"
        lines.append(f"{target.name}: {target.reached:,.3g}, promised {target.wanted:,.3g}: {verdict}")
    if report.interrupted:
        lines.append("Interrupted: this is what was measured until then.")
    return Text("\n".join(lines))
