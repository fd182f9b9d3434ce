"""The replay of TorchTrade's recorded trajectories through the trading rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.compat.recordings import Played, Script, play_episodes, read_arrays
from velodrome.compat.torchtrade.layout import torchtrade_market, trading_parameters
from velodrome.envs.trading import codes
from velodrome.envs.trading.account import Account, liquidation_price
from velodrome.envs.trading.world import trading_world
from velodrome.errors import DataError
from velodrome.tables.market import Market
from velodrome.vector.native import NativeVectorEnv

EXIT_EVENTS = {codes.LIQUIDATED: "liquidation", codes.STOPPED: "sltp_sl", codes.TARGET: "sltp_tp"}
SOFT_VALUE = 1e-6  # of the initial cash: below it a value is rounding noise


def replay(path: str | Path, *, compiled: bool = True) -> dict[str, NDArray]:
    """Run a recorded file's actions through the trading rule and return its arrays as Velodrome computes them.

    The data file that the recording names must lie beside it. Inputs of the recording (`config`, `action`, the episode
    starts, which windows to show, `ep_decision_margin`) are passed through.
    """
    path = Path(path)
    recorded = read_arrays(path)
    header = json.loads(str(recorded["config"]))
    data_path = path.with_name(f"{header['data']}.npz")
    if not data_path.exists():
        raise DataError(f"{path.name} was recorded over {header['data']}; {data_path} is missing beside it")
    config, data = header["config"], read_arrays(data_path)
    market = torchtrade_market(data, config["time_frames"], config["window_sizes"], config["execute_on"])
    world = trading_world(market, **trading_parameters(config, header["kind"]))
    starts, longest = recorded["ep_start_index"].astype(np.int64), config["max_traj_length"]
    begin, bars = int(market.begin[0]), int(market.end[0] - market.begin[0])
    ends = np.full(len(starts), bars) if longest is None else np.minimum(starts + longest, bars)

    envs = NativeVectorEnv(world, len(starts), seed=0, autoreset=False, compiled=compiled)
    observations, _ = envs.reset(options={"cursor": begin + starts, "last": begin + ends - 1})
    at_reset = {
        "ep_reset_account_state": np.array(observations[:, -6:]),
        "ep_reset_portfolio_value": envs.column("equity"),
    }

    # Labels are informative only.
    names, brackets, shorts = header["events"], header["kind"] == "sltp", bool(world.params.allow_short)

    def keep(played: Played) -> dict[str, NDArray]:
        running = played.running
        column = {name: envs.column(name)[running] for name in COLUMNS}
        return {
            **{name: column[source] for name, source in STEP_COLUMNS.items()},
            "bar_index": column["cursor"] - np.int32(begin),
            "bar_ts": market.time[column["cursor"]],
            "bar_ohlcv": _ohlcv(market, column["cursor"]),
            "liquidation_price": _liquidation_prices(column, world.params),
            "reward64": played.exact_rewards[running],
            "reward": played.rewards[running],
            "terminated": played.terminated[running],
            "truncated": played.truncated[running],
            "account_state": played.observations[running, -6:],
            "event": np.array([names.index(label) for label in event_labels(column, brackets, shorts)], np.int8),
            "soft": column["equity"] < SOFT_VALUE * column["initial"],
        }

    actions = recorded["action"].astype(np.int64)
    script = Script(actions, recorded["ep_offset"], recorded["win_episode"], recorded["win_step"])
    arrays, shown = play_episodes(envs, script, observations, keep)
    edges = np.cumsum([length * width for length, width in world.window_shapes])
    windows = zip(header["windows"], np.split(shown, edges, axis=1)[:-1], world.window_shapes, strict=True)
    return {
        **{name: recorded[name] for name in PASSED_THROUGH if name in recorded},
        "ep_end_index": ends.astype(np.int32),
        "ep_reset_ts": market.time[begin + starts],
        "ep_reset_ohlcv": _ohlcv(market, begin + starts),
        **at_reset,
        "ep_complete": _complete(arrays["terminated"] | arrays["truncated"], recorded["ep_offset"]),
        **arrays,
        **{name: window.reshape(-1, *shape) for name, window, shape in windows},
    }


def event_labels(column: Mapping[str, NDArray], brackets: bool, shorts: bool) -> list[str]:
    """Return what happened in the last step of each environment, as TorchTrade calls it."""
    happened = zip(column["order_code"], column["exit_code"], column["units"], strict=True)
    return [
        EXIT_EVENTS.get(int(leave)) or _order_event(int(order), units, brackets, shorts)
        for order, leave, units in happened
    ]


def _order_event(order: int, units: float, brackets: bool, shorts: bool) -> str:
    if order in (codes.OPENED, codes.SWITCHED, codes.INCREASED):
        return ("long" if units > 0 else "short") if brackets or shorts else "buy"
    if order == codes.CLOSED or (order == codes.SWITCH_CLOSED and not brackets):
        return "close" if brackets else ("flat" if shorts else "sell")
    if order == codes.DECREASED:
        return "close_partial" if shorts else "sell"
    return "exhausted" if order == codes.EXHAUSTED else "hold"


def _ohlcv(market: Market, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.column_stack([market.ohlc[rows], market.volume[rows]]).astype(np.float32)


def _complete(ended: NDArray[np.bool_], offsets: NDArray) -> NDArray[np.bool_]:
    """Return for each episode whether its last step, and no earlier one, ended it."""
    return np.array([bool(ended[end - 1]) and not ended[start : end - 1].any() for start, end in pairwise(offsets)])


def _liquidation_prices(column: Mapping[str, NDArray], terms: Any) -> NDArray[np.float64]:
    """Return the accounts' liquidation prices. Without ranges the parameters are the terms of every episode."""
    accounts = zip(column["cash"], column["units"], column["entry"], strict=True)
    return np.array([liquidation_price(Account(*account, 0.0, 0.0, 0.0, 0), terms) for account in accounts])


PASSED_THROUGH = ("config", "ep_offset", "ep_start_index", "action", "win_episode", "win_step", "ep_decision_margin")
STEP_COLUMNS = {
    "balance": "cash",
    "position_size": "units",
    "entry_price": "entry",
    "portfolio_value": "equity",
    "hold_counter": "held",
    "stop_loss": "stop",
    "take_profit": "target",
}
COLUMNS = (*STEP_COLUMNS.values(), "cursor", "initial", "order_code", "exit_code")
