"""What an account of the ledger is told: the market, the costs, the actions, the risk rules, and what is legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class BracketAction(NamedTuple):
    kind: str  # "hold", "close" or "entry"
    direction: int  # +1 long, -1 short, 0 for hold and close
    stop_loss: float  # positive fraction of the fill price
    take_profit: float  # positive fraction of the fill price


@dataclass(kw_only=True)
class TradingParameters:
    """Market data and settings, under the names of docs/trading.md."""

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


def _require(value: str, *allowed: str) -> None:
    if value not in allowed:
        raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
