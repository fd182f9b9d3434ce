"""Rewards of a portfolio: by name, with penalties, or a user's own."""

from __future__ import annotations

from typing import Any, NamedTuple

from velodrome.envs.market.episodes import log_return
from velodrome.envs.portfolio.numbers import (
    CASH_FLOOR,
    CASH_WEIGHT,
    CONCENTRATION_LIMIT,
    CONCENTRATION_PENALTY,
    EVENNESS_BONUS,
    EVENNESS_LIMIT,
    EXCESS,
    EXCESS_WEIGHT,
    FEW_POSITIONS_PENALTY,
    LOG_RETURN,
    MIN_POSITIONS,
    POSITION_FLOOR,
    RETURN_WEIGHT,
    SHORTFALL_PENALTY,
    TIME_DECAY_FLOOR,
    TURNOVER_PENALTY,
    instrument_count,
)
from velodrome.envs.ranges import number


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
    i: int, old: PortfolioAccount, new: PortfolioAccount, left: float, shortfall: float, bar: int, state: Any,
    tables: Any, params: Any,
) -> float:  # fmt: skip
    """Return a named reward with its penalties; `left` is the part of the episode that is still to come."""
    gain = new.equity - old.equity
    market = new.benchmark - old.benchmark
    if params.reward == LOG_RETURN:
        reward = log_return(new.equity / old.equity, old.equity) if old.equity > 0.0 else 0.0
    elif params.reward == EXCESS:
        reward = (gain - market) / new.initial
    else:
        fade = max(left, number(i, TIME_DECAY_FLOOR, params.time_decay_floor, state, params))
        reward = number(i, EXCESS_WEIGHT, params.excess_weight, state, params) * (gain - market) / new.initial * fade
        reward += number(i, RETURN_WEIGHT, params.return_weight, state, params) * gain / new.initial * fade
        share = new.cash / new.equity if new.equity > 0.0 else 0.0
        floor = number(i, CASH_FLOOR, params.cash_floor, state, params)
        if (market < 0.0) & (share > floor) & (old.benchmark > 0.0):
            weight = number(i, CASH_WEIGHT, params.cash_weight, state, params)
            reward += weight * (-market / old.benchmark) * share
    reward -= number(i, TURNOVER_PENALTY, params.turnover_penalty, state, params) * new.turnover
    reward -= number(i, SHORTFALL_PENALTY, params.shortfall_penalty, state, params) * shortfall / new.initial
    limit = number(i, CONCENTRATION_LIMIT, params.concentration_limit, state, params)
    penalty = number(i, CONCENTRATION_PENALTY, params.concentration_penalty, state, params)
    reward -= penalty * max(0.0, new.largest - limit)
    fewest = number(i, MIN_POSITIONS, params.min_positions, state, params)
    penalty = number(i, FEW_POSITIONS_PENALTY, params.few_positions_penalty, state, params)
    reward -= penalty * max(0.0, fewest - new.positions)
    bonus = number(i, EVENNESS_BONUS, params.evenness_bonus, state, params)
    if (bonus > 0.0) & (new.positions >= fewest) & (new.positions > 0.0):
        limit = number(i, EVENNESS_LIMIT, params.evenness_limit, state, params)
        reward += bonus * max(0.0, limit - gini(i, bar, new, state, tables, params))
    return reward


def gini(i: int, bar: int, account: PortfolioAccount, state: Any, tables: Any, params: Any) -> float:
    """Return the Gini coefficient of the weights of positions that count: 0 if all are equal.

    The place of each among the others is counted instead of sorting, which needs memory: K² comparisons.
    """
    floor = number(i, POSITION_FLOOR, params.position_floor, state, params)
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
