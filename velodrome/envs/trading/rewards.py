"""Rewards of the trading environment: by name, or a user's own."""

from __future__ import annotations

import math
from typing import Any

from velodrome.envs.market.account import log_return
from velodrome.envs.trading import codes
from velodrome.envs.trading.account import RewardAccount


def custom_reward(old: RewardAccount, new: RewardAccount) -> float:
    """Stand in for the user's function, which takes this name's place when the rule is assembled."""
    return new.equity / old.equity - 1.0


def differential_sharpe(i: int, gain: float, decay: float, state: Any) -> float:
    """Return Moody and Saffell's differential Sharpe ratio of one return and update its moving averages."""
    mean, square = state.sharpe_mean[i], state.sharpe_square[i]
    variance = square - mean * mean
    ratio = 0.0
    if variance > 1e-12:
        ratio = (square * (gain - mean) - 0.5 * mean * (gain * gain - square)) / (variance * math.sqrt(variance))
    state.sharpe_mean[i] = mean + decay * (gain - mean)
    state.sharpe_square[i] = square + decay * (gain * gain - square)
    return ratio


def named_reward(
    i: int, growth: float, before: float, drawdown: float, exhausted: bool, terms: Any, state: Any, params: Any
) -> float:
    """Return a named reward; `growth` is equity after over equity `before`, `drawdown` the one after.

    In an exhausted episode nothing has changed, and all rewards are 0; the one with a memory must not learn from it.
    """
    if params.reward == codes.LOG_RETURN:
        return log_return(growth, before)
    if params.reward == codes.DRAWDOWN:
        return log_return(growth, before) - terms.drawdown_penalty * max(0.0, drawdown - state.drawdown[i])
    gain = growth - 1.0 if before > 0.0 else 0.0
    if params.reward == codes.DIFFERENTIAL_SHARPE and not exhausted:
        return differential_sharpe(i, gain, terms.sharpe_decay, state)
    return gain
