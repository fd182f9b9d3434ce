"""Parameters of the portfolio environment, and its presets. `docs/portfolio.md` says what each does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator, model_validator

from velodrome.envs.market.episodes import EpisodeConfig
from velodrome.envs.parameters import Ranged, option, ranged, with_preset
from velodrome.envs.terms import terms_of
from velodrome.errors import ConfigError, did_you_mean

RewardName = Literal["log_return", "excess", "blend"]
PerInstrument = float | tuple[float, ...] | dict[str, float]


class PortfolioConfig(EpisodeConfig):
    """Many instruments, one account, one decision per bar."""

    # Numeric parameters. Each may be a range (low, high); episodes draw from ranges in this order.
    initial_cash: Ranged = ranged(10_000.0, 1e-3, 1e15, "cash at the start of an episode", "currency")
    fee: Ranged | None = ranged(
        None,
        0,
        0.1,
        "fee on every purchase and every sale: `buy_fee` and `sell_fee` in one (of a range, each draws its own)",
        "fraction of notional",
        covers=("buy_fee", "sell_fee"),
    )
    buy_fee: Ranged = ranged(0.0, 0, 0.1, "fee on every purchase", "fraction of notional")
    sell_fee: Ranged = ranged(0.0, 0, 0.1, "fee on every sale", "fraction of notional")
    half_spread: Ranged = ranged(0.0, 0, 0.1, "half of the bid-ask spread, always paid", "fraction of price")
    slippage: Ranged = ranged(0.0, 0, 0.1, "slippage, times one uniform draw per step", "fraction of price")
    funding: Ranged = ranged(0.0, 0, 0.1, "holding cost of a position, long or short", "fraction per bar")
    cash_reserve: Ranged = ranged(0.0, 0, 1, "cash that buying may not touch", "fraction of initial cash")
    max_weight: Ranged = ranged(1.0, 1e-6, 10, "limit up to which a position may be enlarged", "times equity")
    max_gross: Ranged = ranged(1.0, 1e-6, 3, "limit of all positions, long and short, together", "times equity")
    trailing_stop: Ranged = ranged(
        0.0, 0, 0.99, "a position this far below its best price is closed; 0: never", "fraction of price"
    )
    max_holding: Ranged = ranged(
        0, 0, 1e6, "bars without a trade after which `decay` of a position is sold; 0: never", "bars", whole=True
    )
    decay: Ranged = ranged(0.05, 0, 1, "what is sold after `max_holding` bars", "fraction of the position")
    softmax_scale: Ranged = ranged(5.0, 1e-3, 20, "softmax: factor of the actions in the exponent", "logits")
    order_scale: Ranged = ranged(10.0, 1e-6, 1e9, "orders: an action of 1 is initial cash over this", "parts")
    trade_fraction: Ranged = ranged(0.1, 1e-9, 1, "discrete: what is bought or sold", "fraction of equity")
    buy_safety: Ranged = ranged(
        0.99, 1e-6, 1, "orders and discrete: part of the cash that one purchase may take", "fraction of cash"
    )
    bankrupt_at: Ranged = ranged(0.1, 0, 1, "equity below this ends the episode", "fraction of initial cash")
    turnover_penalty: Ranged = ranged(0.0, 0, 1e3, "taken off the reward per unit of turnover", "reward")
    concentration_penalty: Ranged = ranged(
        0.0, 0, 1e3, "taken off for the largest weight above `concentration_limit`", "reward per weight"
    )
    concentration_limit: Ranged = ranged(0.4, 0, 10, "largest weight that is not penalised", "weight")
    few_positions_penalty: Ranged = ranged(0.0, 0, 1e3, "taken off for each position below `min_positions`", "reward")
    min_positions: Ranged = ranged(3, 0, 1e6, "positions that a portfolio should have", "positions", whole=True)
    position_floor: Ranged = ranged(0.01, 0, 1, "weight above which a position counts as one", "weight")
    evenness_bonus: Ranged = ranged(
        0.0, 0, 1e3, "added times `evenness_limit` less the Gini coefficient of the positions", "reward"
    )
    evenness_limit: Ranged = ranged(0.4, 0, 1, "Gini coefficient below which there is a bonus", "Gini")
    shortfall_penalty: Ranged = ranged(0.0, 0, 1e3, "taken off for cash below the reserve", "reward per initial cash")
    excess_weight: Ranged = ranged(0.5, 0, 1e9, "blend: weight of the excess over the benchmark", "reward")
    return_weight: Ranged = ranged(0.3, 0, 1e9, "blend: weight of the return on initial cash", "reward")
    cash_weight: Ranged = ranged(
        0.02, 0, 1e9, "blend: bonus for cash, times the benchmark's fall and the share of cash", "reward"
    )
    cash_floor: Ranged = ranged(0.1, 0, 1, "blend: share of cash above which there is a bonus", "fraction")
    time_decay_floor: Ranged = ranged(
        1.0, 0, 1, "blend: excess and return fade over the episode to this; 1: not at all", "fraction"
    )
    final_discount: Ranged = ranged(
        0.0, 0, 1, "the last reward is the discounted sum of all; 0: it is like the others", "per step"
    )
    cash_unit: Ranged = ranged(1.0, 1e-12, 1e12, "raw account values: factor of the cash", "per currency")
    holding_unit: Ranged = ranged(1.0, 1e-12, 1e12, "raw account values: factor of the units", "per unit")

    # By instrument.
    min_quantity: PerInstrument = option(
        0.0, "an order of no more than this is dropped: one number, one each, or by symbol; in units"
    )
    lot: PerInstrument = option(
        0.0, "quantities are whole multiples of this (0: any): one number, one each, or by symbol; in units"
    )
    fee_tiers: tuple[tuple[float, float], ...] = option(
        (), "(traded volume, rate) instead of both fees: the rate from that volume of the episode on"
    )

    # What is traded and how.
    action: Literal["weights", "orders", "discrete"] = option("weights", "kind of action space")
    weighting: Literal["softmax", "simplex", "signed"] = option(
        "softmax", "weights: how numbers become weights; signed ones are weights, with no place for cash"
    )
    action_limit: float = option(1.0, "orders: largest action", gt=0.0, le=1e6)
    allow_short: bool = option(False, "whether positions below zero may be taken")
    fill: Literal["next_open", "close", "next_close"] = option(
        "next_open", "price at which an order fills: the next bar's open, the observed bar's or the next bar's close"
    )
    reference: Literal["market", "first_bar"] = option(
        "market", "price that sizes orders and the benchmark: the market's then, or the first of the data"
    )
    buys_restart_holding: bool = option(True, "whether a purchase restarts the count to `max_holding`")
    decay_when_halted: bool = option(False, "whether `decay` is sold even where nothing can be traded")
    single_precision: bool = option(False, "units are kept in float32, as some originals do")

    # The episode.
    reward: RewardName | Callable = option("log_return", "a name, or your own function of (old account, new account)")
    account_values: Literal["shares", "raw"] = option(
        "shares", "observed: shares of equity and what belongs to them, or cash and units as they are"
    )

    @property
    def softmax_of_actions(self) -> float | None:
        """By what actions are multiplied before a softmax makes weights of them, of a range its middle."""
        if (self.action, self.weighting) != ("weights", "softmax"):
            return None
        return float(np.mean(self.softmax_scale))

    @field_validator("min_quantity", "lot")
    @classmethod
    def _quantities_are_legal(cls, value: PerInstrument) -> PerInstrument:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        if not all(math.isfinite(part) and part >= 0.0 for part in parts):
            raise ValueError("needs quantities of at least 0")
        return value

    @field_validator("fee_tiers")
    @classmethod
    def _tiers_are_legal(cls, tiers: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        volumes = [volume for volume, _ in tiers]
        if tiers and (volumes[0] != 0.0 or any(low >= high for low, high in pairwise(volumes))):
            raise ValueError("needs volumes that begin with 0 and increase, as in ((0, 0.003), (100_000, 0.002))")
        if not all(0.0 <= rate <= 0.1 for _, rate in tiers):
            raise ValueError("needs rates between 0 and 0.1")
        return tiers

    @model_validator(mode="after")
    def _parameters_agree(self) -> PortfolioConfig:
        if self.fee_tiers and (self.buy_fee != 0.0 or self.sell_fee != 0.0):
            raise ValueError(
                "give either fee (or buy_fee and sell_fee) or fee_tiers, not both; a preset's fees count too: "
                "set fee=0 beside fee_tiers"
            )
        if self.allow_short and self.action == "weights" and self.weighting != "signed":
            raise ValueError(f"weighting={self.weighting!r} has no weights below zero; allow_short needs 'signed'")
        return self


Terms, episode_terms = terms_of(__name__, PortfolioConfig)  # the parameters as an episode has them


def by_instrument(name: str, value: PerInstrument, symbols: Sequence[str]) -> NDArray[np.float64]:
    """Return one number for each instrument."""
    if isinstance(value, dict):
        unknown = [symbol for symbol in value if symbol not in symbols]
        missing = [symbol for symbol in symbols if symbol not in value]
        if unknown or missing:
            hint = did_you_mean(unknown[0], symbols) if unknown else ""
            raise ConfigError(
                f"{name} is given for {', '.join(value)}, and the basket has {', '.join(symbols)}; give one number for "
                f"each of them.{hint}"
            )
        return np.array([value[symbol] for symbol in symbols], np.float64)
    if isinstance(value, tuple) and len(value) != len(symbols):
        raise ConfigError(f"{name} has {len(value)} numbers, and the basket has {len(symbols)} instruments.")
    return np.broadcast_to(np.array(value, np.float64), len(symbols)).copy()


PRESETS: Mapping[str, Mapping[str, Any]] = {
    # What users of FinRL-style environments know, on scales that do not depend on the account's currency.
    "crypto": {
        "action": "orders",
        "buy_fee": 0.0025,
        "sell_fee": 0.0025,
        "max_holding": 48,
        "decay": 0.05,
        "reward": "excess",
        "start": "random",
    },
    # The environment they come from, for parity: compat/alpaca_crypto.py adds what a recording's config says.
    "alpaca_crypto": {
        "action": "orders",
        "action_limit": 1000.0,
        "fill": "next_close",
        "reference": "first_bar",
        "max_holding": 48,
        "decay": 0.05,
        "buys_restart_holding": False,
        "decay_when_halted": True,
        "single_precision": True,
        "bankrupt_at": 0.0,
        "reward": "blend",
        "time_decay_floor": 0.0,
        "final_discount": 0.99,
        "account_values": "raw",
        "start": "first",
    },
}


def portfolio_config(preset: str | None = None, **values: Any) -> PortfolioConfig:
    """Return the parameters of a preset (or the defaults) with some values replaced."""
    return PortfolioConfig.create(**with_preset(PRESETS, preset, values, PortfolioConfig))
