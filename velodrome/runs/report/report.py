"""`write_report`: an evaluation as one HTML file that needs nothing else, neither network nor server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from velodrome.errors import ConfigError, printable
from velodrome.evaluation.baselines import LABELS
from velodrome.evaluation.evaluate import Evaluation
from velodrome.evaluation.measures import BY_NAME, format_figure
from velodrome.evaluation.result import format_interval
from velodrome.evaluation.training_seeds import seeds_rows, told_spread
from velodrome.runs.report import breakdown_charts, charts, portfolio_charts
from velodrome.writing import replace_text

TEMPLATE = Path(__file__).with_name("page.html.j2")
LISTED_TRADES = 200
GROUPS = {
    "Return and risk": "return annual_return annual_volatility sharpe sortino calmar max_drawdown longest_under_water "
    "mean_log_return of_optimum reward",
    "Costs and exposure": "turnover fees spread_and_slippage funding costs exposure in_market long_share short_share "
    "long_exposure short_exposure cash_share positions largest_weight",
    "Against the benchmark": "beta correlation alpha",
    "Trades": "orders trades win_rate average_trade profit_factor winning_holdings holdings_profit_factor",
    "How sure": "probabilistic_sharpe deflated_sharpe minimum_track_record disagreement",
    "Episodes": "episode_return episode_length reward_per_step worst_episode best_episode",
}
# The figures at the top of the page: the first of these sets whose last figure the evaluation has.
TILES = (
    ("return", "sharpe", "max_drawdown", "of_optimum", "turnover", "positions"),
    ("return", "sharpe", "max_drawdown", "trades", "win_rate"),
    ("episode_return", "episode_length", "worst_episode", "best_episode"),
)
MOST_TILES = 5
SEED_FIGURES = {  # of the table of training seeds
    "backtest": ("return", "sharpe", "max_drawdown", "turnover", "costs", "trades"),
    "episodes": ("episode_return", "episode_length", "worst_episode", "best_episode"),
}
TIME = "%Y-%m-%d %H:%M"
# Column of a trade, its heading, whether it is sorted as text or as a number, and how it is written.
TRADE_COLUMNS = (
    ("symbol", "Symbol", "text", ""),
    ("training_seed", "Training seed", "number", ""),
    ("seed", "Seed", "number", ""),
    ("side", "Side", "text", ""),
    ("entry_time", "Entry (UTC)", "text", TIME),
    ("exit_time", "Exit (UTC)", "text", TIME),
    ("entry_price", "Entry price", "number", ".6g"),
    ("exit_price", "Exit price", "number", ".6g"),
    ("units", "Units", "number", ".4g"),
    ("bars", "Bars", "number", ","),
    ("profit", "Profit", "number", "+,.2f"),
    ("return", "Return", "number", "change"),
    ("costs", "Costs", "number", ",.2f"),
    ("reason", "Closed by", "text", ""),
)
METRIC_COLUMNS = {"step", "name", "value"}


@dataclass(frozen=True)
class Chart:
    """One chart of the page."""

    identity: str
    title: str
    caption: str
    figure: charts.Figure
    logarithmic: bool = False  # offers a logarithmic scale
    tall: bool = False  # has a long legend
    low: bool = False  # a few bars
    table: breakdown_charts.Grid | None = None  # under the chart


class Charts(NamedTuple):
    """The charts of an evaluation."""

    drawn: list[Chart]
    positions: list[Chart]  # of single instruments


def write_report(
    evaluation: Evaluation,
    path: str | Path,
    title: str,
    run_information: Mapping[str, Any] | None = None,
    metrics: pl.DataFrame | None = None,
    drawn: Charts | None = None,
) -> Path:
    """Write the report of an evaluation and return its path.

    run_information: what to say of the run in the header, as texts by name. metrics: the run's training curves, one row
    for each (step, name, value). drawn: its charts, if somebody has drawn them.
    """
    if metrics is not None and not set(metrics.columns) >= METRIC_COLUMNS:
        raise ConfigError(
            f"metrics has the columns {metrics.columns}; it needs step, name and value, a row for each value"
        )
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_text(target, render_report(evaluation, title, run_information or {}, metrics, drawn))
    return target


def render_report(
    evaluation: Evaluation,
    title: str,
    run_information: Mapping[str, Any],
    metrics: pl.DataFrame | None,
    charts_drawn: Charts | None = None,
) -> str:
    """Return the page as text."""
    import jinja2
    from plotly.offline import get_plotlyjs

    drawn, positions = charts_drawn or charts_of(evaluation)
    training = [] if metrics is None else training_charts(metrics, evaluation.kind == "backtest")
    figures = {chart.identity: chart.figure for chart in (*drawn, *positions, *training)}
    found = {row.name: row for row in evaluation.rows}
    tiles = next((names for names in TILES if names[-1] in found), ())
    groups = {title: [found[name] for name in names.split() if name in found] for title, names in GROUPS.items()}
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_readable
    )
    measured_against = breakdown_charts.benchmark_label(evaluation) if evaluation.breakdown.get("benchmark") else None
    environment.filters |= {"figure": format_figure, "interval": format_interval, "metric": BY_NAME.__getitem__}
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        evaluation=evaluation,
        about=evaluation.information,
        information=_information(evaluation, run_information),
        labels=LABELS,
        tiles=[found[name] for name in tiles if name in found][:MOST_TILES],
        groups={title: rows for title, rows in groups.items() if rows},
        benchmark=measured_against,
        charts=drawn,
        positions=positions,
        training=training,
        seeds=_seeds(evaluation) if evaluation.seeds else None,
        trades=_trade_cells(evaluation.trades.head(LISTED_TRADES)),
        trade_columns=_trade_columns(evaluation.trades),
        # A tag inside a text could end the script element that carries the figures.
        figures=json.dumps(figures, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        plotly=get_plotlyjs(),
    )


def _readable(value: Any) -> Any:
    """Return what the page shows of a value: names are escaped for people before they are for HTML."""
    return printable(value) if type(value) is str else value


def _information(evaluation: Evaluation, run_information: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the header says of the run and of the data."""
    about = evaluation.information
    rows = [] if evaluation.policy is None else [("Policy", evaluation.policy.text)]
    rows += [(str(name), str(value)) for name, value in run_information.items() if value is not None]
    if evaluation.kind == "episodes":
        return [*rows, ("Environment", about["title"]), ("Episodes", f"{about['episodes']:,}"), ("Seed", about["seed"])]
    symbols = about["symbols"]
    named = ", ".join(symbols[:6]) + (f" and {len(symbols) - 6} more" if len(symbols) > 6 else "")
    rows += [
        ("Data", f"{about['title']} ({about['timeframe']} bars of {named})"),
        ("Split", f"{evaluation.label}: {about['first_bar']} to {about['last_bar']} UTC, {about['bars']:,} bars"),
        ("Environment", ", ".join(f"{name} {value}" for name, value in about["params"].items()) or "defaults"),
        ("Seeds of the evaluation", ", ".join(map(str, about["seeds"]))),
    ]
    return [*rows, ("Data hash", about["data_hash"][:16])] if about["data_hash"] else rows


