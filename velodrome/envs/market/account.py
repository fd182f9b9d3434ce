"""An account that lives on bars, for every environment on a market: its columns, the cost of fills, statistics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import Float64, Int32, UInt64
from velodrome.tables.logarithm import logarithm_of_growth

WORST_COST = 0.99  # a fill has a price above zero, whatever spread and slippage add up to

# What every episode on a market ends with, in the order of `write_statistics`; an environment adds its own.
STATISTICS = ("reward", "return", "length", "fees", "turnover", "funding", "sharpe", "max_drawdown")


class MarketState:
    """The columns of an account that lives on bars, one entry per environment."""

    rng_key: UInt64
    rng_counter: UInt64
    cursor: Int32  # the bar that was observed last
    start: Int32  # the episode's first bar
    last: Int32  # the episode's last bar
    next_start: Int32  # start and last bar that reset() was asked for; −1: none
    next_last: Int32
    episode: Int32  # begun since seeding, from the environment's place on; with start="first" the place alone
    per_bar: Float64  # 1 / bars of the episode
    cash: Float64
    equity: Float64  # at the close of the cursor's bar
    initial: Float64
    peak: Float64
    drawdown: Float64  # from the peak, at that close
    reward_sum: Float64
    return_sum: Float64
    return_square_sum: Float64
    fees: Float64
    funding: Float64
    turnover: Float64
    worst_drawdown: Float64


def open_account(i: int, cash: float, state: Any) -> None:
    """Open the books of an episode with nothing but cash."""
    state.per_bar[i] = 1.0 / max(1, state.last[i] - state.start[i])
    state.cash[i] = cash
    state.equity[i] = cash
    state.initial[i] = cash
    state.peak[i] = cash
    state.drawdown[i] = 0.0
    state.reward_sum[i] = 0.0
    state.return_sum[i] = 0.0
    state.return_square_sum[i] = 0.0
    state.fees[i] = 0.0
    state.funding[i] = 0.0
    state.turnover[i] = 0.0
    state.worst_drawdown[i] = 0.0


def write_statistics(i: int, state: Any, out: NDArray[np.float64]) -> None:
    """Write what STATISTICS names into the first places of `out`."""
    length = state.cursor[i] - state.start[i]
    out[0] = state.reward_sum[i]
    out[1] = state.equity[i] / state.initial[i] - 1.0
    out[2] = length
    out[3] = state.fees[i]
    out[4] = state.turnover[i]
    out[5] = state.funding[i]
    out[6] = sharpe_ratio(state.return_sum[i], state.return_square_sum[i], max(1, length))
    out[7] = state.worst_drawdown[i]


def fill_cost(half_spread: float, slippage: float, draw: float, further: float) -> float:
    """Return how much worse than the quote a fill is, as a fraction of it."""
    return min(half_spread + slippage * draw + further, WORST_COST)


def log_return(growth: float, before: float) -> float:
    """Return the logarithm of equity after over equity before; −10 for a ruin."""
    if before <= 0.0:
        return 0.0
    return logarithm_of_growth(growth) if growth > 0.0 else -10.0


def sharpe_ratio(return_sum: float, square_sum: float, bars: int) -> float:
    """Return mean over deviation of the returns of an episode, given their sums."""
    mean = return_sum / bars
    variance = square_sum / bars - mean * mean
    # Rounding leaves a constant series a variance of about 1e-17 of its squared mean.
    return mean / math.sqrt(variance) if variance > 1e-14 * mean * mean else 0.0
