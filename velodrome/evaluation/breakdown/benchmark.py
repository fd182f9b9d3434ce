"""The market's part of a result: beta, correlation and alpha against a benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from velodrome.evaluation.baselines import BUY_AND_HOLD, EQUAL_HELD
from velodrome.evaluation.evaluator import Played
from velodrome.evaluation.intervals import Interval, influence_interval
from velodrome.evaluation.measures import Curve, curve

BENCHMARKS = (BUY_AND_HOLD, EQUAL_HELD)
PRICE = "price"  # the benchmark where the actions cannot buy and hold


def benchmark_of(agent: Played, others: Sequence[Played]) -> tuple[str, Curve] | None:
    """Return name and curve of what the agent is measured against: buy and hold, equal weights, or the price itself."""
    for other in others:
        if other.name in BENCHMARKS:
            return other.name, other.curve
    tracks = agent.backtest.tracks
    if any(track.price.ndim != 1 or not track.price[0] > 0.0 for track in tracks):
        return None
    prices = [replace(track, columns={"equity": track.price[:, None]}) for track in tracks]
    return PRICE, curve(prices, [{}] * len(prices))


def market_part(own: Curve, benchmark: Curve, per_year: float, confidence: float) -> dict[str, Interval]:
    """Return beta, correlation and alpha against a benchmark, with intervals; NaN where one of them never moves.

    Intervals are those of the regression, with what each bar adds to it taken as a dependent series.
    """
    market = benchmark.returns.mean(axis=1)
    if len(market) < 2:
        return {}
    aside, spread = market - market.mean(), market.var()
    each = []
    for returns in own.returns.T:
        moved = returns - returns.mean()
        beta = float(aside @ moved / len(moved) / spread) if spread > 0.0 else math.nan
        left = moved - beta * aside
        pull = aside * left / spread if spread > 0.0 else left
        known = spread > 0.0 and moved.std() > 0.0
        correlation = beta * math.sqrt(spread) / moved.std() if known else math.nan
        alpha = float(returns.mean() - beta * market.mean())
        each.append((beta, correlation, alpha, pull, left - market.mean() * pull, moved))
    beta, correlation, alpha = (float(np.mean([own[k] for own in each])) for k in range(3))
    pull, lead, moved = (np.mean([own[k] for own in each], axis=0) for k in range(3, 6))
    found = {
        "beta": influence_interval(beta, pull, confidence),
        "alpha": Interval(*(per_year * end for end in influence_interval(alpha, lead, confidence))),
        "correlation": Interval(correlation, correlation, correlation),
    }
    if abs(correlation) < 1.0 - 1e-12:
        first, second = aside / aside.std(), moved / moved.std()
        push = first * second - 0.5 * correlation * (first**2 + second**2)
        # In Fisher's transform, which keeps the ends within −1 and 1.
        inside = influence_interval(math.atanh(correlation), push / (1.0 - correlation**2), confidence)
        found["correlation"] = Interval(correlation, math.tanh(inside.low), math.tanh(inside.high))
    return found
