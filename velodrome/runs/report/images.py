"""The charts of a report as PNG files, for where there is no browser: the same figures, drawn by matplotlib.

One translator serves all charts. It knows as much of Plotly as the figures of this folder use: lines, markers, fills,
stacked areas and bars, over numbers, dates or categories, in one panel or several above one another.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from velodrome.evaluation.evaluate import Evaluation
from velodrome.runs.report.charts import Figure
from velodrome.runs.report.report import TEMPLATE, Charts, charts_of
from velodrome.writing import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (10.0, 4.2)  # inches
TALL = 5.2  # inches, of a chart with a long legend
DOTS_PER_INCH = 120
MOST_NAMES = 24  # of categories along an axis
DASHES = {"dot": ":"}
MARKERS = {"triangle-up": "^", "triangle-down": "v", "x-thin-open": "x"}
UNKNOWN_COLOUR = (0.42, 0.45, 0.5)


def write_images(evaluation: Evaluation, folder: str | Path, drawn: Charts | None = None) -> list[Path]:
    """Write each chart of the report as a PNG file named for the evaluation and the chart, and return the paths.

    Of the positions, only the first instrument's is written, as …-position.png. drawn: the charts, if somebody has
    drawn them for the report.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    charts, positions = drawn or charts_of(evaluation)
    for chart in (*charts, *positions[:1]):
        paths.append(target / f"{evaluation.file_name}-{chart.identity.removesuffix('-0')}.png")
        size = (SIZE[0], TALL) if chart.tall else SIZE
        with replacing(paths[-1]) as new:
            draw(chart.figure, f"{chart.title}, {evaluation.label}", size).savefig(new, dpi=DOTS_PER_INCH)
    return paths


def draw(figure: Figure, title: str, size: tuple[float, float] = SIZE) -> Any:
    """Return a Plotly figure as one of matplotlib's."""
    from matplotlib import figure as matplotlib_figure

    # A Figure by itself needs no display and leaves pyplot's global state alone.
    drawing = matplotlib_figure.Figure(figsize=size, layout="constrained")
    layout = figure["layout"]
    panels = _panels(drawing, layout)
    drawing.suptitle(title, x=0.01, ha="left", fontsize=11)
    colours = page_colours()
    stacked: dict[str, Any] = {}  # top of each stack so far
    before = None  # points of the trace before, to which a band is filled
    for trace in figure["data"]:
        axes = panels[trace.get("yaxis", "y")]
        if trace["type"] == "bar":
            _draw_bars(axes, trace, layout, colours)
        elif trace.get("visible") != "legendonly":
            before = _draw_line(axes, trace, layout, colours, before, stacked)
    for axis, axes in panels.items():
        _finish(axes, layout["xaxis"], layout[f"yaxis{axis[1:]}"])
    if layout["showlegend"]:
        first = next(iter(panels.values()))
        handles, labels = [], []
        for axes in panels.values():
            own_handles, own_labels = axes.get_legend_handles_labels()
            handles += own_handles
            labels += own_labels
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 6}
        first.legend(handles, labels, frameon=False, fontsize=8, **place)
    return drawing


def show(drawing: Any) -> None:
    """Show a figure of matplotlib in a window, as pyplot shows its own."""
    from matplotlib import pyplot

    made: Any = lambda *_, **__: drawing  # noqa: E731  pyplot asks for a class and calls it
    pyplot.figure(FigureClass=made)
    pyplot.show()


@functools.cache
def page_colours() -> dict[str, Any]:
    """Return the page's colours on a light background by the name that figures call them, "var(--agent)"."""
    style = TEMPLATE.read_text(encoding="utf-8").partition("@media")[0]
    found: dict[str, Any] = {}
    for name, value in re.findall(r"--([\w-]+): (#\w{6}|rgba\([^)]*\));", style):
        numbers = [float(number) for number in re.findall(r"[\d.]+", value)]
        soft = value.startswith("rgba")
        found[f"var(--{name})"] = (*(part / 255 for part in numbers[:3]), numbers[3]) if soft else value
    return found


