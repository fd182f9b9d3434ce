"""Plays a policy over a split of a market, in an account for each instrument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from velodrome.envs.trading.config import trading_config
from velodrome.envs.trading.world import trading_world
from velodrome.evaluation.play import WHOLE_SPLIT, Backtest, Policy, Progress, Recording, play_split
from velodrome.tables.market import Market

RECORDED = Recording(("equity", "units", "fees", "funding", "turnover", "order_code", "exit_code"))


def backtest(
    policy: Policy,
    market: Market,
    split: str,
    params: Mapping[str, Any],
    seeds: Sequence[int] = (0,),
    progress: Progress = None,
) -> Backtest:
    """Play a policy over a whole split: an environment for every instrument and seed.

    params: of the trading environment; where episodes start and how long they are is replaced by the whole split.
    seeds: differ in drawn parameters and slippage; without either they are all alike.
    """
    part = market.split(split)
    values = {**params, **WHOLE_SPLIT}
    world = trading_world(part, **values)
    tracks = play_split(policy, world, part, seeds, RECORDED, progress)
    return Backtest(tracks, tuple(int(seed) for seed in seeds), trading_config(**values), world)
