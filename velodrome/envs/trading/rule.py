"""The trading environment: one instrument, one account, one decision per execution bar.

`docs/trading.md` states the rule in words, in the same order as `step` below. Money is float64.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import Column, Float64, Int8, Int32, Int64, Rule, increment
from velodrome.envs.market.episodes import STATISTICS as MARKET_STATISTICS
from velodrome.envs.market.episodes import (
    MarketState,
    begin_episode,
    fill_cost,
    log_return,
    open_account,
    write_statistics,
)
from velodrome.envs.parameters import number_names, number_places, params_type
from velodrome.envs.ranges import draw_numbers, number
from velodrome.envs.rng import uniform
from velodrome.envs.trading.account import (
    CLOSE,
    CLOSED_POSITION,
    CODE_NAMES,
    CODES,
    COUNT_MASK,
    DROPPED,
    EXHAUSTED,
    FRACTIONAL,
    HELD_BAND,
    HELD_SAME,
    HOLD,
    IGNORED,
    LIQUIDATED,
    LOCKED,
    NONE,
    REFUSED_COOLDOWN,
    REFUSED_TURNOVER,
    SESSION_CLOSED,
    WON_POSITION,
    Account,
    Terms,
    equity_at,
    liquidation_fill,
    liquidation_price,
    order_bracket,
    order_level,
    play_bar,
    realise,
    with_cash,
)
from velodrome.envs.trading.config import TradingConfig

LEVELS, CONTINUOUS, BRACKETS = 0, 1, 2  # action kinds
LOG_RETURN, RETURN, DIFFERENTIAL_SHARPE, DRAWDOWN, CUSTOM = 0, 1, 2, 3, 4  # rewards
OPEN_PRICE, HIGH_PRICE, LOW_PRICE, CLOSE_PRICE = 0, 1, 2, 3  # columns of Tables.ohlc

NUMBERS = number_names(TradingConfig)  # their positions in State.numbers, by name:
(
    INITIAL_CASH, FEE, HALF_SPREAD, SLIPPAGE, SLIPPAGE_ATR, FUNDING, LEVERAGE, MAINTENANCE_MARGIN, BANKRUPT_AT,
    REBALANCE_BAND, MIN_TRADE, POSITION_FRACTION, QUANTITY_PER_TRADE, COOLDOWN, TURNOVER_CAP, MAX_DRAWDOWN,
    DAILY_DRAWDOWN, TURNOVER_PENALTY, DRAWDOWN_PENALTY, SHARPE_DECAY,
) = number_places(NUMBERS)  # fmt: skip
STATISTICS = (*MARKET_STATISTICS, "trades", "win_rate", "liquidations", *CODE_NAMES)
TORCHTRADE_VALUES = ("exposure", "direction", "unrealised_return", "bars_held", "leverage", "liquidation_distance")
ACCOUNT_VALUES = (*TORCHTRADE_VALUES, "drawdown", "episode_left")
BRACKET_VALUES = (*ACCOUNT_VALUES, "stop_distance", "target_distance")

Params = params_type(
    __name__,
    TradingConfig,
    (
        "action", "reward", "trade_mode", "start", "fill_at_close", "allow_short", "hold_on_same_action",
        "lock_position", "flat_at_session_end", "perpetual_funding", "funding_from_data", "randomised", "observed",
        "episode_length_low", "episode_length_high", "margin", "sizing",
    ),
)  # fmt: skip


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
    number_low: NDArray[np.float64]  # [N] range of each numeric parameter
    number_high: NDArray[np.float64]  # [N]
    number_whole: NDArray[np.uint8]  # [N]


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
    code_counts: Annotated[NDArray[np.int32], Column(np.int32, rows=CODES)]
    numbers: Annotated[
        NDArray[np.float64], Column(np.float64, rows=len(NUMBERS))
    ]  # drawn parameters, if any is a range


class RewardAccount(NamedTuple):
    """What a user's reward sees of the account before and after a step."""

    equity: float
    cash: float
    units: float
    entry: float
    price: float
    peak: float
    initial: float
    turnover: float  # of this step, times equity; 0 before it
    fees: float  # of this step; 0 before it


