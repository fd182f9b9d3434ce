"""`write_report`: an evaluation as one HTML file that needs nothing else, neither network nor server."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import LABELS
from velodrome.evaluation.evaluate import Evaluation
from velodrome.evaluation.measures import BY_NAME, format_figure
from velodrome.evaluation.result import Difference, format_interval
from velodrome.runs.report import charts
from velodrome.runs.report import portfolio_charts as charts_portfolio

TEMPLATE = Path(__file__).with_name("page.html.j2")
LISTED_TRADES = 200
FOOTER = (
    "This is a backtest on historical or synthetic data. It shows what a policy would have done there under the stated "
    "costs; it is no forecast, no promise of profit and no advice."
)
EPISODES_FOOTER = "These are episodes of a simulated environment; they say nothing about any other."
GROUPS = (
    ("Return and risk", ("return", "annual_return", "annual_volatility", "sharpe", "sortino", "calmar", "max_drawdown",
                         "longest_under_water", "mean_log_return", "of_optimum", "reward")),
    ("Costs and exposure", ("turnover", "fees", "spread_and_slippage", "funding", "costs", "exposure", "in_market",
                            "cash_share", "positions", "largest_weight")),
    ("Trades", ("orders", "trades", "win_rate", "average_trade", "profit_factor")),
    ("How sure", ("probabilistic_sharpe", "deflated_sharpe", "minimum_track_record")),
    ("Episodes", ("episode_return", "episode_length", "reward_per_step", "worst_episode", "best_episode")),
)  # fmt: skip
TILES = {
    "backtest": ("return", "sharpe", "max_drawdown", "trades", "win_rate"),
    "episodes": ("episode_return", "episode_length", "worst_episode", "best_episode"),
    "portfolio": ("return", "sharpe", "max_drawdown", "of_optimum", "turnover", "positions"),
}
MOST_TILES = 5
METRIC_COLUMNS = {"step", "name", "value"}


@dataclass(frozen=True)
class Chart:
    """One chart of the page."""

    identity: str
    title: str
    caption: str
    figure: charts.Figure
    wide: bool = True
    logarithmic: bool = False  # offers a logarithmic scale
    tall: bool = False  # has a long legend


def write_report(
    evaluation: Evaluation,
    path: str | Path,
    title: str,
    run_information: Mapping[str, Any] | None = None,
    metrics: pl.DataFrame | None = None,
) -> Path:
    """Write the report of an evaluation and return its path.

    run_information: what to say of the run in the header, as texts by name. metrics: the run's training curves, one row
    for each (step, name, value).
    """
    if metrics is not None and not set(metrics.columns) >= METRIC_COLUMNS:
        raise ConfigError(
            f"metrics has the columns {metrics.columns}; it needs step, name and value, a row for each value"
        )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(render_report(evaluation, title, run_information or {}, metrics), encoding="utf-8")
    return target


def render_report(
    evaluation: Evaluation, title: str, run_information: Mapping[str, Any], metrics: pl.DataFrame | None
) -> str:
    """Return the page as text."""
    import jinja2
    from plotly.offline import get_plotlyjs

    drawn = _charts(evaluation)
    training = [] if metrics is None else _training_charts(metrics)
    positions = _position_charts(evaluation)
    figures = {chart.identity: chart.figure for chart in (*drawn, *positions, *training)}
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title,
        evaluation=evaluation,
        confidence=f"{evaluation.information['confidence']:.0%}",
        information=_information(evaluation, run_information),
        tiles=_tiles(evaluation),
        baselines=[LABELS[name] for name in evaluation.baseline_names],
        groups=_groups(evaluation),
        differences=[_difference(difference) for difference in evaluation.differences],
        charts=drawn,
        positions=positions,
        training=training,
        trades=_trades(evaluation.trades),
        trade_columns=TRADE_COLUMNS,
        definitions=[BY_NAME[row.name] for row in evaluation.rows],
        method=_method(evaluation),
        hindsight=about_hindsight(evaluation),
        footer=FOOTER if evaluation.kind == "backtest" else EPISODES_FOOTER,
        # A closing tag inside a text would end the script element that carries the figures.
        figures=json.dumps(figures, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("</", "<\\/"),
        plotly=get_plotlyjs(),
    )


def _information(evaluation: Evaluation, run_information: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the header says of the run and of the data."""
    about = evaluation.information
    rows = [(str(name), str(value)) for name, value in run_information.items() if value is not None]
    if evaluation.kind == "backtest":
        symbols = about["symbols"]
        named = ", ".join(symbols[:6]) + (f" and {len(symbols) - 6} more" if len(symbols) > 6 else "")
        rows += [
            ("Data", f"{about['title']} ({about['timeframe']} bars of {named})"),
            ("Split", f"{evaluation.label}: {about['first_bar']} to {about['last_bar']} UTC, {about['bars']:,} bars"),
            ("Environment", ", ".join(f"{name} {value}" for name, value in about["params"].items()) or "defaults"),
            ("Seeds", ", ".join(map(str, about["seeds"]))),
        ]
        if about["data_hash"]:
            rows.append(("Data hash", about["data_hash"][:16]))
    else:
        rows += [("Environment", about["title"]), ("Episodes", f"{about['episodes']:,}"), ("Seed", str(about["seed"]))]
    return rows


