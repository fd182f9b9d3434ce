"""Baskets and policies that the tests of portfolios' evaluations share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

import velodrome as vd
from tests.baskets import small_basket
from velodrome.tables.basket import Basket

INSTRUMENTS = 3  # everywhere: the rule is compiled once for each number of instruments


def split_basket(bars: int = 240, **options: Any) -> Basket:
    """Return a small wild basket with halts and a late listing; its last half is the split "test"."""
    basket = small_basket(bars=bars, instruments=INSTRUMENTS, **options)
    middle = bars // 2
    return replace(basket, splits={"train": ((4, middle - 1),), "test": ((middle, bars),)})


def factors_basket(length: int = 4000, **options: Any) -> Basket:
    """Return a basket whose best return is known."""
    bars = vd.synthetic_bars("factors", length, 1, symbols=INSTRUMENTS, volatility=0.01, timeframe="1d")
    return vd.build_basket(bars, features=["log_return"], windows=4, check_leaks=False, **options)


class FollowsTheLast:
    """Holds the instrument with the largest last return, or cash if none rose: near the best on `factors`."""

    def __init__(self, basket: Basket) -> None:
        self.close = basket.close

    def begin(self, num_envs: int) -> None:
        pass

    def act(self, observation: Any) -> np.ndarray:
        cursor = np.asarray(observation["cursor"])
        last = np.column_stack([self.close[cursor] / self.close[cursor - 1] - 1.0, np.zeros(len(cursor))])
        return np.eye(last.shape[1], dtype=np.float32)[np.argmax(last, axis=1)]

    def forget(self, ended: np.ndarray) -> None:
        pass


KNOWING = {"weighting": "simplex", "fill": "close"}  # parameters that FollowsTheLast plays under