def _seeds(evaluation: Evaluation) -> dict[str, Any]:
    """Return the table of training seeds, and how far they are apart."""
    headings, lines = seeds_rows(evaluation, SEED_FIGURES[evaluation.kind])
    spread = told_spread(evaluation.kind, evaluation.seeds, evaluation.spread)
    return {"headings": headings, "lines": lines, "each": len(evaluation.seeds), "spread": spread}


def _trade_columns(trades: pl.DataFrame) -> list[tuple[str, str, str, str]]:
    """Return the columns of the list of trades; results of a single training seed do not repeat it in each row."""
    return [column for column in TRADE_COLUMNS if column[0] != "training_seed" or "training_seed" in trades.columns]


def _trade_cells(trades: pl.DataFrame) -> list[list[tuple[str, Any]]]:
    """Return trades as rows of cells: the text to show and the value to sort by."""
    rows = []
    for trade in trades.iter_rows(named=True):
        trade["costs"] = trade["fees"] + trade["spread_and_slippage"] + trade["funding"]
        cells = []
        for name, _, kind, form in _trade_columns(trades):
            value = trade[name]
            shown = format_figure(value, "change") if form == "change" else format(value, form)
            cells.append((shown.replace("-", "−"), value) if kind == "number" else (shown, shown))
        rows.append(cells)
    return rows


def charts_of(evaluation: Evaluation) -> Charts:
    """Return the charts of an evaluation, which the page and the images show."""
    return Charts(evaluation_charts(evaluation), position_charts(evaluation))


