"""The trading rule as a user would write it without Velodrome: a plain Gymnasium environment.

Default parameters with a fee: levels −1, 0 and 1, leverage 1, orders filled at the next open. With these levels and
`hold_on_same_action` a position always has the direction of the last level asked for, so it is opened, closed and
switched but never resized; and without funding the cash never goes below zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.bench.peers.market_env import MarketTables, PlainMarketEnv

LEVELS = (-1.0, 0.0, 1.0)
ACCOUNT_VALUES = 8


class PlainTradingEnv(PlainMarketEnv):
    """The account in scalar Python floats."""

    def __init__(self, tables: MarketTables, choose_start: Callable[[], int] | None = None) -> None:
        super().__init__(tables, ACCOUNT_VALUES, choose_start)
        self.action_space = gymnasium.spaces.Discrete(len(LEVELS))
        given = tables.parameters
        self.fee, self.bankrupt_below = given.fee, given.bankrupt_at * given.initial_cash
        self.liquidated_at = 2.0 - given.maintenance_margin  # times the entry of a short
        self.liquidations = 0  # since construction

    def begin(self) -> None:
        """Open an account."""
        self.peak = self.cash
        self.units = self.entry = 0.0
        self.previous_level: float | None = None
        self.held = 0
        self.price = float(self.tables.prices[self.cursor, 3])

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Take the order at the next open, play the bar, mark the account at its close."""
        self.cursor = bar = self.cursor + 1
        opened, high, _, close = self.tables.prices[bar].tolist()
        before, units_before = self.equity, self.units
        if self.units < 0.0 and opened >= self._liquidation_price():
            self._liquidate(opened)
        else:
            self._order(LEVELS[action], opened)
        if self.units < 0.0 and high >= self._liquidation_price():
            self._liquidate(opened)
        self.price, self.equity = close, self.cash
        if self.units == 0.0:
            self.held = 0
        else:
            self.equity += abs(self.units) * self.entry + (close - self.entry) * self.units
            self.held = self.held + 1 if self.units * units_before > 0.0 else 1
        self.peak = max(self.peak, self.equity)
        reward = math.log(self.equity / before) if self.equity > 0.0 else -10.0
        return self.observation(), reward, self.equity < self.bankrupt_below, bar >= self.last, {}

    def _order(self, level: float, price: float) -> None:
        if self.units != 0.0 and level == self.previous_level:
            return
        self.previous_level = level
        if self.units != 0.0:
            self._close(price)
        if level == 0.0:
            return
        fee = self.fee
        notional = self.cash / (1.0 + fee)
        need = notional * (1.0 + fee)
        if notional <= 0.0 or need > self.cash * (1.0 + 1e-9):
            return
        self.units = level * notional / price
        self.entry = price
        self.cash = max(0.0, self.cash - need)

    def _close(self, price: float) -> None:
        size = abs(self.units)
        gain = (price - self.entry) * self.units - size * price * self.fee
        self.cash = max(0.0, self.cash + gain + size * self.entry)
        self.units = self.entry = 0.0

    def _liquidation_price(self) -> float:
        return self.entry * self.liquidated_at

    def _liquidate(self, opened: float) -> None:
        bankruptcy = self.entry * 2.0 / (1.0 + self.fee)
        self._close(min(max(opened, self._liquidation_price()), bankruptcy))
        self.liquidations += 1

    def observation(self) -> NDArray[np.float32]:
        """Return the window, and the account at the last close."""
        tables, price = self.tables, self.price
        observation = np.empty(self.window_floats + ACCOUNT_VALUES, np.float32)
        observation[: self.window_floats] = tables.features[self.cursor - tables.window + 1 : self.cursor + 1].ravel()
        side, gain, distance = 0.0, 0.0, 1.0
        if self.units != 0.0:
            side = 1.0 if self.units > 0.0 else -1.0
            gain = side * (price - self.entry) / self.entry
            if side < 0.0:
                distance = max(0.0, (self._liquidation_price() - price) / price)
        exposure = abs(self.units) * price / self.equity if self.equity > 0.0 else 0.0
        left = (self.last - self.cursor) / max(1, self.last - self.start)
        drawdown = 1.0 - self.equity / self.peak
        observation[self.window_floats :] = (exposure, side, gain, self.held, 1.0, distance, drawdown, left)
        return observation
