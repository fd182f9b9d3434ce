"""The portfolio environment: K instruments on one grid, one account, one decision per bar.

`docs/portfolio.md` states the rule in words, in the same order as `step` below. Money is float64.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import Column, Float64, Int32, Rule, UInt16
from velodrome.envs.market.episodes import STATISTICS as MARKET_STATISTICS
from velodrome.envs.market.episodes import MarketState, begin_episode, fill_cost, open_account, write_statistics
from velodrome.envs.parameters import params_type
from velodrome.envs.portfolio.config import PortfolioConfig
from velodrome.envs.portfolio.numbers import (
    BANKRUPT_AT,
    BUY_FEE,
    BUY_SAFETY,
    BUYS,
    CASH_RESERVE,
    CASH_UNIT,
    COUNT_NAMES,
    COUNTS,
    CUSTOM,
    DECAY,
    DISCRETE,
    FINAL_DISCOUNT,
    FUNDING,
    HALF_SPREAD,
    HOLDING_UNIT,
    INITIAL_CASH,
    MAX_GROSS,
    MAX_HOLDING,
    MAX_WEIGHT,
    NUMBERS,
    ORDER_SCALE,
    ORDERS,
    POSITION_FLOOR,
    SELL_FEE,
    SELLS,
    SLIPPAGE,
    TRADE_FRACTION,
    TRAILING_STOP,
    WEIGHTS,
    instrument_count,
)
from velodrome.envs.portfolio.orders import (
    CLOSING_PURCHASES,
    CLOSING_SALES,
    DECAYS,
    DUST,
    NOTICED,
    OPENING_SALES,
    PHASES,
    STOPS,
    Book,
    Forced,
    Terms,
    quote_of,
    take_orders,
)
from velodrome.envs.portfolio.rewards import PortfolioAccount, custom_reward, named_reward
from velodrome.envs.portfolio.sizing import size_orders, size_steps, size_weights
from velodrome.envs.ranges import draw_numbers, number
from velodrome.envs.rng import uniform

STATISTICS = (*MARKET_STATISTICS, "trades", "benchmark_return", *COUNT_NAMES)

Params = params_type(
    __name__,
    PortfolioConfig,
    (
        "action", "weighting", "reward", "start", "fill_at", "allow_short", "first_bar_reference",
        "buys_restart_holding", "decay_when_halted", "single_precision", "raw_account", "has_benchmark", "has_stop",
        "counts_positions", "has_halts", "has_quantities", "randomised", "episode_length_low", "episode_length_high",
    ),
)  # fmt: skip


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
    number_low: NDArray[np.float64]  # [N] range of each numeric parameter
    number_high: NDArray[np.float64]  # [N]
    number_whole: NDArray[np.uint8]  # [N]


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
    counts: Annotated[NDArray[np.int32], Column(np.int32, rows=COUNTS)]
    # By instrument, [K, lanes]:
    units: Float64
    entry: Float64  # mean price of the position
    extreme: Float64  # best price since it was opened, if there is a trailing stop
    holding: Int32  # bars since it was opened or traded
    wanted: Float64  # within a step: target weights, then units to buy or sell
    queue: UInt16  # within a phase of a step: the instruments that have an order
    benchmark_units: Float64
    numbers: Float64  # drawn parameters, if any is a range


def state_type(instruments: int, randomised: bool) -> type:
    """Return the State of a basket of so many instruments."""
    columns = {name: Column(np.float64, rows=instruments) for name in ("units", "entry", "extreme", "benchmark_units")}
    columns["holding"] = Column(np.int32, rows=instruments)
    columns["wanted"] = Column(np.float64, rows=instruments, scratch=True)
    columns["queue"] = Column(np.uint16, rows=instruments, scratch=True)
    columns["numbers"] = Column(np.float64, rows=len(NUMBERS) if randomised else 1)
    sized = {name: Annotated[NDArray, column] for name, column in columns.items()}
    return type("State", (State,), {"__annotations__": sized, "__module__": __name__, "__doc__": State.__doc__})


def fee_of(i: int, index: int, value: float, state: Any, tables: Tables, params: Any) -> float:
    """Return the rate of a fee: the parameter, or what the episode's volume so far has reached in the schedule."""
    tiers = tables.tier_volume.size
    if tiers == 0:
        return number(i, index, value, state, params)
    rate = tables.tier_rate[0]
    for tier in range(1, tiers):
        if state.volume[i] >= tables.tier_volume[tier]:
            rate = tables.tier_rate[tier]
    return rate


