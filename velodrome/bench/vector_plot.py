"""The vector report as a picture: steps per second of every contender, a panel for each environment."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from velodrome.bench.render import compact
from velodrome.bench.vector_report import EnvironmentResult, StragglerResult, VectorReport
from velodrome.errors import MissingDependencyError

# Colours keep apart for colour-blind readers.
OWN, OTHER, SYNCHRONOUS = "#d55e00", "#0072b2", "#b0b0b0"
COLUMNS = 3  # panels beside each other, at most


def write_vector_plot(report: VectorReport, path: Path) -> None:
    """Write a PNG; nothing where nothing was measured."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("not installed: pip install matplotlib") from error
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    results = [result for result in report.environments if result.measurements]
    stragglers = [straggler for straggler in report.stragglers if len(straggler.measurements) == 2]
    count = len(results) + bool(stragglers)
    if not count:
        return
    columns = min(count, COLUMNS)
    lines = math.ceil(count / columns)
    figure = Figure(figsize=(1.0 + 5.4 * columns, 0.9 + 3.6 * lines), layout="constrained", dpi=150)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel, result in zip(panels, results, strict=False):
        draw_environment(result, panel)
    if stragglers:
        draw_stragglers(stragglers, panels[len(results)])
    for panel in panels[:count]:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    for panel in panels[count:]:
        panel.set_visible(False)
    stamp = report.machine
    figure.suptitle(
        f"Velodrome {stamp.velodrome}: batches on {stamp.cpu}, {stamp.cores} cores (* recommended; {stamp.time[:10]})",
        fontsize=11,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def draw_environment(result: EnvironmentResult, panel: Any) -> None:
    """Draw steps per second as bars, the fastest on top; the lines are the slowest and the fastest round."""
    rows = sorted(result.measurements, key=lambda row: row.steps_per_second)
    recommended = result.recommended_row()
    names = [
        f"{row.label}{f', {row.workers} proc.' if row.workers else ''}{' *' if row is recommended else ''}"
        for row in rows
    ]
    bars(panel, names, rows, [OWN if row.peer == "velodrome" else OTHER for row in rows])
    panel.set_title(f"{result.num_envs} × {result.env}", fontsize=10)


def draw_stragglers(stragglers: list[StragglerResult], panel: Any) -> None:
    """Draw process and async beside each other, a pair for each setting."""
    names, rows, colours = [], [], []
    for straggler in reversed(stragglers):
        by_kind = {row.kind: row for row in straggler.measurements}
        setting = f"{straggler.num_envs} × {straggler.env}, {straggler.workers} proc."
        for kind, colour in (("process", SYNCHRONOUS), ("async", OWN)):
            gain = f" ({straggler.ratio:.1f} ×)" if kind == "async" and straggler.ratio is not None else ""
            names.append(f"{setting}: {kind}{gain}")
            rows.append(by_kind[kind])
            colours.append(colour)
    bars(panel, names, rows, colours)
    # Settings of very different speeds stand beside each other.
    panel.set_xscale("log")
    panel.set_xlim(min(row.slowest for row in rows) / 2, 4 * max(row.fastest for row in rows))
    panel.set_xlabel("environment steps per second, log scale")
    panel.set_title("One environment 10 × slower than the rest", fontsize=10)


def bars(panel: Any, names: list[str], rows: list[Any], colours: list[str]) -> None:
    """Draw one bar for each measurement."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    speeds = [row.steps_per_second for row in rows]
    errors = [
        [row.steps_per_second - row.slowest for row in rows], [row.fastest - row.steps_per_second for row in rows]
    ]  # fmt: skip
    places = range(len(rows))
    panel.barh(places, speeds, color=colours, xerr=errors, error_kw={"ecolor": "#303030", "linewidth": 1.0})
    panel.set_yticks(places, names)
    for place, row in zip(places, rows, strict=True):
        panel.annotate(
            compact(row.steps_per_second), (row.fastest, place), (4, 0), textcoords="offset points", va="center",
            fontsize=8.5,
        )  # fmt: skip
    panel.set_xlim(0.0, 1.2 * max(row.fastest for row in rows))
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: compact(value).replace(".00", "").replace(".0", "")))
    panel.tick_params(axis="y", labelsize=8.5)
    panel.set_xlabel("environment steps per second")
