"""The charts of a report as Plotly figures: plain dictionaries whose colours are names that the page resolves.

A colour is written as the page's CSS variable, "var(--agent)", so that one figure serves light, dark and print.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.evaluation.baselines import HINDSIGHT, LABELS
from velodrome.evaluation.evaluate import Evaluation
from velodrome.evaluation.measures import drawdowns
from velodrome.evaluation.named_policy import USED_FOR_SELECTION
from velodrome.evaluation.training_seeds import SEED_COLUMN
from velodrome.runs.metrics import EQUITY_RETURN, RETURNS

BUCKETS = 1500  # about the pixels of a wide screen; a longer series keeps the lowest and highest of each
SHOWN_INSTRUMENTS = 8
MARKED_TRADES = 1000
CROWDED_TRADES = 150  # beyond this the marks hide the price; they start switched off
CROWDED_CHANGES = 300  # changes of side, or jumps, beyond which single bars of exposure are a solid block
JUMP = 0.25  # of exposure, from bar to bar
STRETCHES = 150
DIGITS = 7  # significant, of what is drawn
THIN: dict[str, Any] = {"line": {"width": 0.8}, "opacity": 0.55, "showlegend": False}  # one of several training seeds
UNIFIED = "x unified"  # one hover box for all curves at a moment

Figure = dict[str, Any]


def kept_points(values: NDArray[np.float64], buckets: int = BUCKETS) -> NDArray[np.int64]:
    """Return the rows of a series to draw: all of a short one, else first, last, lowest and highest of each bucket."""
    count = len(values)
    if count <= 2 * buckets:
        return np.arange(count)
    edges = np.linspace(0, count, buckets + 1).astype(np.int64)
    within = np.repeat(np.arange(buckets), np.diff(edges))
    rows = [np.array([0, count - 1])]
    for extreme in (np.minimum, np.maximum):
        found = extreme.reduceat(values, edges[:-1])[within]
        at = np.flatnonzero((values == found) | (np.isnan(values) & np.isnan(found)))
        rows.append(at[np.r_[True, np.diff(within[at]) > 0]])  # the first of each bucket
    return np.unique(np.concatenate(rows))


def milliseconds(time: pl.Series) -> NDArray[np.int64]:
    """Return moments as Plotly's dates: milliseconds since 1970."""
    return time.dt.epoch("ms").to_numpy()


def rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Return numbers short enough to store; what is not finite is a gap."""
    return [float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values.tolist()]


def line(time: NDArray, values: NDArray[np.float64], name: str, colour: str, **further: Any) -> Figure:
    """Return one line, with no more points than can be seen."""
    rows = kept_points(values)
    points = {"x": time[rows].tolist(), "y": rounded(values[rows])}
    drawn = {"color": f"var(--{colour})", "width": 2.0 if colour == "agent" else 1.4, **further.pop("line", {})}
    return {"type": "scatter", "mode": "lines", "name": name, **points, "line": drawn, **further}


def bars(x: list, y: list, colour: str, hover: str, **further: Any) -> Figure:
    """Return bars of one colour."""
    shown = {"marker": {"color": f"var(--{colour})"}, "hovertemplate": f"{hover}<extra></extra>"}
    return {"type": "bar", "x": x, "y": y, **shown, **further}


def is_thinned(evaluation: Evaluation) -> bool:
    """Return whether any curve has more bars than are drawn."""
    of_an_instrument = evaluation.bars["symbol"].value_counts()["count"].to_numpy().max()
    return bool(max(evaluation.equity.height, of_an_instrument) > 2 * BUCKETS)


def policies(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return column and label of every policy whose curve is drawn, the agent last so that it lies on top."""
    found = [(name, LABELS[name]) for name in LABELS if name in evaluation.equity.columns]
    return [*found, ("agent", "agent")]


def equity_figure(evaluation: Evaluation) -> Figure:
    """Equity over start equity, of the agent, its training seeds if several, and each baseline, with ranges."""
    frame = evaluation.equity
    time = milliseconds(frame["time"])
    data: list[Figure] = []
    for seed in (column for column in frame.columns if column.startswith(SEED_COLUMN)):
        label = f"training seed {seed.removeprefix(SEED_COLUMN)}"
        data.append(line(time, frame[seed].to_numpy(), label, "agent", hovertemplate="%{y:.4f}", **THIN))
    for name, label in policies(evaluation):
        if f"{name}_low" in frame.columns and not (name == "agent" and evaluation.seeds):
            data += _band(time, frame[f"{name}_low"].to_numpy(), frame[f"{name}_high"].to_numpy(), label, name)
        values = frame[name].to_numpy()
        dash = {"line": {"dash": "dot"}} if name in HINDSIGHT else {}
        data.append(line(time, values, label, name, hovertemplate="%{y:.4f}", legendgroup=name, **dash))
    return {"data": data, "layout": layout_of("equity / start equity", hovermode=UNIFIED)}


