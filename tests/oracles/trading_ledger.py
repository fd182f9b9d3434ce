"""A slow double-entry ledger of the trading rule, written from docs/trading.md alone.

It shares no code with the environment. Section names in comments are those of docs/trading.md; the methods follow the
page from top to bottom. Cash is moved by the page's formulas, and every movement is posted a second time, split by
kind, in a journal; after each step the two must agree (`_audit`).

Choices made where the page leaves room are marked "Choice:".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

BUY, SELL = 1, -1  # side of a fill
LARGEST_COST = 0.99  # cap of c, so that a sale price stays positive
CASH_SLACK = 1e-9  # relative slack of the cost check; an all-in order ties by design
AUDIT_TOLERANCE = 1e-9  # relative
# A relative distance below which two correct programs may decide differently, because they round in another order. An
# all-in order lies CASH_SLACK from its tie by design, so this must be less.
NEAR_TIE = 1e-10

ORDER_CODES = (
    "none",  # nothing asked for, or HOLD
    "held_same",
    "held_band",
    "opened",
    "closed",
    "switched",
    "switch_closed",  # closed, but the re-entry was refused
    "increased",
    "decreased",
    "refused_cash",
    "refused_cooldown",
    "refused_turnover",
    "locked",
    "ignored",  # a bracket entry in the direction held
    "dropped",  # the position was liquidated at the open, before the order
    "exhausted",  # the cursor already stood on the last bar
)
EXIT_CODES = ("none", "liquidated", "stopped", "target", "session_closed")

POSTING_KINDS = ("margin_posted", "margin_released", "realised_profit", "fee", "funding", "negative_balance_protection")


class StepResult(NamedTuple):
    reward: float
    terminated: bool
    truncated: bool


class JournalEntry(NamedTuple):
    step: int  # bars played before this one
    kind: str  # one of POSTING_KINDS
    amount: float  # change of free cash, currency


class BracketAction(NamedTuple):
    kind: str  # "hold", "close" or "entry"
    direction: int  # +1 long, -1 short, 0 for hold and close
    stop_loss: float  # positive fraction of the fill price
    take_profit: float  # positive fraction of the fill price


@dataclass(kw_only=True)
class TradingLedger:
    """One account on one instrument. Call `reset`, then `step` until it says terminated or truncated."""

    # Market data, one entry per bar.
    ohlc: Sequence[Sequence[float]]  # rows of (open, high, low, close); further columns are ignored
    atr: Sequence[float] | None = None  # ATR over 14 bars as of each bar, currency; None: 0
    session_last: Sequence[bool] | None = None  # is this bar the last of its session; None: never
    funding_column: Sequence[float] | None = None  # rate per bar; replaces `funding` when given

    # Account and costs.
    initial_cash: float = 10_000.0
    leverage: float = 1.0
    fee: float = 0.0  # fraction of traded notional
    maintenance_margin: float = 0.004  # fraction of entry value
    half_spread: float = 0.0  # fraction of price
    slippage: float = 0.0  # fraction of price, times u
    slippage_atr: float = 0.0  # multiples of ATR
    funding: float = 0.0  # fraction of notional per bar
    funding_side: str = "holder"  # "holder" or "perpetual"
    fill: str = "next_open"  # "next_open" or "close"
    allow_short: bool = True

    # Actions.
    action_kind: str = "levels"  # "levels", "continuous" or "brackets"
    levels: Sequence[float] = (-1.0, 0.0, 1.0)
    hold_on_same_action: bool | None = None  # None: on for levels, off for continuous
    rebalance_band: float = 0.02  # fraction of the target units
    min_trade: float = 1.0  # currency
    stop_loss: Sequence[float] = (0.025, 0.05, 0.1)  # positive fractions of the fill price
    take_profit: Sequence[float] = (0.05, 0.1, 0.2)  # positive fractions of the fill price
    include_hold: bool = True
    include_close: bool = True
    lock_position: bool = False
    trade_mode: str = "fractional"  # "fractional", "notional" or "quantity"
    position_fraction: float = 1.0  # of free cash
    quantity_per_trade: float = 0.001  # currency ("notional") or units ("quantity")

    # Risk rules. 0 switches a rule off.
    cooldown: int = 0  # decisions
    turnover_cap: float = 0.0  # per session, multiples of equity
    flat_at_session_end: bool = False
    max_drawdown: float = 0.0  # fraction of the peak
    daily_drawdown: float = 0.0  # fraction of the session's start equity
    bankrupt_at: float = 0.1  # fraction of the initial equity

    # Reward and observation.
    reward: str = "log_return"  # "log_return", "return", "differential_sharpe" or "drawdown"
    sharpe_decay: float = 0.01
    drawdown_penalty: float = 1.0
    turnover_penalty: float = 0.0
    account_values: str = "full"  # "full" or "torchtrade"

    # State of the account. Read freely, write never.
    start: int = field(default=0, init=False)
    cursor: int = field(default=0, init=False)  # t, the bar observed last
    last: int = field(default=0, init=False)  # the episode's last bar
    cash: float = field(default=0.0, init=False)  # b
    units: float = field(default=0.0, init=False)  # s, signed
    entry: float = field(default=0.0, init=False)  # e, 0 when flat
    stop: float = field(default=0.0, init=False)  # price, 0 when there is none
    target: float = field(default=0.0, init=False)  # price, 0 when there is none
    equity: float = field(default=0.0, init=False)  # E at the close of the cursor's bar
    peak: float = field(default=0.0, init=False)  # highest equity of the episode
    hold_counter: int = field(default=0, init=False)  # bars
    previous_level: float | None = field(default=None, init=False)  # prev
    order_code: str = field(default="none", init=False)
    exit_code: str = field(default="none", init=False)

    def __post_init__(self) -> None:
        _require(self.fill, "next_open", "close")
        _require(self.funding_side, "holder", "perpetual")
        _require(self.action_kind, "levels", "continuous", "brackets")
        _require(self.trade_mode, "fractional", "notional", "quantity")
        _require(self.reward, "log_return", "return", "differential_sharpe", "drawdown")
        _require(self.account_values, "full", "torchtrade")
        if self.leverage < 1.0 or not 0.0 <= self.fee < 1.0 or self.maintenance_margin < 0.0:
            raise ValueError("leverage must be at least 1, fee in [0, 1), maintenance_margin not negative")
        if min((*self.stop_loss, *self.take_profit), default=1.0) <= 0.0:
            raise ValueError("stop_loss and take_profit are positive fractions of the fill price")
        for column in (self.atr, self.session_last, self.funding_column):
            if column is not None and len(column) != len(self.ohlc):
                raise ValueError("every column needs one value per bar")
        if self.hold_on_same_action is None:
            self.hold_on_same_action = self.action_kind == "levels"
        self.bracket_actions = self._list_bracket_actions()
        self.reset(0, len(self.ohlc) - 1)

    # ------------------------------------------------------------------------------------------------- Start

    def reset(self, cursor: int, last: int) -> None:
        if not 0 <= cursor <= last < len(self.ohlc):
            raise ValueError(f"need 0 <= cursor <= last < {len(self.ohlc)}, got cursor {cursor} and last {last}")
        self.start = self.cursor = cursor
        self.last = last
        self.cash = self.equity = self.peak = float(self.initial_cash)
        self.units = self.entry = self.stop = self.target = 0.0
        self.hold_counter = 0
        self.previous_level = None
        self.order_code = self.exit_code = "none"

        # Risk rules.
        self.cooldown_left = 0  # decisions still gated
        self.session_turnover = 0.0  # multiples of equity
        self.session_start_equity = self.equity
        # Moments of the differential Sharpe ratio.
        self.sharpe_mean = 0.0  # A
        self.sharpe_square = 0.0  # B

        # Journal.
        self.journal: list[JournalEntry] = []
        self.posted = dict.fromkeys(POSTING_KINDS, 0.0)  # currency, sums by kind
        self.margin_account = 0.0  # currency, moved by postings only
        self.largest_posting = 0.0  # currency, the scale of the audit
        self.funding_debits = 0.0  # currency, payments only: the most that cash can be below zero

        # Statistics of a finished episode.
        self.length = 0
        self.reward_sum = 0.0
        self.fees_paid = 0.0
        self.funding_paid = 0.0  # net of what was received
        self.turnover_sum = 0.0
        self.trades = 0
        self.positions_closed = 0
        self.positions_won = 0
        self.closest_win_tie = math.inf  # of the episode: a tie of this kind changes nothing but the win rate
        self.liquidations = 0
        self.deepest_drawdown = 0.0
        self.bar_returns: list[float] = []
        self.order_counts: Counter[str] = Counter()
        self.exit_counts: Counter[str] = Counter()

        # Of the step in hand.
        self.step_notional = 0.0  # currency traded
        self.step_turnover = 0.0
        self.step_fills = 0
        self.closest_tie = math.inf  # relative distance of the step's most nearly undecided decision

    # ---------------------------------------------------------------------------------------------- Notation

    @property
    def direction(self) -> int:
        """w"""
        return (self.units > 0.0) - (self.units < 0.0)

    @property
    def drawdown(self) -> float:
        """d"""
        return 1.0 - self.equity / self.peak

    def equity_at(self, price: float) -> float:
        """E(x)"""
        if self.units == 0.0:
            return self.cash
        return self.cash + abs(self.units) * self.entry / self.leverage + (price - self.entry) * self.units

    @property
    def margin_fraction(self) -> float:
        """μ of section "The bar"; only for an open position."""
        return 1.0 / self.leverage + min(self.cash, 0.0) / (abs(self.units) * self.entry)

    @property
    def liquidation_applies(self) -> bool:
        return self.units != 0.0 and (self.leverage > 1.0 or self.units < 0.0 or self.cash < 0.0)

    @property
    def liquidation_price(self) -> float:
        """liq; 0 when flat or when no liquidation applies."""
        if not self.liquidation_applies:
            return 0.0
        # The page's own order of operations, so that ties round alike.
        if self.units > 0.0:
            return self.entry * (1.0 - self.margin_fraction + self.maintenance_margin)
        return self.entry * (1.0 + self.margin_fraction - self.maintenance_margin)

    # ---------------------------------------------------------------------------------------------- One step

    def step(self, action: float, u: float = 0.0) -> StepResult:
        """`action` is an index (levels, brackets) or a value in [-1, 1] (continuous); `u` the step's uniform draw."""
        self.step_notional = self.step_turnover = 0.0
        self.step_fills = 0
        self.closest_tie = math.inf
        self.order_code = self.exit_code = "none"

        # One step, 0.
        if self.cursor >= self.last:
            self.order_code = "exhausted"
            return self._finish(0.0, terminated=False)

        before = self.cursor
        row = self.cursor + 1
        bar_open, bar_high, bar_low, bar_close = self.ohlc[row][:4]
        equity_before = self.equity
        direction_before = self.direction
        drawdown_before = self.drawdown

        # After the bar: a session begins with the bar after a last one, and the order of the step that reaches its
        # first bar belongs to it.
        if self._is_session_last(before):
            self.session_turnover = 0.0
            self.session_start_equity = equity_before

        # One step, 1.
        quoted = bar_open if self.fill == "next_open" else self.ohlc[before][3]
        cost = self._cost(quoted, u)

        # One step, 2.
        if self.fill == "next_open" and self.liquidation_applies and self._is_beyond(quoted, self.liquidation_price):
            self.order_code = "dropped"
            self._liquidate(quoted)
        else:
            # One step, 3.
            if self.action_kind == "brackets":
                self._bracket_order(_index(action, len(self.bracket_actions)), quoted, cost)
            else:
                self._level_order(self._level_of(action), quoted, cost)

        # One step, 4.
        if self.units != 0.0:
            self._play_bar(bar_open, bar_high, bar_low)

        # One step, 5.
        self._pay_funding(row, bar_close)

        # One step, 6.
        if self.flat_at_session_end and self.units != 0.0 and self._is_session_last(row):
            self._close(self._fill_price(bar_close, self._cost(bar_close, u), -self.direction))
            self.exit_code = "session_closed"

        # One step, 7.
        self.equity = self.equity_at(bar_close)
        self.peak = max(self.peak, self.equity)
        self.cursor = row
        if self.units == 0.0:
            self.hold_counter = 0
        elif self.direction != direction_before:
            self.hold_counter = 1
        else:
            self.hold_counter += 1

        # After the bar: cool-down. Every decision uses one up, whatever it asked for; a fill starts the count anew.
        if self.step_fills > 0:
            self.cooldown_left = self.cooldown
        elif self.cooldown_left > 0:
            self.cooldown_left -= 1

        # After the bar: turnover.
        self.step_turnover = self.step_notional / equity_before if equity_before > 0.0 else 0.0
        self.session_turnover += self.step_turnover

        # One step, 8.
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

    def _list_bracket_actions(self) -> list[BracketAction]:
        if self.action_kind != "brackets":
            return []
        actions = []
        if self.include_hold:
            actions.append(BracketAction("hold", 0, 0.0, 0.0))
        if self.include_close:
            actions.append(BracketAction("close", 0, 0.0, 0.0))
        for direction in (1, -1) if self.allow_short else (1,):
            for stop_loss in self.stop_loss:
                for take_profit in self.take_profit:
                    actions.append(BracketAction("entry", direction, stop_loss, take_profit))
        return actions

    def _bracket_order(self, action: int, quoted: float, cost: float) -> None:
        order = self.bracket_actions[action]
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

    # ----------------------------------------------------------------------------------------- After the bar

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

    # ---------------------------------------------------------------------- Statistics of a finished episode

    def statistics(self) -> dict[str, float]:
        return {
            "reward": self.reward_sum,
            "return": self.equity / self.initial_cash - 1.0,
            "length": self.length,
            "fees": self.fees_paid,
            "turnover": self.turnover_sum,
            "trades": self.trades,
            "win_rate": self.positions_won / self.positions_closed if self.positions_closed else 0.0,
            "sharpe": self._sharpe(),
            "max_drawdown": self.deepest_drawdown,
            "liquidations": self.liquidations,
            "funding": self.funding_paid,
        }

    def _sharpe(self) -> float:
        returns = self.bar_returns
        if not returns:
            return 0.0
        mean = math.fsum(returns) / len(returns)
        variance = math.fsum((value - mean) ** 2 for value in returns) / len(returns)
        return mean / math.sqrt(variance) if variance > 1e-14 * mean**2 else 0.0

    # -------------------------------------------------------------------------------------------------- Ties

    def _note_tie(self, value: float, limit: float, scale: float = 0.0) -> None:
        """Remember how near a comparison was to going the other way, relative to what was compared or to a scale."""
        scale = max(abs(value), abs(limit), scale)
        if scale > 0.0:
            self.closest_tie = min(self.closest_tie, abs(value - limit) / scale)

    @property
    def was_near_a_tie(self) -> bool:
        """Could rounding have turned a decision of the last step?"""
        return self.closest_tie < NEAR_TIE

    # ----------------------------------------------------------------------------------------------- Journal

    def _post(self, kind: str, amount: float) -> None:
        if amount == 0.0:
            return
        self.journal.append(JournalEntry(self.cursor - self.start, kind, amount))
        self.posted[kind] += amount
        self.largest_posting = max(self.largest_posting, abs(amount))
        if kind in ("margin_posted", "margin_released"):
            self.margin_account -= amount  # what leaves cash enters the margin account

    def _audit(self) -> None:
        """The books must balance after every step."""
        posted = self.posted
        tolerance = AUDIT_TOLERANCE * max(self.initial_cash, self.largest_posting)

        balance = self.initial_cash + sum(posted.values())
        assert abs(self.cash - balance) <= tolerance, f"cash {self.cash}, postings say {balance}"

        margin = abs(self.units) * self.entry / self.leverage
        assert abs(self.margin_account - margin) <= tolerance, f"margin {margin}, postings say {self.margin_account}"
        assert abs(self.fees_paid + posted["fee"]) <= tolerance, "fees differ from their postings"
        assert abs(self.funding_paid + posted["funding"]) <= tolerance, "funding differs from its postings"

        # Equity: what was put in, earned, given and not yet realised. It contains no margin: that only changes pockets.
        unrealised = (self.ohlc[self.cursor][3] - self.entry) * self.units
        earned = posted["realised_profit"] + posted["fee"] + posted["funding"] + posted["negative_balance_protection"]
        assert abs(self.equity - (self.initial_cash + earned + unrealised)) <= tolerance, "equity does not add up"
        assert self.equity >= -AUDIT_TOLERANCE * self.initial_cash, f"equity {self.equity} is negative"

        # A position's entry value is L times its margin, and the margin was paid in full: only funding makes debts.
        assert abs(self.units) * self.entry <= self.leverage * (self.margin_account + tolerance), "position too large"
        debt = self.funding_debits if self.units != 0.0 else 0.0
        assert self.cash >= -debt - tolerance, f"cash {self.cash} is below what funding can explain"
        if self.units == 0.0:
            assert self.entry == self.stop == self.target == 0.0, "a flat account has neither entry nor bracket"


def _index(action: float, count: int) -> int:
    if int(action) != action or not 0 <= action < count:
        raise ValueError(f"an action is a whole number in [0, {count}), got {action}")
    return int(action)


def _require(value: str, *allowed: str) -> None:
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