def _tiles(evaluation: Evaluation) -> list[dict[str, str]]:
    tiles = []
    names = TILES["portfolio" if charts_portfolio.is_portfolio(evaluation) else evaluation.kind]
    for name in [name for name in names if name in evaluation.metrics][:MOST_TILES]:
        row, metric = evaluation.row(name), BY_NAME[name]
        interval = format_interval(row)
        tiles.append(
            {
                "label": metric.label,
                "value": format_figure(row.value, metric.unit),
                "interval": interval.replace("–", ""),
            }
        )
    return tiles


def _groups(evaluation: Evaluation) -> list[tuple[str, list[dict[str, Any]]]]:
    found = {row.name: row for row in evaluation.rows}
    groups = []
    for title, names in GROUPS:
        rows = []
        for row in (found[name] for name in names if name in found):
            metric = BY_NAME[row.name]
            others = [format_figure(row.baselines[name], metric.unit) for name in evaluation.baseline_names]
            rows.append(
                {
                    "label": metric.label,
                    "meaning": metric.meaning,
                    "value": format_figure(row.value, metric.unit),
                    "interval": format_interval(row),
                    "others": others,
                }
            )
        if rows:
            groups.append((title, rows))
    return groups


def _difference(difference: Difference) -> dict[str, Any]:
    metric = BY_NAME[difference.metric]
    known = not math.isnan(difference.low)
    return {
        "label": metric.label,
        "baseline": LABELS[difference.baseline],
        "value": format_figure(difference.value, metric.unit),
        "interval": format_interval(difference),
        "verdict": ""
        if not known
        else "above 0"
        if difference.low > 0
        else "below 0"
        if difference.high < 0
        else "includes 0",
    }