def _band(time: NDArray, low: NDArray, high: NDArray, label: str, colour: str) -> list[Figure]:
    shared = {"showlegend": False, "hoverinfo": "skip", "legendgroup": colour, "line": {"width": 0}}
    upper = line(time, high, f"{label}, best seed", colour, **shared)
    lower = line(time, low, f"{label}, worst seed", colour, **shared)
    return [upper, {**lower, "fill": "tonexty", "fillcolor": f"var(--{colour}-soft)"}]


def drawdown_figure(evaluation: Evaluation) -> Figure:
    """The fall of equity from its peak so far."""
    frame = evaluation.equity
    time = milliseconds(frame["time"])
    data = []
    for name, label in policies(evaluation):
        filled: Figure = {"fill": "tozeroy", "fillcolor": "var(--agent-soft)"} if name == "agent" else {}
        if name in HINDSIGHT:
            filled = {"line": {"dash": "dot"}}
        depth = -drawdowns(frame[name].to_numpy())
        data.append(line(time, depth, label, name, hovertemplate="%{y:.2%}", **filled))
    return {"data": data, "layout": layout_of("below the peak", y={"tickformat": ".1%"}, hovermode=UNIFIED)}


def shares_account(evaluation: Evaluation) -> bool:
    """Return whether one account held all instruments: then the bars give the weight of each."""
    return "weight" in evaluation.bars.columns


def shown_symbols(evaluation: Evaluation) -> list[str]:
    """Return the instruments whose position is drawn: of a portfolio, those with most weight on average.

    None where positions are not known.
    """
    table = evaluation.bars
    if not {"weight", "exposure"} & set(table.columns):
        return []
    if shares_account(evaluation):
        size = table.group_by("symbol", maintain_order=True).agg(pl.col("weight").abs().mean())
        return size.sort("weight", descending=True, maintain_order=True)["symbol"].to_list()[:SHOWN_INSTRUMENTS]
    return table["symbol"].unique(maintain_order=True).to_list()[:SHOWN_INSTRUMENTS]


def instrument_bars(evaluation: Evaluation, symbol: str) -> pl.DataFrame:
    """Return the bars of one instrument; its weight in a portfolio is its exposure."""
    table = evaluation.bars.filter(pl.col("symbol") == symbol)
    return table.rename({"weight": "exposure"}) if shares_account(evaluation) else table


def position_figure(evaluation: Evaluation, symbol: str) -> Figure:
    """The price of one instrument with entries and exits, and the exposure under it, both under the first seed."""
    table = instrument_bars(evaluation, symbol)
    time = milliseconds(table["time"])
    exposure = table["exposure"].to_numpy()
    data = [line(time, table["price"].to_numpy(), "close", "price", hovertemplate="%{y:.6g}")]
    below: dict[str, Any] = {"yaxis": "y2", "hovertemplate": "%{y:.1%}"}
    if stretch := exposure_stretch(exposure):
        begins, lowest, mean, highest = by_stretch(exposure, stretch)
        band = _band(time[begins], lowest, highest, "exposure", "agent")
        data += [{**part, **below, "line": {"shape": "hv", "width": 0}} for part in band]
        data.append(line(time[begins], mean, "mean exposure", "agent", line={"shape": "hv", "width": 1.4}, **below))
    else:
        step = {"shape": "hv", "width": 1.0}
        data.append(
            line(time, exposure, "exposure", "agent", line=step, fill="tozeroy", fillcolor="var(--agent-soft)", **below)
        )
    trades = first_seed_trades(evaluation, symbol)
    if shares_account(evaluation):
        trades = _at_closes(trades, table)
    data += _trade_marks(trades)
    lower = {"title": {"text": "exposure"}, "domain": [0.0, 0.28], "tickformat": ".0%", "zeroline": True}
    layout = layout_of("price", x={"type": "date", "anchor": "y2"}, y={"domain": [0.36, 1.0]}, yaxis2=lower)
    return {"data": data, "layout": layout}