def reset(i: int, state: Any, tables: Tables, params: Any) -> None:
    """Draw what is drawn per episode, choose the start, and open an account of cash only."""
    if params.randomised:
        draw_numbers(i, state, tables)
    begin_episode(i, state, tables, params)
    cash = number(i, INITIAL_CASH, params.initial_cash, state, params)
    open_account(i, cash, state)
    state.gross[i] = 0.0
    state.largest[i] = 0.0
    state.positions[i] = 0.0
    state.volume[i] = 0.0
    state.running_reward[i] = 0.0
    for k in range(COUNTS):
        state.counts[k, i] = 0
    for k in range(instrument_count(state, tables)):
        state.units[k, i] = 0.0
        state.entry[k, i] = 0.0
        state.extreme[k, i] = 0.0
        state.holding[k, i] = 0
    begin_benchmark(i, cash, state, tables, params)


def begin_benchmark(i: int, cash: float, state: Any, tables: Tables, params: Any) -> None:
    """Buy the same money's worth of every instrument that can be traded, and pay the fee for it."""
    fee = fee_of(i, BUY_FEE, params.buy_fee, state, tables, params)
    share = cash / instrument_count(state, tables)
    left, worth = 0.0, 0.0
    for k in range(instrument_count(state, tables)):
        close = tables.close[state.start[i], k]
        price = tables.first[k] if params.first_bar_reference else close
        listed = params.first_bar_reference | (tables.tradable[state.start[i], k] == 1)
        units = share / (price * (1.0 + fee)) if listed & (price > 0.0) else 0.0
        state.benchmark_units[k, i] = units
        worth += units * close
        if units <= 0.0:
            left += share
    state.benchmark_cash[i] = left
    state.benchmark[i] = left + worth
    state.benchmark_start[i] = left + worth


def terms_of(i: int, draw: float, equity: float, state: Any, tables: Tables, params: Any) -> Terms:
    half_spread = number(i, HALF_SPREAD, params.half_spread, state, params)
    slippage = number(i, SLIPPAGE, params.slippage, state, params)
    safety = 1.0 if params.action == WEIGHTS else number(i, BUY_SAFETY, params.buy_safety, state, params)
    return Terms(
        fee_of(i, BUY_FEE, params.buy_fee, state, tables, params),
        fee_of(i, SELL_FEE, params.sell_fee, state, tables, params),
        fill_cost(half_spread, slippage, draw, 0.0),
        number(i, CASH_RESERVE, params.cash_reserve, state, params) * state.initial[i],
        number(i, MAX_WEIGHT, params.max_weight, state, params),
        number(i, MAX_GROSS, params.max_gross, state, params),
        safety,
        # An original that keeps units in float32 keeps what rounding leaves of them, too.
        0.0 if params.single_precision else DUST * equity,
        NOTICED * equity,
    )


def pay_funding(i: int, bar: int, cash: float, state: Any, tables: Tables, params: Any) -> tuple[float, float]:
    """Return the cash after the holding cost of one bar, and that cost; what cash cannot pay, longs pay in units."""
    rate = number(i, FUNDING, params.funding, state, params)
    if rate <= 0.0:
        return cash, 0.0
    longs, shorts = 0.0, 0.0
    for k in range(instrument_count(state, tables)):
        worth = state.units[k, i] * tables.close[bar, k]
        longs += max(worth, 0.0)
        shorts += max(-worth, 0.0)
    due = rate * (longs + shorts)
    if due <= cash:
        return cash - due, due
    part = min(1.0, (due - cash) / longs) if longs > 0.0 else 0.0
    for k in range(instrument_count(state, tables)):
        if state.units[k, i] > 0.0:
            state.units[k, i] *= 1.0 - part
    return 0.0, cash + part * longs