def _charts(evaluation: Evaluation) -> list[Chart]:
    if evaluation.kind == "episodes":
        spread = Chart(
            "episodes", "Episode returns", "How often each sum of rewards came up.", charts.episodes_figure(evaluation)
        )
        mix = Chart("actions", "Action mix", "How often the agent took each action.", charts.actions_figure(evaluation))
        return [spread, mix] if evaluation.actions else [spread]
    thinned = (
        f" Long series show the lowest and the highest value of each of {charts.BUCKETS:,} stretches of time."
        if charts.is_thinned(evaluation)
        else ""
    )
    several = len(evaluation.information["seeds"]) > 1 or any(n.endswith("_low") for n in evaluation.equity.columns)
    bands = " Lines are means over seeds, bands run from the worst to the best seed." if several else ""
    of_mean = " Drawdowns are those of the mean curves; the table has the means of the seeds' own." if several else ""
    portfolio = charts_portfolio.is_portfolio(evaluation)
    one_account = portfolio or evaluation.information.get("accounts", len(evaluation.information["symbols"])) == 1
    accounts = "" if one_account else " Several instruments: the mean of their accounts."
    hindsight = " A dotted line chose with the knowledge of the whole split." if about_hindsight(evaluation) else ""
    drawdown = evaluation.information["drawdown"]
    deepest = "The agent's equity never fell below an earlier peak."
    if drawdown is not None:
        depth = format_figure(drawdown["depth"], "share")
        end = f"was made up for by {drawdown['end']}" if drawdown["end"] else "was not made up for within the split"
        deepest = (
            f"The agent's deepest fall, {depth}, began {drawdown['begin']}, reached its trough {drawdown['trough']} "
            f"and {end} (UTC)."
        )
    return [
        Chart("equity", "Equity",
              "Equity over start equity, at the close of each bar." + bands + accounts + hindsight + thinned,
              charts.equity_figure(evaluation), logarithmic=True),
        Chart("drawdown", "Drawdown", deepest + of_mean, charts.drawdown_figure(evaluation)),
        *(_portfolio_charts(evaluation) if portfolio else ()),
        Chart("actions", "Action mix", "What the agent asked for, in all bars that it played.",
              charts.actions_figure(evaluation)),
    ]  # fmt: skip


def about_hindsight(evaluation: Evaluation) -> bool:
    """Tell whether a baseline knew what nobody could know."""
    return bool(evaluation.information.get("hindsight"))


def _portfolio_charts(evaluation: Evaluation) -> list[Chart]:
    seed = evaluation.information["seeds"][0]
    stretch = charts_portfolio.shares(evaluation).stretch
    means = f", means of every {stretch} bars" if stretch > 1 else ""
    count = len(evaluation.information["symbols"])
    largest = f" The {charts_portfolio.SHOWN} with most on average have a colour each."
    contributed = "What each instrument added to the return: units times the change of price, less its costs"
    owed = evaluation.information.get("owed", 0.0)
    less = f", less the {100 * owed:.1f} % that the ruined account owes beyond all it had" if owed > 0.0 else ""
    return [
        Chart("weights", "Weights",
              f"What the account held under seed {seed}, as parts of equity{means}; short positions lie below zero."
              + (largest if count > charts_portfolio.SHOWN + 1 else ""), charts_portfolio.weights_figure(evaluation),
              tall=True),
        Chart("contributions", "Contribution by instrument",
              f"{contributed}, over start equity. All together are the total return{less}.",
              charts_portfolio.contributions_figure(evaluation)),
        Chart("turnover", "Turnover", f"Traded value over equity in a bar under seed {seed}{means}.",
              charts_portfolio.turnover_figure(evaluation)),
    ]  # fmt: skip


def _position_charts(evaluation: Evaluation) -> list[Chart]:
    if evaluation.kind == "episodes":
        return []
    found = []
    total = evaluation.bars["symbol"].n_unique()
    seed = evaluation.information["seeds"][0]
    for place, symbol in enumerate(charts.shown_symbols(evaluation)):
        caption = f"{symbol} under seed {seed}; exposure is the signed value of the position over equity."
        exposure = charts.instrument_bars(evaluation, symbol)["exposure"].to_numpy()
        if stretch := charts.exposure_stretch(exposure):
            caption += f" It changes often: shown are mean, lowest and highest of every {stretch} bars."
        count = charts.first_seed_trades(evaluation, symbol).height
        if count > charts.MARKED_TRADES:
            caption += f" Marked are the first {charts.MARKED_TRADES:,} of {count:,} trades."
        if count > charts.CROWDED_TRADES:
            caption += " Trades are many: switch their marks on in the legend and zoom in."
        if total > charts.SHOWN_INSTRUMENTS:
            which = "largest" if charts_portfolio.is_portfolio(evaluation) else "first"
            caption += f" The {which} {charts.SHOWN_INSTRUMENTS} of {total} instruments can be shown."
        found.append(Chart(f"position-{place}", symbol, caption, charts.position_figure(evaluation, symbol)))
    return found


