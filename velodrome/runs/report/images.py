"""The charts of an evaluation as PNG files, for where no browser is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from velodrome.errors import ConfigError
from velodrome.evaluation.evaluate import Evaluation
from velodrome.evaluation.measures import drawdowns, format_figure
from velodrome.runs.report import portfolio_charts as charts_portfolio
from velodrome.runs.report.charts import (
    by_stretch,
    exposure_stretch,
    instrument_bars,
    kept_points,
    policies,
    shown_symbols,
)

if TYPE_CHECKING:
    import polars as pl

COLOURS = {
    "agent": "#1f5fd0", "buy_and_hold": "#b4580a", "random": "#7a4fb5", "always_flat": "#6b7280", "price": "#39424e",
    "equal_held": "#b4580a", "equal_rebalanced": "#0f766e", "best_single": "#a21c6b", "cash": "#b9c1cc",
    "others": "#7d8896", "gain": "#0b7a57", "loss": "#c0341d", "series-0": "#1f5fd0", "series-1": "#e08a1e",
    "series-2": "#1a936f", "series-3": "#c8402f", "series-4": "#7a4fb5", "series-5": "#8a5a2b", "series-6": "#d35d9b",
    "series-7": "#8a9a1f", "series-8": "#2aa7c4", "series-9": "#173f7a", "series-10": "#f2bf5e",
    "series-11": "#6fc2a0",
}  # fmt: skip
WIDE = (10.0, 4.2)  # inches
DOTS_PER_INCH = 120


def write_images(evaluation: Evaluation, folder: str | Path) -> list[Path]:
    """Write the charts and return their paths.

    equity.png, drawdown.png, position.png and actions.png; of a portfolio weights.png, contributions.png and
    turnover.png as well; of episodes actions.png alone.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    drawings = (
        {"equity": _equity, "drawdown": _drawdown, "position": _position} if evaluation.kind == "backtest" else {}
    )
    if drawings and not shown_symbols(evaluation):
        del drawings["position"]
    if charts_portfolio.is_portfolio(evaluation):
        drawings |= {"weights": _weights, "contributions": _contributions, "turnover": _turnover}
    if evaluation.actions:
        drawings["actions"] = _actions
    if not drawings:
        raise ConfigError("this evaluation has neither curves nor discrete actions; there is nothing to draw")
    paths = []
    for name, draw in drawings.items():
        figure = _figure()
        draw(figure, evaluation)
        paths.append(target / f"{name}.png")
        figure.savefig(paths[-1], dpi=DOTS_PER_INCH)
    return paths


def _figure() -> Any:
    # A Figure by itself needs no display and leaves pyplot's global state alone.
    from matplotlib.figure import Figure

    return Figure(figsize=WIDE, layout="constrained")


def _axes(figure: Any, title: str, unit: str, *place: Any, **further: Any) -> Any:
    axes = figure.add_subplot(*place, **further)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_ylabel(unit)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _moments(time: pl.Series) -> Any:
    # As NumPy's: matplotlib would draw moments with a zone in the machine's own.
    return time.dt.replace_time_zone(None).to_numpy()


def _plot(axes: Any, time: pl.Series, values: Any, colour: str, label: str, **further: Any) -> None:
    rows = kept_points(values)
    moments = _moments(time)[rows]
    axes.plot(
        moments,
        values[rows],
        color=COLOURS[colour],
        label=label,
        linewidth=1.6 if colour == "agent" else 1.0,
        **further,
    )


def _equity(figure: Any, evaluation: Evaluation) -> None:
    axes = _axes(figure, f"Equity, {evaluation.label}", "equity / start equity")
    frame = evaluation.equity
    for name, label in policies(evaluation):
        _plot(axes, frame["time"], frame[name].to_numpy(), name, label)
    axes.legend(frameon=False, fontsize=9)
    axes.tick_params("x", rotation=20)