def size(
    i: int, action: Any, cursor: int, bar: int, terms: Terms, book: Book, state: Any, tables: Tables, params: Any
) -> None:
    """Turn an action into quantities."""
    if params.action == ORDERS:
        scale = number(i, ORDER_SCALE, params.order_scale, state, params)
        size_orders(i, action, scale, state.initial[i], cursor, bar, state, tables, params)
    elif params.action == DISCRETE:
        fraction = number(i, TRADE_FRACTION, params.trade_fraction, state, params)
        size_steps(i, action, fraction, book.equity, cursor, bar, state, tables, params)
    else:
        size_weights(i, action, cursor, bar, terms, book, state, tables, params)


def step(i: int, action: Any, state: Any, tables: Tables, params: Any) -> tuple[float, bool, bool]:
    """Take the orders, let the bar pass, mark the account at its close."""
    cursor, last = state.cursor[i], state.last[i]
    if cursor >= last:
        return 0.0, False, True
    bar = cursor + 1
    before = state.equity[i]
    instruments = instrument_count(state, tables)

    # The account at the quotes of this step's orders.
    draw = uniform(i, state) if number(i, SLIPPAGE, params.slippage, state, params) > 0.0 else 0.0
    worth, gross, longest_held = 0.0, 0.0, 0
    for k in range(instruments):
        units = state.units[k, i]
        value = units * quote_of(k, cursor, bar, tables, params)
        worth += value
        gross += abs(value)
        held = state.holding[k, i] + (units != 0.0)
        state.holding[k, i] = held
        longest_held = max(longest_held, held)
    book = Book(state.cash[i], state.cash[i] + worth, gross, 0.0, 0.0)
    terms = terms_of(i, draw, book.equity, state, tables, params)

    # Stops, sales, decay, purchases: one loop, so that compiled code has one copy of each.
    forced = Forced(
        number(i, TRAILING_STOP, params.trailing_stop, state, params),
        number(i, MAX_HOLDING, params.max_holding, state, params),
        number(i, DECAY, params.decay, state, params),
    )
    for phase in range(PHASES):
        if phase == STOPS:
            due = forced.stop > 0.0
        elif phase == DECAYS:
            due = (forced.longest > 0.0) & (longest_held >= forced.longest)
        elif (phase == CLOSING_PURCHASES) | (phase == OPENING_SALES):
            due = params.allow_short & (book.equity > 0.0)
        else:
            due = book.equity > 0.0
        if not due:
            continue
        if phase == CLOSING_SALES:
            size(i, action, cursor, bar, terms, book, state, tables, params)
        book = take_orders(i, phase, cursor, bar, forced, terms, book, state, tables, params)

    # The bar, and the mark at its close.
    cash, paid = pay_funding(i, bar, book.cash, state, tables, params)
    worth, gross, largest = 0.0, 0.0, 0.0
    benchmark = state.benchmark_cash[i] if params.has_benchmark else state.benchmark[i]
    for k in range(instruments):
        units, close = state.units[k, i], tables.close[bar, k]
        value = units * close
        worth += value
        gross += abs(value)
        largest = max(largest, abs(value))
        if params.has_benchmark:
            benchmark += state.benchmark_units[k, i] * close
        if params.has_stop:
            best = state.extreme[k, i]
            state.extreme[k, i] = max(best, close) if units > 0.0 else min(best, close) if units < 0.0 else 0.0
    after = cash + worth
    positions = 0.0
    if params.counts_positions & (after > 0.0):
        floor = number(i, POSITION_FLOOR, params.position_floor, state, params) * after
        for k in range(instruments):
            positions += 1.0 if abs(state.units[k, i]) * tables.close[bar, k] > floor else 0.0
    turnover = book.traded / before if before > 0.0 else 0.0
    peak = max(state.peak[i], after)
    drawdown = 1.0 - after / peak if after < peak else 0.0

    # The reward and the end.
    initial = state.initial[i]
    old = PortfolioAccount(
        before, state.cash[i], state.gross[i], state.largest[i], state.positions[i], state.benchmark[i], state.peak[i],
        initial, 0.0, 0.0,
    )  # fmt: skip
    new = PortfolioAccount(
        after, cash, gross / after if after > 0.0 else 0.0, largest / after if after > 0.0 else 0.0, positions,
        benchmark, peak, initial, turnover, book.fees,
    )  # fmt: skip
    if params.reward == CUSTOM:
        reward = custom_reward(old, new)
    else:
        left = min(max(1.0 - (bar - state.start[i]) * state.per_bar[i], 0.0), 1.0)
        reward = named_reward(i, old, new, left, max(0.0, terms.reserve - cash), bar, state, tables, params)
    terminated = after < number(i, BANKRUPT_AT, params.bankrupt_at, state, params) * initial
    truncated = bar >= last
    discount = number(i, FINAL_DISCOUNT, params.final_discount, state, params)
    if discount > 0.0:
        running = discount * state.running_reward[i] + reward
        state.running_reward[i] = running
        if terminated or truncated:
            reward = running

    # The books.
    gain = after / before - 1.0 if before > 0.0 else 0.0
    state.cursor[i] = bar
    state.volume[i] += book.traded
    state.fees[i] += book.fees
    state.funding[i] += paid
    state.turnover[i] += turnover
    state.reward_sum[i] += reward
    state.return_sum[i] += gain
    state.return_square_sum[i] += gain * gain
    state.worst_drawdown[i] = max(state.worst_drawdown[i], drawdown)
    state.benchmark[i] = benchmark
    state.peak[i] = peak
    state.gross[i] = new.gross
    state.largest[i] = new.largest
    state.positions[i] = positions
    state.cash[i] = cash
    state.equity[i] = after
    state.drawdown[i] = drawdown
    return reward, terminated, truncated


