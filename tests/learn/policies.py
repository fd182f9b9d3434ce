"""Policies and markets that the tests of evaluation share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import velodrome as vd
from tests.markets import small_market
from velodrome.tables.market import Market


class Recorded:
    """Plays given actions [T, n], and remembers how it was called."""

    def __init__(self, actions: np.ndarray) -> None:
        self.actions = actions
        self.calls: list[Any] = []
        self.step = 0

    def begin(self, num_envs: int) -> None:
        self.calls.append(("begin", num_envs))
        self.step = 0

    def act(self, observation: Any) -> np.ndarray:
        chosen = self.actions[self.step]
        self.step += 1
        return chosen

    def forget(self, ended: np.ndarray) -> None:
        self.calls.append(("forget", ended.copy()))


class Momentum:
    """Follows the last bar's return: close to the best that can be done on an ar1 market."""

    def __init__(self, market: Market) -> None:
        self.close = market.ohlc[:, 3]

    def begin(self, num_envs: int) -> None:
        pass

    def act(self, observation: Any) -> np.ndarray:
        cursor = np.asarray(observation["cursor"])
        return np.where(self.close[cursor] > self.close[cursor - 1], 2, 0)

    def forget(self, ended: np.ndarray) -> None:
        pass


def split_market(bars: int = 120, instruments: int = 2, seed: int = 0, **prices: float) -> Market:
    """Return a small wild market; its last third is the split "test", a bar shorter for each further instrument."""
    market = small_market(bars=bars, instruments=instruments, seed=seed, **prices)
    middle = bars * 2 // 3
    train = tuple((k * bars + 4, k * bars + middle) for k in range(instruments))
    test = tuple((k * bars + middle, (k + 1) * bars - k) for k in range(instruments))
    return replace(market, splits={"train": train, "test": test})


def ar1_market(length: int = 3000, symbols: int = 1, **options: Any) -> Market:
    return vd.build_market(vd.synthetic_bars("ar1", length, seed=0, symbols=symbols, **options))
