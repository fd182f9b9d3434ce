"""Trading, as an evaluation plays it: an account for every instrument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from velodrome.envs.trading.codes import CODE_NAMES
from velodrome.evaluation.baselines import Baseline, trading_baselines
from velodrome.evaluation.evaluator import Actions, Played, Progress, binned, counted, times
from velodrome.evaluation.measures import Curve, curve, trade_figures
from velodrome.evaluation.play import Backtest, Policy, backtest, draws_anything, environment_config
from velodrome.evaluation.trades import round_trips
from velodrome.tables.market import Market


class TradingGame:
    """The trading environment on a split of a market."""

    name = "trading"
    of_first_seed = "trades, win rate and spread"
    in_detail = "trades and actions"

    def __init__(self, market: Market, split: str, params: Mapping[str, Any]) -> None:
        self.market, self.split, self.params = market, split, params
        self.config = environment_config(params)
        self.draws = draws_anything(self.config)
        config = self.config
        self.costs = any((config.fee, config.half_spread, config.slippage, config.slippage_atr))

    def play(
        self, name: str, policy: Policy, seeds: Sequence[int], traded: int, progress: Progress | None,
        params: Mapping[str, Any] | None = None,
    ) -> Played:  # fmt: skip
        """Play a policy and list its trades."""
        played = backtest(policy, self.market, self.split, self.params if params is None else params, seeds, progress)
        trades = round_trips(played, seeds[:traded])
        start_equity = float(np.mean(sum(track.equity[0] for track in played.tracks)))
        return Played(
            name, played, curve(played), trades, traded, len(seeds), trade_figures(trades, traded, start_equity),
            len(played.tracks) * len(seeds), sum(int(track.ended_early.sum()) for track in played.tracks),
        )  # fmt: skip

    def curve(self, policy: Policy, seeds: Sequence[int]) -> Curve:
        """Play a policy for its curve alone."""
        return curve(backtest(policy, self.market, self.split, self.params, seeds))

    def baselines(self, agent: Played, seed: int) -> Sequence[Baseline]:
        """Return the policies to be beaten."""
        return trading_baselines(self.config, agent.content.world.action_space, seed)

    def actions(self, agent: Played) -> Actions:
        """Return the share of each action in all bars played."""
        played: Backtest = agent.content
        taken = np.concatenate([track.actions[track.played] for track in played.tracks])
        names = played.action_names
        return counted(taken, names) if names else binned(taken, -1.0, 1.0)

    def bars(self, agent: Played) -> pl.DataFrame:
        """Return what the agent did bar by bar under the first seed; an instrument's first bar has no decision."""
        played: Backtest = agent.content
        frames = []
        codes = np.array(CODE_NAMES)
        for track in played.tracks:
            actions = track.actions[:, 0]
            named: list[Any] = (
                [played.action_names[action] for action in actions] if played.action_names else actions.tolist()
            )
            on = track.played[:, 0]
            frames.append(
                pl.DataFrame(
                    {
                        "symbol": [track.symbol] * len(track.time),
                        "time": times(track.time),
                        "price": track.price,
                        "equity": track.equity[:, 0],
                        "units": track.units[:, 0],
                        "exposure": track.exposure[:, 0],
                        "action": [None, *(action if alive else None for action, alive in zip(named, on, strict=True))],
                        "reward": np.r_[0.0, track.rewards[:, 0]],
                        "fees": np.r_[0.0, track.fees[:, 0]],
                        "funding": np.r_[0.0, track.funding[:, 0]],
                        "order": ["none", *codes[track.order_codes[:, 0]].tolist()],
                        "exit": ["none", *codes[track.exit_codes[:, 0]].tolist()],
                    }
                )
            )
        return pl.concat(frames)

    def information(self, agent: Played) -> dict[str, Any]:
        """Return nothing else: the trades say it."""
        return {}
