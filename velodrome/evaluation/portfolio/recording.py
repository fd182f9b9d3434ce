"""A portfolio world that also notes what each step traded, by instrument and side: the same rule, three names replaced.

Within a step an instrument may be sold by its stop and bought again by an order, so the change of its units does not
tell what was traded. `trade`, `is_stopped` and `decays` of the rule are called as always, and record more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import Column, Float64, World
from velodrome.envs.portfolio.orders import decays as decays_in_the_rule
from velodrome.envs.portfolio.orders import is_stopped as is_stopped_in_the_rule
from velodrome.envs.portfolio.orders import trade as trade_of_the_rule
from velodrome.envs.portfolio.state import Book, Costs

BY_ORDER, BY_STOP, BY_DECAY = 0, 1, 2  # what sold a position, in `forced`

# Columns of several rows, [K, lanes], each about the last step; the reader empties them.
NOTED = ("bought", "sold", "buy_fees", "sell_fees", "spread", "forced")


def noted_trade(i: int, k: int, change: float, quote: float, costs: Costs, book: Book, state: Any, params: Any) -> Book:
    """Trade as the rule does, and note units, fees and the distance of the fill from the quote."""
    size = abs(change)
    distance = size * quote * costs.cost
    if change > 0.0:
        state.bought[k, i] += size
        state.buy_fees[k, i] += size * quote * (1.0 + costs.cost) * costs.buy_fee
    else:
        state.sold[k, i] += size
        state.sell_fees[k, i] += size * quote * (1.0 - costs.cost) * costs.sell_fee
    state.spread[k, i] += distance
    state.spread_sum[i] += distance
    state.fills[i] += 1.0
    return trade_of_the_rule(i, k, change, quote, costs, book, state, params)


def noted_stop(i: int, k: int, quote: float, distance: float, state: Any) -> bool:
    """Stop as the rule does, and note it."""
    stopped = is_stopped_in_the_rule(i, k, quote, distance, state)
    if stopped:
        state.forced[k, i] = BY_STOP
    return stopped


def noted_decay(i: int, k: int, longest: float, state: Any) -> bool:
    """Find what was held for too long, as the rule does, and note it."""
    due = decays_in_the_rule(i, k, longest, state)
    if due:
        state.forced[k, i] = BY_DECAY
    return due


def recording_world(world: World, instruments: int) -> World:
    """Return a portfolio world whose state has the columns of NOTED, and the sums `spread_sum` and `fills`."""
    columns: dict[str, Any] = {
        name: Annotated[NDArray, Column(np.int32 if name == "forced" else np.float64, rows=instruments)]
        for name in NOTED
    }
    columns |= {"spread_sum": Float64, "fills": Float64}
    state_type = type(
        "State", (world.state_type,), {"__annotations__": columns, "__module__": __name__, "__doc__": "With notes."}
    )
    noting: dict[str, Callable] = {"trade": noted_trade, "is_stopped": noted_stop, "decays": noted_decay}
    params = world.params._replace(counts_positions=True)
    return replace(world, state_type=state_type, params=params, substitutions={**world.substitutions, **noting})
