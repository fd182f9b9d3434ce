"""What a result is made of, as charts and small tables: months, falls, the rolling Sharpe ratio, and costs.

The figures are Plotly's, as in `charts.py`.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import numpy as np

from velodrome.evaluation.baselines import LABELS
from velodrome.evaluation.breakdown import rolling_sharpe
from velodrome.evaluation.evaluate import Evaluation
from velodrome.evaluation.measures import Unit, format_figure
from velodrome.runs.report.charts import UNIFIED, Figure, bars, layout_of, line, milliseconds

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
COST_COLUMNS: tuple[tuple[str, str, Unit], ...] = (
    ("return", "Total return", "change"),
    ("annual_return", "Annualised return", "change"),
    ("sharpe", "Sharpe ratio", "ratio"),
    ("max_drawdown", "Maximum drawdown", "share"),
)


class Cell(NamedTuple):
    """What a table shows in one place, and the class of the page's style that it has."""

    text: str
    style: str = ""


class Grid(NamedTuple):
    """A small table under a chart."""

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def benchmark_label(evaluation: Evaluation) -> str:
    """Return the benchmark's name for people."""
    name = evaluation.breakdown["benchmark"]
    return LABELS.get(name, name)


def change_cell(value: float | None) -> Cell:
    """Return a change in the colour of a gain or of a loss."""
    shown = format_figure(value, "change")
    return Cell(shown, "gain" if shown.startswith("+") else "loss" if shown.startswith("−") else "")


def months_figure(evaluation: Evaluation) -> Figure:
    """The agent's return in each month."""
    months = evaluation.breakdown["months"]
    data = []
    for colour in ("gain", "loss"):
        chosen = [row for row in months if (row["agent"] >= 0.0) == (colour == "gain")]
        values = [float(f"{row['agent']:.6g}") for row in chosen]
        texts = {"text": [format_figure(value, "change") for value in values], "textposition": "none"}
        if chosen:
            data.append(bars([row["month"] for row in chosen], values, colour, "%{x}: %{text}", **texts))
    x = {"type": "category", "categoryorder": "array", "categoryarray": [row["month"] for row in months]}
    layout = layout_of("return in the month", x=x, y={"tickformat": ".1%"}, bargap=0.25, showlegend=False)
    return {"data": data, "layout": layout}


def months_grid(evaluation: Evaluation) -> Grid:
    """Return months in columns, years in rows, and what the months of a year compound to."""
    found = evaluation.breakdown["months"]
    names = ("agent", "benchmark") if "benchmark" in found[0] else ("agent",)
    rows = []
    for year, group in itertools.groupby(found, key=lambda row: row["month"][:4]):
        own = list(group)
        by_month = {int(row["month"][5:]): row["agent"] for row in own}
        cells = [change_cell(by_month[k]) if k in by_month else Cell("") for k in range(1, 13)]
        totals = [change_cell(math.prod(1.0 + row[name] for row in own) - 1.0) for name in names]
        rows.append((Cell(year), *cells, *totals))
    headings = ("", *MONTHS, "Year", benchmark_label(evaluation))
    return Grid(headings[: 13 + len(names)], tuple(rows))


def falls_grid(evaluation: Evaluation) -> Grid:
    """Return the deepest falls: how deep, from when to when, how long."""
    rows = [
        (
            Cell(format_figure(fall["depth"], "share"), "loss"),
            *(Cell(fall[name][:16] if fall[name] else "not yet") for name in ("begin", "trough", "end")),
            Cell(f"{fall['bars_down']:,}"),
            Cell(f"{fall['bars']:,}"),
        )
        for fall in evaluation.breakdown["falls"]
    ]
    headings = ("Depth", "Peak (UTC)", "Trough (UTC)", "Made up for (UTC)", "Bars to the trough", "Bars in all")
    return Grid(headings, tuple(rows))


def rolling_figure(evaluation: Evaluation) -> Figure:
    """The Sharpe ratio of the bars of a window, of the agent and its benchmark; those of their mean curves."""
    frame, window = evaluation.equity, evaluation.breakdown["rolling_sharpe"]["bars"]
    per_year = evaluation.information["bars_per_year"]
    time = milliseconds(frame["time"])[window:]
    data = []
    for name in (evaluation.breakdown["benchmark"], "agent"):
        if name in frame.columns:
            growth = frame[name].to_numpy()
            before = np.where(growth[:-1] > 0.0, growth[:-1], 1.0)
            returns = np.where(growth[:-1] > 0.0, growth[1:] / before - 1.0, 0.0)
            ratio = rolling_sharpe(returns[:, None], window, per_year)
            data.append(line(time, ratio, LABELS.get(name, name), name, hovertemplate="%{y:.2f}"))
    layout = layout_of(f"Sharpe ratio of {window:,} bars", y={"zeroline": True}, hovermode=UNIFIED)
    return {"data": data, "layout": layout}


def costs_figure(evaluation: Evaluation) -> Figure:
    """The total return of the same actions at several times the costs."""
    levels = evaluation.breakdown["cost_levels"]
    names = [f"{level['times']:g} ×" for level in levels]
    values = [float(f"{level['return']:.6g}") for level in levels]
    texts = {"text": [format_figure(value, "change") for value in values], "textposition": "outside"}
    drawn = bars(names, values, "agent", "%{x}: %{text}", cliponaxis=False, **texts)
    x = {"type": "category", "title": {"text": "times the costs"}}
    layout = layout_of("total return", x=x, y={"tickformat": ",.3~%"}, bargap=0.5, showlegend=False)
    return {"data": [drawn], "layout": layout}


def costs_grid(evaluation: Evaluation) -> Grid:
    """Return what the same actions come to at several times the costs."""
    rows = [
        (Cell(f"{level['times']:g} ×"), *(Cell(format_figure(level[name], unit)) for name, _, unit in COST_COLUMNS))
        for level in evaluation.breakdown["cost_levels"]
    ]
    return Grid(("Costs", *(label for _, label, _ in COST_COLUMNS)), tuple(rows))
