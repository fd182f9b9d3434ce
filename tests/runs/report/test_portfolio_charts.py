"""The charts of a portfolio: everything adds up, and a hundred instruments stay readable."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tests.runs.report.report_cases import portfolio_evaluation
from tests.runs.report.test_report import figures_of, text_of
from velodrome.evaluation.evaluate import Evaluation
from velodrome.runs.report import charts
from velodrome.runs.report import portfolio_charts as charts_portfolio
from velodrome.runs.report.images import write_images
from velodrome.runs.report.report import write_report


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return portfolio_evaluation()


def many(evaluation: Evaluation, count: int = 100) -> Evaluation:
    """Return the evaluation as if there were so many instruments, each with a part of the weight of the first."""
    one = evaluation.bars.filter(pl.col("symbol") == evaluation.bars["symbol"][0])
    share = 2.0 * np.arange(count, 0, -1) / (count * (count + 1))
    bars = pl.concat(
        [one.with_columns(pl.lit(f"S{k}").alias("symbol"), pl.col("weight") * share[k]) for k in range(count)]
    )
    row = evaluation.information["contributions"][0]
    rows = [{**row, "symbol": f"S{k}", "contribution": (-1) ** k * 0.001 * k} for k in range(count)]
    symbols = [f"S{k}" for k in range(count)]
    about = {**evaluation.information, "contributions": rows, "symbols": symbols}
    return replace(evaluation, bars=bars, information=about)


def test_the_parts_are_all_of_the_equity(evaluation):
    found = charts_portfolio.shares(evaluation)
    names = [part.name for part in found.parts]
    assert sorted(names[:-1]) == ["factors_0", "factors_1", "factors_2"]
    assert names[-1] == "cash"
    total = sum(part.longs + part.shorts for part in found.parts)
    assert np.allclose(total, 1.0)
    assert len(total) <= charts_portfolio.STRETCHES
    assert any((part.shorts < 0).any() for part in found.parts)
    sizes = [np.abs(part.longs + part.shorts).mean() for part in found.parts[:-1]]
    assert sizes == sorted(sizes, reverse=True)


def test_a_hundred_instruments_are_the_largest_and_others(evaluation):
    crowd = many(evaluation)
    found = charts_portfolio.shares(crowd)
    assert [part.name for part in found.parts] == [*(f"S{k}" for k in range(12)), "88 others", "cash"]
    assert np.allclose(sum(part.longs + part.shorts for part in found.parts), 1.0)
    rows = charts_portfolio.contribution_rows(crowd)
    assert len(rows) == 13
    wanted = sum(row["contribution"] for row in crowd.information["contributions"])
    assert sum(row["contribution"] for row in rows) == pytest.approx(wanted)
    assert [row["contribution"] for row in rows] == sorted((row["contribution"] for row in rows), reverse=True)
    assert "S99" in {row["symbol"] for row in rows}
    assert charts.shown_symbols(crowd) == [f"S{k}" for k in range(8)]


def test_thirteen_instruments_are_drawn_without_others(evaluation):
    found = charts_portfolio.shares(many(evaluation, 13))
    assert len(found.parts) == 14
    assert len({part.colour for part in found.parts}) == 14


def test_turnover_is_that_of_the_table(evaluation):
    _, stretch, mean = charts_portfolio.turnovers(evaluation)
    bars = evaluation.information["bars"]
    lengths = np.diff(np.r_[np.arange(0, bars, stretch), bars])
    assert (mean * lengths).sum() == pytest.approx(evaluation.row("turnover").value)


def test_the_page_has_the_charts_and_says_what_they_are(evaluation, tmp_path):
    page = write_report(evaluation, tmp_path / "r.html", "waves").read_text("utf-8")
    figures = figures_of(page)
    assert {"equity", "drawdown", "weights", "contributions", "turnover", "actions"} <= set(figures)
    contributed = {
        name: value for bar in figures["contributions"]["data"] for name, value in zip(bar["y"], bar["x"], strict=True)
    }
    assert sum(contributed.values()) == pytest.approx(evaluation.row("return").value, rel=1e-4)
    text = text_of(page)
    for words in ("short positions lie below zero", "All together are the total return", "Mean largest weight",
                  "best one (hindsight)", "Share of optimum", "equal, rebalanced"):  # fmt: skip
        assert words in text, words
    assert "mean of their accounts" not in text


def test_what_a_ruined_account_owes_is_said_beside_its_contributions(evaluation, tmp_path):
    assert evaluation.information["owed"] == 0.0
    ruined = replace(evaluation, information={**evaluation.information, "owed": 0.25})
    text = text_of(write_report(ruined, tmp_path / "r.html", "waves").read_text("utf-8"))
    assert "All together are the total return, less the 25.0 % that the ruined account owes beyond all it had." in text


def test_marks_of_entries_lie_on_the_price(evaluation):
    figure = charts.position_figure(evaluation, "factors_0")
    price = next(trace for trace in figure["data"] if trace["name"] == "close")
    marks = [trace for trace in figure["data"] if trace["mode"] == "markers"]
    assert marks
    at = dict(zip(price["x"], price["y"], strict=True))
    for mark in marks:
        for x, y in zip(mark["x"], mark["y"], strict=True):
            assert at[x] == pytest.approx(y)


def test_images_are_written(evaluation, tmp_path):
    names = {path.stem.removeprefix("test-") for path in write_images(evaluation, tmp_path)}
    of_any = {"equity", "drawdown", "months", "rolling", "costs", "position", "actions"}
    assert names == of_any | {"weights", "contributions", "turnover"}
    assert all(path.stat().st_size > 5_000 for path in tmp_path.glob("*.png"))
    write_images(many(evaluation), tmp_path)
