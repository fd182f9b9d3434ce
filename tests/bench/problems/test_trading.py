"""Parity of the trading rule passes for the real peers and fails, naming the difference, for tampered ones."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from velodrome.bench.hosts.batches import BatchSpec
from velodrome.bench.parity import ParityError
from velodrome.bench.peers.numpy_trading import BatchedTradingEnv
from velodrome.bench.peers.plain_markets import PlainTradingEnv
from velodrome.bench.problems import trading
from velodrome.bench.problems.trading import TradingBenchmark, TradingOptions, check_trading, stress_case
from velodrome.bench.run import run_benchmark
from velodrome.bench.step import Case
from velodrome.envs.catalog import CATALOG


def benchmark(**values: Any) -> TradingBenchmark:
    return TradingBenchmark(CATALOG.get("trading"), TradingOptions(**values))


@pytest.fixture(scope="module")
def case() -> Case:
    (found,) = benchmark(bars=3_000, episode_length=300).cases()
    return found


def test_peers_are_the_native_environment(case: Case) -> None:
    result = check_trading(case, 0, steps=1_200)
    assert result.steps == 2 * 1_200 * 8
    # What was never met was not compared.
    assert result.counts["liquidations"] > 20
    assert result.counts["bankruptcies"] > 20
    assert result.counts["episodes"] > result.counts["bankruptcies"]


def test_stress_market_has_legal_bars(case: Case) -> None:
    opened, high, low, close = stress_case(case, 0).values["market"].ohlc.T
    assert (low <= np.minimum(opened, close)).all()
    assert (high >= np.maximum(opened, close)).all()
    assert low.min() > 0.0


class NoLiquidation(PlainTradingEnv):
    def _liquidate(self, opened: float) -> None:
        """Let shorts live on."""


class CloseWithoutFee(PlainTradingEnv):
    def _close(self, price: float) -> None:
        self.cash += (price - self.entry) * self.units + abs(self.units) * self.entry
        self.units = self.entry = 0.0


class WindowOneBarLate(PlainTradingEnv):
    def observation(self) -> Any:
        observation = super().observation()
        window = self.tables.features[self.cursor - self.tables.window : self.cursor].ravel()
        observation[: self.window_floats] = window
        return observation


class NeverBankrupt(PlainTradingEnv):
    def step(self, action: Any) -> Any:
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, False, truncated, info


class ForgetsToHold(BatchedTradingEnv):
    def _order(self, levels: Any, prices: Any, allowed: Any) -> None:
        self.previous_level[:] = np.nan
        super()._order(levels, prices, allowed)


class CashOffByABillionth(BatchedTradingEnv):
    def _close(self, chosen: Any, prices: Any) -> None:
        super()._close(chosen, prices)
        self.cash = self.cash * (1.0 + 5e-9)


@pytest.mark.parametrize(
    ("tampered", "difference"),
    [
        ({"plain": NoLiquidation}, "plain peer"),
        ({"plain": CloseWithoutFee}, "plain peer"),
        ({"plain": WindowOneBarLate}, "the first window"),
        ({"plain": NeverBankrupt}, "terminated"),
        ({"numpy": ForgetsToHold}, "numpy peer"),
        ({"numpy": CashOffByABillionth}, "cash"),
    ],
)
def test_tampered_peers_are_caught(case: Case, tampered: dict[str, type], difference: str) -> None:
    with pytest.raises(ParityError, match=difference):
        check_trading(case, 0, steps=600, **tampered)


def test_a_mismatch_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(trading.PEERS, "plain", CloseWithoutFee)
    stopped = benchmark(quick=True, bars=3_000, sizes=(4,), seconds=0.02, against=("none",))
    with pytest.raises(ParityError, match="Nothing was timed"):
        run_benchmark(stopped, Console(quiet=True))
    assert stopped.report.measurements == []


def test_an_environment_survives_the_trip_to_a_host(case: Case) -> None:
    source = BatchSpec("sync", "same rule", 2, pickled=pickle.dumps(case.plain)).source()
    first, second = source(), source()
    assert first.tables is second.tables  # those of a process share them
    for name, value in case.tables._asdict().items():
        np.testing.assert_array_equal(getattr(first.tables, name), value)
    assert isinstance(first, PlainTradingEnv)
