"""What an evaluation needs of an environment on a market: to play it, its baselines, what to say of the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.evaluation.baselines import Baseline
from velodrome.evaluation.measures import Curve
from velodrome.evaluation.play import Policy
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market

ACTION_BINS = 21  # of continuous actions
Progress = Callable[[int, int], None]
Actions = tuple[tuple[str, float], ...]  # name and share of the actions taken


@dataclass(frozen=True)
class Played:
    """One policy's way through a split, with what was made of it."""

    name: str
    content: Any  # the game's own backtest
    curve: Curve
    trades: pl.DataFrame
    traded_seeds: int  # seeds of which `trades` are
    seeds: int
    figures: Mapping[str, float]  # those that are not measured bar by bar
    episodes: int
    ended_early: int  # of the episodes


class Game(Protocol):
    """An environment on a split of a market, with the parameters to be evaluated with."""

    name: str  # of the environment
    of_first_seed: str  # the figures of baselines that are not means over seeds
    in_detail: str  # what is known of the first seeds alone where all would be too many
    draws: bool  # whether two seeds can differ
    costs: bool  # whether trading costs anything

    def play(
        self, name: str, policy: Policy, seeds: Sequence[int], traded: int, progress: Progress | None,
        params: Mapping[str, Any] | None = None,
    ) -> Played:  # fmt: skip
        """Play a policy, under other parameters if some are given; trades are those of the first seeds."""

    def curve(self, policy: Policy, seeds: Sequence[int]) -> Curve:
        """Play a policy for its curve alone."""

    def baselines(self, agent: Played, seed: int) -> Sequence[Baseline]:
        """Return the policies to be beaten."""

    def actions(self, agent: Played) -> Actions:
        """Return the share of each action in all bars played."""

    def bars(self, agent: Played) -> pl.DataFrame:
        """Return what the agent did bar by bar under the first seed."""

    def information(self, agent: Played) -> dict[str, Any]:
        """Return what else to keep, as JSON-able values."""


def game_on(market: Market | Basket, split: str, params: Mapping[str, Any]) -> Game:
    """Return the game that is played on a market: the portfolio on a basket, else trading."""
    from velodrome.evaluation.portfolio.evaluator import PortfolioGame
    from velodrome.evaluation.trading.evaluator import TradingGame

    return PortfolioGame(market, split, params) if isinstance(market, Basket) else TradingGame(market, split, params)


def binned(taken: NDArray, low: float, high: float) -> Actions:
    """Return the share of continuous actions in bins that are named by their middles."""
    counts, edges = np.histogram(taken, bins=ACTION_BINS, range=(low, high))
    middles = 0.5 * (edges[1:] + edges[:-1])
    return tuple(
        (f"{middle:+.2f}", float(share)) for middle, share in zip(middles, counts / max(taken.size, 1), strict=True)
    )


def counted(taken: NDArray, names: Sequence[str]) -> Actions:
    """Return the share of each discrete action."""
    shares = np.bincount(taken.astype(np.int64).ravel(), minlength=len(names)) / max(taken.size, 1)
    return tuple(zip(names, map(float, shares), strict=True))


def times(time: NDArray[np.int64]) -> pl.Series:
    """Return moments as a column of a table."""
    return pl.Series("time", time).cast(pl.Datetime("ns", "UTC"))
