"""The benchmark of the portfolio: parity with plain NumPy first, then every size, then verdicts."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from velodrome import cli
from velodrome.bench import portfolio_step
from velodrome.bench.parity import ParityError
from velodrome.bench.portfolio_step import PortfolioOptions, check_parity, portfolio_problem, run_portfolio_benchmark
from velodrome.bench.rates import RateMeasurement
from velodrome.errors import ConfigError

COARSE = {"bars": 1_000, "episode_length": 300}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    pytest.importorskip("stable_baselines3")
    folder = tmp_path_factory.mktemp("bench")
    options = PortfolioOptions(
        sizes=(2,), instruments=(3,), seconds=0.05, repeats=2, json_path=folder / "portfolio.json",
        plot_path=folder / "portfolio.png", **COARSE,
    )  # fmt: skip
    out = Console(record=True, width=120)
    return run_portfolio_benchmark(options, out), out.export_text(), options


def test_every_contender_is_measured_after_parity(measured):
    report, text, _ = measured
    assert "K = 3: compiled rule and plain NumPy agree over 2,400 steps" in report.parity
    assert {(row.num_envs, row.label) for row in report.measurements} == {
        (2, "K = 3: velodrome, windows"), (2, "K = 3: velodrome, windows, specialised"),
        (2, "K = 3: velodrome, no windows"), (2, "K = 3: velodrome, no windows, specialised"),
        (2, "K = 3: DummyVecEnv"), (2, "K = 3: SubprocVecEnv"),
    }  # fmt: skip
    assert all(row.slowest <= row.steps_per_second <= row.fastest for row in report.measurements)
    assert report.observation_floats == {3: 5 * 33 + 4}
    assert "Portfolio: steps per second" in text


def test_seven_instruments_are_observed_in_393_floats():
    problem = portfolio_problem(PortfolioOptions(**COARSE), 7)
    assert problem.basket.window_floats + 1 + 7 == 393


def test_promises_are_judged_by_what_was_measured(measured):
    rates = {"velodrome, windows": 3e6, "velodrome, no windows": 5e6, "DummyVecEnv": 1e4}
    report = measured[0].model_copy(
        update={
            "observation_floats": {7: 393, 100: 5601},
            "targets": [],
            "measurements": [
                RateMeasurement(
                    label=f"K = {count}: {label}", num_envs=1_024, threads=2, steps_per_second=rate * 7 / count,
                    slowest=0.0, fastest=0.0,
                )
                for count in (7, 100)
                for label, rate in rates.items()
            ],
        }
    )  # fmt: skip
    report.conclude()
    assert [(target.reached, target.met) for target in report.targets] == [
        (3e6, True), (5e6, False), (300.0, True), (pytest.approx(1.0), True), (pytest.approx(1.0), True),
    ]  # fmt: skip


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


def test_too_few_bars_for_an_episode_are_told_and_just_enough_will_do(capsys):
    assert cli.run(["bench", "step", "--env", "portfolio", "--bars", "500"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "bars = 500 are too few: an episode of 500 decisions" in told
    assert "needs 554" in told
    with pytest.raises(ValueError, match="needs 554"):
        PortfolioOptions(bars=553)
    problem = portfolio_problem(PortfolioOptions(bars=554), 3)
    assert problem.basket.end[0] - problem.peer_tables.episode_length == problem.basket.begin[0] + 1
