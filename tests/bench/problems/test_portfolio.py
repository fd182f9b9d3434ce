"""The benchmark of the portfolio: parity with plain NumPy first, then every size, then verdicts."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from tests.contracts.comparison import assert_same_bits, run
from velodrome import cli
from velodrome.bench import parity
from velodrome.bench.parity import ParityError
from velodrome.bench.problems.portfolio import PortfolioBenchmark, PortfolioOptions
from velodrome.bench.report import Comparison, Measurement
from velodrome.bench.run import run_benchmark
from velodrome.envs.catalog import CATALOG
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.vector.native import NativeVectorEnv

COARSE = {"bars": 1_000, "episode_length": 300}


def benchmark(**values) -> PortfolioBenchmark:
    return PortfolioBenchmark(CATALOG.get("portfolio"), PortfolioOptions(**values))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    pytest.importorskip("stable_baselines3")
    folder = tmp_path_factory.mktemp("bench")
    files = {"json_path": folder / "portfolio.json", "plot_path": folder / "portfolio.png"}
    out = Console(record=True, width=120)
    given = {"sizes": (2,), "instruments": (3,), "against": ("dummy", "subproc"), "seconds": 0.05, "repeats": 2}
    small = benchmark(**given, **files, **COARSE)
    return run_benchmark(small, out), out.export_text(), small.options


def test_every_contender_is_measured_after_parity(measured):
    report, text, _ = measured
    (comparison,) = report.comparisons
    assert comparison.name == "K = 3"
    assert comparison.parity.steps == 4_800
    assert comparison.parity.counts["episodes"] > 0
    assert {(row.num_envs, row.label) for row in report.measurements} == {
        (2, "velodrome"),
        (2, "velodrome, specialised"),
        (2, "velodrome, no windows"),
        (2, "velodrome, no windows, specialised"),
        (2, "SB3 DummyVecEnv"),
        (2, "SB3 SubprocVecEnv"),
    }
    assert all(0.0 < row.slowest <= row.steps_per_second <= row.fastest for row in report.measurements)
    assert {row.floats for row in report.measurements} == {5 * 33 + 4, 4}
    assert "portfolio, K = 3: steps per second" in text


def test_specialised_parameters_change_nothing():
    """The loop is that of the contender above; other portfolios' are compiled by the slow tests."""
    (case,) = benchmark(instruments=(3,), **COARSE).cases()
    world = portfolio_world(**case.values)
    general = run(NativeVectorEnv(world, 3, seed=7), 2 * COARSE["episode_length"])
    assert any(step["truncated"].any() for step in general[1:])
    assert_same_bits(run(NativeVectorEnv(world, 3, seed=7, specialise=True), 2 * COARSE["episode_length"]), general)


def test_seven_instruments_are_observed_in_393_floats():
    (case,) = benchmark(instruments=(7,), **COARSE).cases()
    assert case.floats == 393


def test_promises_are_judged_by_what_was_measured():
    rates = {("velodrome", "flat"): 3e6, ("velodrome", "cursor"): 5e6, ("dummy", ""): 1e4}
    made_up = benchmark(**COARSE)
    for count in (7, 100):
        rows = [
            Measurement(peer=peer, label=peer, kind=kind, num_envs=1_024, rounds=[rate * 7 / count])
            for (peer, kind), rate in rates.items()
        ]
        made_up.report.comparisons.append(Comparison(name=f"K = {count}", title="", measurements=rows))
    made_up.conclude()
    assert [(target.reached, target.met) for target in made_up.report.targets] == [
        (300.0, True),
        (3e6, True),
        (5e6, False),
        (pytest.approx(1.0), True),
        (pytest.approx(1.0), True),
    ]


def test_files_are_written(measured):
    _, _, options = measured
    assert json.loads(options.json_path.read_text())["kind"] == "step, portfolio"
    assert options.plot_path.read_bytes().startswith(b"\x89PNG")


def test_a_rule_that_differs_ends_the_benchmark_before_it_times_anything(monkeypatch):
    make = parity.make_vec
    monkeypatch.setattr(parity, "make_vec", lambda *given, **values: make(*given, **{**values, "sell_fee": 0.002}))
    changed = benchmark(instruments=(3,), **COARSE)
    with pytest.raises(ParityError, match="differs at step"):
        run_benchmark(changed, Console(quiet=True))
    assert changed.report.measurements == []


def test_a_portfolio_needs_two_instruments():
    with pytest.raises(ValueError, match="2 to 1,000"):
        PortfolioOptions(instruments=(1,))


def test_too_few_bars_for_an_episode_are_told_and_just_enough_will_do(capsys):
    assert cli.run(["bench", "step", "--env", "portfolio", "--bars", "500"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "bars = 500 are too few: an episode of 500 decisions" in told
    assert "needs 554" in told
    with pytest.raises(ValueError, match="needs 554"):
        PortfolioOptions(bars=553)
    (case,) = benchmark(bars=554, instruments=(3,)).cases()
    basket = case.values["market"]
    assert basket.end[0] - case.tables.episode_length == basket.begin[0] + 1
