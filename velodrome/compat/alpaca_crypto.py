"""A widely copied FinRL-style multi-coin environment as a preset: its data, its parameters, its recordings.

`replay` runs recorded actions through the portfolio rule, so that its numbers can be compared with the original's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.timeframe import HOUR
from velodrome.compat.recordings import Played, Script, play_episodes, read_arrays
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
    if not (np.isfinite(price).all() and np.isfinite(indicators).all()):
        raise DataError("prices or indicators have values that are no finite numbers; a price that is missing is 0.")
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
        "sell_fee": float(config.get("sell_fee", config["fee"])),
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
    recorded = read_arrays(Path(path))
    missing = [name for name in INPUTS if name not in recorded]
    if missing:
        raise DataError(f"{Path(path).name} is no recording of this environment: it has no {', '.join(missing)}.")
    config = json.loads(str(recorded["config"]))
    world = alpaca_crypto_world(recorded["price"], recorded["indicators"], config)
    offsets = recorded["ep_offset"]
    envs = NativeVectorEnv(world, len(offsets) - 1, seed=0, autoreset=False, compiled=compiled)

    def keep(played: Played) -> dict[str, NDArray]:
        running, counts = played.running, envs.column("counts")
        return {
            **{name: envs.column(column)[running] for name, column in STEP_COLUMNS.items()},
            "buys": counts[BUYS, running],
            "sells": counts[SELLS, running],
            "holdings": envs.column("units")[:, running].T,
            "done": (played.terminated | played.truncated)[running],
            "reward": played.exact_rewards[running],
        }

    actions = recorded["action"].clip(-ACTION_LIMIT, ACTION_LIMIT).astype(np.float32)
    script = Script(actions, offsets, *_shown_places(np.diff(offsets), np.diff(recorded["obs_offset"])))
    arrays, shown = play_episodes(envs, script, envs.reset()[0], keep)
    observations = original_observation(shown, int(config["lookback"]), len(world.observed))
    return {**{name: recorded[name] for name in INPUTS}, **arrays, "obs": observations}


def _shown_places(lengths: NDArray, counts: NDArray) -> tuple[NDArray, NDArray]:
    """Return episode and step of the observations that were recorded: the reset (0), every tenth, and the last."""
    places: list[tuple[int, int]] = []
    for episode, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        steps = sorted({*range(0, length + 1, OBSERVED_EVERY), int(length)})
        if len(steps) != count:
            raise DataError(f"an episode of {length} steps has {count} observations, and {len(steps)} were expected.")
        places += [(episode, step) for step in steps]
    episodes, shown = np.array(places).T
    return episodes, shown
