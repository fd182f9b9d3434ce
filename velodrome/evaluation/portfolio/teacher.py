"""The forecaster's portfolio as actions: what an agent can be taught before it learns by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.portfolio.config import PortfolioConfig, portfolio_config
from velodrome.evaluation.forecast.forecast import Part
from velodrome.evaluation.forecast.teaching import TOO_LITTLE
from velodrome.evaluation.portfolio.account import quotes
from velodrome.evaluation.portfolio.baselines import FIRST_WEIGHT, limits_of
from velodrome.evaluation.portfolio.forecasts import ForecastRule, Values, forecast_rule, pays
from velodrome.tables.basket import Basket
from velodrome.tables.scaling import TRAIN


class PortfolioTeacher:
    """Asks for the forecaster's weights where they are worth their costs, and else for those that are held."""

    def __init__(self, config: PortfolioConfig, rule: ForecastRule, rows: NDArray[np.int64], bars: int) -> None:
        """Make a teacher from a rule for some rows of so many bars."""
        self.config, self.rule, self.about = config, rule, rule.about
        self.wanted, self.expected = np.zeros((2, bars, rule.wanted.shape[1]))
        self.wanted[rows], self.expected[rows] = rule.wanted, rule.expected

    def targets(self, cursor: NDArray[np.int64], account: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the actions [n, size] that stand for the weights."""
        new = self.wanted[cursor]
        held = account[:, FIRST_WEIGHT : FIRST_WEIGHT + new.shape[1]].astype(np.float64)
        changed = pays(new, held, self.expected[cursor], self.rule.terms, self.rule.patience)
        return actions_of(self.config, np.where(changed[:, None], new, held))


def actions_of(config: PortfolioConfig, weights: Values) -> Values:
    """Return the actions that stand for weights [n, K], within the action space."""
    if config.weighting == "signed":
        return np.clip(weights / float(np.max(config.max_gross)), -1.0, 1.0)
    held = np.maximum(weights, 0.0)
    with_cash = np.concatenate([held, np.maximum(1.0 - held.sum(axis=1, keepdims=True), 0.0)], axis=1)
    with_cash /= with_cash.sum(axis=1, keepdims=True)
    scale = config.softmax_of_actions
    if scale is None:
        return with_cash
    # The largest weight has the largest action; a weight of 0 is as small as actions can make it.
    share = with_cash / with_cash.max(axis=1, keepdims=True)
    return 1.0 + np.log(np.maximum(share, np.exp(-2.0 * scale))) / scale


def teacher(basket: Basket, params: Mapping[str, Any], half: int | None = None) -> PortfolioTeacher | str:
    """Return the forecaster of a basket's training split, or of one half of it, or why there is none."""
    config, part = portfolio_config(**params), Part(basket, TRAIN)
    if config.action != "weights" or config.account_values == "raw":
        what = f"action = {config.action}" if config.action != "weights" else "account_values = raw"
        return f"with {what} there is no teacher, because it asks for weights and looks at those that are held"
    if not part.can_fit:
        return TOO_LITTLE
    rule = forecast_rule(part, quotes(basket, config), limits_of(config), refined=True, half=half)
    return PortfolioTeacher(config, rule, part.rows, len(basket))
