"""Baselines of trading in each kind of action: a forecaster, buy and hold, always flat, random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.envs.trading import codes
from velodrome.envs.trading.config import TradingConfig
from velodrome.envs.trading.world import action_names, bracket_actions
from velodrome.evaluation.baselines import BUY_AND_HOLD, FLAT, FORECAST, Baseline, ConstantPolicy, random_baseline
from velodrome.evaluation.forecast.forecast import (
    KINDS,
    TOO_LITTLE,
    Fitted,
    FollowForecast,
    Part,
    fill_gains,
    forecast_alone,
    in_all_parts,
)
from velodrome.evaluation.forecast.threshold import Stakes
from velodrome.tables.market import Market
from velodrome.tables.scaling import TRAIN


def baselines(
    config: TradingConfig, space: gymnasium.Space, parts: Sequence[Part[Market]], seed: int = 0
) -> tuple[Baseline, ...]:
    """Return the baselines in the actions of a trading environment; `parts` are what the forecaster is fitted for."""
    return forecaster(config, parts), _buy_and_hold(config), _flat(config), random_baseline(space, seed)


def forecaster(
    config: TradingConfig,
    parts: Sequence[Part[Market]],
    kinds: Sequence[str] = KINDS,
    refined: bool = False,
    half: int | None = None,
) -> Baseline:
    """Return the policy that trades what a regression expects, fitted to the training split of every part.

    refined: as agents begin, and not as they are measured by. half: seed of the half to fit to (`Fitted`).
    """
    if not all(part.can_fit for part in parts):
        return Baseline(FORECAST, None, TOO_LITTLE)
    actions, long, short = _sides(config)
    policy, notes = FollowForecast(len(parts[0].market), actions), []
    leverage, shift = _mean(config.leverage), 0 if config.fill == "close" else 1  # bars until an order fills
    for part in parts:
        market = part.market
        table = market.ohlc[:, 3] if config.fill == "close" else market.ohlc[:, 0]
        prices = np.r_[table[shift:], np.full(shift, np.nan)]
        gains = fill_gains(prices, market.begin, market.end - shift)
        stakes = Stakes(long * leverage, short * leverage, _cost(config, market))
        fitted = Fitted(market, TRAIN, gains[:, None], refined, half)
        model, rule, note = forecast_alone(fitted, stakes, kinds)
        policy.expected[part.rows] = fitted.expected(model, part.rows)[:, 0]
        policy.threshold[part.rows] = rule.threshold
        notes.append(note)
    return Baseline(FORECAST, policy, in_all_parts(notes))


def _cost(config: TradingConfig, market: Market) -> float:
    """Return what one unit costs to trade, a part of its value, on average over the training split."""
    rows = Part(market, TRAIN).rows
    moves = float(np.mean(market.atr[rows] / market.ohlc[rows, 3]))
    # Slippage draws from 0 to 1; that by the range of the bars is paid in full.
    slippage = 0.5 * _mean(config.slippage) + _mean(config.slippage_atr) * moves
    return _mean(config.fee) + _mean(config.half_spread) + slippage


def _sides(config: TradingConfig) -> tuple[NDArray, float, float]:
    """Return the actions for short, flat and long, and the exposures of long and short."""
    if config.action == "continuous":
        lowest = -1.0 if config.allow_short else 0.0
        return np.array([lowest, 0.0, 1.0], np.float32), 1.0, lowest
    if config.action == "brackets":
        # The widest brackets leave most to the forecast. Without CLOSE a position is left to its bracket.
        kinds = [side for side, _, _ in bracket_actions(config)]
        flat = kinds.index(codes.CLOSE) if codes.CLOSE in kinds else 0
        widest = {side: max(place for place, own in enumerate(kinds) if own == side) for side in set(kinds)}
        size = _mean(config.position_fraction)
        return np.array([widest.get(-1.0, flat), flat, widest[1.0]]), size, -size if -1.0 in widest else 0.0
    levels = np.array(config.levels if config.allow_short else np.maximum(config.levels, 0.0))
    longest, shortest = int(np.argmax(levels)), int(np.argmin(levels))
    flattest = int(np.argmin(np.abs(levels)))
    return np.array([shortest, flattest, longest]), float(levels[longest]), float(levels[shortest])


def _mean(value: Any) -> float:
    """Return a parameter, or the middle of its range."""
    return float(np.mean(value))


def _buy_and_hold(config: TradingConfig) -> Baseline:
    leverage = "" if config.leverage == 1.0 else f", times a leverage of {config.leverage}"
    if config.action == "continuous":
        return Baseline(BUY_AND_HOLD, ConstantPolicy(1.0), f"exposure +1 always{leverage}")
    if config.action == "brackets":
        return Baseline(BUY_AND_HOLD, None, "not playable: every entry carries a stop and a target that close it")
    highest = int(np.argmax(config.levels))
    if config.levels[highest] <= 0.0:
        return Baseline(BUY_AND_HOLD, None, f"not playable: no level above 0 in {config.levels}")
    return Baseline(BUY_AND_HOLD, ConstantPolicy(highest), f"level {config.levels[highest]:+g} always{leverage}")


def _flat(config: TradingConfig) -> Baseline:
    if config.action == "continuous":
        return Baseline(FLAT, ConstantPolicy(0.0), "exposure 0 always")
    if config.action == "brackets":
        for name in ("hold", "close"):
            if name in action_names(config):
                return Baseline(FLAT, ConstantPolicy(action_names(config).index(name)), f"{name.upper()} always")
        return Baseline(FLAT, None, "not playable: every action enters a position (no HOLD and no CLOSE)")
    if 0.0 in config.levels:
        return Baseline(FLAT, ConstantPolicy(config.levels.index(0.0)), "level 0 always")
    below = [index for index, level in enumerate(config.levels) if level < 0.0]
    if below and not config.allow_short:
        note = f"level {config.levels[below[0]]:g} always, which is flat without short positions"
        return Baseline(FLAT, ConstantPolicy(below[0]), note)
    return Baseline(FLAT, None, f"not playable: no level 0 in {config.levels}")