def evaluation_charts(evaluation: Evaluation) -> list[Chart]:
    """Return the charts of an evaluation but for those of single instruments."""
    if evaluation.kind == "episodes":
        told, asked = "How often each sum of rewards came up.", "How often the agent took each action."
        drawn = [Chart("episodes", "Episode returns", told, charts.episodes_figure(evaluation))]
    else:
        asked = "What the agent asked for, in all bars that it played."
        drawn = [
            Chart("equity", "Equity", _about_equity(evaluation), charts.equity_figure(evaluation), logarithmic=True),
            _drawdown_chart(evaluation),
            *_breakdown_charts(evaluation),
            *(_account_charts(evaluation) if charts.shares_account(evaluation) else ()),
            *_disagreement_charts(evaluation),
        ]
    mix = [Chart("actions", "Action mix", asked, charts.actions_figure(evaluation))]
    return drawn + (mix if evaluation.actions or evaluation.kind == "backtest" else [])


def _has_bands(evaluation: Evaluation) -> bool:
    """Return whether curves are means over several seeds."""
    return len(evaluation.information["seeds"]) > 1 or any(n.endswith("_low") for n in evaluation.equity.columns)


def _about_equity(evaluation: Evaluation) -> str:
    caption = "Equity over start equity, at the close of each bar."
    if _has_bands(evaluation):
        caption += " Lines are means over seeds, bands run from the worst to the best seed."
    if evaluation.seeds:
        caption += f" The {len(evaluation.seeds)} thin lines are the agents of single training seeds."
    accounts = evaluation.information.get("accounts", len(evaluation.information["symbols"]))
    if accounts > 1 and not charts.shares_account(evaluation):
        caption += " Several instruments: the mean of their accounts."
    if evaluation.information.get("hindsight"):
        caption += " A dotted line chose with the knowledge of the whole split."
    if charts.is_thinned(evaluation):
        thinned = "the lowest and the highest value of each of"
        caption += f" Long series show {thinned} {charts.BUCKETS:,} stretches of time."
    return caption


def _drawdown_chart(evaluation: Evaluation) -> Chart:
    table = breakdown_charts.falls_grid(evaluation) if evaluation.breakdown.get("falls") else None
    figure = charts.drawdown_figure(evaluation)
    return Chart("drawdown", "Drawdown", _about_drawdown(evaluation), figure, table=table)


def _breakdown_charts(evaluation: Evaluation) -> list[Chart]:
    """Return the charts of months, of the rolling Sharpe ratio and of costs, as far as they are known."""
    parts, found = evaluation.breakdown, []
    if parts.get("months"):
        caption = "The agent's return in each month (UTC); the months of a year compound to it."
        figure, table = breakdown_charts.months_figure(evaluation), breakdown_charts.months_grid(evaluation)
        found.append(Chart("months", "Monthly returns", caption, figure, low=True, table=table))
    if (rolling := parts.get("rolling_sharpe")) and "median" in rolling:
        shown = {name: format_figure(rolling[name], "ratio") for name in ("lowest", "median", "highest")}
        below = format_figure(rolling["below_zero"], "share")
        caption = (
            f"The annualised Sharpe ratio of the last {rolling['bars']:,} bars at every bar. The agent's: lowest "
            f"{shown['lowest']}, median {shown['median']}, highest {shown['highest']}; below 0 in {below} of the bars."
        )
        if evaluation.seeds:
            caption += " These are means over the training seeds; the line is that of their mean curve."
        found.append(Chart("rolling", "Rolling Sharpe ratio", caption, breakdown_charts.rolling_figure(evaluation)))
    if parts.get("cost_levels"):
        caption = (
            "The same actions, played again at several times the fees, spread and slippage. An agent trained at other "
            "costs would act otherwise."
        )
        figure, table = breakdown_charts.costs_figure(evaluation), breakdown_charts.costs_grid(evaluation)
        found.append(Chart("costs", "Cost sensitivity", caption, figure, low=True, table=table))
    return found


