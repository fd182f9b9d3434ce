"""The charts of an account that holds several instruments: weights over time, contributions, turnover.

The figures are Plotly's, as in `charts.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.evaluation.evaluate import Evaluation
from velodrome.evaluation.measures import format_figure
from velodrome.runs.report.charts import UNIFIED, Figure, bars, layout_of, line, milliseconds, stretch_means

SHOWN = 12  # instruments with a colour of their own; the rest is drawn as one
STRETCHES = 300  # parts of the time; weights and turnover are averaged in each
CASH, OTHERS = "cash", "others"


class Share(NamedTuple):
    """One part of the equity: its name, its colour, and [N] each what is long and what is short (below zero)."""

    name: str
    colour: str
    longs: NDArray[np.float64]
    shorts: NDArray[np.float64]


@dataclass(frozen=True)
class Shares:
    """Parts of the equity by stretch of time, the largest on average first, then others, then cash."""

    time: pl.Series  # [N] beginning of each stretch
    stretch: int  # bars that are averaged
    parts: tuple[Share, ...]


def by_bar(evaluation: Evaluation, column: str) -> tuple[pl.Series, list[str], NDArray[np.float64]]:
    """Return times [T], symbols [K] and a column of the bars as a table [T, K], as they were written."""
    table = evaluation.bars
    symbols = table["symbol"].unique(maintain_order=True).to_list()
    time = table["time"].head(table.height // len(symbols))
    return time, symbols, table[column].to_numpy().reshape(len(symbols), -1).T


def averaged(values: NDArray[np.float64]) -> tuple[int, NDArray[np.int64], NDArray[np.float64]]:
    """Return the rows in a stretch, the first row of each, and the mean over it, of a table [T, …]."""
    size = max(1, -(-len(values) // STRETCHES))
    return size, *stretch_means(values, size)


def shares(evaluation: Evaluation) -> Shares:
    """Return the weights of the instruments that had most on average, of the others together, and of cash."""
    time, symbols, weights = by_bar(evaluation, "weight")
    weights = weights[1:]  # the first bar is before any decision
    order = np.argsort(-np.abs(weights).mean(axis=0), kind="stable")
    shown = order if len(order) <= SHOWN + 1 else order[:SHOWN]
    rest = order[len(shown) :]
    size, begins, longs = averaged(np.maximum(weights, 0.0))
    _, _, shorts = averaged(np.minimum(weights, 0.0))
    parts = [
        Share(symbols[k], OTHERS if place == SHOWN else f"series-{place}", longs[:, k], shorts[:, k])
        for place, k in enumerate(shown)
    ]
    if len(rest):
        sums = (values[:, rest].sum(axis=1) for values in (longs, shorts))
        parts.append(Share(f"{len(rest)} {OTHERS}", OTHERS, *sums))
    cash = 1.0 - longs.sum(axis=1) - shorts.sum(axis=1)
    parts.append(Share(CASH, CASH, np.maximum(cash, 0.0), np.minimum(cash, 0.0)))
    return Shares(time[1:].gather(begins), size, tuple(parts))


def weights_figure(evaluation: Evaluation) -> Figure:
    """Weights over time, one on top of the other; short positions below zero."""
    found = shares(evaluation)
    time = milliseconds(found.time)
    data: list[Figure] = []
    for name, colour, longs, shorts in found.parts:
        for side, drawn in (("long", longs), ("short", shorts)):
            if side == "short" and not drawn.any():
                continue
            area = {"stackgroup": side, "fillcolor": f"var(--{colour})", "line": {"width": 0.0, "shape": "hv"}}
            shown = {"legendgroup": name, "showlegend": side == "long", "hovertemplate": "%{y:.1%}"}
            data.append(line(time, drawn, name, colour, **area, **shown))
    return {"data": data, "layout": layout_of("part of equity", y={"tickformat": ".0%"}, hovermode=UNIFIED)}


def contribution_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return what instruments contributed, the best first; those that moved the result least are one row."""
    rows = sorted(evaluation.information["contributions"], key=lambda row: -abs(row["contribution"]))
    if len(rows) > SHOWN + 1:
        rest = rows[SHOWN:]
        sums = {name: sum(row[name] for row in rest) for name in ("contribution", "gain", "costs")}
        rows = [*rows[:SHOWN], {"symbol": f"{len(rest)} {OTHERS}", **sums}]
    return sorted(rows, key=lambda row: -row["contribution"])


def contributions_figure(evaluation: Evaluation) -> Figure:
    """What each instrument added to the return, after its costs."""
    rows = contribution_rows(evaluation)[::-1]  # Plotly draws the first at the bottom
    data = []
    for colour in ("gain", "loss"):
        chosen = [row for row in rows if (row["contribution"] >= 0.0) == (colour == "gain")]
        values = [float(f"{row['contribution']:.6g}") for row in chosen]
        detail = [
            f"{format_figure(row['gain'], 'change')} from prices, {format_figure(row['costs'], 'share')} costs"
            for row in chosen
        ]
        texts = {"text": [format_figure(value, "change") for value in values], "textposition": "outside"}
        further = {"orientation": "h", "customdata": detail, "cliponaxis": False, **texts}
        symbols = [row["symbol"] for row in chosen]
        data.append(bars(values, symbols, colour, "%{y}: %{text} (%{customdata})", **further))
    # Room for the numbers beside the bars.
    lowest, highest = (end(0.0, *(row["contribution"] for row in rows)) for end in (min, max))
    room = 0.3 * max(highest - lowest, 1e-9)
    ends = [lowest - room if lowest < 0.0 else 0.0, highest + room if highest > 0.0 else 0.0]
    x = {"tickformat": ",.3~%", "title": {"text": "of start equity"}, "range": ends}
    y = {"type": "category", "categoryorder": "array", "categoryarray": [row["symbol"] for row in rows]}
    return {"data": data, "layout": layout_of("", x=x, y=y, bargap=0.3, showlegend=False)}


def turnovers(evaluation: Evaluation) -> tuple[pl.Series, int, NDArray[np.float64]]:
    """Return beginnings, length in bars and mean turnover per bar of each stretch of time."""
    time, _, values = by_bar(evaluation, "turnover")
    size, begins, mean = averaged(values[1:].sum(axis=1))
    return time[1:].gather(begins), size, mean


def turnover_figure(evaluation: Evaluation) -> Figure:
    """What was traded in a bar, over equity."""
    time, _, mean = turnovers(evaluation)
    filled = {"line": {"shape": "hv", "width": 1.2}, "fill": "tozeroy", "fillcolor": "var(--agent-soft)"}
    drawn = line(milliseconds(time), mean, "turnover", "agent", hovertemplate="%{y:.1%}", **filled)
    y = {"tickformat": ".0%", "rangemode": "tozero"}
    layout = layout_of("traded value / equity, per bar", y=y, hovermode=UNIFIED, showlegend=False)
    return {"data": [drawn], "layout": layout}
