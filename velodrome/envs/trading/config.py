"""Parameters of the trading environment, and its presets. `docs/trading.md` says what each does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import field_validator, model_validator

from velodrome.envs.market.episodes import EpisodeConfig
from velodrome.envs.parameters import Ranged, option, ranged, with_preset
from velodrome.envs.terms import terms_of

RewardName = Literal["log_return", "return", "differential_sharpe", "drawdown"]


class TradingConfig(EpisodeConfig):
    """One instrument, one account, one decision per execution bar."""

    # Numeric parameters. Each may be a range (low, high); episodes draw from ranges in this order.
    initial_cash: Ranged = ranged(10_000.0, 1e-3, 1e15, "cash at the start of an episode", "currency")
    fee: Ranged = ranged(0.0, 0, 0.5, "fee on every traded notional", "fraction of notional")
    half_spread: Ranged = ranged(0.0, 0, 0.5, "half of the bid-ask spread, always paid", "fraction of price")
    slippage: Ranged = ranged(0.0, 0, 0.5, "slippage, times a uniform draw per step", "fraction of price")
    slippage_atr: Ranged = ranged(0.0, 0, 10, "slippage as a multiple of the 14-bar ATR", "ATRs")
    funding: Ranged = ranged(0.0, -0.1, 0.1, "holding cost of a position", "fraction of notional per bar")
    leverage: Ranged = ranged(1.0, 1, 125, "notional that one unit of margin carries", "times margin")
    maintenance_margin: Ranged = ranged(
        0.004, 0, 0.5, "margin at which a position is liquidated", "fraction of entry notional"
    )
    bankrupt_at: Ranged = ranged(0.1, 0, 1, "equity below this ends the episode", "fraction of initial equity")
    rebalance_band: Ranged = ranged(0.02, 0, 1, "a resize smaller than this is not made", "fraction of target units")
    min_trade: Ranged = ranged(1.0, 0, 1e12, "a resize smaller than this is not made", "currency")
    position_fraction: Ranged = ranged(1.0, 1e-9, 1, "size of a fractional bracket entry", "fraction of cash")
    quantity_per_trade: Ranged = ranged(0.001, 1e-12, 1e15, "size of a notional or quantity entry", "currency or units")
    cooldown: Ranged = ranged(0, 0, 1e6, "decisions after a fill in which no order is taken", "bars", whole=True)
    turnover_cap: Ranged = ranged(
        0.0, 0, 1e6, "turnover per session beyond which orders are refused; 0: no cap", "times equity"
    )
    max_drawdown: Ranged = ranged(0.0, 0, 1, "drawdown that ends the episode; 0: no limit", "fraction of peak equity")
    daily_drawdown: Ranged = ranged(0.0, 0, 1, "session loss that ends the episode; 0: no limit", "fraction of equity")
    turnover_penalty: Ranged = ranged(0.0, 0, 1e3, "taken off the reward per unit of turnover", "reward")
    drawdown_penalty: Ranged = ranged(1.0, 0, 1e3, "reward 'drawdown': weight of an increase in drawdown", "reward")
    sharpe_decay: Ranged = ranged(0.01, 1e-6, 1, "reward 'differential_sharpe': decay of its averages", "per bar")

    # What is traded and how.
    action: Literal["levels", "continuous", "brackets"] = option("levels", "kind of action space")
    levels: tuple[float, ...] = option((-1.0, 0.0, 1.0), "target exposures in [−1, 1], parts of equity times leverage")
    stop_loss: tuple[float, ...] = option(
        (0.025, 0.05, 0.1), "brackets: distances of the stop, positive fractions of the fill price"
    )
    take_profit: tuple[float, ...] = option(
        (0.05, 0.1, 0.2), "brackets: distances of the target, positive fractions of the fill price"
    )
    include_hold: bool = option(True, "brackets: offer HOLD as the first action")
    include_close: bool = option(True, "brackets: offer CLOSE as an action")
    lock_position: bool = option(False, "brackets: ignore every action while a position is open")
    trade_mode: Literal["fractional", "notional", "quantity"] = option("fractional", "brackets: how an entry is sized")
    allow_short: bool = option(True, "whether positions below zero may be taken")
    fill: Literal["next_open", "close"] = option(
        "next_open", "price at which an order fills: the next bar's open, or the observed bar's close"
    )
    hold_on_same_action: bool | None = option(
        None, "an unchanged action on an open position holds it; None: true for levels, else false"
    )
    funding_column: str | None = option(None, "data column with the funding rate of each bar, instead of `funding`")
    funding_side: Literal["holder", "perpetual"] = option(
        "holder", "who pays funding: whoever holds, or longs to shorts as on perpetual futures"
    )
    flat_at_session_end: bool = option(False, "close what is open on the last bar of a session")

    # The episode.
    reward: RewardName | Callable = option("log_return", "a name, or your own function of (old account, new account)")
    account_values: Literal["full", "torchtrade"] = option(
        "full", "which account values are observed: all, or the six of TorchTrade"
    )

    @field_validator("levels")
    @classmethod
    def _levels_are_legal(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        if len(levels) < 1 or len(set(levels)) != len(levels) or not all(-1.0 <= level <= 1.0 for level in levels):
            raise ValueError("levels must be one or more different numbers in [−1, 1]")
        return levels

    @field_validator("stop_loss", "take_profit")
    @classmethod
    def _distances_are_legal(cls, distances: tuple[float, ...]) -> tuple[float, ...]:
        if len(distances) < 1 or not all(0.0 < distance < 10.0 for distance in distances):
            raise ValueError("needs one or more positive fractions of the price, for example 0.05 for 5 %")
        return distances

    @field_validator("stop_loss")
    @classmethod
    def _stops_leave_a_price(cls, distances: tuple[float, ...]) -> tuple[float, ...]:
        if not all(distance < 1.0 for distance in distances):
            raise ValueError("a stop of a long must lie above a price of zero: distances below 1")
        return distances

    @model_validator(mode="after")
    def _parameters_agree(self) -> TradingConfig:
        if self.funding_column is not None and self.funding != 0.0:
            raise ValueError("give either funding or funding_column, not both")
        if self.action == "levels" and not self.allow_short and all(level <= 0.0 for level in self.levels):
            raise ValueError("with allow_short=False at least one level must be above 0, or nothing can be traded")
        return self

    @property
    def holds_on_same_action(self) -> bool:
        """Whether an unchanged action holds, with the default of the action kind filled in."""
        return self.action == "levels" if self.hold_on_same_action is None else self.hold_on_same_action


# The parameters as an episode has them, and what follows from them: `margin` is 1 / leverage; `sizing` is the notional
# that one unit of equity buys with margin and fee paid, 1 / (margin + fee).
Terms, episode_terms = terms_of(__name__, TradingConfig, derived=("margin", "sizing"))

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # TorchTrade 0.1.0: close fills, levels held while unchanged, six account values.
    "torchtrade": {
        "fill": "close",
        "hold_on_same_action": True,
        "include_close": False,
        "account_values": "torchtrade",
    },
    # Short, flat or long within the day; flat before the session ends.
    "intraday": {
        "levels": (-1.0, 0.0, 1.0),
        "flat_at_session_end": True,
        "cooldown": 5,
        "fee": 0.001,
        "daily_drawdown": 0.02,
    },
}


def trading_config(preset: str | None = None, **values: Any) -> TradingConfig:
    """Return the parameters of a preset (or the defaults) with some values replaced."""
    return TradingConfig.create(**with_preset(PRESETS, preset, values, TradingConfig))
