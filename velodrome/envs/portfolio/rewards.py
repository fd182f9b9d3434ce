"""Rewards of a portfolio: by name, with penalties, or a user's own."""

from __future__ import annotations

from typing import Any, NamedTuple

from velodrome.envs.market.account import log_return
from velodrome.envs.portfolio import codes
from velodrome.envs.portfolio.state import instrument_count


class PortfolioAccount(NamedTuple):
    """What a reward sees of the account before and after a step."""

    equity: float
    cash: float
    gross: float  # Σ |weights|
    largest: float  # |weight|
    positions: float  # weights above `position_floor`
    benchmark: float  # equity of the equal-weight account that bought at the start and held
    peak: float
    initial: float
    turnover: float  # of this step, times equity; 0 before it
    fees: float  # of this step; 0 before it


def custom_reward(old: PortfolioAccount, new: PortfolioAccount) -> float:
    """Stand in for the user's function, which takes this name's place when the rule is assembled."""
    return new.equity / old.equity - 1.0


def named_reward(
    i: int, old: PortfolioAccount, new: PortfolioAccount, bar: int, terms: Any, state: Any, tables: Any, params: Any
) -> float:
    """Return a named reward with its penalties."""
    gain = new.equity - old.equity
    market = new.benchmark - old.benchmark
    if params.reward == codes.LOG_RETURN:
        reward = log_return(new.equity / old.equity, old.equity) if old.equity > 0.0 else 0.0
    elif params.reward == codes.EXCESS:
        reward = (gain - market) / new.initial
    else:
        left = min(max(1.0 - (bar - state.start[i]) * state.per_bar[i], 0.0), 1.0)
        fade = max(left, terms.time_decay_floor)
        reward = terms.excess_weight * (gain - market) / new.initial * fade
        reward += terms.return_weight * gain / new.initial * fade
        share = new.cash / new.equity if new.equity > 0.0 else 0.0
        if (market < 0.0) & (share > terms.cash_floor) & (old.benchmark > 0.0):
            reward += terms.cash_weight * (-market / old.benchmark) * share
    reward -= terms.turnover_penalty * new.turnover
    shortfall = max(0.0, terms.cash_reserve * new.initial - new.cash)
    reward -= terms.shortfall_penalty * shortfall / new.initial
    reward -= terms.concentration_penalty * max(0.0, new.largest - terms.concentration_limit)
    reward -= terms.few_positions_penalty * max(0.0, terms.min_positions - new.positions)
    if (terms.evenness_bonus > 0.0) & (new.positions >= terms.min_positions) & (new.positions > 0.0):
        uneven = gini(i, bar, terms.position_floor, new, state, tables)
        reward += terms.evenness_bonus * max(0.0, terms.evenness_limit - uneven)
    return reward


def gini(i: int, bar: int, floor: float, account: PortfolioAccount, state: Any, tables: Any) -> float:
    """Return the Gini coefficient of the weights of positions that count: 0 if all are equal.

    The place of each among the others is counted instead of sorting, which needs memory: K² comparisons.
    """
    instruments = instrument_count(state, tables)
    by_place, total = 0.0, 0.0
    for k in range(instruments):
        weight = abs(state.units[k, i]) * tables.close[bar, k] / account.equity
        if weight > floor:
            place = 1.0
            for j in range(instruments):
                other = abs(state.units[j, i]) * tables.close[bar, j] / account.equity
                if (other > floor) & ((other < weight) | ((other == weight) & (j < k))):
                    place += 1.0
            by_place += place * weight
            total += weight
    count = account.positions
    return 2.0 * by_place / (count * total) - (count + 1.0) / count
