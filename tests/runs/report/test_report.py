"""The report as text and figures: complete, self-contained, safe, and small enough."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.runs.report.report_cases import INFORMATION, cartpole_evaluation, momentum_evaluation, training_metrics
from velodrome.errors import ConfigError
from velodrome.evaluation.evaluate import Evaluation
from velodrome.evaluation.measures import BY_NAME, format_figure
from velodrome.runs.report import charts
from velodrome.runs.report.images import draw, page_colours, write_images
from velodrome.runs.report.report import LISTED_TRADES, evaluation_charts, position_charts, write_report

VOID = {"meta", "br", "link", "input", "img", "hr"}


class Checker(HTMLParser):
    """Follows the elements of a page; every one that opens must close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.identities: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "srcset", "action"):
                self.references.append(value or "")
            if name == "id":
                self.identities.append(value or "")

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> is out of place"


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return momentum_evaluation()


@pytest.fixture(scope="module")
def page(evaluation, tmp_path_factory) -> str:
    path = write_report(
        evaluation,
        tmp_path_factory.mktemp("report") / "sub" / "report.html",
        "ar1 <demo>",
        INFORMATION,
        training_metrics(),
    )
    assert path.stat().st_size < 8_000_000
    return path.read_text(encoding="utf-8")


def text_of(page: str) -> str:
    """What a reader sees, without scripts and tags."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def figures_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="figures-data">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def test_the_page_is_well_formed_and_refers_to_nothing_outside(page):
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.references == []
    assert len(checker.identities) == len(set(checker.identities))
    assert "Content-Security-Policy" in page
    assert page.count("plotly.js v") == 1, "the library is embedded once"


def test_the_page_says_everything(page, evaluation):
    said = text_of(page)
    assert "ar1 <demo>" in said
    assert "trading-0001" in said
    assert "Unknown" not in said
    assert evaluation.information["first_bar"] in said
    for row in evaluation.rows:
        metric = BY_NAME[row.name]
        assert metric.label in said
        assert metric.meaning in said
        assert format_figure(row.value, metric.unit) in said
    for warning in evaluation.warnings:
        assert warning[1:] in said
    for note in evaluation.notes:
        assert note in said
    assert "it is no forecast, no promise of profit and no advice." in said
    assert "stationary block bootstrap" in said


def test_what_a_result_is_made_of_is_drawn_and_listed(page, evaluation):
    said, parts, figures = text_of(page), evaluation.breakdown, figures_of(page)
    for title in ("Monthly returns", "Rolling Sharpe ratio", "Cost sensitivity", "Against the benchmark: buy and hold"):
        assert title in said
    shown = dict(zip(figures["costs"]["data"][0]["x"], figures["costs"]["data"][0]["y"], strict=True))
    assert shown == {f"{own['times']:g} ×": pytest.approx(own["return"], rel=1e-5) for own in parts["cost_levels"]}
    months = {}
    for bars in figures["months"]["data"]:
        months |= dict(zip(bars["x"], bars["y"], strict=True))
    assert months == {own["month"]: pytest.approx(own["agent"], rel=1e-5) for own in parts["months"]}
    assert f"{parts['falls'][0]['begin'][:16]} {parts['falls'][0]['trough'][:16]}" in said
    assert format_figure(parts["cost_levels"][2]["max_drawdown"], "share") in said
    (agent,) = [line for line in figures["rolling"]["data"] if line["name"] == "agent"]
    assert len(agent["y"]) == evaluation.equity.height - parts["rolling_sharpe"]["bars"]
    drawn = np.array(agent["y"], float)
    assert np.nanmax(drawn) == pytest.approx(parts["rolling_sharpe"]["highest"], rel=0.02), "of the mean of two seeds"


def test_an_evaluation_kept_before_there_were_breakdowns_has_a_report(evaluation, tmp_path):
    about = {name: value for name, value in evaluation.information.items() if name != "autocorrelation"}
    before = replace(evaluation, breakdown={}, information=about)
    text = write_report(before, tmp_path / "before.html", "before").read_text(encoding="utf-8")
    assert "Cost sensitivity" not in text_of(text)
    assert "Drawdown" in text_of(text)


def test_every_chart_has_its_figure_and_a_figure_that_plotly_accepts(page):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figures = figures_of(page)
    assert set(re.findall(r'data-chart="([^"]+)"', page)) == set(figures)
    assert set(figures) == {
        *("equity", "drawdown", "months", "rolling", "costs", "actions", "position-0"),
        *("training-0", "training-1", "training-2"),
    }
    for figure in figures.values():
        assert all(trace["x"] for trace in figure["data"])
        # Colours are CSS variables, which the page resolves.
        plain = json.loads(re.sub(r"var\(--[a-z_-]+\)", "#123456", json.dumps(figure)))
        graph_objects.Figure(plain)


def test_every_colour_that_a_figure_names_is_defined_for_light_and_dark(page):
    used = set(re.findall(r"var\((--[a-z_-]+)\)", json.dumps(figures_of(page))))
    light, dark = re.findall(r":root[^{]*\{([^}]*)\}", page)[:2]
    for colour in used:
        assert f"{colour}:" in light
        assert f"{colour}:" in dark


def test_a_text_cannot_break_out_of_the_page(evaluation, tmp_path):
    nasty = "</script><script>alert(1)</script>"
    bars = evaluation.bars.with_columns(pl.lit(nasty).alias("symbol"))
    changed = replace(evaluation, bars=bars, warnings=(nasty,), notes=(nasty,))
    page = write_report(changed, tmp_path / "report.html", nasty, {nasty: nasty}).read_text(encoding="utf-8")
    assert nasty not in page
    checker = Checker()
    checker.feed(page)
    assert checker.open == []


def test_long_lists_of_trades_are_cut_and_the_total_is_said(page, evaluation):
    assert evaluation.trades.height > LISTED_TRADES
    assert f"The first {LISTED_TRADES} of {evaluation.trades.height:,} round trips of 2 seeds" in text_of(page)
    assert page.count("<tr><td data-value=") == LISTED_TRADES


def test_the_training_split_is_labelled_for_all_to_see(tmp_path):
    market_evaluation = momentum_evaluation(1500)
    page = write_report(replace(market_evaluation, in_sample=True), tmp_path / "r.html", "in sample").read_text("utf-8")
    assert text_of(page).count("IN SAMPLE") >= 2


def test_an_agent_without_trades_has_a_report(evaluation, tmp_path):
    idle = replace(
        evaluation, trades=evaluation.trades.head(0), information={**evaluation.information, "drawdown": None}
    )
    said = text_of(write_report(idle, tmp_path / "r.html", "idle").read_text("utf-8"))
    assert "The agent made no trade" in said
    assert "never fell below an earlier peak" in said


def test_several_instruments_can_be_chosen(tmp_path):
    page = write_report(momentum_evaluation(1200, symbols=10), tmp_path / "r.html", "many").read_text("utf-8")
    assert len(re.findall("<option", page)) == charts.SHOWN_INSTRUMENTS
    assert "The first 8 of 10 instruments" in text_of(page)


def test_episodes_of_another_environment_have_a_report(tmp_path):
    metrics = training_metrics().filter(pl.col("name") != "episode/equity_return")
    page = write_report(cartpole_evaluation(), tmp_path / "r.html", "CartPole", metrics=metrics)
    text = page.read_text("utf-8")
    assert set(figures_of(text)) == {"episodes", "actions", "training-0", "training-1", "training-2"}
    assert "Episode return" in text_of(text)
    assert 'id="trades"' not in text


@pytest.mark.parametrize("account", [True, False])
def test_only_the_return_of_equity_is_drawn_in_per_cent(account):
    """The sum of rewards is a plain number, whatever the reward, even where there is an account."""
    metrics = training_metrics()
    for inside, unit, form in (("episode/equity_return", "return", "~%"), ("episode/return", "sum of rewards", "")):
        title, figure = charts.training_figures(metrics, account)[0]
        assert title == "Episode return while training (in sample)"
        assert [part["name"] for part in figure["data"]] == [inside]
        axis = figure["layout"]["yaxis"]
        assert (axis["title"]["text"], axis["tickformat"]) == (unit, form)
        metrics = metrics.filter(pl.col("name") != inside)


def test_metrics_in_another_shape_are_refused(evaluation, tmp_path):
    with pytest.raises(ConfigError, match="needs step, name and value"):
        write_report(evaluation, tmp_path / "r.html", "title", metrics=pl.DataFrame({"step": [1]}))


# Figures


@given(arrays.arrays(np.float64, st.integers(1, 400), elements=st.floats(-1e6, 1e6)), st.integers(2, 20))
def test_thinning_keeps_first_last_lowest_and_highest(values, buckets):
    rows = charts.kept_points(values, buckets)
    assert (np.diff(rows) > 0).all()
    assert rows[0] == 0
    assert rows[-1] == len(values) - 1
    assert values[rows].min() == values.min()
    assert values[rows].max() == values.max()
    assert len(rows) <= max(len(values) if len(values) <= 2 * buckets else 0, 2 * buckets + 2)
    if len(values) <= 2 * buckets:
        assert len(rows) == len(values)


def test_long_series_stay_small_and_the_page_says_that_they_are_thinned(evaluation, tmp_path):
    count = 200_000
    rng = np.random.default_rng(0)
    time = pl.Series("time", np.arange(count) * 60_000_000_000).cast(pl.Datetime("ns", "UTC"))
    walk = np.exp(np.cumsum(rng.normal(0, 1e-3, count)))
    equity = pl.DataFrame(
        {"time": time, "agent": walk, "buy_and_hold": walk, "always_flat": np.ones(count), "random": walk}
    )
    bars = pl.DataFrame(
        {"symbol": ["S"] * count, "time": time, "price": walk, "exposure": rng.choice([-1.0, 1.0], count)}
    )
    path = write_report(replace(evaluation, equity=equity, bars=bars), tmp_path / "r.html", "long")
    assert path.stat().st_size < 8_000_000
    assert "the lowest and the highest value of each of 1,500 stretches" in text_of(path.read_text("utf-8"))


def test_an_exposure_that_flips_all_the_time_is_shown_by_mean_and_range():
    assert charts.exposure_stretch(np.ones(10_000)) == 0
    flipping = np.tile([1.0, -1.0, 0.5], 1000)
    stretch = charts.exposure_stretch(flipping)
    assert stretch == 20
    begins, lowest, mean, highest = charts.by_stretch(flipping, stretch)
    assert begins.tolist() == list(range(0, 3000, 20))
    for row, begin in enumerate(begins):
        part = flipping[begin : begin + 20]
        assert (lowest[row], highest[row]) == (part.min(), part.max())
        assert mean[row] == pytest.approx(part.mean())


def test_images_are_written_and_not_blank(evaluation, tmp_path):
    image = pytest.importorskip("PIL.Image")
    paths = write_images(evaluation, tmp_path / "images")
    assert [path.name for path in paths] == [
        f"test-{name}.png" for name in ("equity", "drawdown", "months", "rolling", "costs", "actions", "position")
    ]
    for path in paths:
        with image.open(path) as opened:
            pixels = np.asarray(opened.convert("L"))
        assert pixels.shape[1] >= 1000
        assert (pixels < 200).mean() > 0.003
    assert [path.name for path in write_images(cartpole_evaluation(), tmp_path / "other")] == [
        "episodes-episodes.png",
        "episodes-actions.png",
    ]


def test_an_image_shows_what_the_figure_of_the_page_holds(evaluation):
    figure = charts.equity_figure(evaluation)
    (axes,) = draw(figure, "Equity").axes
    legend = axes.get_legend()
    wanted = [trace["name"] for trace in figure["data"] if trace.get("showlegend", True)]
    assert [text.get_text() for text in legend.get_texts()] == wanted
    agent = next(line for line in axes.lines if line.get_label() == "agent")
    assert agent.get_ydata().tolist() == figure["data"][-1]["y"]
    assert agent.get_color() == page_colours()["var(--agent)"]


def test_the_colours_of_all_figures_are_those_of_the_page(evaluation):
    drawn = json.dumps([chart.figure for chart in (*evaluation_charts(evaluation), *position_charts(evaluation))])
    assert set(re.findall(r"var\(--[\w-]+\)", drawn)) <= page_colours().keys()
