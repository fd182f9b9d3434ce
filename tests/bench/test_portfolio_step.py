"""The benchmark of the portfolio: parity with plain NumPy first, then every size, then verdicts."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from velodrome.bench import portfolio_step
from velodrome.bench.parity import ParityError
from velodrome.bench.portfolio_step import (
    PortfolioOptions,
    check_parity,
    portfolio_problem,
    run_portfolio_benchmark,
)
from velodrome.errors import ConfigError

COARSE = {"bars": 1_000, "episode_length": 300}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    pytest.importorskip("stable_baselines3")
    folder = tmp_path_factory.mktemp("bench")
    options = PortfolioOptions(
        sizes=(2, 1_024), instruments=(3, 7), seconds=0.05, repeats=2, json_path=folder / "portfolio.json",
        plot_path=folder / "portfolio.png", **COARSE,
    )  # fmt: skip
    out = Console(record=True, width=120)
    return run_portfolio_benchmark(options, out), out.export_text(), options


def test_every_size_is_measured_after_parity(measured):
    report, text, _ = measured
    assert "K = 7: compiled rule and plain NumPy agree over 2,400 steps" in report.parity
    assert {(row.num_envs, row.label) for row in report.measurements} >= {
        (2, "K = 7: velodrome, windows"), (2, "K = 7: SubprocVecEnv"), (1_024, "K = 7: DummyVecEnv"),
        (1_024, "K = 3: velodrome, no windows, specialised"),
    }  # fmt: skip
    assert all(row.slowest <= row.steps_per_second <= row.fastest for row in report.measurements)
    assert report.observation_floats == {3: 5 * 33 + 4, 7: 393}
    assert "Portfolio: steps per second" in text


def test_promises_are_judged_by_what_was_measured(measured):
    report, _, _ = measured
    names = [target.name for target in report.targets]
    assert names[0] == "steps per second, K = 7, 1,024 environments, windows"
    assert any(name.startswith("times the NumPy environment in DummyVecEnv") for name in names)
    assert any(name.startswith("instrument steps per second of K = 7 over those of K = 3") for name in names)
    ratio = next(target for target in report.targets if "DummyVecEnv" in target.name)
    ours = report.best("K = 7: velodrome, windows", 1_024)
    assert ratio.reached == pytest.approx(ours / report.best("K = 7: DummyVecEnv", 1_024))


def test_files_are_written(measured):
    _, _, options = measured
    assert json.loads(options.json_path.read_text())["kind"] == "step, portfolio"
    assert options.plot_path.read_bytes().startswith(b"\x89PNG")


def test_a_rule_that_differs_ends_the_benchmark_before_it_times_anything(monkeypatch):
    problem = portfolio_problem(PortfolioOptions(**COARSE), 3)
    make = portfolio_step.make_vec
    monkeypatch.setattr(
        portfolio_step, "make_vec", lambda *given, **values: make(*given, **{**values, "sell_fee": 0.002})
    )
    with pytest.raises(ParityError, match="differ in step"):
        check_parity(problem, 0)


def test_a_portfolio_needs_two_instruments():
    with pytest.raises((ConfigError, ValueError), match="2 to 1,000"):
        PortfolioOptions(instruments=(1,))
