"""The state of one account, its journal with an audit, and the statistics of its episode.

Cash is moved by the page's formulas, and every movement is posted a second time, split by kind, in a journal; after
each step the two must agree (`_audit`).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.oracles.trading_parameters import TradingParameters

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


class JournalEntry(NamedTuple):
    step: int  # bars played before this one
    kind: str  # one of POSTING_KINDS
    amount: float  # change of free cash, currency


@dataclass(kw_only=True)
class TradingAccount(TradingParameters):
    """An account on one instrument; what moves it is in trading_orders and trading_ledger."""

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
        super().__post_init__()
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
