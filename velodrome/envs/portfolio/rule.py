"""The portfolio environment: K instruments on one grid, one account, one decision per bar.

`docs/portfolio.md` states the rule in words. `step` calls one function for each of its headings, in the same order.
Money is float64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import Rule
from velodrome.envs.market.account import fill_cost, open_account, write_statistics
from velodrome.envs.market.episodes import begin_episode
from velodrome.envs.portfolio import codes
from velodrome.envs.portfolio.config import episode_terms
from velodrome.envs.portfolio.orders import DUST, NOTICED, quote_of, take_orders
from velodrome.envs.portfolio.rewards import PortfolioAccount, custom_reward, named_reward
from velodrome.envs.portfolio.sizing import size_action
from velodrome.envs.portfolio.state import Book, Costs, Moment, Tables, instrument_count
from velodrome.envs.rng import uniform
from velodrome.envs.terms import draw_terms


class Mark(NamedTuple):
    """The account at the close of the bar."""

    account: PortfolioAccount
    funding: float  # paid
    drawdown: float


def reset(i: int, state: Any, tables: Tables, params: Any) -> None:
    """Draw what is drawn per episode, choose the start, and open an account of cash only."""
    if params.randomised:
        draw_terms(i, state, tables)
    begin_episode(i, state, tables, params)
    terms = episode_terms(i, state, params)
    open_account(i, terms.initial_cash, state)
    state.gross[i] = 0.0
    state.largest[i] = 0.0
    state.positions[i] = 0.0
    state.volume[i] = 0.0
    state.running_reward[i] = 0.0
    for k in range(codes.COUNTS):
        state.counts[k, i] = 0
    for k in range(instrument_count(state, tables)):
        state.units[k, i] = 0.0
        state.entry[k, i] = 0.0
        state.extreme[k, i] = 0.0
        state.holding[k, i] = 0
    begin_benchmark(i, terms, state, tables, params)


def begin_benchmark(i: int, terms: Any, state: Any, tables: Tables, params: Any) -> None:
    """Buy the same money's worth of every instrument that can be traded, and pay the fee for it."""
    fee = fee_rate(i, terms.buy_fee, state, tables)
    share = terms.initial_cash / instrument_count(state, tables)
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


def step(i: int, action: Any, state: Any, tables: Tables, params: Any) -> tuple[float, bool, bool]:
    """Take the orders, let the bar pass, mark the account at its close."""
    if state.cursor[i] >= state.last[i]:
        return 0.0, False, True
    now = Moment(state.cursor[i], state.cursor[i] + 1)

    book, costs = value_at_quotes(i, now, state, tables, params)
    book = carry_out_orders(i, action, now, costs, book, state, tables, params)
    mark = mark_account(i, now, book, state, tables, params)
    terminated, truncated = check_end(i, now, mark, state, params)
    reward = reward_step(i, now, mark, terminated or truncated, state, tables, params)
    keep_books(i, now, book, mark, reward, state)
    return reward, terminated, truncated


# The quotes


def fee_rate(i: int, fee: float, state: Any, tables: Tables) -> float:
    """Return the rate of a fee: the parameter, or what the episode's volume so far has reached in the schedule."""
    tiers = tables.tier_volume.size
    if tiers == 0:
        return fee
    rate = tables.tier_rate[0]
    for tier in range(1, tiers):
        if state.volume[i] >= tables.tier_volume[tier]:
            rate = tables.tier_rate[tier]
    return rate


def value_at_quotes(i: int, now: Moment, state: Any, tables: Tables, params: Any) -> tuple[Book, Costs]:
    """Value the account at the quotes of this step's orders, count a bar more for what is held, and say what costs."""
    terms = episode_terms(i, state, params)
    draw = uniform(i, state) if terms.slippage > 0.0 else 0.0
    worth, gross, longest_held = 0.0, 0.0, 0
    for k in range(instrument_count(state, tables)):
        units = state.units[k, i]
        value = units * quote_of(k, now, tables, params)
        worth += value
        gross += abs(value)
        held = state.holding[k, i] + (units != 0.0)
        state.holding[k, i] = held
        longest_held = max(longest_held, held)
    book = Book(state.cash[i], state.cash[i] + worth, gross, 0.0, 0.0)
    costs = Costs(
        buy_fee=fee_rate(i, terms.buy_fee, state, tables),
        sell_fee=fee_rate(i, terms.sell_fee, state, tables),
        cost=fill_cost(terms.half_spread, terms.slippage, draw, 0.0),
        reserve=terms.cash_reserve * state.initial[i],
        max_weight=terms.max_weight,
        max_gross=terms.max_gross,
        safety=1.0 if params.action == codes.WEIGHTS else terms.buy_safety,
        # An original that keeps units in float32 keeps what rounding leaves of them, too.
        dust=0.0 if params.single_precision else DUST * book.equity,
        noticed=NOTICED * book.equity,
        trailing_stop=terms.trailing_stop,
        max_holding=terms.max_holding,
        decay=terms.decay,
        decays=(terms.max_holding > 0.0) & (longest_held >= terms.max_holding),
    )
    return book, costs


# The orders


def carry_out_orders(
    i: int, action: Any, now: Moment, costs: Costs, book: Book, state: Any, tables: Tables, params: Any
) -> Book:
    """Carry out stops, sales, decay and purchases, and return the account after them."""
    # One loop, so that compiled code has one copy of each function.
    for phase in range(codes.PHASES):
        if phase == codes.STOPS:
            due = costs.trailing_stop > 0.0
        elif phase == codes.DECAYS:
            due = costs.decays
        elif (phase == codes.CLOSING_PURCHASES) | (phase == codes.OPENING_SALES):
            due = params.allow_short & (book.equity > 0.0)
        else:
            due = book.equity > 0.0
        if not due:
            continue
        if phase == codes.CLOSING_SALES:
            size_action(i, action, now, costs, book, state, tables, params)
        book = take_orders(i, phase, now, costs, book, state, tables, params)
    return book


