"""The portfolio rule as a user would write it without Velodrome: a plain Gymnasium environment in NumPy.

The preset `crypto` with raw account values and no minimum quantities: orders in money at the next open, a fee on each
side, a share of a position sold after too many bars without a trade, and a reward over equal-weight buy and hold.
Unlike the native environment, this one keeps no episode statistics.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray


class PortfolioTables(NamedTuple):
    """The basket and the parameters as the plain environment takes them; T bars, K instruments."""

    open: NDArray[np.float64]  # [T, K]
    close: NDArray[np.float64]  # [T, K]
    features: NDArray[np.float32]  # [T, K·F]
    window: int  # bars
    begin: int  # first row of a decision
    end: int  # one past the last row
    episode_length: int  # decisions
    initial_cash: float
    buy_fee: float
    sell_fee: float
    order_scale: float
    buy_safety: float
    max_holding: int
    decay: float
    bankrupt_at: float


class PlainPortfolioEnv(gymnasium.Env):
    """One account; holdings in arrays over the instruments; a new observation array every step."""

    def __init__(self, tables: PortfolioTables) -> None:
        self.tables = tables
        self.instruments = tables.close.shape[1]
        floats = tables.window * tables.features.shape[1] + 1 + self.instruments
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (floats,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.instruments,), np.float32)
        self.cursor = self.last = tables.begin
        self.cash = self.equity = self.benchmark = tables.initial_cash
        self.units = np.zeros(self.instruments)
        self.held = np.zeros(self.instruments, np.int64)
        self.benchmark_units = np.zeros(self.instruments)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode at a random bar, or at options["cursor"]."""
        super().reset(seed=seed)
        tables = self.tables
        if options and "cursor" in options:
            self.cursor = int(options["cursor"])
        else:
            self.cursor = int(self.np_random.integers(tables.begin, tables.end - tables.episode_length))
        self.last = min(tables.end - 1, self.cursor + tables.episode_length)
        self.cash = self.equity = tables.initial_cash
        self.units = np.zeros(self.instruments)
        self.held = np.zeros(self.instruments, np.int64)
        prices = tables.close[self.cursor]
        self.benchmark_units = tables.initial_cash / self.instruments / (prices * (1.0 + tables.buy_fee))
        self.benchmark = float((self.benchmark_units * prices).sum())
        return self._observation(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Sell, let old positions decay, buy, and mark the account at the close."""
        tables = self.tables
        bar = self.cursor + 1
        prices = tables.open[bar]
        self.held[self.units > 0.0] += 1
        wanted = np.asarray(action, np.float64) * (tables.initial_cash / tables.order_scale) / prices
        self._sell(np.where(wanted < 0.0, np.minimum(self.units, -wanted), 0.0), prices)
        old = (self.units > 0.0) & (self.held >= tables.max_holding)
        if old.any():
            self._sell(np.where(old, tables.decay * self.units, 0.0), prices)
        for k in np.flatnonzero(wanted > 0.0):
            payable = tables.buy_safety * max(0.0, self.cash) / (1.0 + tables.buy_fee) / prices[k]
            bought = min(wanted[k], payable)
            self.cash -= bought * prices[k] * (1.0 + tables.buy_fee)
            self.units[k] += bought
            self.held[k] = 0
        self.cursor = bar
        closes = tables.close[bar]
        before, benchmark_before = self.equity, self.benchmark
        self.equity = self.cash + float((self.units * closes).sum())
        self.benchmark = float((self.benchmark_units * closes).sum())
        reward = ((self.equity - before) - (self.benchmark - benchmark_before)) / tables.initial_cash
        terminated = self.equity < tables.bankrupt_at * tables.initial_cash
        return self._observation(), reward, terminated, bar >= self.last, {}

    def _sell(self, quantities: NDArray[np.float64], prices: NDArray[np.float64]) -> None:
        self.cash += float((quantities * prices).sum()) * (1.0 - self.tables.sell_fee)
        self.units -= quantities
        self.held[quantities > 0.0] = 0

    def _observation(self) -> NDArray[np.float32]:
        rows = self.tables.features[self.cursor - self.tables.window + 1 : self.cursor + 1]
        return np.concatenate([rows.ravel(), [self.cash], self.units]).astype(np.float32)
