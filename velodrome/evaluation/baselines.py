"""Simple policies that an agent should beat: what a baseline is, and those that suit any environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError, did_you_mean
from velodrome.vector.compile.playing import Plan

if TYPE_CHECKING:
    from velodrome.evaluation.play import Policy

BUY_AND_HOLD, FLAT, FORECAST, RANDOM = "buy_and_hold", "always_flat", "forecast", "random"
EQUAL_HELD, EQUAL_REBALANCED, BEST_SINGLE, CASH = "equal_held", "equal_rebalanced", "best_single", "cash"
MOMENTUM = "momentum"
LABELS = {
    FORECAST: "forecast",
    MOMENTUM: "momentum",
    BUY_AND_HOLD: "buy and hold",
    FLAT: "always flat",
    EQUAL_HELD: "equal, held",
    EQUAL_REBALANCED: "equal, rebalanced",
    BEST_SINGLE: "best one (hindsight)",
    CASH: "cash",
    RANDOM: "random",
}
HINDSIGHT = (BEST_SINGLE,)  # chosen with knowledge that nobody had: an agent below it gets no warning


class Memoryless:
    """A policy that needs no memory."""

    def begin(self, num_envs: int) -> None:
        """Do nothing: there is nothing to remember."""

    def forget(self, ended: NDArray[np.bool_]) -> None:
        """Do nothing: there is nothing to forget."""


def unchanged(actions: NDArray, rows: int) -> Plan:
    """Return the plan to go on with the same actions, [n, …]."""
    return Plan(actions, actions[:1].reshape(1, -1), np.ones(rows, bool))


class ConstantPolicy(Memoryless):
    """Always takes the same action: a number, or an array of numbers."""

    def __init__(self, action: int | float | NDArray) -> None:
        self.action = action
        self._actions: NDArray = np.zeros(0)

    def begin(self, num_envs: int) -> None:
        """Make room for an action of every environment."""
        kind = np.int64 if np.asarray(self.action).dtype.kind in "iu" else np.float32
        self._actions = np.full((num_envs, *np.shape(self.action)), self.action, kind)

    def act(self, observation: Any) -> NDArray:
        """Return the action for every environment."""
        return self._actions

    def plan(self, bars: int, rows: int, num_envs: int) -> Plan:
        """Return the same action for ever."""
        return unchanged(self._actions, rows)


class RandomPolicy(Memoryless):
    """Draws every action from its space; `begin` starts the same draws again.

    Uniformly; where a Box has no bounds as Gymnasium's samples: from a normal distribution, or from an exponential one
    that begins at the only bound.
    """

    def __init__(self, space: gymnasium.Space, seed: int = 0) -> None:
        if not isinstance(space, gymnasium.spaces.Discrete | gymnasium.spaces.MultiDiscrete | gymnasium.spaces.Box):
            raise ConfigError(f"random actions need a Discrete, MultiDiscrete or Box space, received {space}")
        self.space = space
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self._count = 0

    def begin(self, num_envs: int) -> None:
        """Start the draws again."""
        self._rng = np.random.default_rng(self.seed)
        self._count = num_envs

    def act(self, observation: Any) -> NDArray:
        """Return an action for every environment."""
        return self._draw((self._count,))

    def plan(self, bars: int, rows: int, num_envs: int) -> Plan:
        """Return the draws of all bars, the same as one after another."""
        drawn = self._draw((bars, num_envs))
        return Plan(drawn[0], drawn.reshape(bars, -1), np.zeros(0, bool))

    def _draw(self, count: tuple[int, ...]) -> NDArray:
        space = self.space
        if isinstance(space, gymnasium.spaces.Discrete):
            return space.start + self._rng.integers(0, space.n, count)
        if isinstance(space, gymnasium.spaces.MultiDiscrete):
            return self._rng.integers(0, space.nvec, (*count, *space.nvec.shape))
        assert isinstance(space, gymnasium.spaces.Box)
        below, above, size = np.isfinite(space.low), np.isfinite(space.high), (*count, *space.shape)
        low, high = (np.where(below & above, bound, side) for bound, side in ((space.low, 0.0), (space.high, 1.0)))
        drawn = self._rng.uniform(low, high, size)
        if not (below & above).all():
            beyond = self._rng.exponential(size=size)
            one_sided = np.where(below, space.low + beyond, space.high - beyond)
            unbounded = np.where(below | above, one_sided, self._rng.normal(size=size))
            drawn = np.where(below & above, drawn, unbounded)
        return drawn.astype(np.float32)


@dataclass(frozen=True)
class Baseline:
    """A baseline for one action space."""

    name: str  # one of LABELS, which has a label and a colour in every chart
    policy: Policy | None  # None: the actions cannot express it
    note: str  # what it does, or why it cannot
    params: Mapping[str, Any] | None = None  # of the environment that it plays in; None: the agent's own

    def __post_init__(self) -> None:
        if self.name not in LABELS:
            raise ConfigError(
                f"no baseline is called {self.name!r}; legal: {', '.join(LABELS)}.{did_you_mean(self.name, LABELS)}"
            )


def random_baseline(space: gymnasium.Space, seed: int) -> Baseline:
    """Return random actions."""
    return Baseline(RANDOM, RandomPolicy(space, seed), "uniform over all actions")
