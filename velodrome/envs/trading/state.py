"""What the trading rule works on: its parameters and tables, the state between steps, and what a step hands on."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import Column, Float64, Int8, Int32, Int64
from velodrome.envs.market.account import STATISTICS as MARKET_STATISTICS
from velodrome.envs.market.account import MarketState
from velodrome.envs.parameters import ranged_names
from velodrome.envs.terms import params_type
from velodrome.envs.trading import codes
from velodrome.envs.trading.account import Account, Bar
from velodrome.envs.trading.config import TradingConfig

STATISTICS = (*MARKET_STATISTICS, "trades", "win_rate", "liquidations", *codes.CODE_NAMES)
TORCHTRADE_VALUES = ("exposure", "direction", "unrealised_return", "bars_held", "leverage", "liquidation_distance")
ACCOUNT_VALUES = (*TORCHTRADE_VALUES, "drawdown", "episode_left")
BRACKET_VALUES = (*ACCOUNT_VALUES, "stop_distance", "target_distance")

CHOICES = (
    *("action", "reward", "trade_mode", "start", "fill_at_close", "allow_short", "hold_on_same_action"),
    *("lock_position", "flat_at_session_end", "perpetual_funding", "funding_from_data", "randomised", "observed"),
    *("episode_length_low", "episode_length_high"),
)
Params = params_type(__name__, TradingConfig, (*CHOICES, "margin", "sizing"))


class Tables(NamedTuple):
    """Read-only arrays; T execution bars of K instruments one after another, A actions, N numeric parameters."""

    ohlc: NDArray[np.float64]  # [T, 4]
    atr: NDArray[np.float64]  # [T] price units
    funding: NDArray[np.float64]  # [T] rate of each bar, or empty
    session_last: NDArray[np.uint8]  # [T]
    begin: NDArray[np.int64]  # [K] first row of a decision
    end: NDArray[np.int64]  # [K] one past the last row
    levels: NDArray[np.float64]  # [A] target exposure of each action
    side: NDArray[np.float64]  # [A] of each bracket action: HOLD, CLOSE, +1 or −1
    stop: NDArray[np.float64]  # [A] distances as fractions of the fill price
    target: NDArray[np.float64]  # [A]
    ranges: NDArray[np.float64]  # [N, 3] low, high, and 1 for whole numbers only, of each numeric parameter


class State(MarketState):
    """One column per value, one entry per environment."""

    margin: Float64  # 1 / leverage, of the episode
    sizing: Float64  # notional that one unit of equity buys
    units: Float64
    entry: Float64
    stop: Float64
    target: Float64
    price: Float64  # close of the cursor's bar
    previous_level: Float64  # NaN: none yet
    held: Int32  # bars
    cooldown_left: Int32
    session_equity: Float64
    session_turnover: Float64
    sharpe_mean: Float64  # moving averages of the differential Sharpe ratio
    sharpe_square: Float64
    events: Int64  # fills, positions closed and positions won, packed as in Account.events
    order_code: Int8
    exit_code: Int8
    code_counts: Annotated[NDArray[np.int32], Column(np.int32, rows=codes.CODES)]
    # The episode's numeric parameters, if any of them is a range:
    drawn: Annotated[NDArray[np.float64], Column(np.float64, rows=len(ranged_names(TradingConfig)))]


class Before(NamedTuple):
    """What a step finds in the state."""

    cursor: int
    last: int
    account: Account
    equity: float
    peak: float
    worst_drawdown: float
    reward_sum: float
    return_sum: float
    return_square_sum: float
    fees: float
    turnover: float
    events: int
    held: int
    previous_level: float
    exhausted: bool  # there is no further bar


class Move(NamedTuple):
    """What a step plays: the order, the bar after it, and the draw that its slippage takes."""

    action: int  # which of the bracket actions
    level: float  # exposure that the other kinds of action ask for
    bar: Bar
    draw: float


class Outcome(NamedTuple):
    """The account after its order, then after its bar, and what happened to it."""

    account: Account
    order_code: int
    exit_code: int
    funding: float  # paid


class Mark(NamedTuple):
    """The account at the close of the bar."""

    equity: float
    gain: float  # return of this step
    turnover: float  # of this step, times equity
    peak: float
    drawdown: float
    reward: float