def exposure_stretch(exposure: NDArray[np.float64]) -> int:
    """Return how many bars to draw as one: 0 (each by itself) unless exposure changes too often to be seen."""
    changes = int(((np.diff(np.sign(exposure)) != 0) | (np.abs(np.diff(exposure)) > JUMP)).sum())
    return 0 if changes <= CROWDED_CHANGES else max(2, len(exposure) // STRETCHES)


def stretch_means(values: NDArray[np.float64], stretch: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the first row of each stretch of rows, and the mean over it, of a table [T, …]."""
    begins = np.arange(0, len(values), stretch)
    lengths = np.diff(np.r_[begins, len(values)]).reshape(-1, *[1] * (values.ndim - 1))
    return begins, np.add.reduceat(values, begins, axis=0) / lengths


def by_stretch(values: NDArray[np.float64], stretch: int) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Return the first row of each stretch of rows, and the lowest, the mean and the highest value in it."""
    begins, mean = stretch_means(values, stretch)
    return begins, np.minimum.reduceat(values, begins), mean, np.maximum.reduceat(values, begins)


def first_seed_trades(evaluation: Evaluation, symbol: str) -> pl.DataFrame:
    """Return an instrument's trades under the seed whose bars are drawn; of several agents, those of the first."""
    about, trades = evaluation.information, evaluation.trades
    if evaluation.seeds:
        trades = trades.filter(pl.col("training_seed") == evaluation.seeds[0].seed)
    return trades.filter((pl.col("symbol") == symbol) & (pl.col("seed") == about["seeds"][0]))


def shown_seed(evaluation: Evaluation) -> str:
    """Return whose account is drawn bar by bar: the first seed, and of several agents the first, not the best."""
    seed = f"seed {evaluation.information['seeds'][0]}"
    return f"{seed} by the agent of training seed {evaluation.seeds[0].seed}" if evaluation.seeds else seed


def _at_closes(trades: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """Return trades with the closes of their bars as prices: a mean over thousands of fills lies off the chart."""
    for moment in ("entry", "exit"):
        closes = table.select(pl.col("time").alias(f"{moment}_time"), pl.col("price").alias(f"{moment}_price"))
        trades = trades.drop(f"{moment}_price").join(closes, on=f"{moment}_time", how="left", maintain_order="left")
    return trades


def _trade_marks(trades: pl.DataFrame) -> list[Figure]:
    visible = True if trades.height <= CROWDED_TRADES else "legendonly"
    trades = trades.head(MARKED_TRADES)
    marks = []
    for label, side, moment, symbol, colour in (
        ("long entry", "long", "entry", "triangle-up", "gain"),
        ("short entry", "short", "entry", "triangle-down", "loss"),
        ("exit", None, "exit", "x-thin-open", "text"),
    ):
        chosen = trades if side is None else trades.filter(pl.col("side") == side)
        if chosen.height:
            time, price = milliseconds(chosen[f"{moment}_time"]), rounded(chosen[f"{moment}_price"].to_numpy())
            edge = {"width": 1.5, "color": f"var(--{colour})"}
            marker = {"symbol": symbol, "size": 8, "color": f"var(--{colour})", "line": edge}
            shown = {"visible": visible, "hovertemplate": f"{label} %{{y:.6g}}<extra></extra>", "marker": marker}
            points = {"x": time.tolist(), "y": price}
            marks.append({"type": "scatter", "mode": "markers", "name": label, **points, **shown})
    return marks


def disagreement_figure(evaluation: Evaluation) -> tuple[Figure, int]:
    """How far the members of an ensemble are apart under the first seed, and of how many bars each point is.

    Of several accounts it is the mean over them.
    """
    known = evaluation.bars.select("time", "disagreement").drop_nulls().group_by("time").mean().sort("time")
    time, values = milliseconds(known["time"]), known["disagreement"].to_numpy()
    stretch = -(-len(values) // STRETCHES)
    begins, low, mean, high = by_stretch(values, stretch)
    data = _band(time[begins], low, high, "disagreement", "agent") if stretch > 1 else []
    data.append(line(time[begins], mean, "disagreement", "agent", hovertemplate="%{y:.1%}", legendgroup="agent"))
    y = {"tickformat": ".0%", "rangemode": "tozero"}
    return {"data": data, "layout": layout_of("disagreement", y=y, showlegend=False)}, stretch


def actions_figure(evaluation: Evaluation) -> Figure:
    """How often the agent took each action."""
    names = [name for name, _ in evaluation.actions]
    shares = [share for _, share in evaluation.actions]
    texts = {"text": [f"{share:.1%}" for share in shares], "textposition": "none" if len(names) > 8 else "outside"}
    heights = [float(f"{share:.6g}") for share in shares]
    drawn = bars(names, heights, "agent", "%{x}: %{text}", cliponaxis=False, **texts)
    layout = layout_of(
        "share of bars" if evaluation.kind == "backtest" else "share of steps",
        x={"type": "category", "title": {"text": "action"}},
        y={"tickformat": ".0%", "rangemode": "tozero"},
        bargap=0.5 if len(names) < 6 else 0.2,
        showlegend=False,
    )
    return {"data": [drawn], "layout": layout}


def episodes_figure(evaluation: Evaluation) -> Figure:
    """How the episodes' returns are spread."""
    returns = evaluation.episodes["returns"]
    counts, edges = np.histogram(returns, bins=min(40, max(5, len(returns) // 5)))
    middles = 0.5 * (edges[:-1] + edges[1:])
    drawn = bars(rounded(middles), counts.tolist(), "agent", "%{y} episodes at %{x:.4g}")
    layout = layout_of("episodes", x={"title": {"text": "episode return"}}, bargap=0.05, showlegend=False)
    return {"data": [drawn], "layout": layout}


def training_figures(metrics: pl.DataFrame, account: bool = False) -> list[tuple[str, Figure]]:
    """Return titled charts of a run's metrics (step, name, value): episode return, validation, steps per second.

    account: returns in validation are an account's, in per cent, and not sums of rewards.
    """
    names = metrics["name"].unique().to_list()
    outside = sorted(name for name in names if name.startswith("evaluation/") and name.endswith("/return"))
    inside = next((name for name in RETURNS if name in names), "")
    groups = [
        (
            "Episode return while training (in sample)",
            [inside],
            "return" if inside == EQUITY_RETURN else "sum of rewards",
        ),
        (f"Validation while training ({USED_FOR_SELECTION})", outside, "return" if account else "sum of rewards"),
        ("Steps per second", ["time/steps_per_second"], "steps per second"),
    ]
    colours = ("agent", "buy_and_hold", "random", "always_flat")
    figures = []
    for title, wanted, unit in groups:
        data = []
        for place, name in enumerate(wanted):
            own = metrics.filter((pl.col("name") == name) & pl.col("value").is_finite()).sort("step")
            data += _training_lines(own, name.removeprefix("evaluation/"), colours[place % len(colours)])
        if data:
            form = "~s" if "second" in unit else "~%" if unit == "return" else ""
            x, y = {"title": {"text": "environment steps"}}, {"tickformat": form}
            several = sum(part.get("showlegend", True) for part in data) > 1
            figures.append((title, {"data": data, "layout": layout_of(unit, x=x, y=y, showlegend=several)}))
    return figures


def _training_lines(own: pl.DataFrame, label: str, colour: str) -> list[Figure]:
    """Return the curve of a metric; of several training seeds each thinly, and their mean."""
    curves = []
    if "seed" in own.columns:
        curves = [(part, f"{label}, seed {seed}", THIN) for (seed,), part in own.group_by("seed", maintain_order=True)]
        own, label = own.select("step", "value").group_by("step").mean().sort("step"), f"{label}, mean"
    data = []
    for part, name, further in (*curves, (own, label, {"line": {"width": 2.5}} if curves else {})):
        if part.height:
            drawn = line(part["step"].to_numpy(), part["value"].to_numpy(), name, colour, **further)
            # A single result would be a line without length.
            data.append({**drawn, "mode": "lines+markers"} if part.height < 30 else drawn)
    return data


def layout_of(unit: str, *, x: Figure | None = None, y: Figure | None = None, **further: Any) -> Figure:
    """Return the layout of a chart: over time unless the x axis is given, with a name for what is drawn upwards."""
    return {
        "xaxis": {"automargin": True, **({"type": "date"} if x is None else x)},
        "yaxis": {"title": {"text": unit}, "automargin": True, **(y or {})},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "showlegend": True,
        **further,
    }
