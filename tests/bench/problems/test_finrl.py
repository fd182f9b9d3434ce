"""FinRL beside Velodrome: their accounts must be equal, and the report must say what is compared."""

from __future__ import annotations

import io
from importlib.util import find_spec

import numpy as np
import pytest
from rich.console import Console

from velodrome.bench import options as options_module
from velodrome.bench.parity import ParityError
from velodrome.bench.peers.finrl import StockData, feature_names, finrl_module
from velodrome.bench.problems import finrl
from velodrome.bench.problems.portfolio import PortfolioBenchmark, PortfolioOptions
from velodrome.bench.run import run_benchmark
from velodrome.envs.catalog import CATALOG
from velodrome.errors import MissingDependencyError

COARSE = {"bars": 600, "episode_length": 300, "instruments": (3,), "sizes": (2,), "seconds": 0.05, "repeats": 2}
installed = pytest.mark.skipif(
    find_spec("finrl") is None or find_spec("stable_baselines3") is None,
    reason="pip install --no-deps finrl (see the Makefile)",
)


def benchmark(**values) -> PortfolioBenchmark:
    return PortfolioBenchmark(CATALOG.get("portfolio"), PortfolioOptions(**COARSE | values))


@pytest.fixture(scope="module")
def problem():
    basket = finrl.at_one_price(benchmark(against=("none",)).market(3, window=1))
    return basket, finrl.stock_data(basket)


@installed
def test_both_environments_are_measured_after_their_accounts_were_equal():
    console = Console(file=io.StringIO(), width=120)
    report = run_benchmark(benchmark(against=("finrl", "finrl_numpy")), console)
    text, own, theirs = console.file.getvalue(), report.comparisons[0], report.comparisons[1]
    assert {row.label for row in own.measurements} >= {"velodrome", "velodrome, no windows"}
    assert {(row.label, row.floats) for row in theirs.measurements} == {
        ("velodrome", 1 + 3 + 33),
        ("velodrome, specialised", 1 + 3 + 33),
        ("FinRL StockTradingEnv", 1 + 6 + 33),
        ("FinRL, NumPy variant", 3 + 9 + 33),
    }
    rows = {row.peer: row for row in theirs.measurements}
    assert all(rows[name].ratios["native"] > 1.0 for name in finrl.PEERS)
    assert theirs.parity.steps == 2 * finrl.PARITY_STEPS
    assert "agree with native over 400 steps, 1,200 orders" in text
    assert "Not compared, because they differ" in text


@installed
@pytest.mark.parametrize("peer", finrl.PEERS)
@pytest.mark.parametrize(
    "changed", [{"fee": 0.002}, {"fill": "another"}, {"lot": 2.0}], ids=lambda one: next(iter(one))
)
def test_another_rule_is_noticed(problem, monkeypatch, peer, changed):
    basket, data = problem
    finrl.check_finrl(basket, data, [peer], seed=1)
    if "fill" in changed:
        (changed,) = ({"fill": rule["fill"]} for name, rule in finrl.RULES.items() if name != peer)
    monkeypatch.setitem(finrl.RULES, peer, finrl.RULES[peer] | changed)
    with pytest.raises(ParityError, match=f"native with {peer}'s rule"):
        finrl.check_finrl(basket, data, [peer], seed=1)


def test_finrl_gets_the_rows_on_which_there_are_decisions(problem):
    basket, data = problem
    first, last = int(basket.begin[0]), int(basket.end[0])
    assert data.closes.shape == (last - first, 3)
    assert np.array_equal(data.closes, basket.close[first:last])
    assert np.allclose(basket.close[0], finrl.PRICE)
    log_returns = np.log(basket.close[first:last] / basket.close[first - 1 : last - 1])
    for k in range(3):  # features are scaled
        assert np.corrcoef(data.features[:, k, 0], log_returns[:, k])[0, 1] > 0.999999


def test_the_frame_has_a_row_for_each_instrument_of_each_day():
    pytest.importorskip("pandas")
    data = StockData(np.arange(6.0).reshape(3, 2), np.arange(12, dtype=np.float32).reshape(3, 2, 2))
    frame = data.frame()
    assert frame.index.tolist() == [0, 0, 1, 1, 2, 2]
    assert frame.loc[1].close.tolist() == [2.0, 3.0]
    assert frame.loc[2].tic.tolist() == ["stock_0", "stock_1"]
    assert frame.loc[1, feature_names(2)].to_numpy().tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_where_it_is_missing_the_report_says_how_to_install_it(monkeypatch):
    found = options_module.importlib.util.find_spec
    absent = lambda name, *rest: None if name == "finrl" else found(name, *rest)  # noqa: E731
    monkeypatch.setattr(options_module.importlib.util, "find_spec", absent)
    report = benchmark(against=("finrl", "finrl_numpy")).report
    assert {peer.peer for peer in report.missing} == {"finrl", "finrl_numpy"}
    assert all("pip install --no-deps finrl" in peer.reason for peer in report.missing)
    finrl_module.cache_clear()
    with pytest.raises(MissingDependencyError, match="pip install --no-deps finrl"):
        finrl_module("env_stocktrading")