def _training_charts(metrics: pl.DataFrame) -> list[Chart]:
    return [
        Chart(f"training-{place}", title, "", figure, wide=False)
        for place, (title, figure) in enumerate(charts.training_figures(metrics))
    ]


TRADE_COLUMNS = (
    ("symbol", "Symbol", "text"), ("seed", "Seed", "number"), ("side", "Side", "text"),
    ("entry_time", "Entry (UTC)", "text"), ("exit_time", "Exit (UTC)", "text"),
    ("entry_price", "Entry price", "number"), ("exit_price", "Exit price", "number"), ("units", "Units", "number"),
    ("bars", "Bars", "number"),
    ("profit", "Profit", "number"), ("return", "Return", "number"), ("costs", "Costs", "number"),
    ("reason", "Closed by", "text"),
)  # fmt: skip


def _trades(trades: pl.DataFrame) -> dict[str, Any]:
    """Return the first trades as cells of (text to show, value to sort by), and how many there are."""
    rows = []
    for trade in trades.head(LISTED_TRADES).iter_rows(named=True):
        costs = trade["fees"] + trade["spread_and_slippage"] + trade["funding"]
        shown = {
            **{name: trade[name] for name in ("symbol", "side", "reason")},
            "seed": str(trade["seed"]),
            "entry_time": f"{trade['entry_time']:%Y-%m-%d %H:%M}",
            "exit_time": f"{trade['exit_time']:%Y-%m-%d %H:%M}",
            "entry_price": f"{trade['entry_price']:.6g}",
            "exit_price": f"{trade['exit_price']:.6g}",
            "units": f"{trade['units']:.4g}".replace("-", "−"),
            "bars": f"{trade['bars']:,}",
            "profit": f"{trade['profit']:+,.2f}".replace("-", "−"),
            "return": format_figure(trade["return"], "change"),
            "costs": f"{costs:,.2f}".replace("-", "−"),
        }
        values = {**trade, "costs": costs}
        rows.append(
            [(shown[name], values[name] if kind == "number" else shown[name]) for name, _, kind in TRADE_COLUMNS]
        )
    seeds = trades["seed"].n_unique()
    return {"rows": rows, "listed": len(rows), "total": trades.height, "seeds": seeds}


def _method(evaluation: Evaluation) -> list[str]:
    """Return how the numbers came about, paragraph by paragraph."""
    about = evaluation.information
    samples = f"{about['bootstrap_samples']:,}"
    if evaluation.kind == "episodes":
        return [
            f"Intervals are the percentiles of {samples} resamples of the episodes, drawn one by one.",
            "Every environment of the batch played the same number of episodes, so that short ones are not favoured.",
        ]
    return [
        "The policy acts without chance on every bar of the split, from its first to its last, in the same rule and "
        "with the same costs as in training. Orders fill as the environment's parameters say. Times are those at which "
        "a bar opens; equity is at its close.",
        f"Intervals come from a stationary block bootstrap (Politis and Romano) of the bars: {samples} resamples with "
        f"a mean block of {about['bootstrap_block']:.1f} bars, the longest that the rule of Politis and White finds "
        "for any of the policies. The agent and the baselines are resampled at the same bars, trades one by one. "
        "Intervals say how much the result depends on which bars came up; they cannot know of bars unlike these.",
        f"A year counts {about['bars_per_year']:,.0f} bars, as observed in the whole of the data, so that closed "
        "markets do not count.",
        "An episode that ends early (bankrupt, drawdown limit) keeps its equity, without a position, to the end.",
        "The random baseline is the mean over its seeds. A dash means that a figure is not defined, for instance the "
        "Sharpe ratio of an equity that never moves.",
    ]
