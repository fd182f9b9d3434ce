"""What an order does to an account: sections "The order" of docs/trading.md."""

from __future__ import annotations

import math

from tests.oracles.trading_account import TradingAccount

BUY, SELL = 1, -1  # side of a fill
LARGEST_COST = 0.99  # cap of c, so that a sale price stays positive
CASH_SLACK = 1e-9  # relative slack of the cost check; an all-in order ties by design


class TradingOrders(TradingAccount):
    """Orders by level and by bracket, and the changes of the position that they come to."""

    def _is_session_last(self, row: int) -> bool:
        return self.session_last is not None and bool(self.session_last[row])

    def _cost(self, price: float, u: float) -> float:
        """c; ATR is that of bar t also where the price is the close of bar t+1."""
        cost = self.half_spread + self.slippage * u
        if self.atr is not None:
            cost += self.slippage_atr * self.atr[self.cursor] / price
        return min(cost, LARGEST_COST)

    @staticmethod
    def _fill_price(price: float, cost: float, side: int) -> float:
        return price * (1.0 + cost) if side == BUY else price * (1.0 - cost)

    # -------------------------------------------------------------------- The order: levels and continuous

    def _level_of(self, action: float) -> float:
        if self.action_kind == "levels":
            return float(self.levels[_index(action, len(self.levels))])
        level = float(action)
        if not -1.0 <= level <= 1.0:
            raise ValueError(f"a continuous action lies in [-1, 1], got {level}")
        return level

    def _level_order(self, level: float, quoted: float, cost: float) -> None:
        # 1.
        if self.hold_on_same_action and self.units != 0.0 and level == self.previous_level:
            self.order_code = "held_same"
            return
        # 2. The level as asked for, before short sales are ruled out.
        if (level != 0.0 or self.units != 0.0) and self._is_gated():
            return
        # 3.
        self.previous_level = level
        if level < 0.0 and not self.allow_short:
            level = 0.0
        if self._must_be_flat_at_fill():
            level = 0.0
        # 4.
        side = BUY if level > 0.0 else SELL
        price = self._fill_price(quoted, cost, side)
        wanted = self._target_units(self.equity_at(quoted), level, price)
        if level != 0.0:
            self._note_tie(self.equity_at(quoted), 0.0, self.initial_cash)
        # 5.
        if self.units != 0.0 and wanted != 0.0:
            change = abs(wanted - self.units)
            smallest = max(self.rebalance_band * abs(wanted), self.min_trade / price)
            self._note_tie(change, smallest, abs(wanted))
            self._note_tie(change, 0.0, abs(wanted))
            if change == 0.0 or change < smallest:
                self.order_code = "held_band"
                return
        # 6.
        if wanted == 0.0:
            if self.units != 0.0:
                self._close(self._fill_price(quoted, cost, -self.direction))
                self.order_code = "closed"
            elif level != 0.0:
                self.order_code = "refused_cash"  # an open of no units
        elif self.units == 0.0:
            self.order_code = "opened" if self._open(wanted, price) else "refused_cash"
        elif (wanted > 0.0) != (self.units > 0.0):
            self._close(self._fill_price(quoted, cost, -self.direction))
            wanted = self._target_units(self.cash, level, price)
            self.order_code = "switched" if self._open(wanted, price) else "switch_closed"
        elif abs(wanted) > abs(self.units):
            self.order_code = "increased" if self._increase(wanted, price) else "refused_cash"
        else:
            self._decrease(wanted, self._fill_price(quoted, cost, -self.direction))
            self.order_code = "decreased"

    def _target_units(self, funds: float, level: float, price: float) -> float:
        if level == 0.0 or funds <= 0.0:
            return 0.0
        notional = funds * abs(level) / (1.0 / self.leverage + self.fee)
        return math.copysign(notional / price, level)

    def _is_gated(self) -> bool:
        """2. The gates; says why in the order code."""
        if self.cooldown_left > 0:
            self.order_code = "refused_cooldown"
            return True
        if self.turnover_cap > 0.0:
            self._note_tie(self.session_turnover, self.turnover_cap)
        if self.turnover_cap > 0.0 and self.session_turnover >= self.turnover_cap:
            self.order_code = "refused_turnover"
            return True
        return False

    def _must_be_flat_at_fill(self) -> bool:
        """3. An order at the close of a session's last bar would be held over the session's end."""
        return self.fill == "close" and self.flat_at_session_end and self._is_session_last(self.cursor)

    # ---------------------------------------------------------------------- The order: changes of the position

    def _is_affordable(self, notional: float) -> bool:
        """Cost check."""
        need = notional / self.leverage + notional * self.fee
        self._note_tie(need, self.cash * (1.0 + CASH_SLACK))
        return need <= self.cash * (1.0 + CASH_SLACK)

    def _open(self, wanted: float, price: float) -> bool:
        notional = abs(wanted) * price
        # A target of no units (no cash left after a switch) is a refusal, not a fill of nothing.
        if notional <= 0.0 or not self._is_affordable(notional):
            return False
        self._buy_margin(notional)
        self.units = wanted
        self.entry = price
        return True

    def _increase(self, wanted: float, price: float) -> bool:
        held = abs(self.units)
        added = abs(wanted - self.units)
        notional = added * price
        if not self._is_affordable(notional):
            return False
        self._buy_margin(notional)
        self.entry = (self.entry * held + price * added) / (held + added)
        self.units = wanted
        return True

    def _buy_margin(self, notional: float) -> None:
        """b −= need"""
        cash_before = self.cash
        margin = notional / self.leverage
        fee = notional * self.fee
        self.cash -= margin + fee
        self._post("margin_posted", -margin)
        self._post("fee", -fee)
        self._protect(cash_before, position_remains=True)
        self._record_fill(notional, fee)

    def _close(self, price: float) -> None:
        self.positions_closed += 1
        held = abs(self.units)
        profit = (price - self.entry) * self.units - self.fee * held * (price + self.entry)
        self.positions_won += profit > 0.0  # both fees taken off
        self.closest_win_tie = min(self.closest_win_tie, abs(profit) / (held * self.entry))
        self._realise(self.units, price, position_remains=False)
        self.units = self.entry = self.stop = self.target = 0.0

    def _decrease(self, wanted: float, price: float) -> None:
        part = self.units * (1.0 - abs(wanted) / abs(self.units))
        self._realise(part, price, position_remains=True)
        self.units = wanted

    def _realise(self, part: float, price: float, *, position_remains: bool) -> None:
        """Realise a signed part k at price y."""
        cash_before = self.cash
        profit = (price - self.entry) * part
        fee = abs(part) * price * self.fee
        margin = abs(part) * self.entry / self.leverage
        self.cash += profit - fee + margin
        self._post("realised_profit", profit)
        self._post("fee", -fee)
        self._post("margin_released", margin)
        self._protect(cash_before, position_remains=position_remains)
        self._record_fill(abs(part) * price, fee)

    def _protect(self, cash_before: float, *, position_remains: bool) -> None:
        """Negative-balance protection: what is missing is given, and posted as a gift."""
        floor = min(cash_before, 0.0) if position_remains else 0.0
        if self.cash < floor:
            self._post("negative_balance_protection", floor - self.cash)
            self.cash = floor

    def _record_fill(self, notional: float, fee: float) -> None:
        self.step_notional += notional
        self.step_fills += 1
        self.trades += 1
        self.fees_paid += fee

    # ------------------------------------------------------------------------------------ The order: brackets

    def _bracket_order(self, action: float, quoted: float, cost: float) -> None:
        order = self.bracket_actions[_index(action, len(self.bracket_actions))]
        # 1. Choice: the lock comes first, so HOLD on a locked position reads "locked".
        if self.lock_position and self.units != 0.0:
            self.order_code = "locked"
            return
        if order.kind == "hold":
            return
        if order.kind == "close" and self.units == 0.0:
            return
        if order.kind == "entry" and order.direction == self.direction:
            self.order_code = "ignored"
            return
        # 2.
        if self._is_gated():
            return
        enters = order.kind == "entry" and not self._must_be_flat_at_fill()
        # 3.
        closes = self.units != 0.0
        if closes:
            self._close(self._fill_price(quoted, cost, -self.direction))
            self.order_code = "closed"
        if not enters:
            return
        price = self._fill_price(quoted, cost, BUY if order.direction > 0 else SELL)
        if self.trade_mode == "fractional":
            size = self.cash * self.position_fraction / (1.0 / self.leverage + self.fee) / price
        elif self.trade_mode == "notional":
            size = self.quantity_per_trade / price
        else:
            size = self.quantity_per_trade
        if not self._open(order.direction * size, price):
            self.order_code = "switch_closed" if closes else "refused_cash"
            return
        self.order_code = "switched" if closes else "opened"
        # 4.
        self.stop = price * (1.0 - order.direction * order.stop_loss)
        self.target = price * (1.0 + order.direction * order.take_profit)


def _index(action: float, count: int) -> int:
    if int(action) != action or not 0 <= action < count:
        raise ValueError(f"an action is a whole number in [0, {count}), got {action}")
    return int(action)