def _drawdown(figure: Any, evaluation: Evaluation) -> None:
    axes = _axes(figure, f"Drawdown, {evaluation.label}", "below the peak")
    frame = evaluation.equity
    for name, label in policies(evaluation):
        _plot(axes, frame["time"], -drawdowns(frame[name].to_numpy()), name, label)
    axes.yaxis.set_major_formatter("{x:.1%}")
    axes.legend(frameon=False, fontsize=9)
    axes.tick_params("x", rotation=20)


def _position(figure: Any, evaluation: Evaluation) -> None:
    symbol = shown_symbols(evaluation)[0]
    bars = instrument_bars(evaluation, symbol)
    upper = _axes(figure, f"{symbol}: price and exposure, {evaluation.label}", "price", 2, 1, 1)
    lower = _axes(figure, "", "exposure", 2, 1, 2, sharex=upper)
    _plot(upper, bars["time"], bars["price"].to_numpy(), "price", "close")
    exposure = bars["exposure"].to_numpy()
    if stretch := exposure_stretch(exposure):
        begins, lowest, mean, highest = by_stretch(exposure, stretch)
        lower.fill_between(
            _moments(bars["time"])[begins], lowest, highest, step="post", color=COLOURS["agent"], alpha=0.15, lw=0
        )
        _plot(lower, bars["time"].gather(begins), mean, "agent", "mean exposure", drawstyle="steps-post")
        lower.set_ylabel(f"exposure: mean, range\nof every {stretch} bars")
    else:
        _plot(lower, bars["time"], exposure, "agent", "exposure", drawstyle="steps-post")
    lower.yaxis.set_major_formatter("{x:.0%}")
    upper.tick_params("x", labelbottom=False)
    lower.tick_params("x", rotation=20)


def _weights(figure: Any, evaluation: Evaluation) -> None:
    found = charts_portfolio.shares(evaluation)
    axes = _axes(figure, f"Weights, {evaluation.label}", "part of equity")
    drawn = {"colors": [COLOURS[part.colour] for part in found.parts], "step": "post", "linewidth": 0}
    longs, shorts = ([getattr(part, side) for part in found.parts] for side in ("longs", "shorts"))
    axes.stackplot(_moments(found.time), longs, labels=[part.name for part in found.parts], **drawn)
    if np.any(shorts):
        axes.stackplot(_moments(found.time), shorts, **drawn)
    axes.margins(x=0)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.tick_params("x", rotation=20)


def _contributions(figure: Any, evaluation: Evaluation) -> None:
    rows = charts_portfolio.contribution_rows(evaluation)[::-1]
    axes = _axes(figure, f"Contribution by instrument, {evaluation.label}", "")
    values = [row["contribution"] for row in rows]
    colours = [COLOURS["gain" if value >= 0.0 else "loss"] for value in values]
    bars = axes.barh([row["symbol"] for row in rows], values, color=colours)
    axes.bar_label(bars, [format_figure(value, "change") for value in values], fontsize=8, padding=3)
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:,.3g} %")
    axes.set_xlabel("of start equity")


def _turnover(figure: Any, evaluation: Evaluation) -> None:
    time, stretch, mean = charts_portfolio.turnovers(evaluation)
    unit = f"per bar, mean of {stretch}" if stretch > 1 else "per bar"
    axes = _axes(figure, f"Turnover, {evaluation.label}", f"traded / equity {unit}")
    _plot(axes, time, mean, "agent", "turnover", drawstyle="steps-post")
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.tick_params("x", rotation=20)


def _actions(figure: Any, evaluation: Evaluation) -> None:
    axes = _axes(figure, f"Actions, {evaluation.label}", "share")
    names = [name for name, _ in evaluation.actions]
    axes.bar(range(len(names)), [share for _, share in evaluation.actions], color=COLOURS["agent"])
    axes.set_xticks(
        range(len(names)), names, rotation=30 if len(names) > 6 else 0, ha="right" if len(names) > 6 else "center"
    )
    axes.yaxis.set_major_formatter("{x:.0%}")
