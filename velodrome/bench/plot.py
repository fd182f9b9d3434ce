"""Any report as a picture: a panel for each comparison, lines over sizes or bars, and what a benchmark adds to them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from velodrome.bench.render import COMPARED, best_by_label
from velodrome.bench.report import OURS, PHASES, Comparison, Measurement, Report
from velodrome.errors import MissingDependencyError
from velodrome.outside.extras import install
from velodrome.runs.live.progress import compact
from velodrome.writing import replacing

# Colours keep apart for colour-blind readers; Velodrome's are the strong ones.
OWN = ("#d55e00", "#a0282a", "#e69f00", "#7a3b00")
OTHERS = ("#0072b2", "#009e73", "#56b4e9", "#cc79a7", "#7f7f7f", "#e0b0cc", "#b0b0b0")
PHASE_COLOURS = dict(zip(PHASES, ("#009e73", "#56b4e9", "#e69f00", "#b0b0b0"), strict=True))
QUIET = "#555555"
COLUMNS = 3  # panels beside each other, at most
WIDE = 30.0  # ratio of speeds from which bars are drawn on a logarithmic scale

Draw = Callable[[Any], None]  # on a panel


def write_plot(report: Report, title: str, path: Path, more: Sequence[Draw] = ()) -> None:
    """Write a PNG; nothing where nothing was measured."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError(f"not installed: {install('plot')}") from error
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    shown = [comparison for comparison in report.comparisons if comparison.rows_to_show]
    draws = [*(_drawing(comparison) for comparison in shown), *more]
    if not draws:
        return
    columns = min(len(draws), COLUMNS)
    lines = math.ceil(len(draws) / columns)
    tallest = max((len(comparison.rows_to_show) for comparison in shown), default=0)
    height = 0.9 + lines * min(5.0, 3.2 + 0.12 * tallest)
    figure = Figure(figsize=(1.5 + 5.8 * columns, height), layout="constrained", dpi=150)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for draw, panel in zip(draws, panels, strict=False):
        panel.grid(alpha=0.3)
        draw(panel)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
        panel.title.set_fontsize(10)
        if panel.get_legend_handles_labels()[1]:
            labelled = 0.08 if panel.get_xlabel() else 0.0
            below: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14 - labelled)}
            panel.legend(**below, ncols=2, fontsize=8, frameon=False, handlelength=1.2)
    for panel in panels[len(draws) :]:
        panel.set_visible(False)
    stamp = report.machine
    machine = f"{stamp['cpu']}, {stamp['cores']} cores ({stamp['time'][:10]})"
    figure.suptitle(f"Velodrome {stamp['velodrome']}: {title}\n{machine}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        figure.savefig(new)


def _drawing(comparison: Comparison) -> Draw:
    several = any(len(sizes) > 1 for sizes in best_by_label(comparison).values())
    return lambda panel: (draw_lines if several else draw_bars)(comparison, panel)


def draw_lines(comparison: Comparison, panel: Any) -> None:
    """Draw steps per second over the number of environments, the best of one and all threads."""
    from matplotlib.ticker import EngFormatter

    own, others = itertools.cycle(OWN), itertools.cycle(OTHERS)
    for label, speeds in best_by_label(comparison).items():
        ours = label.startswith(OURS)
        style = {"color": next(own if ours else others), "marker": "o", "linewidth": 2.6 if ours else 1.5}
        # Peers with processes are measured at a few numbers of them: a dashed line.
        dashed = any(row.processes for row in comparison.rows(label=label))
        points = sorted(speeds.items())
        name = f"{label} {compact(points[-1][1])}"
        panel.plot(*zip(*points, strict=True), label=name, linestyle="--" if dashed else "-", **style)
    panel.set(xscale="log", yscale="log", xlabel="environments", ylabel="environment steps per second")
    sizes = sorted({row.size for row in comparison.rows_to_show})
    panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
    panel.set_xticks([], minor=True)
    panel.yaxis.set_major_formatter(EngFormatter())
    rates = [row.steps_per_second for row in comparison.rows_to_show]
    if max(rates) < 10.0 * min(rates):  # there may be no power of ten to name
        panel.yaxis.set_minor_formatter(EngFormatter())
    panel.set_title(comparison.name)


def beside(panel: Any, text: str, point: tuple[float, float], **style: Any) -> None:
    """Write a text to the right of a point."""
    panel.annotate(text, point, (6, 0), textcoords="offset points", va="center", fontsize=8.5, **style)


def by_speed(comparison: Comparison) -> list[Measurement]:
    """Return the rows as bars have them, the fastest on top."""
    return sorted(comparison.rows_to_show, key=lambda row: row.steps_per_second)


def draw_bars(comparison: Comparison, panel: Any) -> None:
    """Draw steps per second as bars, the fastest on top; the thin lines end at the slowest and the fastest round."""
    from matplotlib.ticker import EngFormatter

    rows = by_speed(comparison)
    speeds = [row.steps_per_second for row in rows]
    below, above = [row.steps_per_second - row.slowest for row in rows], [r.fastest - r.steps_per_second for r in rows]
    colour = [OWN[0] if row.peer == OURS else OTHERS[0] for row in rows]
    panel.barh(range(len(rows)), speeds, color=colour, xerr=[below, above], error_kw={"ecolor": "#303030", "lw": 1.0})
    panel.set_yticks(range(len(rows)), [_bar_name(row) for row in rows], fontsize=8.5)
    for place, row in enumerate(rows):
        times = [f" ({row.ratios[name]:.3g} {COMPARED[name]})" for name in ("sb3", "process") if name in row.ratios]
        beside(panel, compact(row.steps_per_second) + "".join(times), (row.fastest, place))
    bound = comparison.facts.get("bound")
    if bound:
        panel.axvline(bound, color=QUIET, linestyle="--", linewidth=1.2)
        beside(panel, f"sgemm's bound {compact(bound)}", (bound, -0.5), color=QUIET)
    wide = speeds[-1] > WIDE * speeds[0]
    if wide:
        panel.set_xscale("log")
    lowest, most = (rows[0].slowest / 2, 12.0) if wide else (0.0, 1.35)
    panel.set_xlim(lowest, most * max(bound or 0.0, *(row.fastest for row in rows)))
    panel.xaxis.set_major_formatter(EngFormatter())
    panel.set_xlabel(f"environment steps per second{', log scale' * wide}")
    panel.set_title(comparison.name)
    panel.grid(visible=False, axis="y")


def _bar_name(row: Measurement) -> str:
    if row.layout:
        return f"{row.label}\n{row.layout}"
    place = f", {row.processes} proc." if row.processes else f", {row.threads} thr." if row.threads > 1 else ""
    return row.label + place + " *" * row.recommended