def _disagreement_charts(evaluation: Evaluation) -> list[Chart]:
    """Return the chart of how far the members of an ensemble are apart; none of one policy."""
    found = evaluation.information.get("disagreement")
    if found is None or evaluation.policy is None:
        return []
    shown = {name: format_figure(found[name], "share") for name in ("mean", "median", "highest", "agreed")}
    drawn, stretch = charts.disagreement_figure(evaluation)
    means = f" Shown are mean, lowest and highest of every {stretch:,} bars." if stretch > 1 else ""
    caption = (
        f"How far the {len(evaluation.policy.seeds)} members are apart about each action: {found['meaning']}. Mean "
        f"{shown['mean']}, median {shown['median']}, highest {shown['highest']}; they agree entirely in "
        f"{shown['agreed']} of the decisions. Where they disagree, the data they learnt from did not settle what to "
        f"do.{means}"
    )
    return [Chart("disagreement", "Disagreement between members", caption, drawn)]


def _about_drawdown(evaluation: Evaluation) -> str:
    caption = "The agent's equity never fell below an earlier peak."
    if (fall := evaluation.information["drawdown"]) is not None:
        end = f"was made up for by {fall['end']}" if fall["end"] else "was not made up for within the split"
        caption = (
            f"The agent's deepest fall, {format_figure(fall['depth'], 'share')}, began {fall['begin']}, reached its "
            f"trough {fall['trough']} and {end} (UTC)."
        )
    if _has_bands(evaluation):
        caption += " Drawdowns are those of the mean curves; the table has the means of the seeds' own."
    return caption


def _account_charts(evaluation: Evaluation) -> list[Chart]:
    about = evaluation.information
    seed = charts.shown_seed(evaluation)
    stretch = portfolio_charts.shares(evaluation).stretch
    means = f", means of every {stretch} bars" if stretch > 1 else ""
    held = f"What the account held under {seed}, as parts of equity{means}; short positions lie below zero."
    if len(about["symbols"]) > portfolio_charts.SHOWN + 1:
        held += f" The {portfolio_charts.SHOWN} with most on average have a colour each."
    owed = about.get("owed", 0.0)
    less = f", less the {100 * owed:.1f} % that the ruined account owes beyond all it had" if owed > 0.0 else ""
    of_agent = f" of training seed {evaluation.seeds[0].seed}" if evaluation.seeds else ""
    added = (
        f"What each instrument added to the return{of_agent}: units times the change of price, less its costs, over "
        f"start equity. All together are the total return{less}."
    )
    traded = f"Traded value over equity in a bar under {seed}{means}."
    return [
        Chart("weights", "Weights", held, portfolio_charts.weights_figure(evaluation), tall=True),
        Chart("contributions", "Contribution by instrument", added, portfolio_charts.contributions_figure(evaluation)),
        Chart("turnover", "Turnover", traded, portfolio_charts.turnover_figure(evaluation)),
    ]


def position_charts(evaluation: Evaluation) -> list[Chart]:
    """Return a chart of price and exposure for each instrument that is shown."""
    if evaluation.kind == "episodes":
        return []
    found = []
    total = evaluation.bars["symbol"].n_unique()
    seed = charts.shown_seed(evaluation)
    for place, symbol in enumerate(charts.shown_symbols(evaluation)):
        caption = f"{symbol} under {seed}; exposure is the signed value of the position over equity."
        exposure = charts.instrument_bars(evaluation, symbol)["exposure"].to_numpy()
        if stretch := charts.exposure_stretch(exposure):
            caption += f" It changes often: shown are mean, lowest and highest of every {stretch} bars."
        count = charts.first_seed_trades(evaluation, symbol).height
        if count > charts.MARKED_TRADES:
            caption += f" Marked are the first {charts.MARKED_TRADES:,} of {count:,} trades."
        if count > charts.CROWDED_TRADES:
            caption += " Trades are many: switch their marks on in the legend and zoom in."
        if total > charts.SHOWN_INSTRUMENTS:
            which = "largest" if charts.shares_account(evaluation) else "first"
            caption += f" The {which} {charts.SHOWN_INSTRUMENTS} of {total} instruments can be shown."
        found.append(Chart(f"position-{place}", symbol, caption, charts.position_figure(evaluation, symbol)))
    return found


def training_charts(metrics: pl.DataFrame, account: bool) -> list[Chart]:
    """Return the charts of a run's training curves; account: returns are an account's."""
    return [
        Chart(f"training-{place}", title, "", figure)
        for place, (title, figure) in enumerate(charts.training_figures(metrics, account))
    ]
