"""The trading environment: one instrument, one account, one decision per execution bar.

`docs/trading.md` states the rule in words. `step` calls one function for each of its headings, in the same order.
Money is float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import Rule, increment
from velodrome.envs.market.account import open_account, write_statistics
from velodrome.envs.market.episodes import begin_episode
from velodrome.envs.rng import uniform
from velodrome.envs.terms import draw_terms
from velodrome.envs.trading import codes
from velodrome.envs.trading.account import Account, Bar, RewardAccount, equity_at, liquidation_price, unpacked
from velodrome.envs.trading.config import episode_terms
from velodrome.envs.trading.orders import check_gates, has_sessions, play_bar, take_order
from velodrome.envs.trading.rewards import custom_reward, named_reward
from velodrome.envs.trading.state import Before, Mark, Move, Outcome, State, Tables


def reset(i: int, state: State, tables: Tables, params: Any) -> None:
    """Draw what is drawn per episode, choose the start, and open a flat account."""
    if params.randomised:
        draw_terms(i, state, tables)
    begin_episode(i, state, tables, params)
    terms = episode_terms(i, state, params)
    open_account(i, terms.initial_cash, state)
    state.price[i] = tables.ohlc[state.start[i], codes.CLOSE_PRICE]
    state.session_equity[i] = terms.initial_cash
    margin = 1.0 / terms.leverage
    state.margin[i] = margin
    state.sizing[i] = 1.0 / (margin + terms.fee)
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
    state.order_code[i] = codes.NONE
    state.exit_code[i] = codes.NONE
    for k in range(codes.CODES):
        state.code_counts[k, i] = 0


def step(i: int, action: Any, state: State, tables: Tables, params: Any) -> tuple[float, bool, bool]:
    """Take the order, play the next bar, mark the account at its close."""
    # Everything is read before anything is written: a GPU then waits for its memory once and not at every line.
    before = read_state(i, state, params)
    terms = episode_terms(i, state, params)
    move = read_move(i, action, before, terms, state, tables, params)

    gate = check_gates(i, before, terms, state, tables)
    outcome = take_order(i, gate, move, before, terms, state, tables, params)
    outcome = play_bar(outcome, move, before, terms, tables, params)
    mark = mark_account(i, outcome, move, before, terms, state, tables, params)
    keep_books(i, mark, outcome, move, before, terms, state, params)
    terminated, truncated = check_end(i, mark, move, before, terms, state)
    return mark.reward, terminated, truncated


def read_state(i: int, state: State, params: Any) -> Before:
    cursor, last = state.cursor[i], state.last[i]
    stop = state.stop[i] if params.action == codes.BRACKETS else 0.0
    target = state.target[i] if params.action == codes.BRACKETS else 0.0
    return Before(
        cursor=cursor,
        last=last,
        account=Account(state.cash[i], state.units[i], state.entry[i], stop, target, 0.0, 0),
        equity=state.equity[i],
        peak=state.peak[i],
        worst_drawdown=state.worst_drawdown[i],
        reward_sum=state.reward_sum[i],
        return_sum=state.return_sum[i],
        return_square_sum=state.return_square_sum[i],
        fees=state.fees[i],
        turnover=state.turnover[i],
        events=state.events[i],
        held=state.held[i],
        previous_level=state.previous_level[i],
        exhausted=cursor >= last,
    )


def read_move(i: int, action: Any, before: Before, terms: Any, state: State, tables: Tables, params: Any) -> Move:
    index = 0 if params.action == codes.CONTINUOUS else int(action)
    level = 0.0
    if params.action != codes.BRACKETS:
        level = tables.levels[index] if params.action == codes.LEVELS else float(action)
    row = before.last if before.exhausted else before.cursor + 1
    opened, high = tables.ohlc[row, codes.OPEN_PRICE], tables.ohlc[row, codes.HIGH_PRICE]
    low, close = tables.ohlc[row, codes.LOW_PRICE], tables.ohlc[row, codes.CLOSE_PRICE]
    draw = uniform(i, state) if terms.slippage > 0.0 else 0.0
    return Move(index, level, Bar(row, opened, high, low, close), draw)


# The mark


def mark_account(
    i: int, outcome: Outcome, move: Move, before: Before, terms: Any, state: State, tables: Tables, params: Any
) -> Mark:
    """Value the account at the close of the bar, and reward what the step made of it."""
    account, close = outcome.account, move.bar.close
    equity = equity_at(account, close, terms)
    turnover = account.traded / before.equity if (account.traded > 0.0) & (before.equity > 0.0) else 0.0
    growth = equity / before.equity if before.equity > 0.0 else 0.0
    gain = growth - 1.0 if before.equity > 0.0 else 0.0
    peak = max(before.peak, equity)
    drawdown = 1.0 - equity / peak if equity < peak else 0.0
    reward = 0.0
    if params.reward != codes.CUSTOM:
        reward = named_reward(i, growth, before.equity, drawdown, before.exhausted, terms, state, params)
        reward -= terms.turnover_penalty * turnover
    elif not before.exhausted:
        old, observed_at, initial = before.account, tables.ohlc[before.cursor, codes.CLOSE_PRICE], terms.initial_cash
        fees = account.traded * terms.fee
        reward = custom_reward(
            RewardAccount(before.equity, old.cash, old.units, old.entry, observed_at, before.peak, initial, 0.0, 0.0),
            RewardAccount(equity, account.cash, account.units, account.entry, close, peak, initial, turnover, fees),
        )
    return Mark(equity, gain, turnover, peak, drawdown, reward)


# The books


def keep_books(
    i: int, mark: Mark, outcome: Outcome, move: Move, before: Before, terms: Any, state: State, params: Any
) -> None:
    """Write down what the step has changed.

    First the columns of small integers, last those that `observe` reads: a compiler cannot tell columns of different
    widths apart, and keeps for `observe` in registers only what is written after the others.
    """
    account = outcome.account
    if outcome.order_code > codes.HELD_BAND:
        increment(state.code_counts, outcome.order_code, i)
    if outcome.exit_code != codes.NONE:
        increment(state.code_counts, outcome.exit_code, i)
    held = before.held
    if account.units == 0.0:
        held = 0
    elif not before.exhausted:
        held = held + 1 if account.units * before.account.units > 0.0 else 1
    state.held[i] = held
    state.cursor[i] = move.bar.row
    state.order_code[i] = outcome.order_code
    state.exit_code[i] = outcome.exit_code
    if (account.events > 0) & (terms.cooldown > 0.0):
        state.cooldown_left[i] = int(terms.cooldown)
    if account.events > 0:
        state.events[i] = before.events + account.events
        state.fees[i] = before.fees + account.traded * terms.fee
        state.turnover[i] = before.turnover + mark.turnover
        if has_sessions(terms):
            state.session_turnover[i] += mark.turnover
    if outcome.funding != 0.0:
        state.funding[i] += outcome.funding
    if mark.equity > before.peak:
        state.peak[i] = mark.equity
    if mark.drawdown > before.worst_drawdown:
        state.worst_drawdown[i] = mark.drawdown
    if params.action == codes.BRACKETS:
        state.stop[i] = account.stop
        state.target[i] = account.target
    state.reward_sum[i] = before.reward_sum + mark.reward
    state.return_sum[i] = before.return_sum + mark.gain
    state.return_square_sum[i] = before.return_square_sum + mark.gain * mark.gain
    state.price[i] = move.bar.close
    state.cash[i] = account.cash
    state.units[i] = account.units
    state.entry[i] = account.entry
    state.equity[i] = mark.equity
    state.drawdown[i] = mark.drawdown


# The end


def check_end(i: int, mark: Mark, move: Move, before: Before, terms: Any, state: State) -> tuple[bool, bool]:
    """Return whether losses have terminated the episode, and whether it is truncated because it has no more bars."""
    terminated = mark.equity < terms.bankrupt_at * terms.initial_cash
    if terms.max_drawdown > 0.0 and mark.drawdown >= terms.max_drawdown:
        terminated = True
    if terms.daily_drawdown > 0.0:
        session_equity = state.session_equity[i]
        if session_equity > 0.0 and 1.0 - mark.equity / session_equity >= terms.daily_drawdown:
            terminated = True
    return terminated & (not before.exhausted), move.bar.row >= before.last


def observe(i: int, state: State, tables: Tables, params: Any, out: NDArray[np.float32]) -> None:
    """Write the account vector at the close of the cursor's bar."""
    cursor, last, per_bar = state.cursor[i], state.last[i], state.per_bar[i]
    cash, units, entry = state.cash[i], state.units[i], state.entry[i]
    equity, drawdown, held = state.equity[i], state.drawdown[i], state.held[i]
    price = state.price[i]
    terms = episode_terms(i, state, params)
    side, gain, exposure, distance = 0.0, 0.0, 0.0, 1.0
    if units != 0.0:
        side = 1.0 if units > 0.0 else -1.0
        gain = side * (price - entry) / entry
        exposure = abs(units) * price / equity if equity > 0.0 else 0.0
        liquidation = liquidation_price(Account(cash, units, entry, 0.0, 0.0, 0.0, 0), terms)
        if liquidation > 0.0:
            distance = max(0.0, side * (price - liquidation) / price)
    out[0] = exposure
    out[1] = side
    out[2] = gain
    out[3] = held
    out[4] = terms.leverage
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
    fills, closed, won = unpacked(state.events[i])
    out[8] = fills
    out[9] = won / max(1, closed)
    out[10] = state.code_counts[codes.LIQUIDATED, i]
    for k in range(codes.CODES):
        out[11 + k] = state.code_counts[k, i]


RULE = Rule(reset, step, observe, finish)
