"""What a result is made of: its months, its falls, the market's part of it, and what costs did to it.

All figures are of the accounts together. Several seeds are measured one by one and averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import BUY_AND_HOLD, EQUAL_HELD, Memoryless
from velodrome.evaluation.evaluator import Evaluator, Played
from velodrome.evaluation.intervals import Interval, influence_interval, product_sum
from velodrome.evaluation.measures import Curve, PathMeter, curve, drawdowns
from velodrome.evaluation.play import Track, carried_on
from velodrome.vector.compile.playing import Plan

BENCHMARKS = (BUY_AND_HOLD, EQUAL_HELD)
PRICE = "price"  # the benchmark where the actions cannot buy and hold
COST_LEVELS = (0.0, 1.0, 2.0, 4.0)
COST_FIGURES = ("return", "annual_return", "sharpe", "max_drawdown", "turnover")
LISTED_FALLS = 10
WINDOWS = (1.0, 1 / 2, 1 / 4, 1 / 12, 1 / 52, 1 / 365)  # years of a rolling figure
FEWEST_IN_WINDOW, FEWEST_WINDOWS = 20, 4


def breakdown(
    evaluator: Evaluator,
    agent: Played,
    benchmark: tuple[str, Curve] | None,
    per_year: float,
    agents: Sequence[Played] = (),
) -> dict[str, Any]:
    """Return what an evaluation tells beside its table, as JSON-able values.

    agents: those that the agent consists of, if it has several training seeds.
    """
    own = agent.curve
    beside = None if benchmark is None else benchmark[1]
    return {
        "benchmark": None if benchmark is None else benchmark[0],
        "months": monthly_returns(own, beside),
        "falls": list(falls(own)),
        "rolling_sharpe": rolling_summary(own, per_year),
        "cost_levels": mean_levels([list(cost_levels(evaluator, one, per_year)) for one in agents or (agent,)]),
    }


# Months, falls, rolling figures


def monthly_returns(own: Curve, benchmark: Curve | None = None) -> list[dict[str, Any]]:
    """Return month ("2024-03", UTC), the return in it, and the benchmark's; a bar belongs to the month it opens in."""
    months = own.time.astype("datetime64[ns]").astype("datetime64[M]")
    # The rows at which a month's last bar closes; row 0 is the start.
    last = np.flatnonzero(np.r_[months[1:] != months[:-1], True])
    last = last[last > 0]
    rows = np.r_[0, last]
    found = {"agent": own} if benchmark is None else {"agent": own, "benchmark": benchmark}
    returns = {name: _changes(each.growth[rows]).mean(axis=1) for name, each in found.items()}
    return [
        {"month": str(months[row]), **{name: float(values[k]) for name, values in returns.items()}}
        for k, row in enumerate(last)
    ]