def custom_reward(old: RewardAccount, new: RewardAccount) -> float:
    """Stand in for the user's function, which takes this name's place when the rule is assembled."""
    return new.equity / old.equity - 1.0


# Orders


def take_order(
    i: int, action: Any, level: float, previous: float, quote: float, cost: float, gated: int, account: Account,
    terms: Terms, state: State, tables: Tables, params: Any,
) -> tuple[Account, int]:  # fmt: skip
    """Carry out the action of environment i; `gated` is the code of a refusal, or NONE."""
    must_be_flat = False
    if params.fill_at_close and params.flat_at_session_end:
        must_be_flat = tables.session_last[state.cursor[i]] == 1
    if params.action == BRACKETS:
        index = int(action)
        side = tables.side[index]
        if account.units != 0.0 and params.lock_position:
            return account, LOCKED
        if side == HOLD or (side == CLOSE and account.units == 0.0):
            return account, NONE
        if side != CLOSE and side * account.units > 0.0:
            return account, IGNORED
        if gated != NONE:
            return account, gated
        if must_be_flat:
            if account.units == 0.0:
                return account, NONE
            side = CLOSE
        size = number(i, POSITION_FRACTION, params.position_fraction, state, params)
        if params.trade_mode != FRACTIONAL:
            size = number(i, QUANTITY_PER_TRADE, params.quantity_per_trade, state, params)
        stop, target = tables.stop[index], tables.target[index]
        return order_bracket(side, stop, target, quote, cost, size, params.trade_mode, account, terms)

    if params.hold_on_same_action and ((account.units != 0.0) & (level == previous)):
        return account, HELD_SAME
    if gated != NONE and ((level != 0.0) | (account.units != 0.0)):
        return account, gated
    state.previous_level[i] = level
    if must_be_flat | ((level < 0.0) & (not params.allow_short)):
        level = 0.0
    band = number(i, REBALANCE_BAND, params.rebalance_band, state, params)
    floor = number(i, MIN_TRADE, params.min_trade, state, params)
    return order_level(level, quote, cost, band, floor, account, terms)


# Rewards


def differential_sharpe(i: int, gain: float, decay: float, state: State) -> float:
    """Return Moody and Saffell's differential Sharpe ratio of one return and update its moving averages."""
    mean, square = state.sharpe_mean[i], state.sharpe_square[i]
    variance = square - mean * mean
    ratio = 0.0
    if variance > 1e-12:
        ratio = (square * (gain - mean) - 0.5 * mean * (gain * gain - square)) / (variance * math.sqrt(variance))
    state.sharpe_mean[i] = mean + decay * (gain - mean)
    state.sharpe_square[i] = square + decay * (gain * gain - square)
    return ratio


def built_in_reward(
    i: int, exhausted: bool, growth: float, before: float, drawdown: float, state: State, params: Any
) -> float:
    """Return a named reward; `growth` is equity after over equity `before`, `drawdown` the one after.

    In an exhausted episode nothing has changed, and all of them are 0 but the one that has a memory.
    """
    if params.reward == LOG_RETURN:
        return log_return(growth, before)
    if params.reward == DRAWDOWN:
        weight = number(i, DRAWDOWN_PENALTY, params.drawdown_penalty, state, params)
        return log_return(growth, before) - weight * max(0.0, drawdown - state.drawdown[i])
    gain = growth - 1.0 if before > 0.0 else 0.0
    if params.reward == DIFFERENTIAL_SHARPE and not exhausted:
        return differential_sharpe(i, gain, number(i, SHARPE_DECAY, params.sharpe_decay, state, params), state)
    return gain


# The rule


