"""An agent beside its baselines: the table with intervals, the differences, and what speaks against trusting them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from velodrome.evaluation.baselines import HINDSIGHT, LABELS
from velodrome.evaluation.breakdown import benchmark_of, market_part
from velodrome.evaluation.evaluator import Played
from velodrome.evaluation.intervals import (
    Bootstrap,
    Interval,
    block_length,
    percentile_interval,
    stationary_orders,
    widening,
)
from velodrome.evaluation.measures import METRICS, SPACES, PathMeter
from velodrome.evaluation.result import COMPARED, Difference, Row
from velodrome.evaluation.sharpe import Trials, deflated_sharpe, minimum_track_record, moments, probabilistic_sharpe
from velodrome.evaluation.trades import holding_figures, profit_factor

FEW_TRADES = 30
ENOUGH_PROBABILITY = 0.95
WITHOUT_INTERVAL = ("longest_under_water",)  # means nothing on a path that is cut into blocks
COSTS = {"fees", "spread_and_slippage", "funding"}


def compare(
    agent: Played,
    others: Sequence[Played],
    optimum: float | None,
    per_year: float,
    drawn: Bootstrap,
    trials: Trials | None,
) -> tuple[tuple[Row, ...], tuple[Difference, ...], float]:
    """Return the table, the differences to the baselines, and the mean block length of the bootstrap."""
    everyone = (agent, *others)
    meters = {played.name: PathMeter(played.curve, per_year) for played in everyone}
    names = meters["agent"].names
    # Blocks long enough for every policy's returns and for their clusters of volatility.
    series = [meter.returns.mean(axis=0) for meter in meters.values()]
    block = max(block_length(values) for own in series for values in (own, own**2))
    points = {}
    for played in everyone:
        measured = dict(zip(names, map(float, meters[played.name].figures()), strict=True))
        points[played.name] = _complete(measured, played, optimum, trials)
    resampled = {name: np.empty((drawn.samples, len(names))) for name in meters}
    rng = np.random.default_rng([drawn.seed, 1])
    for sample, order in enumerate(stationary_orders(len(agent.curve.time) - 1, block, drawn.samples, drawn.seed)):
        for name, meter in meters.items():
            seeds = rng.integers(0, meter.seeds, (meter.seeds,)) if meter.seeds > 1 else None
            resampled[name][sample] = meter.figures(order, seeds)
    columns = {name: {other: values[:, k] for other, values in resampled.items()} for k, name in enumerate(names)}
    if optimum:
        columns["of_optimum"] = {other: values / optimum for other, values in columns["account_log_return"].items()}
    moves = {name: meter.influences() for name, meter in meters.items()}
    if optimum:
        moves["agent"]["of_optimum"] = moves["agent"]["account_log_return"]
    intervals = {}
    for name, values in columns.items():
        if name not in WITHOUT_INTERVAL:
            stretch = widening(moves["agent"][name], block, drawn.confidence) if name in moves["agent"] else 1.0
            space = SPACES.get(name, "plain")
            own = percentile_interval(points["agent"][name], values["agent"], drawn.confidence, stretch, space)
            intervals[name] = meters["agent"].possible(name, own)
    intervals |= _trade_intervals(agent, points["agent"], drawn)
    if (benchmark := benchmark_of(agent, others)) is not None:
        for played in everyone:
            part = market_part(played.curve, benchmark[1], per_year, drawn.confidence)
            points[played.name] |= {name: own.value for name, own in part.items()}
            intervals |= part if played is agent else {}
    rows = []
    for metric in METRICS:
        if metric.name not in points["agent"]:
            continue
        value, low, high = intervals.get(metric.name, Interval(points["agent"][metric.name], math.nan, math.nan))
        beside = {other.name: points[other.name].get(metric.name, math.nan) for other in others}
        rows.append(Row(metric.name, value, low, high, beside))
    differences = []
    with np.errstate(invalid="ignore"):
        for name in COMPARED:
            for other in others:
                value = points["agent"][name] - points[other.name][name]
                spread = columns[name]["agent"] - columns[name][other.name]
                stretch = widening(_moves_apart(name, moves, points, other.name), block, drawn.confidence)
                found = percentile_interval(value, spread, drawn.confidence, stretch)
                differences.append(Difference(name, other.name, *found))
    return tuple(rows), tuple(differences), block


def _moves_apart(name: str, moves: Mapping[str, Mapping], points: Mapping[str, Mapping], other: str) -> NDArray:
    """Return how each bar moves the difference between the agent's figure and another's, [T]; NaN if it is not known.

    A bar's log return moves a total return by as much as there is then to be moved.
    """
    each = [
        moves[played].get(name, np.array([np.nan])) * (1.0 + points[played][name] if name == "return" else 1.0)
        for played in ("agent", other)
    ]
    return each[0] - each[1]


def _complete(
    found: dict[str, float], played: Played, optimum: float | None, trials: Trials | None
) -> dict[str, float]:
    """Add to the figures of a path those of its trades and of its Sharpe ratio."""
    found |= played.figures
    if found.keys() >= COSTS:
        found["costs"] = found["fees"] + found["spread_and_slippage"] + found["funding"]
    if optimum:
        found["of_optimum"] = found["account_log_return"] / optimum
    each = [moments(own) for own in played.curve.returns.T]
    found["probabilistic_sharpe"] = float(np.mean([probabilistic_sharpe(own) for own in each]))
    found["minimum_track_record"] = float(np.mean([minimum_track_record(own) for own in each]))
    if trials is not None and played.name == "agent":
        found["deflated_sharpe"] = float(np.mean([deflated_sharpe(own, trials) for own in each]))
    return found


def _trade_intervals(agent: Played, point: Mapping[str, float], drawn: Bootstrap) -> dict[str, Interval]:
    """Return the intervals of what trades have on average; trades are drawn one by one, holdings by period."""
    gains = agent.holdings
    if gains is not None:
        orders = stationary_orders(len(gains), 1.0, drawn.samples, drawn.seed)
        each = [holding_figures(gains[order]) for order in orders]
        return {n: percentile_interval(point[n], np.array([e[n] for e in each]), drawn.confidence) for n in each[0]}
    if len(agent.trades) < 2:
        return {}
    profit, returns = agent.trades["profit"].to_numpy(), agent.trades["return"].to_numpy()
    found = np.empty((drawn.samples, 3))
    for sample, order in enumerate(stationary_orders(len(profit), 1.0, drawn.samples, drawn.seed)):
        chosen = profit[order]
        found[sample] = (chosen > 0.0).mean(), returns[order].mean(), profit_factor(chosen)
    names = ("win_rate", "average_trade", "profit_factor")
    return {name: percentile_interval(point[name], found[:, k], drawn.confidence) for k, name in enumerate(names)}


def doubts(
    rows: Sequence[Row], differences: Sequence[Difference], drawn: Bootstrap, trials: Trials | None
) -> Iterator[str]:
    """Yield what the figures and their intervals have against trusting the result."""
    by_name = {row.name: row for row in rows}
    if "trades" in by_name and by_name["trades"].value < FEW_TRADES:
        yield f"{by_name['trades'].value:g} trades are few: win rate, average trade and profit factor say little"
    confidence = f"{drawn.confidence:.0%}"
    gain = by_name["mean_log_return"]
    if Interval(gain.value, gain.low, gain.high).includes_zero:
        yield f"the {confidence} interval of the agent's log return includes 0"
    elif gain.high < 0.0:
        yield f"the agent lost: the {confidence} interval of its log return lies below 0"
    for other in differences:
        if other.metric != COMPARED[0] or other.baseline in HINDSIGHT:
            continue
        ahead = f"the {confidence} interval of agent − {LABELS[other.baseline]} (log return)"
        if Interval(other.value, other.low, other.high).includes_zero:
            yield f"{ahead} includes 0"
        elif other.high < 0.0:
            yield f"{ahead} lies below 0: the agent did worse"
    if trials is not None and not by_name["deflated_sharpe"].value >= ENOUGH_PROBABILITY:
        yield f"after {trials.count} trials the deflated Sharpe ratio is below {ENOUGH_PROBABILITY:.0%}: it may be luck"