# The mark


def pay_funding(i: int, bar: int, cash: float, rate: float, state: Any, tables: Tables) -> tuple[float, float]:
    """Return the cash after the holding cost of one bar, and that cost; what cash cannot pay, longs pay in units."""
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


def mark_account(i: int, now: Moment, book: Book, state: Any, tables: Tables, params: Any) -> Mark:
    """Let the bar pass: pay funding, and value the account and the benchmark at the close."""
    terms = episode_terms(i, state, params)
    instruments = instrument_count(state, tables)
    before = state.equity[i]
    cash, paid = pay_funding(i, now.bar, book.cash, terms.funding, state, tables)
    worth, gross, largest = 0.0, 0.0, 0.0
    benchmark = state.benchmark_cash[i] if params.has_benchmark else state.benchmark[i]
    for k in range(instruments):
        units, close = state.units[k, i], tables.close[now.bar, k]
        value = units * close
        worth += value
        gross += abs(value)
        largest = max(largest, abs(value))
        if params.has_benchmark:
            benchmark += state.benchmark_units[k, i] * close
        if params.has_stop:
            best = state.extreme[k, i]
            state.extreme[k, i] = max(best, close) if units > 0.0 else min(best, close) if units < 0.0 else 0.0
    equity = cash + worth
    positions = 0.0
    if params.counts_positions & (equity > 0.0):
        floor = terms.position_floor * equity
        for k in range(instruments):
            positions += 1.0 if abs(state.units[k, i]) * tables.close[now.bar, k] > floor else 0.0
    peak = max(state.peak[i], equity)
    account = PortfolioAccount(
        equity=equity,
        cash=cash,
        gross=gross / equity if equity > 0.0 else 0.0,
        largest=largest / equity if equity > 0.0 else 0.0,
        positions=positions,
        benchmark=benchmark,
        peak=peak,
        initial=state.initial[i],
        turnover=book.traded / before if before > 0.0 else 0.0,
        fees=book.fees,
    )
    return Mark(account, paid, 1.0 - equity / peak if equity < peak else 0.0)


# The end


def check_end(i: int, now: Moment, mark: Mark, state: Any, params: Any) -> tuple[bool, bool]:
    """Return whether ruin has terminated the episode, and whether it is truncated because it has no more bars."""
    terms = episode_terms(i, state, params)
    terminated = mark.account.equity < terms.bankrupt_at * mark.account.initial
    return terminated, now.bar >= state.last[i]


# The reward


def reward_step(i: int, now: Moment, mark: Mark, ended: bool, state: Any, tables: Tables, params: Any) -> float:
    """Return the reward of a step."""
    terms = episode_terms(i, state, params)
    old = PortfolioAccount(
        equity=state.equity[i],
        cash=state.cash[i],
        gross=state.gross[i],
        largest=state.largest[i],
        positions=state.positions[i],
        benchmark=state.benchmark[i],
        peak=state.peak[i],
        initial=state.initial[i],
        turnover=0.0,
        fees=0.0,
    )
    if params.reward == codes.CUSTOM:
        reward = custom_reward(old, mark.account)
    else:
        reward = named_reward(i, old, mark.account, now.bar, terms, state, tables, params)
    if terms.final_discount > 0.0:
        running = terms.final_discount * state.running_reward[i] + reward
        state.running_reward[i] = running
        if ended:
            reward = running
    return reward


# The books


def keep_books(i: int, now: Moment, book: Book, mark: Mark, reward: float, state: Any) -> None:
    """Write down what the step has changed."""
    account, before = mark.account, state.equity[i]
    gain = account.equity / before - 1.0 if before > 0.0 else 0.0
    state.cursor[i] = now.bar
    state.volume[i] += book.traded
    state.fees[i] += book.fees
    state.funding[i] += mark.funding
    state.turnover[i] += account.turnover
    state.reward_sum[i] += reward
    state.return_sum[i] += gain
    state.return_square_sum[i] += gain * gain
    state.worst_drawdown[i] = max(state.worst_drawdown[i], mark.drawdown)
    state.benchmark[i] = account.benchmark
    state.peak[i] = account.peak
    state.gross[i] = account.gross
    state.largest[i] = account.largest
    state.positions[i] = account.positions
    state.cash[i] = account.cash
    state.equity[i] = account.equity
    state.drawdown[i] = mark.drawdown


def observe(i: int, state: Any, tables: Tables, params: Any, out: NDArray[np.float32]) -> None:
    """Write the account at the close of the cursor's row."""
    instruments = instrument_count(state, tables)
    cursor, cash, equity = state.cursor[i], state.cash[i], state.equity[i]
    if params.raw_account:
        terms = episode_terms(i, state, params)
        out[0] = cash * terms.cash_unit
        for k in range(instruments):
            out[1 + k] = state.units[k, i] * terms.holding_unit
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
    out[8] = state.counts[codes.BUYS, i] + state.counts[codes.SELLS, i]
    benchmark = state.benchmark_cash[i]
    for k in range(instrument_count(state, tables)):
        benchmark += state.benchmark_units[k, i] * tables.close[state.cursor[i], k]
    out[9] = benchmark / state.benchmark_start[i] - 1.0
    for k in range(codes.COUNTS):
        out[10 + k] = state.counts[k, i]


RULE = Rule(reset, step, observe, finish)
