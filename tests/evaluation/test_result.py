"""Tables that fit the terminal: no number is ever cut, whatever its size and however narrow the terminal is."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from velodrome.evaluation.baselines import LABELS
from velodrome.evaluation.measures import BY_NAME, METRICS, format_figure
from velodrome.evaluation.result import Evaluation, Row, format_interval
from velodrome.outside.screen import Figures, FittedTable

TRADING = ("buy_and_hold", "always_flat", "random")
PORTFOLIO = ("equal_held", "equal_rebalanced", "best_single", "cash", "random")
USUAL = {"change": -0.1234, "share": 0.5678, "ratio": -12.34, "count": 1234.0, "bars": 1234.5, "rate": -1.234e-4}
USUAL |= {"times": 332.8, "number": -123.4, "reward": -1.234e-4}
WIDE = {"change": -9999.99, "share": 9999.99, "ratio": -99_999.9, "count": 9_999_999.0, "bars": 9_999_999.0}
WIDE |= {"rate": -1.234e-7, "times": 99_999.9, "number": -1.234e-15, "reward": -1.234e-15}


def text_of(renderable: object, width: int) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


def evaluation(values: dict[str, float], baselines: tuple[str, ...]) -> Evaluation:
    def row(name: str, value: float) -> Row:
        return Row(name, value, value * 1.01, math.nan if name == "trades" else value, dict.fromkeys(baselines, value))

    rows = tuple(row(metric.name, values[metric.unit]) for metric in METRICS)
    about = {"title": "a market of several instruments", "confidence": 0.95}
    return Evaluation("backtest", "test", False, rows, (), (), (), (), about)


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("baselines", [TRADING, PORTFOLIO], ids=["trading", "portfolio"])
@pytest.mark.parametrize("values", [USUAL, WIDE], ids=["usual", "wide"])
def test_every_figure_of_the_main_table_is_whole_at_any_width(values, baselines, width):
    found = evaluation(values, baselines)
    told = text_of(found.table(), width)
    assert max(cell_len(line) for line in told.splitlines()) <= width
    lines = {metric.name: [line for line in told.splitlines() if line.startswith(metric.label)] for metric in METRICS}
    for row in (row for row in found.rows if not BY_NAME[row.name].detail):
        shown = " ".join(lines[row.name])
        assert shown.count(format_figure(row.value, BY_NAME[row.name].unit)) >= 1 + len(baselines), row.name
        assert format_interval(row) in shown
    words = told.split()
    assert all(word in words for name in baselines for word in LABELS[name].split())


def test_at_80_columns_a_usual_result_is_one_table():
    usual = evaluation(USUAL, TRADING)
    # An account that is always flat has nothing but zeros.
    flat = tuple(replace(row, baselines={**row.baselines, "always_flat": 0.0}) for row in usual.rows)
    told = text_of(replace(usual, rows=flat).table(), 80)
    assert "continued" not in told
    assert sum(line.startswith("Total return") for line in told.splitlines()) == 1


def test_columns_with_a_rank_are_left_out_first_and_named():
    columns = [
        Figures("fold", ["1", "2"], number=False),
        Figures("run", ["ab12cd34", "ef56ab78"], number=False, rank=2),
        Figures("trades", ["123,456", "7"], rank=1),
        Figures("return", ["+1,234.5%", "−12.00%"]),
    ]
    table = FittedTable("folds", columns, sections=(1,))
    assert "no room" not in text_of(table, 40)
    told = text_of(table, 25)
    assert "ab12cd34" not in told
    assert "123,456" in told
    assert "no room here for run:" in told
    narrow = text_of(table, 15)
    assert "no room here for trades, run:" in " ".join(narrow.split())
    assert "+1,234.5%" in narrow


@pytest.mark.parametrize("width", [140, 40, 24])
def test_a_long_table_looks_as_rich_would_lay_it_out(width, monkeypatch):
    cells = [f"{'x' * (number % 7)}{number}" for number in range(80)]
    columns = [
        Figures("name", cells, number=False),
        Figures("two words", [Text(cell, style="green") for cell in cells]),
        Figures("漢字", ["漢" * (number % 3) for number in range(80)], number=False),
        Figures("last", cells, rank=1),
    ]

    def text() -> str:
        console = Console(width=width, file=io.StringIO(), force_terminal=True)
        console.print(FittedTable("runs", columns))
        return console.file.getvalue()

    quick = text()
    monkeypatch.setattr("velodrome.outside.screen.LAID_OUT", 1000)
    lines = [[line.rstrip() for line in Text.from_ansi(one).plain.splitlines()] for one in (quick, text())]
    assert lines[0] == lines[1]