def _changes(growth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the relative change from row to row, [N, S]; 0 once nothing is left."""
    before = growth[:-1]
    return np.where(before > 0.0, growth[1:] / np.where(before > 0.0, before, 1.0) - 1.0, 0.0)


def falls(own: Curve) -> Iterator[dict[str, Any]]:
    """Yield the deepest falls of the mean curve below an earlier peak, the deepest first."""
    depth = drawdowns(own.growth.mean(axis=1))
    under = depth > 0.0
    begins = np.flatnonzero(under & ~np.r_[False, under[:-1]])
    ends = np.flatnonzero(under & ~np.r_[under[1:], False])
    troughs = [begin + int(np.argmax(depth[begin : end + 1])) for begin, end in zip(begins, ends, strict=True)]
    for k in sorted(range(len(troughs)), key=lambda k: -depth[troughs[k]])[:LISTED_FALLS]:
        peak, trough, last = int(begins[k]) - 1, troughs[k], int(ends[k])
        over = last + 1 < len(depth)
        yield {
            "depth": float(depth[trough]),
            "begin": moment(own.time[peak]),
            "trough": moment(own.time[trough]),
            "end": moment(own.time[last + 1]) if over else None,
            "bars": (last + 1 if over else last) - peak,
            "bars_down": int(trough) - peak,
        }


def moment(nanoseconds: Any) -> str:
    """Return a moment (UTC) for people."""
    return str(np.datetime64(int(nanoseconds), "ns").astype("datetime64[s]")).replace("T", " ")


def rolling_window(bars: int, per_year: float) -> int | None:
    """Return the bars of a rolling figure: the longest of WINDOWS that fits four times; None if there are too few."""
    fitting = [window for share in WINDOWS if FEWEST_IN_WINDOW <= (window := round(per_year * share)) <= bars // 4]
    if fitting:
        return fitting[0]
    return bars // FEWEST_WINDOWS if bars >= FEWEST_IN_WINDOW * FEWEST_WINDOWS else None


def rolling_sharpe(returns: NDArray[np.float64], window: int, per_year: float) -> NDArray[np.float64]:
    """Return the annualised Sharpe ratio of the last bars at every bar with a whole window behind it.

    returns: [T, S]. The result, [T − window + 1], is the mean over seeds that have one; NaN where returns are constant.
    """
    centre = returns.mean(axis=0)
    sums, squares = (
        np.cumsum(np.concatenate([np.zeros((1, returns.shape[1])), values]), axis=0)
        for values in (returns - centre, (returns - centre) ** 2)
    )
    mean = (sums[window:] - sums[:-window]) / window
    variance = ((squares[window:] - squares[:-window]) / window - mean**2) * window / (window - 1)
    # What differences of long sums leave of a constant stretch is no variance.
    known = variance > 1e-12 * (squares[-1] / len(returns) + centre**2)
    ratio = (mean + centre) / np.sqrt(np.where(known, variance, 1.0)) * math.sqrt(per_year)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, ratio, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)


def rolling_summary(own: Curve, per_year: float) -> dict[str, Any] | None:
    """Return the bars of a window, and lowest, median, highest and last of the ratios; None if there are too few."""
    window = rolling_window(len(own.time) - 1, per_year)
    if window is None:
        return None
    found = rolling_sharpe(own.returns, window, per_year)
    known = found[~np.isnan(found)]
    if not len(known):
        return {"bars": window}
    named = {"lowest": known.min(), "median": np.median(known), "highest": known.max(), "last": found[-1]}
    return {"bars": window, **{name: float(v) for name, v in named.items()}, "below_zero": float((known < 0.0).mean())}


# The market's part


def benchmark_of(agent: Played, others: Sequence[Played]) -> tuple[str, Curve] | None:
    """Return name and curve of what the agent is measured against: buy and hold, equal weights, or the price itself."""
    for other in others:
        if other.name in BENCHMARKS:
            return other.name, other.curve
    tracks = agent.backtest.tracks
    if any(track.price.ndim != 1 or not track.price[0] > 0.0 for track in tracks):
        return None
    prices = carried_on([replace(track, columns={"equity": track.price[:, None]}, began_with=None) for track in tracks])
    return PRICE, curve(prices, [{}] * len(prices))


def market_part(own: Curve, benchmark: Curve, per_year: float, confidence: float | None) -> dict[str, Interval]:
    """Return beta, correlation and alpha against a benchmark, with intervals; NaN where one of them never moves.

    Intervals are those of the regression, with what each bar adds to it taken as a dependent series. confidence: their
    level; None: there are none, for they take far longer than the figures.
    """

    def interval(value: float, series: NDArray[np.float64]) -> Interval:
        if confidence is None:
            return Interval(value, math.nan, math.nan)
        return influence_interval(value, series, confidence)

    market = benchmark.returns.mean(axis=1)
    if len(market) < 2:
        return {}
    aside, spread = market - market.mean(), market.var()
    each = []
    for returns in own.returns.T:
        moved = returns - returns.mean()
        beta = product_sum(aside, moved) / len(moved) / float(spread) if spread > 0.0 else math.nan
        left = moved - beta * aside
        pull = aside * left / spread if spread > 0.0 else left
        known = spread > 0.0 and moved.std() > 0.0
        # Rounding can carry that of an account with itself beyond 1.
        correlation = min(max(beta * math.sqrt(spread) / moved.std(), -1.0), 1.0) if known else math.nan
        alpha = float(returns.mean() - beta * market.mean())
        each.append((beta, correlation, alpha, pull, left - market.mean() * pull, moved))
    beta, correlation, alpha = (float(np.mean([own[k] for own in each])) for k in range(3))
    pull, lead, moved = (np.mean([own[k] for own in each], axis=0) for k in range(3, 6))
    found = {
        "beta": interval(beta, pull),
        "alpha": Interval(*(per_year * end for end in interval(alpha, lead))),
        "correlation": Interval(correlation, correlation, correlation),
    }
    if abs(correlation) < 1.0 - 1e-12:
        first, second = aside / aside.std(), moved / moved.std()
        push = first * second - 0.5 * correlation * (first**2 + second**2)
        # In Fisher's transform, which keeps the ends within −1 and 1.
        inside = interval(math.atanh(correlation), push / (1.0 - correlation**2))
        found["correlation"] = Interval(correlation, math.tanh(inside.low), math.tanh(inside.high))
    return found


# Costs


class Replay(Memoryless):
    """Repeats recorded actions, [T, environments, …]."""

    def __init__(self, actions: NDArray) -> None:
        self.actions = actions
        self._bar = 0

    def begin(self, num_envs: int) -> None:
        """Start at the first bar."""
        self._bar = 0

    def act(self, observation: Any) -> NDArray:
        """Return the actions of the next bar."""
        self._bar += 1
        return self.actions[self._bar - 1]

    def plan(self, bars: int, rows: int, num_envs: int) -> Plan:
        """Return all of them."""
        return Plan(self.actions[0], self.actions.reshape(bars, -1), np.zeros(0, bool))


def replayed_actions(tracks: Sequence[Track]) -> NDArray:
    """Return the actions of some accounts as `play_split` asks for them: environment s·K + k is track k, seed s."""
    longest = max(len(track.actions) for track in tracks)
    first = tracks[0].actions
    actions = np.zeros((longest, first.shape[1] * len(tracks), *first.shape[2:]), first.dtype)
    for k, track in enumerate(tracks):
        for seed in range(first.shape[1]):
            # After the end the last action again: it counts for nothing, and it is legal.
            rows = np.minimum(np.arange(longest), track.bars[seed] - 1)
            actions[:, seed * len(tracks) + k] = track.actions[rows, seed]
    return actions


def cost_levels(evaluator: Evaluator, agent: Played, per_year: float) -> Iterator[dict[str, float]]:
    """Yield what the same actions come to at several times the costs, each played through the environment's rule.

    Fees, spread and slippage are multiplied; funding, which is a price of the market's, is not. Nothing is yielded
    where nothing costs anything, or where the environment would not take the multiple. An account that ended early is
    followed to that bar only, because nobody knows what it would have done after it.
    """
    recorded, seeds = agent.backtest.tracks, agent.backtest.seeds[: agent.backtest.detailed]
    policy = Replay(replayed_actions(recorded))
    for times in COST_LEVELS:
        params = evaluator.at_costs(times)
        if params is None:
            return
        try:
            known = times == 1.0 and len(seeds) == agent.seeds
            played = agent.backtest if known else evaluator.backtest(policy, seeds, 1, params=params)
        except ConfigError:
            continue
        tracks = [track.until(own.bars[: len(seeds)]) for track, own in zip(played.tracks, recorded, strict=True)]
        measured = PathMeter(curve(tracks, [evaluator.per_bar(track) for track in tracks]), per_year)
        found: Mapping[str, Any] = dict(zip(measured.names, measured.figures(), strict=True))
        yield {"times": times, **{name: float(found[name]) for name in COST_FIGURES if name in found}}


def mean_levels(each: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """Return the levels that all agents were played at, with the means of their figures."""
    common = set.intersection(*({level["times"] for level in own} for own in each))
    kept = [[level for level in own if level["times"] in common] for own in each]
    return [
        {name: sum(level[name] for level in same) / len(same) for name in same[0]} for same in zip(*kept, strict=True)
    ]
