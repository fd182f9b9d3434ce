"""TorchTrade 0.1.0: its market layout, its parameters, and the replay of its recorded trajectories.

Only the market differs from Velodrome's own: bins counted from midnight of the first day, empty execution bars filled
with the last close, prices rounded to float32, and coarse bars labelled by their end, shown one bar later than they
could be. The account is Velodrome's trading rule with the preset `torchtrade`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.timeframe import DAY, parse_timeframe
from velodrome.compat.recordings import Played, Script, play_episodes, read_arrays
from velodrome.envs.trading import codes
from velodrome.envs.trading.account import Account, liquidation_price
from velodrome.envs.trading.world import trading_world
from velodrome.errors import ConfigError, DataError
from velodrome.tables.market import Market
from velodrome.tables.windows import WindowPart, stack_windows
from velodrome.vector.native import NativeVectorEnv

OHLCV = ("open", "high", "low", "close", "volume")
SOFT_VALUE = 1e-6  # of the initial cash: below it a value is rounding noise


class Frame(NamedTuple):
    """Bars of one period; bins without a row give no bar."""

    start: NDArray[np.int64]  # [bars] bin start, ns
    ohlcv: NDArray[np.float32]  # [bars, 5]


def _nanoseconds(timeframe: str) -> int:
    length = parse_timeframe(timeframe).nanoseconds
    if length is None:
        raise ConfigError(f"time frame {timeframe!r}: TorchTrade's frames have a fixed length")
    return length


def _frame(data: Mapping[str, NDArray], period: int) -> Frame:
    time = np.asarray(data["timestamp"], np.int64)
    if len(time) == 0:
        raise DataError("the TorchTrade data has no rows")
    anchor = time[0] // DAY * DAY
    bins = (time - anchor) // period
    first = np.flatnonzero(np.r_[True, bins[1:] != bins[:-1]])
    last = np.r_[first[1:] - 1, len(time) - 1]
    columns = [
        np.asarray(data["open"])[first],
        np.maximum.reduceat(data["high"], first),
        np.minimum.reduceat(data["low"], first),
        np.asarray(data["close"])[last],
        np.add.reduceat(data["volume"], first),
    ]
    return Frame(anchor + bins[first] * period, np.stack(columns, axis=1).astype(np.float32))


def _execution_grid(frame: Frame, period: int) -> Frame:
    """Fill the empty bins of the execution frame with the last close and no volume."""
    labels = np.arange(frame.start[0], frame.start[-1] + period, period)
    source = np.searchsorted(frame.start, labels, side="right") - 1
    ohlcv = frame.ohlcv[source]
    empty = frame.start[source] != labels
    ohlcv[empty, :4] = ohlcv[empty, 3:4]
    ohlcv[empty, 4] = 0.0
    return Frame(labels, ohlcv)


def torchtrade_market(
    data: Mapping[str, NDArray], time_frames: Sequence[str], window_sizes: Sequence[int], execute_on: str
) -> Market:
    """Lay out bars as TorchTrade's sampler does; `data` has timestamp (ns), open, high, low, close and volume."""
    if len(time_frames) != len(window_sizes):
        raise ConfigError(f"{len(time_frames)} time frames but {len(window_sizes)} window sizes; give one for each")
    execution_period = _nanoseconds(execute_on)
    grid = _execution_grid(_frame(data, execution_period), execution_period)
    windows = []
    first_labels, coarse_periods, window_spans = [], [0], []
    for name, length in zip(time_frames, window_sizes, strict=True):
        period = _nanoseconds(name)
        frame = _frame(data, period)
        coarse = period > execution_period
        labels = frame.start + period if coarse else frame.start
        # A finer bar must have ended by the end of the execution bar.
        look_up = grid.start + (execution_period - period if period < execution_period else 0)
        last_row = np.searchsorted(labels, look_up, side="right") - 1
        windows.append((int(length), [WindowPart(frame.ohlcv, last_row)]))
        first_labels.append(labels[0])
        window_spans.append(period * int(length))
        coarse_periods += [period] if coarse else []
    first_usable = max(first_labels) + max(window_spans) + max(coarse_periods)
    begin = int(np.searchsorted(grid.start, first_usable))
    bars = len(grid.start)
    if begin >= bars:
        raise DataError(
            f"windows of {dict(zip(time_frames, window_sizes, strict=True))} leave no usable bar of {bars}; "
            f"use shorter windows or more data"
        )
    day = grid.start // DAY
    return Market(
        symbols=("torchtrade",),
        timeframe=execute_on,
        timezone="UTC",
        time=grid.start,
        ohlc=np.ascontiguousarray(grid.ohlcv[:, :4].astype(np.float64)),
        volume=grid.ohlcv[:, 4].astype(np.float64),
        atr=np.zeros(bars),
        session_last=np.r_[day[1:] != day[:-1], True].astype(np.uint8),
        columns={},
        begin=np.array([begin]),
        end=np.array([bars]),
        windows=stack_windows(windows),
        window_names=tuple(time_frames),
        feature_names=(OHLCV,) * len(windows),
        name="torchtrade",
    )


