"""The report for people at a terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from velodrome.bench.report import Measurement, StepReport

BAR_WIDTH = 40  # characters


def show_report(report: StepReport, console: Console) -> None:
    """Print everything."""
    console.print(render_report(report))


def render_report(report: StepReport) -> Group:
    """Return everything that there is to show."""
    parts: list[RenderableType] = [machine_lines(report)]
    for group in dict.fromkeys(row.group for row in report.measurements):
        parts.append(speed_table(report, group))
    if report.window_rates:
        parts.append(window_table(report))
    parts.append(closing_lines(report))
    plot = terminal_plot(report)
    if plot is not None:
        parts.append(plot)
    return Group(*parts)


def compact(number: float) -> str:
    """Return a rate in three digits: 912, 45.6 k, 7.89 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= limit:
            scaled = number / limit
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f}{unit}"
    return f"{number:.3g}"


def compact_time(seconds: float) -> str:
    """Return a duration in three digits: 45.6 µs, 7.89 ms."""
    return f"{1e6 * seconds:.3g} µs" if seconds < 999e-6 else f"{1e3 * seconds:.3g} ms"


def machine_lines(report: StepReport) -> Text:
    stamp = report.machine
    libraries = ", ".join(
        f"{name} {version}" for name, version in stamp.libraries.items() if version != "not installed"
    )
    steered = "".join(f", {name}={value}" for name, value in stamp.environment.items())
    load = " ".join(f"{value:.2f}" for value in stamp.load_average)
    numba = f"Numba on {stamp.threading_layer} with {stamp.numba_threads} threads{steered}"
    return Text(
        f"{stamp.cpu}, {stamp.cores} cores, {stamp.memory_gib:g} GiB, {stamp.system}, load {load}\n"
        f"Python {stamp.python}, {libraries}; {numba}\n"
        f"Velodrome {stamp.velodrome} ({stamp.git_commit}), {stamp.time}: {stamp.command}"
    )


def narrow_table(title: str, names: tuple[str, ...]) -> Table:
    """Return a table that fits a terminal of 80 characters; everything but the contender is a number."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name == "contender" else "right", no_wrap=True)
    return table


def speed_table(report: StepReport, group: str) -> Table:
    """Return the contenders of a group by size, the fastest first."""
    rows = [row for row in report.measurements if row.group == group and row.peer != "memcpy"]
    floats = max(row.floats for row in rows) if rows else 0
    title = f"Steps per second, {group}: {floats} floats observed by all that write windows"
    table = narrow_table(title, ("envs", "contender", "on", "steps/s", "spread", "batch", "native"))
    before = None
    for row in sorted(rows, key=lambda row: (row.num_envs, -row.steps_per_second)):
        if before not in (None, row.num_envs):
            table.add_section()
        style = "bold" if row.peer == "native" else ""
        table.add_row(
            f"{row.num_envs:,}" if row.num_envs != before else "",
            row.label,
            f"{row.processes} proc." if row.processes else f"{row.threads} thr.",
            compact(row.steps_per_second),
            f"±{(row.fastest - row.slowest) / 2 / row.steps_per_second:.0%}",
            compact_time(row.measured_envs / row.steps_per_second),
            f"{row.native_ratio:,.{0 if row.native_ratio >= 100 else 1}f} ×" if row.native_ratio else "",
            style=style,
        )
        before = row.num_envs
    return table


def window_table(report: StepReport) -> Table:
    title = "Windows written, GB/s (memcpy: the same windows, the same run)"
    names = ("envs", "threads", "whole steps", "windows alone", "memcpy of windows", "memcpy", "share")
    table = narrow_table(title, names)
    for rate in sorted(report.window_rates, key=lambda rate: (rate.num_envs, rate.threads)):
        table.add_row(
            f"{rate.num_envs:,}", str(rate.threads), f"{rate.stepping:.1f}", f"{rate.windows_alone:.1f}",
            f"{rate.memcpy_windows:.1f}", f"{rate.memcpy_block:.1f}", f"{rate.share:.0%}",
        )  # fmt: skip
    return table


def closing_lines(report: StepReport) -> Text:
    """Return parity, memory, start-up, what is missing and the targets."""
    lines = []
    if report.parity:
        parity = report.parity
        lines.append(
            f"Parity before timing: {' and '.join(parity.contenders)} peers agree with native over {parity.steps:,} "
            f"steps, {parity.episodes} episodes, {parity.terminated} bankruptcies, {parity.liquidations} liquidations"
        )
    if report.memory:
        memory = report.memory
        lines.append(
            f"Memory per environment without windows: {memory.bytes_allocated:.0f} bytes allocated, "
            f"{memory.bytes_resident:.0f} resident ({memory.num_envs:,} environments)"
        )
    if report.first_step:
        first = report.first_step
        lines.append(
            f"First step of a fresh process, warm cache: {first.cpu_seconds:.2f} s CPU "
            f"({first.environment_cpu_seconds:.2f} s of it the environments), {first.wall_seconds:.2f} s on the clock"
        )
    return Text("\n".join([*lines, *last_lines(report)]))


def last_lines(report: Any) -> list[str]:
    """Return the last lines of any benchmark: notes, peers that are missing, what was promised and reached."""
    lines = [*report.notes, *(f"{peer.peer}: {peer.reason}" for peer in report.missing)]
    for target in report.targets:
        verdict = "met" if target.met else f"MISSED by {1.0 - target.reached / target.wanted:.0%}"
        lines.append(f"{target.name}: {target.reached:,.3g}, promised {target.wanted:,.3g}: {verdict}")
    if report.interrupted:
        lines.append("Interrupted: this is what was measured until then.")
    return lines


def best_by_label(rows: list[Measurement]) -> dict[str, dict[int, float]]:
    """Return steps per second by label and size, over all numbers of threads."""
    best: dict[str, dict[int, float]] = {}
    for row in rows:
        sizes = best.setdefault(row.label, {})
        sizes[row.num_envs] = max(sizes.get(row.num_envs, 0.0), row.steps_per_second)
    return best


def terminal_plot(report: StepReport) -> RenderableType | None:
    """Return bars of steps per second on a logarithmic scale, at the largest size where most were measured."""
    rows = [row for row in report.measurements if row.group == "same rule" and row.peer != "memcpy"]
    if not rows:
        return None
    counts = {size: len({row.label for row in rows if row.num_envs == size}) for size in {r.num_envs for r in rows}}
    size = max(counts, key=lambda size: (counts[size], size))
    speeds = {label: sizes[size] for label, sizes in best_by_label(rows).items() if size in sizes}
    low, high = min(speeds.values()) / 2, max(speeds.values())
    table = Table.grid(padding=(0, 1))
    table.add_row(Text(f"{size:,} environments, log scale", style="italic"), "", "")
    for label, speed in sorted(speeds.items(), key=lambda item: -item[1]):
        share = 1.0 if high <= low else _log_share(speed, low, high)
        style = "green" if label.startswith("velodrome") else "blue"
        table.add_row(Text(label), Text("█" * max(1, round(BAR_WIDTH * share)), style=style), f"{compact(speed)}/s")
    return table


def _log_share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)
