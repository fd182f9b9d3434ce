"""Baselines of a portfolio: a forecaster, momentum, equal weights, the best instrument in hindsight, cash, random.

They play in worlds of their own with the agent's costs and limits. What is held is bought with orders, because target
weights trade in every bar. What is rebalanced has signed weights, because a softmax never reaches 0 or 1. Trailing
stops and the decay of positions are off: they would sell what is to be held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.envs.portfolio.config import PortfolioConfig
from velodrome.evaluation.baselines import (
    BEST_SINGLE,
    CASH,
    EQUAL_HELD,
    EQUAL_REBALANCED,
    FORECAST,
    MOMENTUM,
    Baseline,
    ConstantPolicy,
    Memoryless,
    random_baseline,
    unchanged,
)
from velodrome.evaluation.forecast.forecast import TOO_LITTLE, Part, in_all_parts
from velodrome.evaluation.portfolio.account import quotes
from velodrome.evaluation.portfolio.forecasts import Limits, TargetWeights, forecast_weights, momentum_weights
from velodrome.tables.basket import Basket
from velodrome.vector.compile.playing import Plan

FIRST_WEIGHT = 1  # place of the first weight among the account's values
OWN_WORLD: Mapping[str, Any] = {
    "allow_short": False,
    "trailing_stop": 0.0,
    "max_holding": 0,
    "reference": "market",
    "single_precision": False,
    "account_values": "shares",
}
BY_ORDERS: Mapping[str, Any] = {"action": "orders", "order_scale": 1.0, "action_limit": 1.0, "buy_safety": 1.0}
BY_WEIGHTS: Mapping[str, Any] = {"action": "weights", "weighting": "signed"}


class BuyAndHold:
    """Orders some instruments, each for its share of the money, until they are bought, and keeps them."""

    def __init__(self, shares: NDArray[np.float64]) -> None:
        """Make a policy; shares [pieces, K] are parts of the initial cash, for each piece of a split."""
        self.shares = shares.astype(np.float32)
        self._wanted = self.shares  # [n, K] of each environment
        self._bought = np.zeros(self._wanted.shape, bool)

    def begin(self, num_envs: int) -> None:
        """Start with nothing bought; neighbouring environments play the pieces of a split."""
        self._wanted = np.tile(self.shares, (num_envs // len(self.shares), 1))
        self._bought = np.zeros(self._wanted.shape, bool)

    def act(self, observation: Any) -> NDArray:
        """Return the orders of every environment."""
        weights = np.asarray(observation["account"])[:, FIRST_WEIGHT : FIRST_WEIGHT + self.shares.shape[1]]
        self._bought |= weights != 0.0
        return np.where(self._bought, np.float32(0.0), self._wanted)

    def plan(self, bars: int, rows: int, num_envs: int) -> Plan | None:
        """Return no orders, once all is bought."""
        if not (self._bought | (self._wanted == 0.0)).all():
            return None
        return unchanged(np.zeros_like(self._wanted), rows)

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Buy again in these environments."""
        self._bought[ended] = False


class EqualWeights(Memoryless):
    """Asks for the same weight of every instrument that has a price and can be had, in every bar."""

    def __init__(self, basket: Basket, buyable: NDArray[np.bool_], room: float, gross: float) -> None:
        """Make a policy.

        buyable: [K] whether an order can fill at all. room: the sum of weights to ask for. gross: the sum of weights
        that an action of 1 stands for.
        """
        self.listed = (basket.close > 0.0) & buyable
        self.room, self.gross = room, gross

    def act(self, observation: Any) -> NDArray:
        """Return the actions of every environment."""
        return self._weights(self.listed[np.asarray(observation["cursor"])])

    def plan(self, bars: int, rows: int, num_envs: int) -> Plan:
        """Return the actions of every row."""
        table = self._weights(self.listed)
        return Plan(np.repeat(table[:1], num_envs, axis=0), table, np.zeros(len(table), bool))

    def _weights(self, listed: NDArray[np.bool_]) -> NDArray:
        count = np.maximum(listed.sum(axis=1, keepdims=True), 1)
        return np.minimum(self.room * listed / count / self.gross, 1.0).astype(np.float32)


