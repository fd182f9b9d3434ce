"""How a portfolio is evaluated: one account for all instruments of a basket, and what each of them contributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import polars as pl
from numpy.typing import NDArray

from velodrome.envs.catalog import EnvEntry
from velodrome.envs.portfolio.config import PortfolioConfig, portfolio_config
from velodrome.evaluation.baselines import Baseline
from velodrome.evaluation.evaluator import Evaluator, Params, Played, decided, decisions, draws_anything, times
from velodrome.evaluation.play import Backtest, Policy, Progress, Recording, Track, carried_on, play_split
from velodrome.evaluation.portfolio.account import (
    PortfolioTrack,
    contributions,
    holdings,
    pieces_of,
    quotes,
    seeds_in_detail,
)
from velodrome.evaluation.portfolio.baselines import baselines
from velodrome.evaluation.portfolio.trades import NOTED, recording_world, round_trips
from velodrome.evaluation.trades import holding_figures
from velodrome.tables.basket import Basket

# Of the account; then what `recording_world` adds, running sums of the distance of fills from the quote and of their
# number; then units, by instrument.
RECORDED = (
    *("equity", "cash", "gross", "largest", "positions", "fees", "funding", "turnover"),
    *("spread_sum", "fills", "units"),
)
CHOICES = ("sell", "hold", "buy")  # of a discrete action


class PortfolioEvaluator(Evaluator):
    """Evaluates the portfolio environment on a split of a basket."""

    market: Basket
    part: Basket
    config: PortfolioConfig
    of_first_seed = "winning holdings and profit factor"
    in_detail = "positions, winning holdings, actions and contributions"

    def __init__(self, entry: EnvEntry, market: Basket, split: str, params: Mapping[str, Any]) -> None:
        super().__init__(entry, market, split, params)
        self.config = config = portfolio_config(**params)
        self.draws = draws_anything(config)
        self.costs = any((config.buy_fee, config.sell_fee, config.fee_tiers, config.half_spread, config.slippage))

    def backtest(
        self, policy: Policy, seeds: Sequence[int], detailed: int, progress: Progress = None, params: Params = None
    ) -> Backtest:
        """Play a policy over the split; fewer seeds are known in detail where more would fill the memory."""
        world = self.world(params)
        wanted = Recording(RECORDED, NOTED, min(detailed, seeds_in_detail(self.part)))
        recording = recording_world(world, len(self.part.symbols))
        quote, at_close = quotes(self.part, self.config), self.config.fill == "close"
        tracks = [
            PortfolioTrack(
                **vars(track),
                symbols=self.part.symbols,
                quote=quote[track.first_row : track.first_row + len(track.rewards)],
                fills_at_close=at_close,
            )
            for track in play_split(policy, recording, self.part, seeds, wanted, progress)
        ]
        return Backtest(carried_on(tracks), tuple(int(seed) for seed in seeds), world)

    def trades(self, played: Backtest, traded: int) -> tuple[pl.DataFrame, dict[str, float]]:
        """Return the positions from first to last unit, and what the account came to by instrument and period.

        A position that is rebalanced is one round trip of many orders, so that trades are not counted.
        """
        orders = sum(float(piece.columns["fills"][-1].mean()) for piece in pieces_of(played))
        return round_trips(played), {"orders": orders, **holding_figures(self.holdings(played))}

    def holdings(self, played: Backtest) -> NDArray[np.float64]:
        """Return what each instrument gained in each period."""
        return holdings(pieces_of(played))

    def per_bar(self, track: Track) -> dict[str, NDArray[np.float64]]:
        assert isinstance(track, PortfolioTrack)
        return track.per_bar

    def baselines(self, agent: Played, seed: int) -> Sequence[Baseline]:
        """Return the policies to beat."""
        space = agent.backtest.world.action_space
        return baselines(self.config, self.market, self.split, space, seed, self.parts)

    def action_names(self, space: gymnasium.Space) -> Sequence[str]:
        return CHOICES if self.config.action == "discrete" else ()

    def bars(self, agent: Played) -> pl.DataFrame:
        """Return every instrument bar by bar under the first seed; the first bar of a piece has no decision."""
        pieces, names = pieces_of(agent.backtest), self.action_names(agent.backtest.world.action_space)
        found = [self.instrument_bars(piece, k, names) for k in range(len(self.part.symbols)) for piece in pieces]
        return pl.concat(found).with_columns(pl.col(pl.Float64).fill_nan(None))

    def instrument_bars(self, account: PortfolioTrack, k: int, names: Sequence[str]) -> pl.DataFrame:
        """Return one instrument of the account bar by bar under the first seed; names: of discrete actions."""
        on, asked, flows = account.played[:, 0], account.actions[:, 0], account.flows  # [T], [T, A]
        of_all = {"equity": account.equity[:, 0], "cash": account.cash[:, 0], "reward": _after(account.rewards[:, 0])}
        if asked.shape[1] > len(account.symbols):
            of_all["cash_action"] = np.r_[np.nan, np.where(on, asked[:, -1].astype(np.float64), np.nan)]
        if (apart := decided(account)) is not None:
            of_all["disagreement"] = apart
        return pl.DataFrame(
            {
                "symbol": [account.symbols[k]] * len(account.time),
                "time": times(account.time),
                "price": account.price[:, k],
                "units": account.units[:, k, 0],
                "weight": account.weights[:, k, 0],
                "action": decisions(account, names, k),
                "turnover": _after(account.turnovers[:, k, 0]),
                "contribution": _after(flows.net[:, k, 0] / account.start_equity[0]),
                "fees": _after(flows.fees[:, k, 0]),
                "funding": _after(flows.funding[:, k, 0]),
                **of_all,
            }
        )

    def information(self, agent: Played) -> dict[str, Any]:
        """Return what each instrument contributed, and what was owed beyond the whole account."""
        pieces = pieces_of(agent.backtest)
        return {"contributions": contributions(pieces), "owed": sum(piece.owed_share for piece in pieces)}


def _after(changes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what each bar brought, [T + 1]: nothing before the first decision."""
    return np.r_[0.0, changes]
