"""The portfolio, as an evaluation plays it: one account for all instruments of a basket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import polars as pl

from velodrome.envs.portfolio.config import portfolio_config
from velodrome.evaluation.baselines import Baseline
from velodrome.evaluation.evaluator import Actions, Played, Progress, binned, counted, times
from velodrome.evaluation.measures import Curve, trade_figures
from velodrome.evaluation.play import Policy
from velodrome.evaluation.portfolio.baselines import portfolio_baselines
from velodrome.evaluation.portfolio.play import (
    PortfolioBacktest,
    contributions,
    curve,
    draws_anything,
    owed_share,
    portfolio_backtest,
    seeds_in_detail,
)
from velodrome.evaluation.portfolio.trades import portfolio_round_trips
from velodrome.tables.basket import Basket

CHOICES = ("sell", "hold", "buy")  # of a discrete action


class PortfolioGame:
    """The portfolio environment on a split of a basket."""

    name = "portfolio"
    of_first_seed = "trades and win rate"
    in_detail = "trades, win rate, actions and contributions"

    def __init__(self, basket: Basket, split: str, params: Mapping[str, Any]) -> None:
        self.basket, self.split, self.params = basket, split, params
        self.config = config = portfolio_config(**params)
        self.draws = draws_anything(config)
        self.costs = any((config.buy_fee, config.sell_fee, config.fee_tiers, config.half_spread, config.slippage))

    def play(
        self, name: str, policy: Policy, seeds: Sequence[int], traded: int, progress: Progress | None,
        params: Mapping[str, Any] | None = None,
    ) -> Played:  # fmt: skip
        """Play a policy and list its trades: of fewer seeds where so many would fill the memory."""
        traded = min(traded, seeds_in_detail(self.basket, self.split))
        values = self.params if params is None else params
        played = portfolio_backtest(policy, self.basket, self.split, values, seeds, progress, traded)
        trades = portfolio_round_trips(played)
        figures = trade_figures(trades, traded, float(played.equity[0, :traded].mean()))
        # Known bar by bar, of every seed.
        figures.pop("spread_and_slippage")
        figures["orders"] = float(played.fills.mean())
        early = int((played.bars < len(played.rewards)).sum())
        return Played(name, played, curve(played), trades, traded, len(seeds), figures, len(seeds), early)

    def curve(self, policy: Policy, seeds: Sequence[int]) -> Curve:
        """Play a policy for its curve alone."""
        return curve(portfolio_backtest(policy, self.basket, self.split, self.params, seeds, detailed=0))

    def baselines(self, agent: Played, seed: int) -> Sequence[Baseline]:
        """Return the policies to be beaten."""
        return portfolio_baselines(self.config, self.basket, self.split, agent.content.world.action_space, seed)

    def actions(self, agent: Played) -> Actions:
        """Return the share of each action in all bars played, over all instruments."""
        played: PortfolioBacktest = agent.content
        taken = played.actions[played.played[:, : played.detailed]]
        if self.config.action == "discrete":
            return counted(taken, CHOICES)
        space = played.world.action_space
        assert isinstance(space, gymnasium.spaces.Box)
        return binned(taken, float(space.low.min()), float(space.high.max()))

    def bars(self, agent: Played) -> pl.DataFrame:
        """Return what the agent did bar by bar under the first seed; the first bar has no decision."""
        played: PortfolioBacktest = agent.content
        frames = []
        on = played.played[:, 0]
        weights = played.weights[:, :, 0]
        flows = played.flows
        start = float(played.equity[0, 0])
        asked = played.actions[:, 0]  # [T, A]
        account = {"equity": played.equity[:, 0], "cash": played.cash[:, 0], "reward": np.r_[0.0, played.rewards[:, 0]]}
        if asked.shape[1] > len(played.symbols):
            account["cash_action"] = np.r_[np.nan, np.where(on, asked[:, -1].astype(np.float64), np.nan)]
        for k, symbol in enumerate(played.symbols):
            numbers = np.where(on, asked[:, k].astype(np.float64), np.nan)
            action: Any = np.r_[np.nan, numbers]
            if self.config.action == "discrete":
                action = [None, *(CHOICES[int(a)] if alive else None for a, alive in zip(asked[:, k], on, strict=True))]
            frames.append(
                pl.DataFrame(
                    {
                        "symbol": [symbol] * len(played.time),
                        "time": times(played.time),
                        "price": played.close[:, k],
                        "units": played.units[:, k, 0],
                        "weight": weights[:, k],
                        "action": action,
                        "turnover": np.r_[0.0, played.turnovers[:, k, 0]],
                        "contribution": np.r_[0.0, flows.net[:, k, 0] / start],
                        "fees": np.r_[0.0, flows.fees[:, k, 0]],
                        "funding": np.r_[0.0, flows.funding[:, k, 0]],
                        **account,
                    }
                )
            )
        return pl.concat(frames).with_columns(pl.col(pl.Float64).fill_nan(None))

    def information(self, agent: Played) -> dict[str, Any]:
        """Return what each instrument contributed, and what was owed beyond the whole account."""
        return {"contributions": contributions(agent.content), "owed": owed_share(agent.content)}