def reset(i: int, state: State, tables: Tables, params: Any) -> None:
    """Draw what is drawn per episode, choose the start, and open a flat account."""
    if params.randomised:
        draw_numbers(i, state, tables)
    begin_episode(i, state, tables, params)
    cash = number(i, INITIAL_CASH, params.initial_cash, state, params)
    open_account(i, cash, state)
    state.price[i] = tables.ohlc[state.start[i], CLOSE_PRICE]
    state.session_equity[i] = cash
    margin = 1.0 / number(i, LEVERAGE, params.leverage, state, params)
    state.margin[i] = margin
    state.sizing[i] = 1.0 / (margin + number(i, FEE, params.fee, state, params))
    state.units[i] = 0.0
    state.entry[i] = 0.0
    state.stop[i] = 0.0
    state.target[i] = 0.0
    state.previous_level[i] = np.nan
    state.held[i] = 0
    state.cooldown_left[i] = 0
    state.session_turnover[i] = 0.0
    state.sharpe_mean[i] = 0.0
    state.sharpe_square[i] = 0.0
    state.events[i] = 0
    state.order_code[i] = NONE
    state.exit_code[i] = NONE
    for k in range(CODES):
        state.code_counts[k, i] = 0


def trading_cost(i: int, price: float, draw: float, state: State, tables: Tables, params: Any) -> float:
    """Return how much worse than `price` a fill is, as a fraction: spread, slippage, and slippage by ATR."""
    half_spread = number(i, HALF_SPREAD, params.half_spread, state, params)
    slippage = number(i, SLIPPAGE, params.slippage, state, params)
    by_range = number(i, SLIPPAGE_ATR, params.slippage_atr, state, params)
    further = by_range * tables.atr[state.cursor[i]] / price if by_range > 0.0 else 0.0
    return fill_cost(half_spread, slippage, draw, further)


def funding_paid(
    i: int, bar: int, account: Account, price: float, terms: Terms, state: State, tables: Tables, params: Any
) -> float:
    """Return what a holder pays for one bar: never more than the account is worth; below zero it is received."""
    rate = tables.funding[bar] if params.funding_from_data else number(i, FUNDING, params.funding, state, params)
    due = rate * price * (account.units if params.perpetual_funding else abs(account.units))
    return due if due <= 0.0 else min(due, max(0.0, equity_at(account, price, terms)))


