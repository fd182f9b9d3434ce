"""Assembles the portfolio environment: a basket and parameters become a World that any backend can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np

from velodrome.envs.contract import InstrumentLayout, World
from velodrome.envs.market.episodes import STARTS, world_of_episodes
from velodrome.envs.portfolio import codes, state
from velodrome.envs.portfolio.config import PortfolioConfig, by_instrument, portfolio_config
from velodrome.envs.portfolio.rewards import PortfolioAccount
from velodrome.envs.portfolio.rule import RULE
from velodrome.envs.terms import draws_terms, fixed_terms, range_table
from velodrome.errors import ConfigError
from velodrome.tables.basket import Basket

ACTION_KINDS = {"weights": codes.WEIGHTS, "orders": codes.ORDERS, "discrete": codes.DISCRETE}
WEIGHTINGS = {"softmax": codes.SOFTMAX, "simplex": codes.SIMPLEX, "signed": codes.SIGNED}
FILLS = {"next_open": codes.NEXT_OPEN, "close": codes.CLOSE, "next_close": codes.NEXT_CLOSE}
REWARDS = {"log_return": codes.LOG_RETURN, "excess": codes.EXCESS, "blend": codes.BLEND}
CHOICES = 3  # of a discrete action: sell, hold, buy

# What a user's reward is tried on before it is compiled with the rule.
EXAMPLE_ACCOUNT = PortfolioAccount(10_000.0, 5_000.0, 0.5, 0.3, 2.0, 10_000.0, 10_000.0, 10_000.0, 0.1, 5.0)


def portfolio_params(config: PortfolioConfig, basket: Basket) -> Any:
    """Return the scalars that the rule receives."""
    quantities = [by_instrument(name, getattr(config, name), basket.symbols) for name in ("min_quantity", "lot")]
    return state.Params(
        **fixed_terms(config),
        action=ACTION_KINDS[config.action],
        weighting=WEIGHTINGS[config.weighting],
        reward=codes.CUSTOM if callable(config.reward) else REWARDS[config.reward],
        start=STARTS[config.start],
        fill_at=FILLS[config.fill],
        allow_short=config.allow_short,
        first_bar_reference=config.reference == "first_bar",
        buys_restart_holding=config.buys_restart_holding,
        decay_when_halted=config.decay_when_halted,
        single_precision=config.single_precision,
        raw_account=config.account_values == "raw",
        # What only some rewards and options read is kept up only for them.
        has_benchmark=config.reward != "log_return",
        has_stop=config.trailing_stop != 0.0,
        counts_positions=callable(config.reward) or config.few_positions_penalty != 0.0 or config.evenness_bonus != 0.0,
        has_halts=bool((basket.tradable[int(basket.begin.min()) :] == 0).any()),
        has_quantities=bool(np.any(quantities)),
        randomised=draws_terms(config),
        episode_length_low=config.episode_lengths[0],
        episode_length_high=config.episode_lengths[1],
    )


def action_space(config: PortfolioConfig, instruments: int) -> gymnasium.Space:
    """Return the space of a number for each instrument, and one for cash where they become weights."""
    if config.action == "discrete":
        return gymnasium.spaces.MultiDiscrete(np.full(instruments, CHOICES))
    if config.action == "orders":
        return gymnasium.spaces.Box(-config.action_limit, config.action_limit, (instruments,), np.float32)
    from_zero = config.weighting == "simplex" or (config.weighting == "signed" and not config.allow_short)
    with_cash = config.weighting != "signed"
    return gymnasium.spaces.Box(0.0 if from_zero else -1.0, 1.0, (instruments + with_cash,), np.float32)


def observed_values(config: PortfolioConfig, symbols: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the account vector's values."""
    if config.account_values == "raw":
        return ("cash", *(f"units {symbol}" for symbol in symbols))
    parts = [f"{name} {symbol}" for name in ("weight", "unrealised_return", "bars_held") for symbol in symbols]
    return ("cash_share", *parts, "drawdown", "episode_left")


def instrument_layout(config: PortfolioConfig, instruments: int) -> InstrumentLayout:
    """Return which of `observed_values` belong to the instruments: all but cash, drawdown and time."""
    kinds = 1 if config.account_values == "raw" else 3
    return InstrumentLayout(instruments, tuple(1 + kind * instruments for kind in range(kinds)))


def portfolio_tables(basket: Basket, config: PortfolioConfig) -> state.Tables:
    """Return the read-only arrays that the rule reads."""
    tiers = np.array(config.fee_tiers, np.float64).reshape(-1, 2)
    return state.Tables(
        open=basket.open,
        close=basket.close,
        tradable=basket.tradable,
        first=basket.close[0].copy(),
        begin=basket.begin,
        end=basket.end,
        min_quantity=by_instrument("min_quantity", config.min_quantity, basket.symbols),
        lot=by_instrument("lot", config.lot, basket.symbols),
        tier_volume=np.ascontiguousarray(tiers[:, 0]),
        tier_rate=np.ascontiguousarray(tiers[:, 1]),
        ranges=range_table(config),
    )


def portfolio_world(
    market: Basket | None = None, *, preset: str | None = None, split: str | None = None, **values: Any
) -> World:
    """Return the portfolio environment over a basket, optionally restricted to one of its splits."""
    if not isinstance(market, Basket):
        raise ConfigError(
            f"market = {market!r}: the portfolio environment needs a Basket; make one with vd.build_basket(bars)"
        )
    instruments = len(market.symbols)
    if instruments < 2:
        raise ConfigError(f"a portfolio needs at least 2 instruments; with {market.symbols[0]} alone use 'trading'.")
    config = portfolio_config(preset, **values)
    basket = market if split is None else market.split(split)
    if config.reference == "first_bar" and (basket.close[0] <= 0.0).any():
        late = basket.symbols[int(np.argmin(basket.close[0]))]
        raise ConfigError(f"reference = 'first_bar': {late} has no price on the first bar; take 'market'.")
    params = portfolio_params(config, basket)
    substitutions: dict[str, Callable] = {"custom_reward": config.reward} if callable(config.reward) else {}
    return World(
        name="portfolio",
        rule=RULE,
        state_type=state.state_type(instruments, params.randomised),
        params=params,
        tables=portfolio_tables(basket, config),
        action_space=action_space(config, instruments),
        observed=observed_values(config, basket.symbols),
        statistics=state.STATISTICS,
        instruments=instrument_layout(config, instruments),
        substitutions=substitutions,
        substitution_examples={"custom_reward": (EXAMPLE_ACCOUNT, EXAMPLE_ACCOUNT)},
        **world_of_episodes(basket, config),
        describe_state=lambda columns: describe_account(columns, basket),
    )


def describe_account(columns: Mapping[str, Any], basket: Basket) -> str:
    """Return one line for people about an environment, given its state columns."""
    cursor, equity = int(columns["cursor"]), float(columns["equity"])
    when = np.datetime64(int(basket.time[cursor]), "ns").astype("datetime64[s]")
    worth = columns["units"] * basket.close[cursor]
    held = [
        f"{basket.symbols[k]} {worth[k] / equity:.1%}" if equity > 0 else f"{basket.symbols[k]} {columns['units'][k]:g}"
        for k in np.argsort(-np.abs(worth), kind="stable")[:8]
        if worth[k] != 0.0
    ]
    more = int((worth != 0.0).sum()) - len(held)
    return (
        f"{when} equity {equity:.2f} cash {columns['cash']:.2f} {', '.join(held) or 'nothing held'}"
        f"{f' and {more} more' if more else ''}"
    )
