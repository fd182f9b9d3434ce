"""A widely copied FinRL-style multi-coin environment as a preset: its data, its parameters, its recordings.

`replay` runs recorded actions through the portfolio rule, so that its numbers can be compared with the original's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.timeframe import HOUR
from velodrome.envs.contract import World
from velodrome.envs.portfolio.codes import BUYS, SELLS
from velodrome.envs.portfolio.world import portfolio_world
from velodrome.errors import DataError
from velodrome.tables.basket import Basket
from velodrome.tables.windows import WindowPart, stack_windows
from velodrome.vector.native import NativeVectorEnv

WINDOW = "indicators"
OBSERVED_EVERY = 10  # steps between recorded observations of an episode
ACTION_LIMIT = 1000.0
MIN_POSITIONS, FEW_PART, EVENNESS_PART = 3, 0.5, 0.1  # of the concentration penalty
EXCESS_PART, RETURN_PART, CASH_PART, SHORTFALL_PART = 0.5, 0.3, 0.2 * 0.1, 0.5  # of the reward
STEP_COLUMNS = {  # recorded array -> state column
    "time": "cursor",
    "cash": "cash",
    "total_asset": "equity",
    "equal_weight_asset": "benchmark",
    "fees_paid": "fees",
}
INPUTS = ("config", "price", "indicators", "ep_offset", "action", "obs_offset")


def alpaca_crypto_basket(price: NDArray, indicators: NDArray, lookback: int, norm_tech: float = 1.0) -> Basket:
    """Return closes [T, A] (0: missing) and rows of indicators [T, K] as a basket.

    The original marks a holding at 0 where the price is missing, and so does this basket; a coin without a price cannot
    be traded. Its bars have no times: hours from 1970 on stand for them.
    """
    price = np.ascontiguousarray(price, np.float64)
    rows, coins = price.shape
    if len(indicators) != rows or rows < 2 * lookback + 1:
        raise DataError(
            f"{rows} prices and {len(indicators)} rows of indicators with a lookback of {lookback}: both need the same "
            f"number of rows, at least {2 * lookback + 1}."
        )
    if (price[0] <= 0.0).any():
        raise DataError("the first row has a missing price, by which the original divides; begin with a later row.")
    values = (np.asarray(indicators, np.float64) * norm_tech).astype(np.float32)
    return Basket(
        symbols=tuple(f"coin_{k}" for k in range(coins)),
        timeframe="1h",
        timezone="UTC",
        time=np.arange(rows) * HOUR,
        open=price,
        close=price,
        tradable=(price > 0.0).astype(np.uint8),
        begin=np.array([lookback - 1]),
        # The last bar of an episode is row T − L − 1.
        end=np.array([rows - lookback]),
        windows=stack_windows([(lookback, [WindowPart(values, np.arange(rows))])]),
        window_names=(WINDOW,),
        feature_names=(tuple(f"indicator_{k}" for k in range(values.shape[1])),),
        name="alpaca_crypto",
    )


def portfolio_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the original's parameters into those of the portfolio environment."""
    capital, scale = float(config["initial_capital"]), float(config["norm_reward"])
    concentration = float(config.get("concentration_penalty") or 0.0)
    return {
        "preset": "alpaca_crypto",
        "initial_cash": capital,
        "buy_fee": float(config["fee"]),
        "sell_fee": float(config["fee"]),
        "min_quantity": tuple(float(quantity) for quantity in config["min_quantity"]),
        "order_scale": float(config["norm_action"]),
        "cash_reserve": float(config.get("min_cash_reserve") or 0.0),
        "trailing_stop": float(config.get("trailing_stop_pct") or 0.0),
        "time_decay_floor": float(config.get("time_decay_floor") or 0.0),
        # The original's excess is money, not a part of the capital.
        "excess_weight": EXCESS_PART * scale * capital,
        "return_weight": RETURN_PART * scale,
        "cash_weight": CASH_PART * scale,
        "shortfall_penalty": SHORTFALL_PART * scale,
        "concentration_penalty": concentration,
        "few_positions_penalty": FEW_PART * concentration,
        "evenness_bonus": EVENNESS_PART * concentration,
        "min_positions": MIN_POSITIONS,
        "cash_unit": float(config["norm_cash"]),
        "holding_unit": float(config["norm_stocks"]),
    }


def alpaca_crypto_world(price: NDArray, indicators: NDArray, config: Mapping[str, Any]) -> World:
    """Return the original's environment over its data."""
    basket = alpaca_crypto_basket(price, indicators, int(config["lookback"]), float(config["norm_tech"]))
    return portfolio_world(basket, **portfolio_parameters(config))


