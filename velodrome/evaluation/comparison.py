"""An agent beside its baselines: the table with intervals, the differences, and what speaks against trusting them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from velodrome.evaluation.baselines import FORECAST, HINDSIGHT, LABELS
from velodrome.evaluation.breakdown import benchmark_of, market_part
from velodrome.evaluation.evaluator import Played
from velodrome.evaluation.intervals import (
    Blocks,
    Bootstrap,
    Interval,
    block_length,
    percentile_interval,
    stationary_blocks,
    widening,
)
from velodrome.evaluation.measures import METRICS, SPACES, PathMeter, format_figure, mean_of_known, walk_blocks
from velodrome.evaluation.play import one_thread
from velodrome.evaluation.result import COMPARED, Difference, Row
from velodrome.evaluation.sharpe import Trials, deflated_sharpe, minimum_track_record, moments, probabilistic_sharpe
from velodrome.evaluation.training_seeds import SeedDraws, SeedSpread, mean_figures, mean_influences, spread_of
from velodrome.vector.cores import available_cores

FEW_TRADES = 30
ENOUGH_PROBABILITY = 0.95
WITHOUT_INTERVAL = ("longest_under_water",)  # means nothing on a path that is cut into blocks
VALUES_AT_ONCE = 2**21  # of resamples that are counted together, 16 MB: more would be new memory each time
COSTS = {"fees", "spread_and_slippage", "funding"}


class Comparison(NamedTuple):
    """An agent beside its baselines."""

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    block: float  # mean block length of the bootstrap, in bars
    seeds: tuple[tuple[Row, ...], ...]  # the agent of each training seed by itself, if there are several
    spread: tuple[SeedSpread, ...]  # of several training seeds


def compare(
    agents: Sequence[Played],
    others: Sequence[Played],
    optimum: float | None,
    per_year: float,
    drawn: Bootstrap,
    trials: Trials | None,
) -> Comparison:
    """Return the table and the differences to the baselines; agents of several training seeds count as one."""
    everyone, count = (*agents, *others), len(agents)
    meters = [PathMeter(played.curve, per_year) for played in everyone]
    # Blocks long enough for every policy's returns and for their clusters of volatility.
    series = [meter.returns.mean(axis=0) for meter in meters]
    block = max(block_length(values) for own in series for values in (own, own**2))
    points = [
        _complete(dict(zip(meter.names, map(float, meter.figures()), strict=True)), played, optimum, trials)
        for played, meter in zip(everyone, meters, strict=True)
    ]
    columns, moves = _resampled(meters, count, block, drawn), [meter.influences() for meter in meters]
    if optimum:
        columns["of_optimum"] = columns["account_log_return"] / optimum
        moves = [{**own, "of_optimum": own["account_log_return"]} for own in moves]
    draws = SeedDraws(count, drawn)
    resamples = {name: values[:count] for name, values in columns.items() if name not in WITHOUT_INTERVAL}
    resamples |= _trade_resamples(agents, drawn)
    exact: list[dict[str, Interval]] = [{}] * count
    if (benchmark := benchmark_of(agents[0], others)) is not None:
        levels = [drawn.confidence if place < count else None for place in range(len(everyone))]
        parts = [
            market_part(played.curve, benchmark[1], per_year, level)
            for played, level in zip(everyone, levels, strict=True)
        ]
        for own, part in zip(points, parts, strict=True):
            own |= {name: known.value for name, known in part.items()}
        exact = parts[:count]
        resamples |= draws.of_intervals(exact) if count > 1 else {}
    agent, beside = mean_figures(points[:count]), points[count:]
    together = mean_influences(moves[:count])
    intervals = _Intervals(points[:count], meters, moves, together, resamples, exact, draws, block, drawn, {})

    shown = [metric.name for metric in METRICS if metric.name in agent]
    baselines = {other.name: figures for other, figures in zip(others, beside, strict=True)}
    rows = tuple(
        Row(
            name, *intervals.of(name, agent[name]), {other: own.get(name, math.nan) for other, own in baselines.items()}
        )
        for name in shown
    )
    by_seed = tuple(
        tuple(Row(name, *intervals.of(name, own[name], seed), {}) for name in shown)
        for seed, own in enumerate(points[:count])
        if count > 1
    )
    differences = []
    with np.errstate(invalid="ignore"):
        for name in COMPARED:
            for place, other in enumerate(others):
                theirs = beside[place], moves[count + place]
                stretch = widening(_moves_apart(name, (agent, together), theirs), block, drawn.confidence)
                ours = draws.resampled(name, intervals.each(name), columns[name][:count], stretch)
                apart = percentile_interval(
                    agent[name] - beside[place][name], ours - columns[name][count + place], drawn.confidence, stretch
                )
                differences.append(Difference(name, other.name, *apart))
    spread = tuple(
        spread_of(name, intervals.each(name), columns[name][:count], draws, drawn.confidence)
        for name in COMPARED
        if count > 1
    )
    return Comparison(rows, tuple(differences), block, by_seed, spread)


def _resampled(
    meters: Sequence[PathMeter], agents: int, block: float, drawn: Bootstrap
) -> dict[str, NDArray[np.float64]]:
    """Return every figure of every policy in each resample, by name [policies, N]; all are cut into the same blocks.

    agents: how many of the policies, the first ones, are agents; of the others, the figures of COMPARED are known.
    """
    paths = [(meter, seed, place < agents) for place, meter in enumerate(meters) for seed in range(meter.seeds)]
    logs = np.stack([meter.logs[seed] for meter, seed, whole in paths if whole], axis=1)
    columns = [meter.summed(seed, whole) for meter, seed, whole in paths]
    ends = np.cumsum([own.shape[1] for own in columns])[:-1]
    begins = np.cumsum([0, *(meter.seeds for meter in meters)])
    found = np.empty((len(meters[0].names), len(meters), drawn.samples))
    rng, first = np.random.default_rng([drawn.seed, 1]), 0
    for part in resampled(logs, np.concatenate(columns, axis=1), block, drawn):
        by_path, some = np.split(part.sums, ends, axis=1), len(part.sums)
        # Of several seeds, each resample draws as many.
        chosen = [[rng.integers(0, own.seeds, own.seeds) for own in meters if own.seeds > 1] for _ in range(some)]
        several = iter(np.array(own) for own in zip(*chosen, strict=True))  # [N, seeds] each
        for place, meter in enumerate(meters):
            own = slice(begins[place], begins[place + 1])
            deepest = part.deepest.T[own] if place < agents else np.full((meter.seeds, some), np.nan)
            each = meter.resampled_figures(np.stack(by_path[own]), deepest)
            if meter.seeds > 1:
                each = np.take_along_axis(each, next(several).T[:, :, None], axis=0)
            found[:, place, first : first + some] = mean_of_known(each).T
        first += some
    return dict(zip(meters[0].names, found, strict=True))


class Resamples(NamedTuple):
    """Some resamples of P paths of T bars."""

    sums: NDArray[np.float64]  # [N, Q] of columns, over the bars that each visits
    deepest: NDArray[np.float64]  # [N, P] largest falls of the sums of log returns


def resampled(
    logs: NDArray[np.float64], columns: NDArray[np.float64], block: float, drawn: Bootstrap
) -> Iterator[Resamples]:
    """Yield the resamples of paths, [T, P], and of columns, [T, Q], some at a time.

    The calling thread draws them one after the other, while others walk through those that are drawn and add them up.
    """
    bars, paths = logs.shape
    count, at_once, cores = drawn.samples, max(1, min(64, VALUES_AT_ONCE // bars)), available_cores()
    blocks, of_all = stationary_blocks(bars, block, count, drawn.seed), Sums(columns)
    rooms = [np.empty((at_once, bars)) for _ in range(cores + 1)]  # used again: new memory takes longer

    def walk(some: Sequence[Blocks], room: NDArray[np.float64]) -> Resamples:
        times, deepest = room[: len(some)], np.empty((len(some), paths))
        for own, visits, falls in zip(some, times, deepest, strict=True):
            walk_blocks(own.begin, own.row, logs, visits, falls)
        return Resamples(of_all.over(times), deepest)

    # torch adds on one thread, in each of ours: its own, and NumPy's, wait for each other on a busy machine.
    with one_thread(), ThreadPoolExecutor(cores) as threads:
        waiting: deque[Future[Resamples]] = deque()
        for number, first in enumerate(range(0, count, at_once)):
            if len(waiting) == len(rooms):  # the first of them has the room that is wanted next
                yield waiting.popleft().result()
            some = list(islice(blocks, min(at_once, count - first)))
            waiting.append(threads.submit(walk, some, rooms[number % len(rooms)]))
        for each in waiting:
            yield each.result()


class Sums:
    """Sums of columns, [T, Q], over the bars that resamples visit; infinities count where they are visited."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        self.odd = [(bar, column, values[bar, column]) for bar, column in np.argwhere(~np.isfinite(values))]
        self.values = np.where(np.isfinite(values), values, 0.0) if self.odd else values

    def over(self, times: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums, [N, Q]; times: [N, T] how often each bar is visited."""
        sums = (torch.from_numpy(times) @ torch.from_numpy(self.values)).numpy()
        for bar, column, value in self.odd:
            sums[times[:, bar] > 0.0, column] += value
        return sums


class _Intervals(NamedTuple):
    """What the intervals of the agents' figures are made from; lists are by training seed."""

    points: Sequence[Mapping[str, float]]
    meters: Sequence[PathMeter]  # those of the baselines behind them
    moves: Sequence[
        Mapping[str, NDArray[np.float64]]
    ]  # how each bar moves a figure; those of the baselines behind them
    together: Mapping[str, NDArray[np.float64]]  # how each bar moves the mean over seeds
    resamples: Mapping[str, NDArray[np.float64]]  # by name [seeds, N]
    exact: Sequence[Mapping[str, Interval]]  # known without resampling
    draws: SeedDraws
    block: float
    drawn: Bootstrap
    stretches: dict[int, float]  # by a series of `moves` or `together`, which all live as long as this

    def widened_by(self, series: NDArray[np.float64]) -> float:
        """Return the stretch of a figure that a series moves; several figures have the same one."""
        if id(series) not in self.stretches:
            self.stretches[id(series)] = widening(series, self.block, self.drawn.confidence)
        return self.stretches[id(series)]

    def each(self, name: str) -> NDArray[np.float64]:
        """Return a figure of every training seed."""
        return np.array([own[name] for own in self.points], np.float64)

    def of(self, name: str, value: float, seed: int | None = None) -> Interval:
        """Return the interval of the agent's figure, or of that of one training seed."""
        alone = 0 if len(self.points) == 1 else seed
        if alone is not None and name in self.exact[alone]:
            return self.exact[alone][name]
        if name not in self.resamples:
            return Interval(value, math.nan, math.nan)
        own = self.together if seed is None else self.moves[seed]
        stretch = self.widened_by(own[name]) if name in own else 1.0
        values = self.resamples[name][seed or 0]
        if seed is None:
            values = self.draws.resampled(name, self.each(name), self.resamples[name], stretch)
        found = percentile_interval(value, values, self.drawn.confidence, stretch, SPACES.get(name, "plain"))
        return _widest(name, found, self.meters[: len(self.points)] if seed is None else [self.meters[seed]])


Measured = tuple[Mapping[str, float], Mapping[str, NDArray[np.float64]]]  # figures, and how each bar moves them


def _moves_apart(name: str, agent: Measured, other: Measured) -> NDArray[np.float64]:
    """Return how each bar moves the difference between the agent's figure and another's, [T]; NaN if it is not known.

    A bar's log return moves a total return by as much as there is then to be moved.
    """
    each = [
        moves.get(name, np.array([np.nan])) * (1.0 + figures[name] if name == "return" else 1.0)
        for figures, moves in (agent, other)
    ]
    return each[0] - each[1]


def _widest(name: str, found: Interval, meters: Sequence[PathMeter]) -> Interval:
    """Return an interval within what a figure can be by any of the meters."""
    each = [meter.possible(name, found) for meter in meters]
    return found._replace(low=float(min(own.low for own in each)), high=float(max(own.high for own in each)))


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


def _trade_resamples(agents: Sequence[Played], drawn: Bootstrap) -> dict[str, NDArray[np.float64]]:
    """Return what trades have on average in every resample, by name [seeds, N]."""
    each = [_resampled_trades(agent, drawn) for agent in agents]
    missing = np.full(drawn.samples, math.nan)
    names = dict.fromkeys(name for own in each for name in own)
    return {name: np.stack([own.get(name, missing) for own in each]) for name in names}


def _resampled_trades(agent: Played, drawn: Bootstrap) -> dict[str, NDArray[np.float64]]:
    """Return what trades, or holdings, have on average in each resample, by name [N]."""
    names = ("win_rate", "profit_factor") if agent.holdings is None else ("winning_holdings", "holdings_profit_factor")
    columns = _trade_columns(agent.trades) if agent.holdings is None else _gain_columns(agent.holdings)
    if agent.holdings is None and len(columns) < 2:
        return {}
    nothing = np.zeros((len(columns), 0))
    sums = np.concatenate([part.sums for part in resampled(nothing, columns, 1.0, drawn)])
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {names[0]: sums[:, 0] / sums[:, 1], names[1]: sums[:, 2] / sums[:, 3]}
        return found if agent.holdings is not None else {**found, "average_trade": sums[:, 4] / sums[:, 1]}


def _gain_columns(gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what is drawn together, a row each: how many gained, how many there are, what they gained and lost."""
    known = np.nan_to_num(gains)
    parts = [(known > 0.0), ~np.isnan(gains), np.maximum(known, 0.0), np.maximum(-known, 0.0)]
    return np.stack([part.sum(axis=1, dtype=np.float64) for part in parts], axis=1)


def _trade_columns(trades: pl.DataFrame) -> NDArray[np.float64]:
    """Return the same of trades, and their returns.

    A trade is drawn with those of the other evaluation seeds that are as far on in the same account: on the same bars
    they are nearly the same, and together say little more than one.
    """
    columns = np.c_[_gain_columns(trades["profit"].to_numpy()[:, None]), trades["return"].to_numpy()]
    places = pl.struct("symbol", pl.int_range(pl.len()).over("symbol", "seed"))
    ranks = trades.select(place=places.rank("dense"))["place"].to_numpy()
    _, first, together = np.unique(ranks, return_index=True, return_inverse=True)
    sums = np.zeros((len(first), columns.shape[1]))
    np.add.at(sums, together, columns)
    return sums[np.argsort(first)]  # in the order of the trades


def doubts(
    rows: Sequence[Row], differences: Sequence[Difference], drawn: Bootstrap, trials: Trials | None
) -> Iterator[str]:
    """Yield what the figures and their intervals have against trusting the result."""
    by_name = {row.name: row for row in rows}
    if "in_market" in by_name and by_name["in_market"].value == 0.0:
        yield "the agent never traded on this split: every other figure follows from that"
        return
    if "trades" in by_name and by_name["trades"].value < FEW_TRADES:
        count = format_figure(by_name["trades"].value, "count")
        trades = "1 trade is" if count == "1" else f"{count} trades are"
        yield f"{trades} few: win rate, average trade and profit factor say little"
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
        regression = ": a plain regression may do as well" if other.baseline == FORECAST else ""
        if Interval(other.value, other.low, other.high).includes_zero:
            yield f"{ahead} includes 0{regression}"
        elif other.high < 0.0:
            yield f"{ahead} lies below 0: the agent did worse"
    if trials is not None and not by_name["deflated_sharpe"].value >= ENOUGH_PROBABILITY:
        among = f"{trials.count} trial{'' if trials.count == 1 else 's'}"
        yield f"after {among} the deflated Sharpe ratio is below {ENOUGH_PROBABILITY:.0%}: it may be luck"