def baselines(
    config: PortfolioConfig,
    basket: Basket,
    split: str,
    space: gymnasium.Space,
    seed: int = 0,
    parts: Sequence[Part[Basket]] = (),
) -> tuple[Baseline, ...]:
    """Return the baselines of a split of a basket, each with the world that it plays in.

    parts: what those that are fitted are fitted for, where that is not the split itself.
    """
    part = basket.split(split)
    in_piece = _ever_tradable(part, config)
    buyable, listed = np.logical_or.reduce(in_piece), (part.close[part.begin] > 0.0) & in_piece
    best = best_single(part, config)
    single = np.tile(np.arange(len(part.symbols)) == best, (len(in_piece), 1))
    hold_all, hold_best = (
        BuyAndHold(_shares(config, own / np.maximum(own.sum(axis=1, keepdims=True), 1))) for own in (listed, single)
    )
    rebalance = EqualWeights(part, buyable, 1.0 - _ends(config.cash_reserve)[1], _ends(config.max_gross)[1])
    nothing = ConstantPolicy(np.zeros(len(part.symbols), np.float32))
    of_listed = of_traded = ""
    if not listed.all():
        counts = " and ".join(str(count) for count in dict.fromkeys(listed.sum(axis=1).tolist()))
        of_listed = f" of the {counts} instruments that have a price at the start and can be had"
    if not buyable.all():
        of_traded = " of the instruments that can be had"
    forced = ", without trailing stops and decay" if config.trailing_stop or config.max_holding else ""
    held = f"the same money's worth{of_listed}, bought at the start by orders and held{forced}; same costs and limits"
    shifted = f"equal target weights{of_traded} in every bar, as signed weights{forced}; same costs and limits"
    known = f"all in {part.symbols[best]}, held: its price rose most in this very split, which nobody knew before"
    orders, weights = _own_world(config, BY_ORDERS), _own_world(config, BY_WEIGHTS)
    return (
        *chosen_in_training(config, parts or (Part(basket, split),)),
        Baseline(EQUAL_HELD, hold_all, held, orders),
        Baseline(EQUAL_REBALANCED, rebalance, shifted, weights),
        Baseline(BEST_SINGLE, hold_best, known, orders),
        Baseline(CASH, nothing, "no order, ever", orders),
        random_baseline(space, seed),
    )


def chosen_in_training(config: PortfolioConfig, parts: Sequence[Part[Basket]]) -> tuple[Baseline, ...]:
    """Return the portfolios that are fitted to the training split of every part: the forecaster, and momentum."""
    made = {FORECAST: forecast_weights, MOMENTUM: momentum_weights}
    if not all(part.can_fit for part in parts):
        return tuple(Baseline(name, None, TOO_LITTLE) for name in made)
    limits, gross, found = limits_of(config), _ends(config.max_gross)[1], []
    params = _own_world(config, BY_WEIGHTS)
    for name, make in made.items():
        weights, notes = np.full(parts[0].market.close.shape, np.nan), []
        for part in parts:
            weights[part.rows], note = make(part, quotes(part.market, config), limits)
            notes.append(note)
        found.append(Baseline(name, TargetWeights(weights, gross), in_all_parts(notes), params))
    return tuple(found)


def _own_world(config: PortfolioConfig, actions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a world with the same costs and limits, and actions that suit a rule."""
    return {**{name: getattr(config, name) for name in type(config).model_fields}, **OWN_WORLD, **actions}


def limits_of(config: PortfolioConfig) -> Limits:
    """Return how much may be held in every episode, and what trading costs on average."""
    fee = config.fee_tiers[0][1] if config.fee_tiers else 0.5 * (_middle(config.buy_fee) + _middle(config.sell_fee))
    cost = fee + _middle(config.half_spread) + 0.5 * _middle(config.slippage)  # slippage draws from 0 to 1
    room = min(1.0 - _ends(config.cash_reserve)[1], _ends(config.max_gross)[0])
    return Limits(room, _ends(config.max_weight)[0], cost)


def best_single(part: Basket, config: PortfolioConfig) -> int:
    """Return the instrument whose price rose most, from the first fill of each piece of a split to its last close."""
    first, last = quotes(part, config)[part.begin], part.close[part.end - 1]  # [pieces, K]
    bought_on = part.begin if config.fill == "close" else part.begin + 1
    buyable = (part.tradable[bought_on] == 1) & (first > 0.0)
    grown = np.where(buyable, last / np.where(first > 0.0, first, 1.0), 1.0).prod(axis=0)
    return int(np.argmax(np.where(buyable.any(axis=0), grown, -1.0)))


def _ever_tradable(part: Basket, config: PortfolioConfig) -> NDArray[np.bool_]:
    """Return whether an order in each instrument can fill on some row of each piece of a split, [pieces, K]."""
    edges = zip(part.begin.tolist(), part.end.tolist(), strict=True)
    rows = [slice(low, high - 1) if config.fill == "close" else slice(low + 1, high) for low, high in edges]
    return np.stack([(part.tradable[own] == 1).any(axis=0) for own in rows])


def _ends(value: Any) -> tuple[float, float]:
    """Return low and high of a parameter that may be a range."""
    return value if isinstance(value, tuple) else (value, value)


def _middle(value: Any) -> float:
    """Return a parameter, or the middle of its range."""
    return float(np.mean(value))


def _shares(config: PortfolioConfig, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what to order so that each is bought in the same proportion, with its costs and within the limits."""
    fee = config.fee_tiers[0][1] if config.fee_tiers else _ends(config.buy_fee)[1]
    cost = min(_ends(config.half_spread)[1] + _ends(config.slippage)[1], 0.99)
    room = min(1.0 - _ends(config.cash_reserve)[1], _ends(config.max_gross)[0])
    most = min(_ends(config.max_weight)[0], 1.0)
    return np.minimum(weights * room, most) / ((1.0 + cost) * (1.0 + fee))
