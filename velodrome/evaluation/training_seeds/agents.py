"""Agents of several training seeds as one policy that was played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from velodrome.errors import ConfigError
from velodrome.evaluation.measures import Curve
from velodrome.evaluation.training_seeds.draws import mean_figures

if TYPE_CHECKING:  # they need torch, which who only reads results can do without
    from velodrome.evaluation.evaluator import Played
    from velodrome.evaluation.play import Policy

SEED_COLUMN = "agent_seed_"  # begins the name of a training seed's column among the equity curves


def by_training_seed(
    policy: Policy | Sequence[Policy], seeds: Sequence[int]
) -> tuple[tuple[Policy, ...], tuple[int, ...]]:
    """Return policies and their training seeds; those of a single policy, which nobody told of, are not known."""
    policies: tuple[Policy, ...] = tuple(policy) if isinstance(policy, Sequence) else (policy,)
    trained = tuple(seeds) or (tuple(range(len(policies))) if len(policies) > 1 else ())
    if not policies or (trained and (len(trained) != len(policies) or len(set(trained)) != len(trained))):
        raise ConfigError(
            f"training_seeds = {tuple(seeds)!r} of {len(policies)} policies: each needs one of its own, and at least "
            "one policy is needed"
        )
    return policies, trained


def joined(agents: Sequence[Played], seeds: Sequence[int]) -> Played:
    """Return several agents as one policy that was played: their curves side by side, their trades one after the other.

    What cannot be averaged (the account bar by bar) is that of the first.
    """
    first = agents[0]
    if len(agents) == 1:
        return first
    curves = [agent.curve for agent in agents]
    per_bar = {name: np.hstack([curve.per_bar[name] for curve in curves]) for name in first.curve.per_bar}
    together = Curve(first.curve.time, np.hstack([curve.growth for curve in curves]), per_bar)
    trades = pl.concat(
        agent.trades.with_columns(training_seed=pl.lit(seed, pl.Int64))
        for agent, seed in zip(agents, seeds, strict=True)
    )
    figures = mean_figures([agent.figures for agent in agents])
    return replace(first, curve=together, trades=trades, figures=figures)


def mean_actions(each: Sequence[tuple[tuple[str, float], ...]]) -> tuple[tuple[str, float], ...]:
    """Return the share of each action over all agents."""
    shares: dict[str, list[float]] = {}
    for actions in each:
        for name, share in actions:
            shares.setdefault(name, []).append(share)
    return tuple((name, sum(own) / len(each)) for name, own in shares.items())
