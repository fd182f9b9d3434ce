"""The rules as a user would write them without Velodrome: plain Gymnasium environments, one account each.

Trading has its default parameters and a fee: levels −1, 0 and 1, leverage 1, orders filled at the next open. With these
levels and `hold_on_same_action` a position always has the direction of the last level asked for, so it is opened,
closed and switched but never resized; and without funding the cash never goes below zero.

The portfolio has the preset `crypto` with raw account values and no minimum quantities: orders in money at the next
open, a fee on each side, a share of a position sold after too many bars without a trade, and a reward over equal-weight
buy and hold.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

LEVELS = (-1.0, 0.0, 1.0)
ACCOUNT_VALUES = 8


class MarketTables(NamedTuple):
    """A market and the parameters of an environment over it, without Velodrome's layout."""

    prices: NDArray[np.float64]  # [T, 4]: open, high, low, close; of a portfolio [T, 2, K]: open, close
    features: NDArray[np.float32]  # [T, F]
    window: int  # bars
    begin: int  # first row of a decision
    end: int  # one past the last row
    episode_length: int  # decisions
    parameters: SimpleNamespace  # the environment's config, of which reading is faster

    @classmethod
    def of(cls, market: Any, prices: NDArray[np.float64], config: Any) -> MarketTables:
        """Return a market of Velodrome as these environments take it."""
        length, width = int(market.windows.length[0]), int(market.windows.width[0])
        # The native layout precedes the bars by `length` rows of zeros; the peers read the bars alone.
        features = market.windows.values.reshape(-1, width)[length:]
        first, last = int(market.begin[0]), int(market.end[0])
        return cls(prices, features, length, first, last, config.episode_lengths[0], SimpleNamespace(**dict(config)))

    def random_starts(self, generator: np.random.Generator, count: int | None = None) -> Any:
        """Return first bars of episodes that end before the data does."""
        return generator.integers(self.begin, self.end - self.episode_length, count)


class PlainMarketEnv(gymnasium.Env):
    """One account; data in NumPy arrays; a new observation array every step. It keeps no episode statistics."""

    def __init__(
        self, tables: MarketTables, account_values: int, choose_start: Callable[[], int] | None = None
    ) -> None:
        self.tables, self.parameters = tables, tables.parameters
        self.window_floats = tables.window * tables.features.shape[1]
        shape = (self.window_floats + account_values,)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.choose_start = choose_start or (lambda: int(tables.random_starts(self.np_random)))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode at a random bar, or where it was told to."""
        super().reset(seed=seed)
        self.start = self.cursor = self.choose_start()
        self.last = min(self.tables.end - 1, self.start + self.tables.episode_length)
        self.cash = self.equity = self.parameters.initial_cash
        self.begin()
        return self.observation(), {}

    @abstractmethod
    def begin(self) -> None:
        """Open an account."""

    @abstractmethod
    def observation(self) -> NDArray[np.float32]:
        """Return the window and the account's values."""


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