def step(i: int, action: Any, state: State, tables: Tables, params: Any) -> tuple[float, bool, bool]:
    """Take the order, play the next bar, mark the account at its close."""
    # Everything is read before anything is written: a GPU then waits for its memory once and not at every line.
    cursor, last = state.cursor[i], state.last[i]
    stop = state.stop[i] if params.action == BRACKETS else 0.0
    target = state.target[i] if params.action == BRACKETS else 0.0
    account = Account(state.cash[i], state.units[i], state.entry[i], stop, target, 0.0, 0)
    before, old_peak, worst = state.equity[i], state.peak[i], state.worst_drawdown[i]
    reward_sum, return_sum, square_sum = state.reward_sum[i], state.return_sum[i], state.return_square_sum[i]
    held, previous = state.held[i], state.previous_level[i]
    events, fees, turnover_sum = state.events[i], state.fees[i], state.turnover[i]
    level = 0.0
    if params.action != BRACKETS:
        level = tables.levels[int(action)] if params.action == LEVELS else float(action)
    exhausted = cursor >= last
    bar = last if exhausted else cursor + 1
    opened_at, high = tables.ohlc[bar, OPEN_PRICE], tables.ohlc[bar, HIGH_PRICE]
    low, close = tables.ohlc[bar, LOW_PRICE], tables.ohlc[bar, CLOSE_PRICE]
    fee = number(i, FEE, params.fee, state, params)
    maintenance = number(i, MAINTENANCE_MARGIN, params.maintenance_margin, state, params)
    initial = number(i, INITIAL_CASH, params.initial_cash, state, params)
    margin = state.margin[i] if params.randomised else params.margin
    sizing = state.sizing[i] if params.randomised else params.sizing
    terms = Terms(margin, fee, maintenance, sizing)
    direction = account.units

    # Sessions and gates.
    daily_drawdown = number(i, DAILY_DRAWDOWN, params.daily_drawdown, state, params)
    turnover_cap = number(i, TURNOVER_CAP, params.turnover_cap, state, params)
    has_sessions = daily_drawdown > 0.0 or turnover_cap > 0.0
    if has_sessions and tables.session_last[cursor] == 1 and cursor > state.start[i]:
        state.session_equity[i] = before
        state.session_turnover[i] = 0.0
    gated = NONE
    cooldown = number(i, COOLDOWN, params.cooldown, state, params)
    if cooldown > 0.0 and state.cooldown_left[i] > 0:
        state.cooldown_left[i] -= 1
        gated = REFUSED_COOLDOWN
    elif turnover_cap > 0.0 and state.session_turnover[i] >= turnover_cap:
        gated = REFUSED_TURNOVER

    # The order.
    draw = uniform(i, state) if number(i, SLIPPAGE, params.slippage, state, params) > 0.0 else 0.0
    quote = tables.ohlc[cursor, CLOSE_PRICE] if params.fill_at_close else opened_at
    liquidation = 0.0 if params.fill_at_close else liquidation_price(account, terms)
    order_code, exit_code = NONE, NONE
    if exhausted:
        order_code = EXHAUSTED
    elif (liquidation > 0.0) & (quote <= liquidation if direction > 0.0 else quote >= liquidation):
        account = realise(account, account.units, liquidation_fill(account, quote, liquidation, terms), terms)
        order_code, exit_code = DROPPED, LIQUIDATED
    else:
        cost = trading_cost(i, quote, draw, state, tables, params)
        account, order_code = take_order(
            i, action, level, previous, quote, cost, gated, account, terms, state, tables, params
        )

    # The bar.
    paid = 0.0
    if (account.units != 0.0) & (not exhausted):
        account, exit_code = play_bar(account, opened_at, high, low, params.action == BRACKETS, terms)
    if (account.units != 0.0) & (not exhausted):
        paid = funding_paid(i, bar, account, close, terms, state, tables, params)
        account = with_cash(account, account.cash - paid)
        if params.flat_at_session_end and tables.session_last[bar] == 1:
            cost = trading_cost(i, close, draw, state, tables, params)
            price = close * (1.0 - cost) if account.units > 0.0 else close * (1.0 + cost)
            account = realise(account, account.units, price, terms)
            exit_code = SESSION_CLOSED

    # The mark.
    after = equity_at(account, close, terms)
    turnover = account.traded / before if (account.traded > 0.0) & (before > 0.0) else 0.0
    growth = after / before if before > 0.0 else 0.0
    peak = max(old_peak, after)
    drawdown = 1.0 - after / peak if after < peak else 0.0
    reward = 0.0
    if params.reward != CUSTOM:
        reward = built_in_reward(i, exhausted, growth, before, drawdown, state, params)
        reward -= number(i, TURNOVER_PENALTY, params.turnover_penalty, state, params) * turnover
    elif not exhausted:
        reward = custom_reward(
            RewardAccount(
                before, state.cash[i], state.units[i], state.entry[i], tables.ohlc[cursor, CLOSE_PRICE], old_peak,
                initial, 0.0, 0.0,
            ),
            RewardAccount(
                after, account.cash, account.units, account.entry, close, peak, initial, turnover, account.traded * fee
            ),
        )  # fmt: skip

    # The books. First the columns of small integers, last those that `observe` reads: a compiler cannot tell columns of
    # different widths apart, and keeps for `observe` in registers only what is written after the others.
    if order_code > HELD_BAND:
        increment(state.code_counts, order_code, i)
    if exit_code != NONE:
        increment(state.code_counts, exit_code, i)
    if account.units == 0.0:
        held = 0
    elif not exhausted:
        held = held + 1 if account.units * direction > 0.0 else 1
    state.held[i] = held
    state.cursor[i] = bar
    state.order_code[i] = order_code
    state.exit_code[i] = exit_code
    if (account.events > 0) & (cooldown > 0.0):
        state.cooldown_left[i] = int(cooldown)
    if account.events > 0:
        state.events[i] = events + account.events
        state.fees[i] = fees + account.traded * fee
        state.turnover[i] = turnover_sum + turnover
        if has_sessions:
            state.session_turnover[i] += turnover
    if paid != 0.0:
        state.funding[i] += paid
    if after > old_peak:
        state.peak[i] = after
    if drawdown > worst:
        state.worst_drawdown[i] = drawdown
    if params.action == BRACKETS:
        state.stop[i] = account.stop
        state.target[i] = account.target
    gain = growth - 1.0 if before > 0.0 else 0.0
    state.reward_sum[i] = reward_sum + reward
    state.return_sum[i] = return_sum + gain
    state.return_square_sum[i] = square_sum + gain * gain
    state.price[i] = close
    state.cash[i] = account.cash
    state.units[i] = account.units
    state.entry[i] = account.entry
    state.equity[i] = after
    state.drawdown[i] = drawdown

    # The end.
    max_drawdown = number(i, MAX_DRAWDOWN, params.max_drawdown, state, params)
    terminated = after < number(i, BANKRUPT_AT, params.bankrupt_at, state, params) * initial
    if max_drawdown > 0.0 and drawdown >= max_drawdown:
        terminated = True
    if daily_drawdown > 0.0:
        session_equity = state.session_equity[i]
        if session_equity > 0.0 and 1.0 - after / session_equity >= daily_drawdown:
            terminated = True
    return reward, terminated & (not exhausted), bar >= last


