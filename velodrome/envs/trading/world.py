"""Assembles the trading environment: a market and parameters become a World that any backend can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from velodrome.envs.contract import World
from velodrome.envs.market.episodes import STARTS, world_of_episodes
from velodrome.envs.terms import draws_terms, fixed_terms, range_table
from velodrome.envs.trading import codes, state
from velodrome.envs.trading.account import RewardAccount
from velodrome.envs.trading.config import TradingConfig, trading_config
from velodrome.envs.trading.rule import RULE
from velodrome.errors import ConfigError, did_you_mean
from velodrome.tables.market import Market

ACTION_KINDS = {"levels": codes.LEVELS, "continuous": codes.CONTINUOUS, "brackets": codes.BRACKETS}
TRADE_MODES = {"fractional": codes.FRACTIONAL, "notional": codes.NOTIONAL, "quantity": codes.QUANTITY}
REWARDS = {
    "log_return": codes.LOG_RETURN,
    "return": codes.RETURN,
    "differential_sharpe": codes.DIFFERENTIAL_SHARPE,
    "drawdown": codes.DRAWDOWN,
}


# What a user's reward is tried on before it is compiled with the rule.
EXAMPLE_ACCOUNT = RewardAccount(10_000.0, 10_000.0, 0.0, 0.0, 100.0, 10_000.0, 10_000.0, 0.0, 0.0)


def bracket_actions(config: TradingConfig) -> list[tuple[float, float, float]]:
    """Return (side, stop distance, target distance) of every bracket action, in order."""
    actions = [(codes.HOLD, 0.0, 0.0)] if config.include_hold else []
    actions += [(codes.CLOSE, 0.0, 0.0)] if config.include_close else []
    for side in (1.0, -1.0) if config.allow_short else (1.0,):
        actions += [(side, stop, target) for stop, target in product(config.stop_loss, config.take_profit)]
    return actions


def action_names(config: TradingConfig) -> tuple[str, ...]:
    """Return a readable name for every discrete action."""
    if config.action == "levels":
        return tuple(f"{level:+g}" if level else "flat" for level in config.levels)
    named = {codes.HOLD: "hold", codes.CLOSE: "close"}
    return tuple(
        named.get(side) or f"{'long' if side > 0 else 'short'} stop {stop:g} target {target:g}"
        for side, stop, target in bracket_actions(config)
    )


def trading_params(config: TradingConfig) -> Any:
    """Return the scalars that the rule receives."""
    fixed = fixed_terms(config)
    margin = 1.0 / fixed["leverage"]
    return state.Params(
        **fixed,
        action=ACTION_KINDS[config.action],
        reward=codes.CUSTOM if callable(config.reward) else REWARDS[config.reward],
        trade_mode=TRADE_MODES[config.trade_mode],
        start=STARTS[config.start],
        fill_at_close=config.fill == "close",
        allow_short=config.allow_short,
        hold_on_same_action=config.holds_on_same_action,
        lock_position=config.lock_position,
        flat_at_session_end=config.flat_at_session_end,
        perpetual_funding=config.funding_side == "perpetual",
        funding_from_data=config.funding_column is not None,
        randomised=draws_terms(config),
        observed=len(observed_values(config)),
        episode_length_low=config.episode_lengths[0],
        episode_length_high=config.episode_lengths[1],
        margin=margin,
        sizing=1.0 / (margin + fixed["fee"]),
    )


def observed_values(config: TradingConfig) -> tuple[str, ...]:
    """Return the names of the account vector's values."""
    if config.account_values == "torchtrade":
        return state.TORCHTRADE_VALUES
    return state.BRACKET_VALUES if config.action == "brackets" else state.ACCOUNT_VALUES


def trading_tables(market: Market, config: TradingConfig) -> state.Tables:
    """Return the read-only arrays that the rule reads."""
    brackets = np.array(bracket_actions(config), np.float64).reshape(-1, 3)
    return state.Tables(
        ohlc=market.ohlc,
        atr=market.atr,
        funding=_funding(market, config),
        session_last=market.session_last,
        begin=market.begin,
        end=market.end,
        levels=np.array(config.levels, np.float64),
        side=np.ascontiguousarray(brackets[:, 0]),
        stop=np.ascontiguousarray(brackets[:, 1]),
        target=np.ascontiguousarray(brackets[:, 2]),
        ranges=range_table(config),
    )


def _funding(market: Market, config: TradingConfig) -> np.ndarray:
    name = config.funding_column
    if name is None:
        return np.zeros(0, np.float64)
    if name not in market.columns:
        legal = tuple(market.columns)
        raise ConfigError(
            f"funding_column = {name!r}: the market has no such column; there are {', '.join(legal) or 'none'}."
            f"{did_you_mean(name, legal)}"
        )
    if name in market.lasts:
        raise ConfigError(
            f"funding_column = {name!r}: the bars of {market.timeframe} were made of finer ones, and have the last of "
            f"their rates, not what all of them cost. Give sums=[{name!r}] where they are made coarser: to "
            "build_market or read_bars (market.sums of a run does so by itself)."
        )
    if not np.isfinite(market.columns[name]).all():
        raise ConfigError(f"funding_column = {name!r} has NaN or infinite values; fill them in the data")
    return market.columns[name]


def trading_world(
    market: Market | None = None, *, preset: str | None = None, split: str | None = None, **values: Any
) -> World:
    """Return the trading environment over a market, optionally restricted to one of its splits."""
    if not isinstance(market, Market):
        raise ConfigError(
            f"market = {market!r}: the trading environment needs a Market; make one with vd.build_market(bars)"
        )
    config = trading_config(preset, **values)
    if split is not None:
        market = market.split(split)
    if config.action == "brackets" and market.close_only:
        raise ConfigError(
            f"action = 'brackets': stops and targets fill inside a bar, and the bars of {', '.join(market.close_only)} "
            "are made of closes, so that nothing is known of what lies between. Use 'levels' or 'continuous', or data "
            "with highs and lows."
        )
    continuous = config.action == "continuous"
    names = () if continuous else action_names(config)
    substitutions: dict[str, Callable] = {"custom_reward": config.reward} if callable(config.reward) else {}
    return World(
        name="trading",
        rule=RULE,
        state_type=state.State,
        params=trading_params(config),
        tables=trading_tables(market, config),
        action_space=Box(-1.0, 1.0, (1,), np.float32) if continuous else Discrete(len(names)),
        observed=observed_values(config),
        statistics=state.STATISTICS,
        substitutions=substitutions,
        substitution_examples={"custom_reward": (EXAMPLE_ACCOUNT, EXAMPLE_ACCOUNT)},
        **world_of_episodes(market, config),
        describe_state=lambda columns: describe_account(columns, market),
        action_names=names,
    )


def describe_account(columns: Mapping[str, Any], market: Market) -> str:
    """Return one line for people about an environment, given its state columns."""
    cursor = int(columns["cursor"])
    when = np.datetime64(int(market.time[cursor]), "ns").astype("datetime64[s]")
    return (
        f"{when} close {market.ohlc[cursor, 3]:g} equity {columns['equity']:.2f} cash {columns['cash']:.2f} "
        f"units {columns['units']:g} entry {columns['entry']:g} last order {codes.CODE_NAMES[columns['order_code']]}"
    )
