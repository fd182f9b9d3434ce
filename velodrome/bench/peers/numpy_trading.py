"""The trading rule as a user would batch it with NumPy: all accounts as arrays, every branch a mask.

The parameters and the remarks are those of `plain_markets`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from velodrome.bench.options import Peer
from velodrome.bench.peers.plain_markets import ACCOUNT_VALUES, LEVELS, MarketTables
from velodrome.bench.timing import Batch, Source

ChooseStarts = Callable[[NDArray[np.int64]], NDArray[np.int64]]  # rows that begin an episode -> their first bars


class BatchedTradingEnv:
    """n accounts in arrays; an episode that ends is followed by the next in the same step."""

    def __init__(
        self, tables: MarketTables, num_envs: int, seed: int = 0, choose_starts: ChooseStarts | None = None
    ) -> None:
        self.tables, self.parameters, self.num_envs = tables, tables.parameters, num_envs
        generator = np.random.default_rng(seed)
        self._choose_starts = choose_starts or (lambda rows: tables.random_starts(generator, len(rows)))
        self._levels = np.array(LEVELS)
        window, (bars, width) = tables.window, tables.features.shape
        self.window_floats = window * width
        features = np.ascontiguousarray(tables.features)
        # [bars − window + 1, window · width]: every window as a row, without a copy of the data.
        shape, item = (bars - window + 1, self.window_floats), features.itemsize
        self._windows = as_strided(features, shape, (width * item, item), writeable=False)
        self.observations = np.empty((num_envs, self.window_floats + ACCOUNT_VALUES), np.float32)
        self.final_observations = np.empty_like(self.observations)
        self.cursor, self.start, self.last, self.held = (np.zeros(num_envs, np.int64) for _ in range(4))
        self.cash, self.units, self.entry, self.equity, self.peak = (np.zeros(num_envs) for _ in range(5))
        self.previous_level = np.full(num_envs, np.nan)

    def reset(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode of every environment."""
        rows = np.arange(self.num_envs)
        self._begin(rows)
        self._observe(rows, self.observations)
        return self.observations, {}

    def _begin(self, rows: NDArray[np.int64]) -> None:
        starts, cash = self._choose_starts(rows), self.parameters.initial_cash
        last = np.minimum(self.tables.end - 1, starts + self.tables.episode_length)
        fresh = {"start": starts, "cursor": starts, "last": last, "held": 0, "previous_level": np.nan}
        fresh |= {"cash": cash, "equity": cash, "peak": cash, "units": 0.0, "entry": 0.0}
        for name, values in fresh.items():
            getattr(self, name)[rows] = values

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Step every environment as Gymnasium's vectors do, the next episode in the same step."""
        given = self.parameters
        bars = self.cursor + 1
        opened, high, _, close = self.tables.prices[bars].T
        before, units_before = self.equity, self.units
        dropped = (self.units < 0.0) & (opened >= self._liquidation_prices())
        self._liquidate(dropped, opened)
        self._order(self._levels[actions], opened, ~dropped)
        self._liquidate((self.units < 0.0) & (high >= self._liquidation_prices()), opened)
        self.cursor = bars
        self.equity = self.cash + np.abs(self.units) * self.entry + (close - self.entry) * self.units
        self.peak = np.maximum(self.peak, self.equity)
        continued = self.units * units_before > 0.0
        self.held = np.where(self.units == 0.0, 0, np.where(continued, self.held + 1, 1))
        solvent = self.equity > 0.0
        rewards = np.where(solvent, np.log(np.where(solvent, self.equity, 1.0) / before), -10.0).astype(np.float32)
        terminated = self.equity < given.bankrupt_at * given.initial_cash
        truncated = bars >= self.last
        ended = terminated | truncated
        if ended.any():
            rows = np.flatnonzero(ended)
            self._observe(rows, self.final_observations)
            self._begin(rows)
        self._observe(slice(None), self.observations)
        return self.observations, rewards, terminated, truncated, {"final_obs": self.final_observations}

    def get_attr(self, name: str) -> NDArray:
        """Return a column of the accounts."""
        return getattr(self, name)

    def _order(self, levels: NDArray, prices: NDArray, allowed: NDArray[np.bool_]) -> None:
        fee = self.parameters.fee
        asked = allowed & ~((self.units != 0.0) & (levels == self.previous_level))
        self.previous_level = np.where(asked, levels, self.previous_level)
        self._close(asked & (self.units != 0.0), prices)
        notional = self.cash / (1.0 + fee)
        need = notional * (1.0 + fee)
        opens = asked & (levels != 0.0) & (notional > 0.0) & (need <= self.cash * (1.0 + 1e-9))
        self.units = np.where(opens, levels * notional / prices, self.units)
        self.entry = np.where(opens, prices, self.entry)
        self.cash = np.where(opens, np.maximum(0.0, self.cash - need), self.cash)

    def _close(self, chosen: NDArray[np.bool_], prices: NDArray) -> None:
        size = np.abs(self.units)
        gain = (prices - self.entry) * self.units - size * prices * self.parameters.fee
        self.cash = np.where(chosen, np.maximum(0.0, self.cash + gain + size * self.entry), self.cash)
        self.units = np.where(chosen, 0.0, self.units)
        self.entry = np.where(chosen, 0.0, self.entry)

    def _liquidation_prices(self) -> NDArray[np.float64]:
        return self.entry * (2.0 - self.parameters.maintenance_margin)

    def _liquidate(self, chosen: NDArray[np.bool_], opened: NDArray) -> None:
        if chosen.any():
            bankruptcy = self.entry * 2.0 / (1.0 + self.parameters.fee)
            self._close(chosen, np.minimum(np.maximum(opened, self._liquidation_prices()), bankruptcy))

    def _observe(self, rows: NDArray[np.int64] | slice, out: NDArray[np.float32]) -> None:
        """Write the observation of some environments at the close of their cursors' bars."""
        cursor, units, entry, equity = self.cursor[rows], self.units[rows], self.entry[rows], self.equity[rows]
        price = self.tables.prices[cursor, 3]
        out[rows, : self.window_floats] = self._windows[cursor - self.tables.window + 1]
        side = np.sign(units)
        held = units != 0.0
        solvent = equity > 0.0
        liquidation = entry * (2.0 - self.parameters.maintenance_margin)
        account = out[rows, self.window_floats :] if isinstance(rows, slice) else np.empty((len(rows), ACCOUNT_VALUES))
        account[:, 0] = np.where(solvent, np.abs(units) * price / np.where(solvent, equity, 1.0), 0.0)
        account[:, 1] = side
        account[:, 2] = side * (price - entry) / np.where(held, entry, 1.0)
        account[:, 3] = self.held[rows]
        account[:, 4] = 1.0
        account[:, 5] = np.where(units < 0.0, np.maximum(0.0, (liquidation - price) / price), 1.0)
        account[:, 6] = 1.0 - equity / self.peak[rows]
        account[:, 7] = (self.last[rows] - cursor) / np.maximum(1, self.last[rows] - self.start[rows])
        if not isinstance(rows, slice):
            out[rows, self.window_floats :] = account


def open_numpy(source: Source) -> Batch:
    """Return a batch of accounts."""
    envs = BatchedTradingEnv(source.tables, len(source.makers), source.seed)
    return Batch(lambda seed: envs.reset()[0], envs.step)


NUMPY = Peer("NumPy-batched", open_numpy, largest=1_000_000)
