"""What plain environments on a market share: their data, where episodes begin, and the window that they show."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray


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
