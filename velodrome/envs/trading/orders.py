"""What a step does to the account: the gates, the order and the bar of docs/trading.md."""

from __future__ import annotations

from typing import Any

from velodrome.envs.market.account import fill_cost
from velodrome.envs.trading import codes
from velodrome.envs.trading.account import (
    Account,
    Bar,
    Bracket,
    Quote,
    equity_at,
    leave_within,
    left_at,
    liquidation_fill,
    liquidation_price,
    order_bracket,
    order_level,
    realise,
    with_cash,
)
from velodrome.envs.trading.state import Before, Move, Outcome, State, Tables

# Gates


def has_sessions(terms: Any) -> bool:
    return terms.daily_drawdown > 0.0 or terms.turnover_cap > 0.0


def check_gates(i: int, before: Before, terms: Any, state: State, tables: Tables) -> int:
    """Begin a session where one begins; return the code of the gate that refuses orders, or NONE."""
    if has_sessions(terms) and tables.session_last[before.cursor] == 1 and before.cursor > state.start[i]:
        state.session_equity[i] = before.equity
        state.session_turnover[i] = 0.0
    if terms.cooldown > 0.0 and state.cooldown_left[i] > 0:
        state.cooldown_left[i] -= 1
        return codes.REFUSED_COOLDOWN
    if terms.turnover_cap > 0.0 and state.session_turnover[i] >= terms.turnover_cap:
        return codes.REFUSED_TURNOVER
    return codes.NONE


# The order


def trading_cost(price: float, move: Move, before: Before, terms: Any, tables: Tables) -> float:
    """Return how much worse than `price` a fill is, as a fraction: spread, slippage, and slippage by ATR."""
    by_range = terms.slippage_atr * tables.atr[before.cursor] / price if terms.slippage_atr > 0.0 else 0.0
    return fill_cost(terms.half_spread, terms.slippage, move.draw, by_range)


def take_order(
    i: int, gate: int, move: Move, before: Before, terms: Any, state: State, tables: Tables, params: Any
) -> Outcome:
    """Liquidate a position if the quote lies beyond its liquidation price; else carry out the order."""
    account = before.account
    price = tables.ohlc[before.cursor, codes.CLOSE_PRICE] if params.fill_at_close else move.bar.open
    liquidation = 0.0 if params.fill_at_close else liquidation_price(account, terms)
    if before.exhausted:
        return Outcome(account, codes.EXHAUSTED, codes.NONE, 0.0)
    if (liquidation > 0.0) & (price <= liquidation if account.units > 0.0 else price >= liquidation):
        account = realise(account, account.units, liquidation_fill(account, price, liquidation, terms), terms)
        return Outcome(account, codes.DROPPED, codes.LIQUIDATED, 0.0)
    quote = Quote(price, trading_cost(price, move, before, terms, tables))
    if params.action == codes.BRACKETS:
        account, code = take_bracket(gate, quote, move, before, terms, tables, params)
    else:
        account, code = take_level(i, gate, quote, move, before, terms, state, tables, params)
    return Outcome(account, code, codes.NONE, 0.0)


def must_be_flat(before: Before, tables: Tables, params: Any) -> bool:
    """Say whether an order fills at the close of a session that may leave nothing open."""
    if params.fill_at_close and params.flat_at_session_end:
        return tables.session_last[before.cursor] == 1
    return False


def take_level(
    i: int, gate: int, quote: Quote, move: Move, before: Before, terms: Any, state: State, tables: Tables, params: Any
) -> tuple[Account, int]:
    """Carry out an order to a level, unless it is held or refused; return the account and a code."""
    account, level = before.account, move.level
    if params.hold_on_same_action and ((account.units != 0.0) & (level == before.previous_level)):
        return account, codes.HELD_SAME
    if gate != codes.NONE and ((level != 0.0) | (account.units != 0.0)):
        return account, gate
    state.previous_level[i] = level
    if must_be_flat(before, tables, params) | ((level < 0.0) & (not params.allow_short)):
        level = 0.0
    return order_level(level, quote, account, terms)


def take_bracket(
    gate: int, quote: Quote, move: Move, before: Before, terms: Any, tables: Tables, params: Any
) -> tuple[Account, int]:
    """Carry out a bracket action, unless it is ignored or refused; return the account and a code."""
    account, side = before.account, tables.side[move.action]
    if account.units != 0.0 and params.lock_position:
        return account, codes.LOCKED
    if side == codes.HOLD or (side == codes.CLOSE and account.units == 0.0):
        return account, codes.NONE
    if side != codes.CLOSE and side * account.units > 0.0:
        return account, codes.IGNORED
    if gate != codes.NONE:
        return account, gate
    if must_be_flat(before, tables, params):
        if account.units == 0.0:
            return account, codes.NONE
        side = codes.CLOSE
    bracket = Bracket(side, tables.stop[move.action], tables.target[move.action])
    return order_bracket(bracket, params.trade_mode, quote, account, terms)


# The bar


def play_bar(outcome: Outcome, move: Move, before: Before, terms: Any, tables: Tables, params: Any) -> Outcome:
    """Liquidate, stop or pay out what is held; take funding; close what a session may not leave open."""
    account, exit_code, bar = outcome.account, outcome.exit_code, move.bar
    paid = 0.0
    if (account.units != 0.0) & (not before.exhausted):
        account, exit_code = leave_within(bar, params.action == codes.BRACKETS, account, terms)
    if (account.units != 0.0) & (not before.exhausted):
        paid = funding_due(bar, account, terms, tables, params)
        account = with_cash(account, account.cash - paid)
        if params.flat_at_session_end and tables.session_last[bar.row] == 1:
            quote = Quote(bar.close, trading_cost(bar.close, move, before, terms, tables))
            account = realise(account, account.units, left_at(quote, account.units), terms)
            exit_code = codes.SESSION_CLOSED
    return Outcome(account, outcome.order_code, exit_code, paid)


def funding_due(bar: Bar, account: Account, terms: Any, tables: Tables, params: Any) -> float:
    """Return what a holder pays for one bar: never more than the account is worth; below zero it is received."""
    rate = tables.funding[bar.row] if params.funding_from_data else terms.funding
    due = rate * bar.close * (account.units if params.perpetual_funding else abs(account.units))
    return due if due <= 0.0 else min(due, max(0.0, equity_at(account, bar.close, terms)))
