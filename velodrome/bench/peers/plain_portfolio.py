"""The portfolio rule as a user would write it without Velodrome: a plain Gymnasium environment in NumPy.

The preset `crypto` with raw account values and no minimum quantities: orders in money at the next open, a fee on each
side, a share of a position sold after too many bars without a trade, and a reward over equal-weight buy and hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.bench.peers.market_env import MarketTables, PlainMarketEnv


class PlainPortfolioEnv(PlainMarketEnv):
    """Holdings in arrays over the instruments."""

    def __init__(self, tables: MarketTables, choose_start: Callable[[], int] | None = None) -> None:
        self.instruments = tables.prices.shape[2]
        super().__init__(tables, 1 + self.instruments, choose_start)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (self.instruments,), np.float32)

    def begin(self) -> None:
        """Open an account, and the one it is compared with, which buys and holds."""
        self.units = np.zeros(self.instruments)
        self.held = np.zeros(self.instruments, np.int64)
        prices, money = self.tables.prices[self.cursor, 1], self.parameters.initial_cash / self.instruments
        self.benchmark_units = money / (prices * (1.0 + self.parameters.buy_fee))
        self.benchmark = float((self.benchmark_units * prices).sum())

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Sell, let old positions decay, buy, and mark the account at the close."""
        given = self.parameters
        self.cursor = bar = self.cursor + 1
        prices, closes = self.tables.prices[bar, 0], self.tables.prices[bar, 1]
        self.held[self.units > 0.0] += 1
        wanted = np.asarray(action, np.float64) * (given.initial_cash / given.order_scale) / prices
        self._sell(np.where(wanted < 0.0, np.minimum(self.units, -wanted), 0.0), prices)
        old = (self.units > 0.0) & (self.held >= given.max_holding)
        if old.any():
            self._sell(np.where(old, given.decay * self.units, 0.0), prices)
        safety, with_fee = given.buy_safety, 1.0 + given.buy_fee
        for k in np.flatnonzero(wanted > 0.0):
            price = prices[k]
            bought = min(wanted[k], safety * max(0.0, self.cash) / with_fee / price)
            self.cash -= bought * price * with_fee
            self.units[k] += bought
            self.held[k] = 0
        before, benchmark_before = self.equity, self.benchmark
        self.equity = self.cash + float((self.units * closes).sum())
        self.benchmark = float((self.benchmark_units * closes).sum())
        reward = ((self.equity - before) - (self.benchmark - benchmark_before)) / given.initial_cash
        terminated = self.equity < given.bankrupt_at * given.initial_cash
        return self.observation(), reward, terminated, bar >= self.last, {}

    def _sell(self, quantities: NDArray[np.float64], prices: NDArray[np.float64]) -> None:
        self.cash += float((quantities * prices).sum()) * (1.0 - self.parameters.sell_fee)
        self.units -= quantities
        self.held[quantities > 0.0] = 0

    def observation(self) -> NDArray[np.float32]:
        """Return the windows, the cash and the units."""
        rows = self.tables.features[self.cursor - self.tables.window + 1 : self.cursor + 1]
        return np.concatenate([rows.ravel(), [self.cash], self.units]).astype(np.float32)