def trading_parameters(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Translate TorchTrade's parameters into those of the trading environment."""
    leverage = float(config["leverage"])
    values: dict[str, Any] = {
        "preset": "torchtrade",
        "initial_cash": float(config["initial_cash"]),
        "fee": float(config["transaction_fee"]),
        "leverage": leverage,
        "maintenance_margin": float(config["maintenance_margin_rate"]),
        "bankrupt_at": float(config["bankrupt_threshold"]),
    }
    if kind == "base":
        levels = tuple(float(level) for level in config["action_levels"])
        return {**values, "levels": levels, "allow_short": leverage > 1.0 and min(levels) < 0.0}
    return {
        **values,
        "action": "brackets",
        "stop_loss": tuple(-float(level) for level in config["stoploss_levels"]),
        "take_profit": tuple(float(level) for level in config["takeprofit_levels"]),
        "include_hold": bool(config["include_hold_action"]),
        "include_close": bool(config["include_close_action"]),
        "lock_position": bool(config["lock_position_until_sltp"]),
        "trade_mode": config["trade_mode"],
        "position_fraction": float(config["position_fraction"]),
        "quantity_per_trade": float(config["quantity_per_trade"]),
        "allow_short": leverage > 1.0,
    }


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
            "event": _events(column, header, bool(world.params.allow_short)),
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


def _ohlcv(market: Market, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    return np.column_stack([market.ohlc[rows], market.volume[rows]]).astype(np.float32)


def _complete(ended: NDArray[np.bool_], offsets: NDArray) -> NDArray[np.bool_]:
    """Return for each episode whether its last step, and no earlier one, ended it."""
    return np.array([bool(ended[end - 1]) and not ended[start : end - 1].any() for start, end in pairwise(offsets)])


def _liquidation_prices(column: Mapping[str, NDArray], terms: Any) -> NDArray[np.float64]:
    """Return the accounts' liquidation prices. Without ranges the parameters are the terms of every episode."""
    accounts = zip(column["cash"], column["units"], column["entry"], strict=True)
    return np.array([liquidation_price(Account(*account, 0.0, 0.0, 0.0, 0), terms) for account in accounts])


def _events(column: Mapping[str, NDArray], header: Mapping[str, Any], shorts: bool) -> NDArray[np.int8]:
    """Translate codes to the package's own labels, which are informative only."""
    names, brackets = header["events"], header["kind"] == "sltp"
    happened = zip(column["order_code"], column["exit_code"], column["units"], strict=True)
    labels = [
        EXIT_EVENTS.get(int(leave)) or _order_event(int(order), units, brackets, shorts)
        for order, leave, units in happened
    ]
    return np.array([names.index(label) for label in labels], np.int8)


def _order_event(order: int, units: float, brackets: bool, shorts: bool) -> str:
    if order in (codes.OPENED, codes.SWITCHED, codes.INCREASED):
        return ("long" if units > 0 else "short") if brackets or shorts else "buy"
    if order == codes.CLOSED or (order == codes.SWITCH_CLOSED and not brackets):
        return "close" if brackets else ("flat" if shorts else "sell")
    if order == codes.DECREASED:
        return "close_partial" if shorts else "sell"
    return "exhausted" if order == codes.EXHAUSTED else "hold"


PASSED_THROUGH = ("config", "ep_offset", "ep_start_index", "action", "win_episode", "win_step", "ep_decision_margin")
EXIT_EVENTS = {codes.LIQUIDATED: "liquidation", codes.STOPPED: "sltp_sl", codes.TARGET: "sltp_tp"}
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
