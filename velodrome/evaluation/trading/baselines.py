"""Baselines of trading in each kind of action: buy and hold, always flat, random."""

from __future__ import annotations

import gymnasium
import numpy as np

from velodrome.envs.trading.config import TradingConfig
from velodrome.envs.trading.world import action_names
from velodrome.evaluation.baselines import BUY_AND_HOLD, FLAT, Baseline, ConstantPolicy, random_baseline


def baselines(config: TradingConfig, space: gymnasium.Space, seed: int = 0) -> tuple[Baseline, ...]:
    """Return the baselines in the actions of a trading environment."""
    return _buy_and_hold(config), _flat(config), random_baseline(space, seed)


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
