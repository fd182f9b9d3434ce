"""The trading rule as a user would write it without Velodrome: a plain Gymnasium environment.

Default parameters with a fee: levels −1, 0 and 1, leverage 1, orders filled at the next open. With these levels and
`hold_on_same_action` a position always has the direction of the last level asked for, so it is opened, closed and
switched but never resized; and without funding the cash never goes below zero. Unlike the native environment, this one
keeps no episode statistics.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

LEVELS = (-1.0, 0.0, 1.0)
ACCOUNT_VALUES = 8


class TradingTables(NamedTuple):
    """The market and the parameters as these environments take them."""

    ohlc: NDArray[np.float64]  # [T, 4]
    features: NDArray[np.float32]  # [T, F]
    window: int  # bars
    begin: int  # first row of a decision
    end: int  # one past the last row
    episode_length: int  # decisions
    fee: float
    initial_cash: float
    maintenance_margin: float
    bankrupt_at: float


class PlainTradingEnv(gymnasium.Env):
    """One account in scalar Python floats; data in NumPy arrays; a new observation array every step."""

    def __init__(self, tables: TradingTables) -> None:
        self.tables = tables
        self.window_floats = tables.window * tables.features.shape[1]
        floats = self.window_floats + ACCOUNT_VALUES
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (floats,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(LEVELS))
        self.cursor = self.start = self.last = tables.begin
        self.cash = self.equity = self.peak = tables.initial_cash
        self.units = self.entry = 0.0
        self.previous_level: float | None = None
        self.held = 0
        self.liquidations = 0  # since construction

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode at a random bar, or at options["cursor"]."""
        super().reset(seed=seed)
        tables = self.tables
        if options and "cursor" in options:
            self.start = int(options["cursor"])
        else:
            self.start = int(self.np_random.integers(tables.begin, tables.end - tables.episode_length))
        self.cursor = self.start
        self.last = min(tables.end - 1, self.start + tables.episode_length)
        self.cash = self.equity = self.peak = tables.initial_cash
        self.units = self.entry = 0.0
        self.previous_level = None
        self.held = 0
        return self._observation(float(tables.ohlc[self.cursor, 3])), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Take the order at the next open, play the bar, mark the account at its close."""
        tables = self.tables
        bar = self.cursor + 1
        opened, high, _, close = tables.ohlc[bar].tolist()
        before, units_before = self.equity, self.units
        if self.units < 0.0 and opened >= self._liquidation_price():
            self._liquidate(opened)
        else:
            self._order(LEVELS[action], opened)
        if self.units < 0.0 and high >= self._liquidation_price():
            self._liquidate(opened)
        self.cursor = bar
        self.equity = self.cash
        if self.units != 0.0:
            self.equity += abs(self.units) * self.entry + (close - self.entry) * self.units
        self.peak = max(self.peak, self.equity)
        if self.units == 0.0:
            self.held = 0
        else:
            self.held = self.held + 1 if self.units * units_before > 0.0 else 1
        reward = math.log(self.equity / before) if self.equity > 0.0 else -10.0
        terminated = self.equity < tables.bankrupt_at * tables.initial_cash
        return self._observation(close), reward, terminated, bar >= self.last, {}

    def _order(self, level: float, price: float) -> None:
        if self.units != 0.0 and level == self.previous_level:
            return
        self.previous_level = level
        if self.units != 0.0:
            self._close(price)
        if level == 0.0:
            return
        fee = self.tables.fee
        notional = self.cash / (1.0 + fee)
        need = notional * (1.0 + fee)
        if notional <= 0.0 or need > self.cash * (1.0 + 1e-9):
            return
        self.units = level * notional / price
        self.entry = price
        self.cash = max(0.0, self.cash - need)

    def _close(self, price: float) -> None:
        size = abs(self.units)
        gain = (price - self.entry) * self.units - size * price * self.tables.fee
        self.cash = max(0.0, self.cash + gain + size * self.entry)
        self.units = self.entry = 0.0

    def _liquidation_price(self) -> float:
        return self.entry * (2.0 - self.tables.maintenance_margin)

    def _liquidate(self, opened: float) -> None:
        bankruptcy = self.entry * 2.0 / (1.0 + self.tables.fee)
        self._close(min(max(opened, self._liquidation_price()), bankruptcy))
        self.liquidations += 1

    def _observation(self, price: float) -> NDArray[np.float32]:
        tables = self.tables
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