def original_observation(observations: NDArray[np.float32], lookback: int, account: int) -> NDArray[np.float32]:
    """Return observations [n, D] in the original's order: the account first, then rows from the newest back."""
    rows = observations[:, :-account].reshape(len(observations), lookback, -1)[:, ::-1]
    return np.concatenate([observations[:, -account:], rows.reshape(len(observations), -1)], axis=1)


def replay(path: str | Path, *, compiled: bool = True) -> dict[str, NDArray]:
    """Run a recorded file's actions through the portfolio rule and return its arrays as Velodrome computes them.

    Inputs of the recording (`config`, `price`, `indicators`, `action` and the offsets) are passed through.
    """
    with np.load(Path(path), allow_pickle=False) as file:
        recorded = {name: file[name] for name in file.files}
    missing = [name for name in INPUTS if name not in recorded]
    if missing:
        raise DataError(f"{Path(path).name} is no recording of this environment: it has no {', '.join(missing)}.")
    config = json.loads(str(recorded["config"]))
    world = alpaca_crypto_world(recorded["price"], recorded["indicators"], config)
    offsets = recorded["ep_offset"]
    lengths = np.diff(offsets)
    envs = NativeVectorEnv(world, len(lengths), seed=0, autoreset=False, compiled=compiled)
    recorder = _Recorder(recorded, lengths, int(config["lookback"]), envs)
    observations, _ = envs.reset()
    recorder.keep_observations(observations, step=0)
    coins = recorded["price"].shape[1]
    for step in range(int(lengths.max(initial=0))):
        running = step < lengths
        actions = np.zeros((len(lengths), coins), np.float32)
        actions[running] = recorded["action"][offsets[:-1][running] + step].clip(-ACTION_LIMIT, ACTION_LIMIT)
        observations, _, terminated, truncated, _ = envs.step(actions)
        recorder.keep_step(running, step, terminated | truncated)
        recorder.keep_observations(observations, step=step + 1)
    return {**{name: recorded[name] for name in INPUTS}, **recorder.arrays}


class _Recorder:
    """Collects what the environments do, in the layout of the recording: episodes one after another."""

    def __init__(
        self, recorded: Mapping[str, NDArray], lengths: NDArray[np.int32], lookback: int, envs: NativeVectorEnv
    ) -> None:
        steps, coins = recorded["action"].shape
        self.offsets, self.lengths, self.lookback, self.envs = recorded["ep_offset"], lengths, lookback, envs
        self.shown_from = recorded["obs_offset"]
        self.reward_sum = np.zeros(envs.num_envs)
        width = 1 + coins + lookback * recorded["indicators"].shape[1]
        self.arrays: dict[str, NDArray] = {
            **{name: np.zeros(steps) for name in (*STEP_COLUMNS, "reward")},
            **{name: np.zeros(steps, np.int32) for name in ("time", "buys", "sells")},
            "holdings": np.zeros((steps, coins)),
            "done": np.zeros(steps, bool),
            "obs": np.zeros((int(self.shown_from[-1]), width), np.float32),
        }
        # Which row of `obs` shows an episode's step; 0 is the reset.
        self.shown = {
            (episode, step): int(first) + place
            for episode, (first, end) in enumerate(pairwise(self.shown_from))
            for place, step in enumerate(_shown_steps(int(lengths[episode]), int(end - first)))
        }

    def keep_step(self, running: NDArray[np.bool_], step: int, done: NDArray[np.bool_]) -> None:
        """Store one step of the episodes that are still running."""
        rows = self.offsets[:-1][running] + step
        for name, column in STEP_COLUMNS.items():
            self.arrays[name][rows] = self.envs.column(column)[running]
        counts = self.envs.column("counts")
        self.arrays["buys"][rows] = counts[BUYS, running]
        self.arrays["sells"][rows] = counts[SELLS, running]
        self.arrays["holdings"][rows] = self.envs.column("units")[:, running].T
        self.arrays["done"][rows] = done[running]
        # Rewards leave an environment as float32; their sum is kept in float64.
        reward_sum = self.envs.column("reward_sum")
        self.arrays["reward"][rows] = (reward_sum - self.reward_sum)[running]
        self.reward_sum = reward_sum

    def keep_observations(self, observations: NDArray[np.float32], step: int) -> None:
        """Store the observations that the recording shows of this step."""
        chosen = [episode for episode in range(len(self.lengths)) if (episode, step) in self.shown]
        if chosen:
            account = len(self.envs.world.observed)
            rows = [self.shown[episode, step] for episode in chosen]
            self.arrays["obs"][rows] = original_observation(observations[chosen], self.lookback, account)


def _shown_steps(length: int, count: int) -> list[int]:
    """Return the steps of an episode whose observations were recorded: the reset, every tenth, and the last."""
    steps = sorted({*range(0, length + 1, OBSERVED_EVERY), length})
    if len(steps) != count:
        raise DataError(f"an episode of {length} steps has {count} observations, and {len(steps)} were expected.")
    return steps
