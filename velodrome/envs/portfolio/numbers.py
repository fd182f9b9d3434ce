"""Positions of the portfolio's numeric parameters in its state, and the names of what is counted."""

from __future__ import annotations

from typing import Any

from velodrome.envs.contract import LOCKSTEP
from velodrome.envs.parameters import number_names, number_places
from velodrome.envs.portfolio.config import PortfolioConfig

NUMBERS = number_names(PortfolioConfig)
(
    INITIAL_CASH, BUY_FEE, SELL_FEE, HALF_SPREAD, SLIPPAGE, FUNDING, CASH_RESERVE, MAX_WEIGHT, MAX_GROSS,
    TRAILING_STOP, MAX_HOLDING, DECAY, SOFTMAX_SCALE, ORDER_SCALE, TRADE_FRACTION, BUY_SAFETY, BANKRUPT_AT,
    TURNOVER_PENALTY, CONCENTRATION_PENALTY, CONCENTRATION_LIMIT, FEW_POSITIONS_PENALTY, MIN_POSITIONS,
    POSITION_FLOOR, EVENNESS_BONUS, EVENNESS_LIMIT, SHORTFALL_PENALTY, EXCESS_WEIGHT, RETURN_WEIGHT, CASH_WEIGHT,
    CASH_FLOOR, TIME_DECAY_FLOOR, FINAL_DISCOUNT, CASH_UNIT, HOLDING_UNIT,
) = number_places(NUMBERS)  # fmt: skip

# What became of orders, counted per episode. A purchase or a sale counts once, whatever made it.
COUNT_NAMES = (
    "buys", "sells", "refused_untradable", "dropped_minimum", "cut_cash", "cut_limit", "stopped", "decayed",
)  # fmt: skip
BUYS, SELLS, REFUSED_UNTRADABLE, DROPPED_MINIMUM, CUT_CASH, CUT_LIMIT, STOPPED, DECAYED = range(len(COUNT_NAMES))
COUNTS = len(COUNT_NAMES)

WEIGHTS, ORDERS, DISCRETE = 0, 1, 2  # action kinds
SOFTMAX, SIMPLEX, SIGNED = 0, 1, 2  # weightings
NEXT_OPEN, CLOSE, NEXT_CLOSE = 0, 1, 2  # fills
LOG_RETURN, EXCESS, BLEND, CUSTOM = 0, 1, 2, 3  # rewards


def instrument_count(state: Any, tables: Any) -> int:
    """Return K: on a CPU a constant of the compiled code; on a GPU loops of so many unrolled steps would be slower."""
    return tables.lot.size if LOCKSTEP else len(state.units)
