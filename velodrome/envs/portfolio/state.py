"""What the portfolio rule works on: its parameters and tables, the state between steps, and what a step hands on."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import LOCKSTEP, Column, Float64, Int32, UInt16
from velodrome.envs.market.account import STATISTICS as MARKET_STATISTICS
from velodrome.envs.market.account import MarketState
from velodrome.envs.portfolio import codes
from velodrome.envs.portfolio.config import PortfolioConfig, Terms
from velodrome.envs.terms import params_type

STATISTICS = (*MARKET_STATISTICS, "trades", "benchmark_return", *codes.COUNT_NAMES)

CHOICES = (
    *("action", "weighting", "reward", "start", "fill_at", "allow_short", "first_bar_reference"),
    *("buys_restart_holding", "decay_when_halted", "single_precision", "raw_account", "has_benchmark", "has_stop"),
    *("counts_positions", "has_halts", "has_quantities", "randomised", "episode_length_low", "episode_length_high"),
)
Params = params_type(__name__, PortfolioConfig, CHOICES)


class Tables(NamedTuple):
    """Read-only arrays; T rows of the grid, K instruments, N numeric parameters."""

    open: NDArray[np.float64]  # [T, K]
    close: NDArray[np.float64]  # [T, K]
    tradable: NDArray[np.uint8]  # [T, K]
    first: NDArray[np.float64]  # [K] close of the first row
    begin: NDArray[np.int64]  # [1] first row of a decision
    end: NDArray[np.int64]  # [1] one past the last row
    min_quantity: NDArray[np.float64]  # [K] units
    lot: NDArray[np.float64]  # [K] units
    tier_volume: NDArray[np.float64]  # [tiers] from which each rate holds
    tier_rate: NDArray[np.float64]  # [tiers]
    ranges: NDArray[np.float64]  # [N, 3] low, high, and 1 for whole numbers only, of each numeric parameter


class State(MarketState):
    """One column per value, one entry per environment; `state_type` adds the columns whose size depends on K."""

    gross: Float64  # Σ |weights|
    largest: Float64  # |weight|
    positions: Float64  # weights above `position_floor`, where the reward asks for them
    benchmark: Float64  # equity of the equal-weight account, kept up where the reward asks for it
    benchmark_start: Float64
    benchmark_cash: Float64  # of instruments that could not be bought at the start
    volume: Float64  # traded notional
    running_reward: Float64  # discounted by `final_discount`
    counts: Annotated[NDArray[np.int32], Column(np.int32, rows=codes.COUNTS)]
    # By instrument, [K, lanes]:
    units: Float64
    entry: Float64  # mean price of the position
    extreme: Float64  # best price since it was opened, if there is a trailing stop
    holding: Int32  # bars since it was opened or traded
    wanted: Float64  # within a step: target weights, then units to buy or sell
    queue: UInt16  # within a phase of a step: the instruments that have an order
    benchmark_units: Float64
    drawn: Float64  # the episode's numeric parameters, if any of them is a range


def state_type(instruments: int, randomised: bool) -> type:
    """Return the State of a basket with this number of instruments."""
    columns = {name: Column(np.float64, rows=instruments) for name in ("units", "entry", "extreme", "benchmark_units")}
    columns["holding"] = Column(np.int32, rows=instruments)
    columns["wanted"] = Column(np.float64, rows=instruments, scratch=True)
    columns["queue"] = Column(np.uint16, rows=instruments, scratch=True)
    columns["drawn"] = Column(np.float64, rows=len(Terms._fields) if randomised else 1)
    sized = {name: Annotated[NDArray, column] for name, column in columns.items()}
    return type("State", (State,), {"__annotations__": sized, "__module__": __name__, "__doc__": State.__doc__})


class Moment(NamedTuple):
    """The rows of the grid that a step leads from and to."""

    cursor: int  # observed last
    bar: int


class Costs(NamedTuple):
    """What trading costs in this step, what limits it, and what is sold whatever the action says."""

    buy_fee: float
    sell_fee: float
    cost: float  # spread and slippage, a fraction of the quote
    reserve: float  # cash that buying may not touch
    max_weight: float
    max_gross: float
    safety: float  # part of the cash that one purchase may take
    dust: float  # money: what is worth no more is neither bought nor left over
    noticed: float  # money: an order that loses no more was not cut but rounded
    trailing_stop: float  # distance; 0: none
    max_holding: float  # bars without a trade after which positions decay; 0: never
    decay: float  # share of a position
    decays: bool  # whether any position was held for `max_holding` bars


class Book(NamedTuple):
    """The account within a step, valued at the quotes of its orders."""

    cash: float
    equity: float
    gross: float  # Σ |units · quote|
    fees: float  # of this step
    traded: float  # notional of this step


def instrument_count(state: Any, tables: Any) -> int:
    """Return K: on a CPU a constant of the compiled code; on a GPU, unrolled loops of that length would be slower."""
    return tables.lot.size if LOCKSTEP else len(state.units)