def _panels(drawing: Any, layout: Figure) -> dict[str, Axes]:
    """Return the axes of a figure by Plotly's name for them, the highest panel first; all share the x axis."""
    domains = {key: axis.get("domain", [0.0, 1.0]) for key, axis in layout.items() if key.startswith("yaxis")}
    keys = sorted(domains, key=lambda key: -domains[key][0])
    heights = [domains[key][1] - domains[key][0] for key in keys]
    axes = drawing.subplots(len(keys), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    return {f"y{key.removeprefix('yaxis')}": panel for key, panel in zip(keys, axes, strict=True)}


def _draw_line(
    axes: Axes, trace: Figure, layout: Figure, colours: dict[str, Any], before: Any, stacked: dict[str, Any]
) -> Any:
    """Draw a line, its markers and what is filled below it; return its points."""
    x = np.array(trace["x"], "datetime64[ms]" if layout["xaxis"].get("type") == "date" else float)
    y = np.array(trace["y"], float)
    line, marker = trace.get("line", {}), trace.get("marker", {})
    floor = np.zeros_like(y)
    group = trace.get("stackgroup")
    if group is not None:
        floor = stacked.get(group, floor)
        stacked[group] = y = floor + y
    if line.get("shape") == "hv":  # each value holds until the next
        x, y, floor = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1], np.repeat(floor, 2)[:-1]
    label = trace["name"] if trace.get("showlegend", True) else None
    colour = colours.get(line.get("color") or marker.get("color"), UNKNOWN_COLOUR)
    if "fill" in trace or group is not None:
        soft = {"color": colours.get(trace["fillcolor"], UNKNOWN_COLOUR), "linewidth": 0}
        if trace.get("fill") == "tonexty":
            axes.fill(np.r_[before[0], x[::-1]], np.r_[before[1], y[::-1]], **soft)
        else:
            axes.fill_between(x, floor, y, label=label if group else None, **soft)
    width = 0.8 * line.get("width", 0.0)
    shown = {"color": colour, "linewidth": width, "linestyle": DASHES.get(line.get("dash"), "-")}
    if "markers" in trace["mode"]:
        shown |= {"marker": MARKERS.get(marker.get("symbol"), "o"), "markersize": 0.6 * marker.get("size", 6)}
    if width or "markers" in trace["mode"]:
        axes.plot(x, y, label=label, **(shown if width else {**shown, "linestyle": ""}))
    return x, y


def _draw_bars(axes: Axes, trace: Figure, layout: Figure, colours: dict[str, Any]) -> None:
    """Draw bars, upright or lying, at numbers or at categories."""
    lying = trace.get("orientation") == "h"
    places, lengths = (trace["y"], trace["x"]) if lying else (trace["x"], trace["y"])
    axis = layout["yaxis" if lying else "xaxis"]
    width = 1.0 - layout.get("bargap", 0.2)
    if axis.get("type") == "category":
        names = axis.get("categoryarray", places)
        turned: Any = {"rotation": 30, "ha": "right"} if len(names) > 6 and not lying else {}
        every = -(-len(names) // MOST_NAMES)
        shown = range(0, len(names), every)
        (axes.set_yticks if lying else axes.set_xticks)(shown, names[::every], **turned)
        places = [names.index(place) for place in places]
    else:
        width *= min(np.diff(places), default=1.0)
    drawn = (axes.barh if lying else axes.bar)(places, lengths, width, color=colours[trace["marker"]["color"]])
    if trace.get("textposition") == "outside":
        axes.bar_label(drawn, trace["text"], fontsize=8, padding=3)


def _finish(axes: Axes, x: Figure, y: Figure) -> None:
    """Give axes their titles, ticks and ranges."""
    from matplotlib.ticker import EngFormatter

    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for axis, about in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_label_text(about.get("title", {}).get("text", ""))
        form = about.get("tickformat", "")
        if form.endswith("%"):
            axis.set_major_formatter(functools.partial(_percent, form))
        elif form == "~s":
            axis.set_major_formatter(EngFormatter(sep=""))
        if "tickvals" in about:
            axis.set_ticks(about["tickvals"], [text.replace("<br>", "\n") for text in about["ticktext"]], fontsize=8)
    if "range" in x:
        axes.set_xlim(*x["range"])
    if y.get("rangemode") == "tozero":
        axes.set_ylim(bottom=0.0)
    if x.get("type") == "date":
        axes.margins(x=0.01)
        axes.tick_params("x", rotation=20)
    if not axes.get_subplotspec().is_last_row():  # type: ignore[union-attr]
        axes.set_xlabel("")


def _percent(form: str, value: float, place: int | None = None) -> str:
    """Write a tick in one of d3's percent formats, in which "~" drops trailing zeros."""
    return f"{100.0 * value:,.4g} %" if "~" in form else format(value, form)
