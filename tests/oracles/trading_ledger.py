"""A slow double-entry ledger of the trading rule, written from docs/trading.md alone.

It shares no code with the environment. Section names in comments are those of docs/trading.md. The classes build on
each other: what an account is told (trading_parameters), its state, journal and statistics (trading_account), orders
(trading_orders), and here the step, the bar, what follows it and what is observed.

Choices made where the page leaves room are marked "Choice:".
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tests.oracles.trading_orders import TradingOrders


class StepResult(NamedTuple):
    reward: float
    terminated: bool
    truncated: bool


class TradingLedger(TradingOrders):
    """One account on one instrument. Call `reset`, then `step` until it says terminated or truncated."""

    # ---------------------------------------------------------------------------------------------- A step

    def step(self, action: float, u: float = 0.0) -> StepResult:
        """`action` is an index (levels, brackets) or a value in [-1, 1] (continuous); `u` the step's uniform draw."""
        self.step_notional = self.step_turnover = 0.0
        self.step_fills = 0
        self.closest_tie = math.inf
        self.order_code = self.exit_code = "none"

        # Notation: a step at the last bar does nothing.
        if self.cursor >= self.last:
            self.order_code = "exhausted"
            return self._finish(0.0, terminated=False)

        before = self.cursor
        row = self.cursor + 1
        bar_open, bar_high, bar_low, bar_close = self.ohlc[row][:4]
        equity_before = self.equity
        direction_before = self.direction
        drawdown_before = self.drawdown

        # Gates: a session begins with the bar after a last one, and the order of the step that reaches its
        # first bar belongs to it.
        if self._is_session_last(before):
            self.session_turnover = 0.0
            self.session_start_equity = equity_before

        # The order: the quote.
        quoted = bar_open if self.fill == "next_open" else self.ohlc[before][3]
        cost = self._cost(quoted, u)

        # The order: liquidation at the quote.
        if self.fill == "next_open" and self.liquidation_applies and self._is_beyond(quoted, self.liquidation_price):
            self.order_code = "dropped"
            self._liquidate(quoted)
        else:
            # The order.
            if self.action_kind == "brackets":
                self._bracket_order(action, quoted, cost)
            else:
                self._level_order(self._level_of(action), quoted, cost)

        # The bar: liquidation and brackets.
        if self.units != 0.0:
            self._play_bar(bar_open, bar_high, bar_low)

        # The bar: funding.
        self._pay_funding(row, bar_close)

        # The bar: session end.
        if self.flat_at_session_end and self.units != 0.0 and self._is_session_last(row):
            self._close(self._fill_price(bar_close, self._cost(bar_close, u), -self.direction))
            self.exit_code = "session_closed"

        # The mark and the books.
        self.equity = self.equity_at(bar_close)
        self.peak = max(self.peak, self.equity)
        self.cursor = row
        if self.units == 0.0:
            self.hold_counter = 0
        elif self.direction != direction_before:
            self.hold_counter = 1
        else:
            self.hold_counter += 1

        # Gates, the books: cool-down. Every decision uses one up, whatever it asked for; a fill starts a new one.
        if self.step_fills > 0:
            self.cooldown_left = self.cooldown
        elif self.cooldown_left > 0:
            self.cooldown_left -= 1

        # The mark: turnover.
        self.step_turnover = self.step_notional / equity_before if equity_before > 0.0 else 0.0
        self.session_turnover += self.step_turnover

        # The mark and the end: reward and flags.
        bar_return = self.equity / equity_before - 1.0 if equity_before > 0.0 else 0.0
        self.bar_returns.append(bar_return)
        self.deepest_drawdown = max(self.deepest_drawdown, self.drawdown)
        reward = self._reward(equity_before, bar_return, drawdown_before)
        return self._finish(reward, terminated=self._is_terminated())

    def _finish(self, reward: float, *, terminated: bool) -> StepResult:
        self.length = self.cursor - self.start
        self.reward_sum += reward
        self.turnover_sum += self.step_turnover
        self.order_counts[self.order_code] += 1
        self.exit_counts[self.exit_code] += 1
        self._audit()
        return StepResult(reward, terminated, self.cursor >= self.last)

    def _pay_funding(self, row: int, bar_close: float) -> None:
        rate = self.funding if self.funding_column is None else self.funding_column[row]
        if rate == 0.0 or self.units == 0.0:
            return
        held = self.units if self.funding_side == "perpetual" else abs(self.units)
        paid = min(rate * held * bar_close, max(self.equity_at(bar_close), 0.0))
        self.cash -= paid
        self.funding_paid += paid
        self.funding_debits += max(paid, 0.0)
        self._post("funding", -paid)

    # ----------------------------------------------------------------------------------------------- The bar

    def _is_beyond(self, price: float, level: float) -> bool:
        """Is the price at the level or on its losing side?"""
        self._note_tie(price, level)
        return price <= level if self.units > 0.0 else price >= level

    def _worse(self, first: float, second: float) -> float:
        return min(first, second) if self.units > 0.0 else max(first, second)

    def _liquidate(self, price: float) -> None:
        """Realise everything at the price, but not beyond the bankruptcy price, which leaves max(b, 0)."""
        if self.units > 0.0:
            price = max(price, self.entry * (1.0 - self.margin_fraction) / (1.0 - self.fee))
        else:
            # A debt larger than the position has no bankruptcy price above 0.
            price = min(price, max(0.0, self.entry * (1.0 + self.margin_fraction) / (1.0 + self.fee)))
        self._close(price)
        self.liquidations += 1
        self.exit_code = "liquidated"

    def _play_bar(self, bar_open: float, bar_high: float, bar_low: float) -> None:
        worst = bar_low if self.units > 0.0 else bar_high
        best = bar_high if self.units > 0.0 else bar_low
        has_bracket = self.action_kind == "brackets"
        if has_bracket:
            self._note_tie(best, self.target)
        stop_touched = has_bracket and self._is_beyond(worst, self.stop)
        target_touched = has_bracket and (best >= self.target if self.units > 0.0 else best <= self.target)

        # 1. Liquidation, unless the stop comes before it.
        if self.liquidation_applies:
            liquidation = self.liquidation_price
            if has_bracket:
                self._note_tie(self.stop, liquidation)
            stop_is_nearer = self.stop > liquidation if self.units > 0.0 else self.stop < liquidation
            opened_beyond = self._is_beyond(bar_open, liquidation)
            stop_first = stop_touched and stop_is_nearer and not opened_beyond
            if self._is_beyond(worst, liquidation) and not stop_first:
                self._liquidate(self._worse(bar_open, liquidation))
                return
        # 2.
        if stop_touched:
            self._close(self._worse(bar_open, self.stop))
            self.exit_code = "stopped"
        # 3.
        elif target_touched:
            self._close(self.target)
            self.exit_code = "target"

    # ---------------------------------------------------------------------------------- The mark, the books and the end

    def _reward(self, equity_before: float, bar_return: float, drawdown_before: float) -> float:
        if equity_before <= 0.0:
            log_return = 0.0
        elif self.equity <= 0.0:
            log_return = -10.0
        else:
            log_return = math.log(self.equity / equity_before)

        if self.reward == "log_return":
            reward = log_return
        elif self.reward == "return":
            reward = bar_return
        elif self.reward == "drawdown":
            reward = log_return - self.drawdown_penalty * max(0.0, self.drawdown - drawdown_before)
        else:
            reward = self._differential_sharpe(bar_return)
        return reward - self.turnover_penalty * self.step_turnover

    def _differential_sharpe(self, bar_return: float) -> float:
        mean, square = self.sharpe_mean, self.sharpe_square
        variance = square - mean * mean
        self._note_tie(variance, 1e-12)
        if variance <= 1e-12:
            ratio = 0.0
        else:
            ratio = (square * (bar_return - mean) - mean * (bar_return**2 - square) / 2.0) / variance**1.5
        self.sharpe_mean += self.sharpe_decay * (bar_return - mean)
        self.sharpe_square += self.sharpe_decay * (bar_return**2 - square)
        return ratio

    def _is_terminated(self) -> bool:
        self._note_tie(self.equity, self.bankrupt_at * self.initial_cash, self.initial_cash)
        if self.max_drawdown != 0.0:
            self._note_tie(self.drawdown, self.max_drawdown)
        if self.daily_drawdown != 0.0 and self.session_start_equity > 0.0:
            self._note_tie(1.0 - self.equity / self.session_start_equity, self.daily_drawdown)
        if self.equity < self.bankrupt_at * self.initial_cash:
            return True
        if self.max_drawdown != 0.0 and self.drawdown >= self.max_drawdown:
            return True
        # A session that began with no equity cannot lose a part of it.
        if self.daily_drawdown != 0.0 and self.session_start_equity > 0.0:
            return 1.0 - self.equity / self.session_start_equity >= self.daily_drawdown
        return False

    # ------------------------------------------------------------------------------------------- Observation

    def account_vector(self) -> list[float]:
        price = self.ohlc[self.cursor][3]
        direction = self.direction
        equity = self.equity_at(price)
        exposure = unrealised = to_stop = to_target = 0.0
        to_liquidation = 1.0
        if direction != 0:
            exposure = abs(self.units) * price / equity if equity > 0.0 else 0.0
            unrealised = direction * (price - self.entry) / self.entry
            if self.liquidation_applies:
                to_liquidation = max(0.0, direction * (price - self.liquidation_price) / price)
            if self.action_kind == "brackets":
                to_stop = direction * (price - self.stop) / price
                to_target = direction * (self.target - price) / price
        values = [exposure, float(direction), unrealised, float(self.hold_counter), self.leverage, to_liquidation]
        if self.account_values == "torchtrade":
            return values
        # Choice: an episode of no bars has nothing left.
        bars = self.last - self.start
        values += [self.drawdown, (self.last - self.cursor) / bars if bars > 0 else 0.0]
        if self.action_kind == "brackets":
            values += [to_stop, to_target]
        return values
