"""A step reads like the page that states its rule: one function for each heading, in the same order."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest

from velodrome.envs.portfolio.rule import step as portfolio_step
from velodrome.envs.trading.rule import step as trading_step

DOCS = Path(__file__).parents[2] / "docs"
READING = ("read_state", "read_move", "episode_terms", "Moment")  # what a step starts from


@pytest.mark.parametrize(
    ("page", "step", "parts"), [("trading.md", trading_step, 6), ("portfolio.md", portfolio_step, 6)]
)
def test_a_step_calls_one_function_for_each_heading_of_its_page(page, step, parts):
    text = (DOCS / page).read_text("utf-8")
    stated = re.findall(r"^##+ [A-Z][a-z ]+ \(`(\w+)`\)$", text, re.MULTILINE)
    calls = [
        node for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(step)))) if isinstance(node, ast.Call)
    ]
    called = [node.func.id for node in sorted(calls, key=lambda node: node.lineno) if isinstance(node.func, ast.Name)]
    assert [name for name in called if name not in READING] == stated
    assert len(stated) == parts


@pytest.mark.parametrize("step", [trading_step, portfolio_step])
def test_a_step_fits_on_a_screen(step):
    assert len(inspect.getsource(step).splitlines()) <= 25