def observe(i: int, state: State, tables: Tables, params: Any, out: NDArray[np.float32]) -> None:
    """Write the account vector at the close of the cursor's bar."""
    cursor, last, per_bar = state.cursor[i], state.last[i], state.per_bar[i]
    cash, units, entry = state.cash[i], state.units[i], state.entry[i]
    equity, drawdown, held = state.equity[i], state.drawdown[i], state.held[i]
    price = state.price[i]
    margin = state.margin[i] if params.randomised else params.margin
    leverage = number(i, LEVERAGE, params.leverage, state, params)
    maintenance = number(i, MAINTENANCE_MARGIN, params.maintenance_margin, state, params)
    side, gain, exposure, distance = 0.0, 0.0, 0.0, 1.0
    if units != 0.0:
        side = 1.0 if units > 0.0 else -1.0
        gain = side * (price - entry) / entry
        exposure = abs(units) * price / equity if equity > 0.0 else 0.0
        account = Account(cash, units, entry, 0.0, 0.0, 0.0, 0)
        liquidation = liquidation_price(account, Terms(margin, 0.0, maintenance, 0.0))
        if liquidation > 0.0:
            distance = max(0.0, side * (price - liquidation) / price)
    out[0] = exposure
    out[1] = side
    out[2] = gain
    out[3] = held
    out[4] = leverage
    out[5] = distance
    if params.observed > 6:
        out[6] = drawdown
        out[7] = (last - cursor) * per_bar
    if params.observed > 8:
        stop, target = state.stop[i], state.target[i]
        out[8] = side * (price - stop) / price if units != 0.0 else 0.0
        out[9] = side * (target - price) / price if units != 0.0 else 0.0


def finish(i: int, state: State, tables: Tables, params: Any, out: NDArray[np.float64]) -> None:
    """Write the statistics of the episode, in the order of STATISTICS."""
    write_statistics(i, state, out)
    closed = state.events[i] // CLOSED_POSITION & COUNT_MASK
    out[8] = state.events[i] & COUNT_MASK
    out[9] = state.events[i] // WON_POSITION / max(1, closed)
    out[10] = state.code_counts[LIQUIDATED, i]
    for k in range(CODES):
        out[11 + k] = state.code_counts[k, i]


RULE = Rule(reset, step, observe, finish)
