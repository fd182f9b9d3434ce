"""The parity check passes for the real peers and fails, naming the difference, for each that was tampered with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rich.console import Console

from velodrome.bench import ParityError, StepBenchmarkOptions, run_step_benchmark
from velodrome.bench import parity as parity_module
from velodrome.bench.batched_peer import BatchedTradingEnv
from velodrome.bench.parity import check_parity
from velodrome.bench.peers import PlainTradingEnv
from velodrome.bench.problem import StepProblem, load_peer_tables, save_peer_tables, step_problem, stress_problem


@pytest.fixture(scope="module")
def problem() -> StepProblem:
    return step_problem(StepBenchmarkOptions(bars=3_000, episode_length=300))


def test_peers_are_the_native_environment(problem: StepProblem) -> None:
    result = check_parity(problem, steps=1_200)
    assert result.steps == 2 * 1_200 * result.environments
    # What was never met was not compared.
    assert result.liquidations > 20
    assert result.terminated > 20
    assert result.episodes > result.terminated


def test_stress_market_has_legal_bars(problem: StepProblem) -> None:
    opened, high, low, close = stress_problem(problem).market.ohlc.T
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
    def _observation(self, price: float) -> Any:
        observation = super()._observation(price)
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
        ({"plain": WindowOneBarLate}, "the first observation"),
        ({"plain": NeverBankrupt}, "terminated"),
        ({"batched": ForgetsToHold}, "numpy peer"),
        ({"batched": CashOffByABillionth}, "cash"),
    ],
)
def test_tampered_peers_are_caught(problem: StepProblem, tampered: dict[str, type], difference: str) -> None:
    with pytest.raises(ParityError, match=difference):
        check_parity(problem, steps=600, **tampered)


def test_a_mismatch_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity_module.check_parity, "__defaults__", (2_000, 8, CloseWithoutFee, BatchedTradingEnv))
    options = StepBenchmarkOptions(quick=True, bars=3_000, sizes=(4,), seconds=0.02, against=("none",))
    with pytest.raises(ParityError, match="Nothing was timed"):
        run_step_benchmark(options, Console(quiet=True))


def test_tables_survive_the_trip_to_a_worker(problem: StepProblem, tmp_path: Any) -> None:
    tables = problem.peer_tables
    save_peer_tables(tables, tmp_path / "tables.npz")
    loaded = load_peer_tables(tmp_path / "tables.npz")
    for name, value in tables._asdict().items():
        np.testing.assert_array_equal(getattr(loaded, name), value)
    assert isinstance(loaded.window, int)
    assert isinstance(loaded.fee, float)
