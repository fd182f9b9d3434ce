"""Backtests as the tests of evaluation make them: trading on a market, a portfolio on a basket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from velodrome.evaluation import play
from velodrome.evaluation.evaluator import evaluator_for
from velodrome.evaluation.play import Backtest
from velodrome.evaluation.portfolio.account import PortfolioTrack, pieces_of
from velodrome.vector.make import make_vec


def backtest(policy: Any, market: Any, split: str, params: dict, seeds=(0,), progress=None, detailed=None) -> Backtest:
    """Play a policy over a split; all seeds are known in detail unless a number of them is given."""
    played = evaluator_for(None, market, split, params)
    return played.backtest(policy, seeds, len(seeds) if detailed is None else detailed, progress)


def account_of(played: Backtest) -> PortfolioTrack:
    """Return the account of a portfolio that played a split of one piece."""
    (account,) = pieces_of(played)
    return account


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Play by the rule as plain Python, which is the compiled one to the bit, as the contract of environments shows.

    For settings that no other test has: to compile them takes ten seconds, to play some hundred bars a fraction of one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play, "make_vec", lambda *given, **chosen: make_vec(*given, **{**chosen, "backend": "python"}))
        yield