def observe(i: int, state: Any, tables: Tables, params: Any, out: NDArray[np.float32]) -> None:
    """Write the account at the close of the cursor's row."""
    instruments = instrument_count(state, tables)
    cursor, cash, equity = state.cursor[i], state.cash[i], state.equity[i]
    if params.raw_account:
        out[0] = cash * number(i, CASH_UNIT, params.cash_unit, state, params)
        for k in range(instruments):
            out[1 + k] = state.units[k, i] * number(i, HOLDING_UNIT, params.holding_unit, state, params)
        return
    out[0] = cash / equity if equity > 0.0 else 0.0
    for k in range(instruments):
        units = state.units[k, i]
        weight, gain = 0.0, 0.0
        if units != 0.0:
            close, entry = tables.close[cursor, k], state.entry[k, i]
            weight = units * close / equity if equity > 0.0 else 0.0
            if entry > 0.0:
                gain = (close - entry) / entry if units > 0.0 else (entry - close) / entry
        out[1 + k] = weight
        out[1 + instruments + k] = gain
        out[1 + 2 * instruments + k] = state.holding[k, i]
    out[1 + 3 * instruments] = state.drawdown[i]
    out[2 + 3 * instruments] = (state.last[i] - cursor) * state.per_bar[i]


def finish(i: int, state: Any, tables: Tables, params: Any, out: NDArray[np.float64]) -> None:
    """Write the statistics of the episode, in the order of STATISTICS."""
    write_statistics(i, state, out)
    out[8] = state.counts[BUYS, i] + state.counts[SELLS, i]
    benchmark = state.benchmark_cash[i]
    for k in range(instrument_count(state, tables)):
        benchmark += state.benchmark_units[k, i] * tables.close[state.cursor[i], k]
    out[9] = benchmark / state.benchmark_start[i] - 1.0
    for k in range(COUNTS):
        out[10 + k] = state.counts[k, i]


RULE = Rule(reset, step, observe, finish)
