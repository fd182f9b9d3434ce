"""Policies without a thought, to be beaten: buy-and-hold, always-flat, random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.envs.trading.config import TradingConfig
from velodrome.envs.trading.world import action_names
from velodrome.errors import ConfigError
from velodrome.evaluation.play import Policy

BUY_AND_HOLD, FLAT, RANDOM = "buy_and_hold", "always_flat", "random"
EQUAL_HELD, EQUAL_REBALANCED, BEST_SINGLE, CASH = "equal_held", "equal_rebalanced", "best_single", "cash"
LABELS = {
    BUY_AND_HOLD: "buy and hold",
    FLAT: "always flat",
    EQUAL_HELD: "equal, held",
    EQUAL_REBALANCED: "equal, rebalanced",
    BEST_SINGLE: "best one (hindsight)",
    CASH: "cash",
    RANDOM: "random",
}
HINDSIGHT = (BEST_SINGLE,)  # what nobody could have known beforehand: no doubt is cast on an agent that is below it


class ConstantPolicy:
    """Takes the same action always: a number, or an array of them."""

    def __init__(self, action: int | float | NDArray) -> None:
        self.action = action
        self._actions: NDArray = np.zeros(0)

    def begin(self, num_envs: int) -> None:
        """Make room for the actions of so many environments."""
        kind = np.int64 if np.asarray(self.action).dtype.kind in "iu" else np.float32
        self._actions = np.full((num_envs, *np.shape(self.action)), self.action, kind)

    def act(self, observation: Any) -> NDArray:
        """Return the action for every environment."""
        return self._actions

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Do nothing: there is no memory."""


class RandomPolicy:
    """Draws every action uniformly from its space; the same draws after every `begin`."""

    def __init__(self, space: gymnasium.Space, seed: int = 0) -> None:
        bounded = isinstance(space, gymnasium.spaces.Box) and bool(np.isfinite([space.low, space.high]).all())
        if not bounded and not isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete):
            raise ConfigError(f"random actions need a Discrete, MultiDiscrete or bounded Box space, received {space}")
        self.space = space
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self._count = 0

    def begin(self, num_envs: int) -> None:
        """Start the draws anew for so many environments."""
        self._rng = np.random.default_rng(self.seed)
        self._count = num_envs

    def act(self, observation: Any) -> NDArray:
        """Return an action for every environment."""
        space = self.space
        if isinstance(space, gymnasium.spaces.Discrete):
            return space.start + self._rng.integers(0, space.n, self._count)
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            return self._rng.integers(0, space.nvec, (self._count, *space.nvec.shape))
        assert isinstance(space, gymnasium.spaces.Box)
        return self._rng.uniform(space.low, space.high, (self._count, *space.shape)).astype(np.float32)

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Do nothing: there is no memory."""


@dataclass(frozen=True)
class Baseline:
    """A baseline for one action space."""

    name: str
    policy: Policy | None  # None: the actions cannot express it
    note: str  # what it does, or why it cannot
    params: Mapping[str, Any] | None = None  # of the environment that it plays in; None: the agent's own


def trading_baselines(config: TradingConfig, space: gymnasium.Space, seed: int = 0) -> tuple[Baseline, ...]:
    """Return buy-and-hold, always-flat and random in the actions of a trading environment."""
    return (
        _buy_and_hold(config),
        _flat(config),
        Baseline(RANDOM, RandomPolicy(space, seed), "uniform over all actions"),
    )


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
