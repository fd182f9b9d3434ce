"""How trading is evaluated: an account for every instrument, its trades, and what each bar's order came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import polars as pl

from velodrome.envs.catalog import EnvEntry
from velodrome.envs.trading.codes import CODE_NAMES
from velodrome.envs.trading.config import TradingConfig, trading_config
from velodrome.envs.trading.world import action_names
from velodrome.evaluation.baselines import Baseline
from velodrome.evaluation.evaluator import ACCOUNT_COLUMNS, Evaluator, Params, Played, draws_anything
from velodrome.evaluation.play import Backtest, Policy, Progress, Recording, Track, carried_on, play_split
from velodrome.evaluation.trades import trade_figures
from velodrome.evaluation.trading.baselines import baselines
from velodrome.evaluation.trading.trades import NOTED, NOTED_AMOUNTS, RECORDED, recording_world, round_trips
from velodrome.tables.market import Market

VALUES_IN_DETAIL = 5_000_000  # bars of all instruments and seeds whose fills are known; 40 bytes each


class TradingEvaluator(Evaluator):
    """Evaluates the trading environment on a split of a market."""

    recorded = (*ACCOUNT_COLUMNS, *RECORDED)
    market: Market
    config: TradingConfig
    of_first_seed = "trades, win rate and spread"
    in_detail = "trades and actions"

    def __init__(self, entry: EnvEntry, market: Market, split: str, params: Mapping[str, Any]) -> None:
        super().__init__(entry, market, split, params)
        self.config = config = trading_config(**params)
        self.draws = draws_anything(config)
        self.costs = any((config.fee, config.half_spread, config.slippage, config.slippage_atr))

    def backtest(
        self, policy: Policy, seeds: Sequence[int], detailed: int, progress: Progress = None, params: Params = None
    ) -> Backtest:
        """Play a policy over the split; fewer seeds are known in detail where more would fill the memory."""
        world = self.world(params)
        most = max(1, VALUES_IN_DETAIL // max(int((self.part.end - self.part.begin).sum()), 1))
        wanted = Recording(self.recorded, NOTED, min(detailed, most))
        tracks = play_split(policy, recording_world(world), self.part, seeds, wanted, progress)
        return Backtest(carried_on(tracks, NOTED_AMOUNTS), tuple(int(seed) for seed in seeds), world)

    def trades(self, played: Backtest, traded: int) -> tuple[pl.DataFrame, dict[str, float]]:
        """Return the trades and what they amount to."""
        found = round_trips(played, played.seeds[:traded])
        # What an account starts with may be drawn: each pays a share of its own.
        starts = [
            {"symbol": first.symbol, "seed": seed, "start_equity": float(first.start_equity[column])}
            for first, *_ in played.accounts
            for column, seed in enumerate(played.seeds[:traded])
        ]
        return found, trade_figures(found, pl.DataFrame(starts))

    def baselines(self, agent: Played, seed: int) -> Sequence[Baseline]:
        """Return the policies to beat."""
        return baselines(self.config, agent.backtest.world.action_space, self.parts, seed)

    def action_names(self, space: gymnasium.Space) -> Sequence[str]:
        return () if self.config.action == "continuous" else action_names(self.config)

    def track_bars(self, track: Track, agent: Played) -> dict[str, Any]:
        """Return one account bar by bar under the first seed, with what became of its orders."""
        codes = {"order": "order_code", "exit": "exit_code"}
        said = {name: np.array(CODE_NAMES)[track.held(column)[1:, 0]] for name, column in codes.items()}
        return {**super().track_bars(track, agent), **{name: ["none", *words] for name, words in said.items()}}

    def information(self, agent: Played) -> dict[str, Any]:
        """Return nothing: the trades say it."""
        return {}
