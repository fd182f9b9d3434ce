"""Any report as a picture: a panel for each comparison, lines over sizes or bars, and what a benchmark adds to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from velodrome.bench.render import COMPARED, best_by_label, compact
from velodrome.bench.report import OURS, PHASES, Comparison, Measurement, Report
from velodrome.errors import MissingDependencyError

# Colours keep apart for colour-blind readers; Velodrome's are the strong ones.
OWN = ("#d55e00", "#a0282a", "#e69f00", "#7a3b00")
OTHERS = ("#0072b2", "#009e73", "#56b4e9", "#cc79a7", "#7f7f7f", "#e0b0cc", "#b0b0b0")
PHASE_COLOURS = dict(zip(PHASES, ("#009e73", "#56b4e9", "#e69f00", "#b0b0b0"), strict=True))
QUIET = "#555555"
COLUMNS = 3  # panels beside each other, at most
LABEL_GAP = 1.45  # ratio of heights at which two labels do not touch
WIDE = 30.0  # ratio of speeds from which bars are drawn on a logarithmic scale

Draw = Callable[[Any], None]  # on a panel


def write_plot(report: Report, title: str, path: Path, more: Sequence[Draw] = ()) -> None:
    """Write a PNG; nothing where nothing was measured."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("not installed: pip install 'velodrome[plot]'") from error
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    shown = [comparison for comparison in report.comparisons if comparison.rows_to_show]
    draws = [*(_drawing(comparison) for comparison in shown), *more]
    if not shown:
        return
    columns = min(len(draws), COLUMNS)
    lines = math.ceil(len(draws) / columns)
    tallest = max(len(comparison.rows_to_show) for comparison in shown)
    height = 0.9 + lines * min(5.0, 3.2 + 0.12 * tallest)
    figure = Figure(figsize=(1.5 + 5.8 * columns, height), layout="constrained", dpi=150)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for draw, panel in zip(draws, panels, strict=False):
        draw(panel)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    for panel in panels[len(draws) :]:
        panel.set_visible(False)
    stamp = report.machine
    machine = f"{stamp.cpu}, {stamp.cores} cores ({stamp.time[:10]})"
    figure.suptitle(f"Velodrome {stamp.velodrome}: {title}\n{machine}", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _drawing(comparison: Comparison) -> Draw:
    several = any(len(sizes) > 1 for sizes in best_by_label(comparison).values())
    return lambda panel: (draw_lines if several else draw_bars)(comparison, panel)


def colours(labels: Sequence[str]) -> dict[str, str]:
    """Return a colour for each label."""
    own = [label for label in labels if label.startswith(OURS)]
    others = [label for label in labels if label not in own]
    return {
        label: palette[place % len(palette)]
        for group, palette in ((own, OWN), (others, OTHERS))
        for place, label in enumerate(group)
    }


def draw_lines(comparison: Comparison, panel: Any) -> None:
    """Draw steps per second over the number of environments, the best of one and all threads."""
    from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, NullLocator

    best = best_by_label(comparison)
    colour = colours(list(best))
    ends: dict[int, dict[str, float]] = {}  # last size of a line -> label -> its speed there
    for label, speeds in best.items():
        points = sorted(speeds.items())
        # Peers with processes are measured at a few numbers of them: a dashed line.
        dashed = any(row.processes for row in comparison.rows(label=label))
        width = 2.6 if label.startswith(OURS) else 1.5
        style = {"color": colour[label], "marker": "o", "linestyle": "--" if dashed else "-", "linewidth": width}
        panel.plot(*zip(*points, strict=True), **style)
        ends.setdefault(points[-1][0], {})[label] = points[-1][1]
    for size, heights in ends.items():
        for label, height in spread_labels(heights).items():
            beside(panel, f"{label} {compact(heights[label])}", (size, height), color=colour[label])
    sizes = sorted({row.size for row in comparison.rows_to_show})
    panel.set(xscale="log", yscale="log", xlabel="environments", ylabel="environment steps per second")
    panel.xaxis.set_major_locator(FixedLocator(sizes))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.yaxis.set_major_formatter(EngFormatter())
    # The names stand to the right of the lines, those that were moved a little above: room for them.
    panel.set_ylim(top=3.0 * max(row.steps_per_second for row in comparison.rows_to_show))
    span = max(sizes[-1] / sizes[0], 4.0)
    panel.set_xlim(sizes[0] / span**0.06, sizes[-1] * span**0.85)
    panel.set_title(comparison.name, fontsize=10)
    panel.grid(which="major", alpha=0.3)


def spread_labels(heights: dict[str, float]) -> dict[str, float]:
    """Return heights on a logarithmic axis for labels that would overlap at their own."""
    spread: dict[str, float] = {}
    lowest = 0.0
    for label, height in sorted(heights.items(), key=lambda item: item[1]):
        lowest = max(height, lowest * LABEL_GAP)
        spread[label] = lowest
    return spread


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
    panel.set_title(comparison.name, fontsize=10)
    panel.grid(axis="x", alpha=0.3)


def _bar_name(row: Measurement) -> str:
    if row.layout:
        return f"{row.label}\n{row.layout}"
    place = f", {row.processes} proc." if row.processes else f", {row.threads} thr." if row.threads > 1 else ""
    return row.label + place + " *" * row.recommended
