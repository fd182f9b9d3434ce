"""Backtests as the tests of evaluation make them: trading on a market, a portfolio on a basket."""

from __future__ import annotations

from typing import Any

from velodrome.evaluation.evaluator import evaluator_for
from velodrome.evaluation.play import Backtest


def backtest(policy: Any, market: Any, split: str, params: dict, seeds=(0,), progress=None, detailed=None) -> Backtest:
    """Play a policy over a split; all seeds are known in detail unless a number of them is given."""
    played = evaluator_for(None, market, split, params)
    return played.backtest(policy, seeds, len(seeds) if detailed is None else detailed, progress)
