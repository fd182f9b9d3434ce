"""The forecaster's rule as probabilities: what an agent can be taught before it learns by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.trading.config import TradingConfig, trading_config
from velodrome.envs.trading.world import action_names
from velodrome.evaluation.forecast.forecast import FollowForecast, Part
from velodrome.evaluation.forecast.teaching import TOO_LITTLE
from velodrome.evaluation.trading.baselines import forecaster
from velodrome.tables.market import Market
from velodrome.tables.scaling import TRAIN

SIDES = np.array([-1.0, 0.0, 1.0])  # short, flat, long
# Of the forecast's usual size: by how much two sides must differ until one is e times as likely. Learning pulls an
# undecided policy towards whatever paid on average first, and with 0.5 it lost what it had been taught for a while.
SOFTNESS = 0.07
ANY = 0.02  # share of decisions that are taken by chance, so that none is ruled out
FLAT = np.array([0.02, 0.96, 0.02])  # where no forecast is worth its costs
SIDE = 1  # place of the position's side among the account's values


class ForecastTeacher:
    """Prefers the sides that the forecaster would take, the more clearly the more it expects.

    The forecaster changes sides where its forecast f passes a threshold c. From side s that is the side S with the
    largest S·f − c·|S − s|, and the probabilities are the softmax of this.
    """

    def __init__(self, config: TradingConfig, rule: FollowForecast, about: str) -> None:
        self.rule, self.about = rule, about
        short, flat, long = rule.actions.tolist()
        # Without short positions the action of that side is that of flat; without a flat one it is the other way round.
        self.legal = np.array([config.allow_short, not config.allow_short or flat not in (short, long), True])
        self.discrete = config.action != "continuous"
        self.count = len(action_names(config)) if self.discrete else 0
        known = rule.expected[np.isfinite(rule.expected)]
        self.unit = SOFTNESS * max(float(np.sqrt(np.mean(known**2))), np.finfo(float).tiny)

    def targets(self, cursor: NDArray[np.int64], account: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return probabilities of discrete actions, [n, actions], or the mean of continuous ones, [n, 1]."""
        expected, threshold = self.rule.expected[cursor, None], self.rule.threshold[cursor, None]
        worth_it = np.isfinite(threshold)
        change = np.abs(SIDES - account[:, SIDE, None])
        worth = SIDES * expected - np.where(worth_it, threshold, 0.0) * change
        worth = np.where(self.legal, worth, -np.inf)
        likely = np.exp((worth - worth.max(axis=1, keepdims=True)) / self.unit)
        likely = np.where(worth_it, likely / likely.sum(axis=1, keepdims=True), FLAT)
        if not self.discrete:
            return likely @ self.rule.actions.astype(np.float64)[:, None]
        found = np.full((len(cursor), self.count), ANY / self.count)
        for side, action in enumerate(self.rule.actions):
            found[:, action] += (1.0 - ANY) * likely[:, side]
        return found


def teacher(market: Market, params: Mapping[str, Any], half: int | None = None) -> ForecastTeacher | str:
    """Return the forecaster of a market's training split, or of one half of it, or why there is none."""
    config = trading_config(**params)
    found = forecaster(config, [Part(market, TRAIN)], refined=True, half=half)
    if found.policy is None:
        return TOO_LITTLE
    assert isinstance(found.policy, FollowForecast)
    return ForecastTeacher(config, found.policy, found.note)
