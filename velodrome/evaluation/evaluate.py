"""`evaluate_policy`: a policy on data that it never saw, beside baselines, with intervals and doubts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import gymnasium
import numpy as np
import polars as pl

from velodrome.errors import ConfigError, LeakError
from velodrome.evaluation.baselines import HINDSIGHT, LABELS, RANDOM, RandomPolicy
from velodrome.evaluation.evaluator import Game, Played, game_on, times
from velodrome.evaluation.intervals import Interval, block_length, percentile_interval, stationary_orders
from velodrome.evaluation.measures import (
    EPISODE_METRICS,
    METRICS,
    YEAR,
    Curve,
    PathMeter,
    bars_per_year,
    deepest_drawdown,
)
from velodrome.evaluation.play import Episodes, Policy, play_episodes
from velodrome.evaluation.result import COMPARED, Difference, Evaluation, Row
from velodrome.evaluation.sharpe import Trials, deflated_sharpe, minimum_track_record, moments, probabilistic_sharpe
from velodrome.evaluation.trades import SCHEMA as TRADE_SCHEMA
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market, WindowedRows

FEW_TRADES = 30
FEW_BARS = 250
SHORT_YEARS = 0.25
ENOUGH_PROBABILITY = 0.95
WITHOUT_INTERVAL = ("longest_under_water",)  # of a path that is cut into blocks it means nothing

# What may be evaluated


def check_out_of_sample(market: WindowedRows, split: str, trained_on: str | None, allow_training_split: bool) -> bool:
    """Return whether the split is the training split; refuse one that shares time with it, unless that is asked for."""
    part = market.split(split)
    if trained_on is None:
        return False
    if trained_on not in market.splits:
        there = ", ".join(market.splits) or "none"
        raise ConfigError(
            f"the agent was trained on the split {trained_on!r}, which this market does not have (there are {there}); "
            "evaluate on the market of the run, or say trained_on=None if it saw none of this data"
        )
    seen = market.split(trained_on)
    overlap = any(
        market.time[low] <= market.time[seen_high - 1] and market.time[seen_low] <= market.time[high - 1]
        for low, high in zip(part.begin, part.end, strict=True)
        for seen_low, seen_high in zip(seen.begin, seen.end, strict=True)
    )
    if overlap and not allow_training_split:
        raise LeakError(
            f"the split {split!r} shares time with {trained_on!r}, which the agent was trained on: a result there says "
            f"nothing about new data. Evaluate on another split ({', '.join(n for n in market.splits if n != split)}), "
            "or pass allow_training_split=True for a result that is labelled as in sample."
        )
    return overlap


def as_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return seeds given as a number of them (0, 1, …) or one by one."""
    given = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
    if not given or len(set(given)) != len(given) or min(given) < 0:
        raise ConfigError(f"seeds = {seeds!r}: needs a number of at least 1, or different whole numbers from 0 up")
    return given


# The evaluation on a market


def _play(
    game: Game, name: str, policy: Policy, seeds: tuple[int, ...], traded: int,
    progress: Callable[[str, int, int], None] | None, params: Mapping[str, Any] | None = None,
) -> Played:  # fmt: skip
    told = None if progress is None else lambda done, total: progress(name, done, total)
    return game.play(name, policy, seeds, traded, told, params)


def evaluate_policy(
    policy: Policy, market: Market | Basket, split: str, env_params: Mapping[str, Any], *,
    seeds: int | Sequence[int] = 5, random_seeds: int = 10, samples: int = 1000, confidence: float = 0.95,
    bootstrap_seed: int = 0, trials: Trials | None = None, trained_on: str | None = "train",
    allow_training_split: bool = False, notes: Sequence[str] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Evaluation:  # fmt: skip
    """Play a policy and the baselines over a whole split of a market, and measure them with intervals.

    market: a market is traded in an account for each instrument, a basket in one account for all: a portfolio.
    env_params: of that environment, as in training; starts and lengths of episodes are replaced by the split.
    seeds: of drawn parameters and slippage; where nothing is drawn one of them says all. random_seeds: of the random
        baseline. samples, confidence, bootstrap_seed: of the stationary bootstrap.
    trials: if this policy is the best of many, how many and how their Sharpe ratios per bar varied.
    trained_on: the split that the agent saw, None if it saw none of this market. Sharing time with it is a LeakError
        unless `allow_training_split`, which labels the result.
    notes: further remarks to carry. progress: called with (policy, bars played, bars in all).
    """
    in_sample = check_out_of_sample(market, split, trained_on, allow_training_split)
    if samples < 1 or random_seeds < 1:
        raise ConfigError(f"samples = {samples!r} and random_seeds = {random_seeds!r}: each needs to be at least 1")
    given = as_seeds(seeds)
    game = game_on(market, split, env_params)
    used = given if game.draws else given[:1]
    agent = _play(game, "agent", policy, used, len(used), progress)
    remarks = [*notes]
    if len(used) < len(given):
        remarks.append(f"nothing is drawn in this environment, so one seed stands for all {len(given)}")
    if agent.traded_seeds < agent.seeds:
        remarks.append(
            f"agent: {game.in_detail} are those of the first {agent.traded_seeds} of {agent.seeds} seeds, because more "
            "would fill the memory; the rest are means over seeds"
        )
    others: list[Played] = []
    for baseline in game.baselines(agent, given[0]):
        remarks.append(f"{LABELS[baseline.name]}: {baseline.note}")
        if baseline.policy is not None:
            own = as_seeds(random_seeds) if baseline.name == RANDOM else used
            others.append(_play(game, baseline.name, baseline.policy, own, 1, progress, baseline.params))
    for other in others:
        if other.ended_early:
            remarks.append(f"{LABELS[other.name]}: {other.ended_early} of {other.episodes} episodes terminated early")
    if any(other.traded_seeds < other.seeds for other in others):
        remarks.append(f"baselines: {game.of_first_seed} are those of the first seed, the rest means over seeds")

    per_year = bars_per_year(np.unique(market.time))
    rows, differences, block = _measure(agent, others, market.optimum, per_year, samples, confidence, bootstrap_seed,
                                        trials)  # fmt: skip
    information = {
        "environment": game.name,
        "title": market.name,
        "symbols": list(market.symbols),
        "timeframe": market.timeframe,
        "data_hash": market.content_hash,
        "optimum": market.optimum,
        "first_bar": _moment(agent.curve.time[0]),
        "last_bar": _moment(agent.curve.time[-1]),
        "bars": len(agent.curve.time) - 1,
        "years": float(agent.curve.time[-1] - agent.curve.time[0]) / YEAR,
        "bars_per_year": per_year,
        "seeds": list(used),
        "random_seeds": random_seeds,
        "confidence": confidence,
        "bootstrap_samples": samples,
        "bootstrap_block": block,
        "trials": None if trials is None else asdict(trials),
        "params": {key: str(value) if callable(value) else value for key, value in env_params.items()},
        "drawdown": _drawdown(agent.curve),
        "hindsight": [other.name for other in others if other.name in HINDSIGHT],
        **game.information(agent),
    }
    return Evaluation(
        kind="backtest",
        split=split,
        in_sample=in_sample,
        rows=rows,
        differences=differences,
        actions=game.actions(agent),
        warnings=_warnings(game, agent, rows, differences, information, in_sample, trials),
        notes=tuple(remarks),
        information=information,
        equity=_equity_frame(agent, others),
        bars=game.bars(agent),
        trades=agent.trades,
    )


def quick_figures(
    policy: Policy, market: Market | Basket, split: str, env_params: Mapping[str, Any], *,
    seeds: int | Sequence[int] = 1,
    trained_on: str | None = "train", allow_training_split: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Return the figures of a policy's way through a split without baselines, trades and intervals: cheap and often."""
    check_out_of_sample(market, split, trained_on, allow_training_split)
    played = game_on(market, split, env_params).curve(policy, as_seeds(seeds))
    meter = PathMeter(played, bars_per_year(np.unique(market.time)))
    found = dict(zip(meter.names, map(float, meter.figures()), strict=True))
    per_account = found.pop("account_log_return")
    return found | ({"of_optimum": per_account / market.optimum} if market.optimum else {})


def _measure(
    agent: Played, others: Sequence[Played], optimum: float | None, per_year: float, samples: int, confidence: float,
    seed: int, trials: Trials | None,
) -> tuple[tuple[Row, ...], tuple[Difference, ...], float]:  # fmt: skip
    """Return the table, the differences to the baselines, and the mean block length of the bootstrap."""
    everyone = (agent, *others)
    meters = {played.name: PathMeter(played.curve, per_year) for played in everyone}
    names = meters["agent"].names
    # Blocks long enough for every policy's returns and for their clusters of volatility.
    series = [meter.returns.mean(axis=0) for meter in meters.values()]
    block = max(block_length(values) for own in series for values in (own, own**2))
    points = {name: _complete(dict(zip(names, map(float, meter.figures()), strict=True)), played, optimum, trials)
              for (name, meter), played in zip(meters.items(), everyone, strict=True)}  # fmt: skip
    resampled = {name: np.empty((samples, len(names))) for name in meters}
    rng = np.random.default_rng([seed, 1])
    for sample, order in enumerate(stationary_orders(len(agent.curve.time) - 1, block, samples, seed)):
        for name, meter in meters.items():
            drawn = rng.integers(0, meter.seeds, (meter.seeds,)) if meter.seeds > 1 else None
            resampled[name][sample] = meter.figures(order, drawn)
    columns = {name: {other: values[:, k] for other, values in resampled.items()} for k, name in enumerate(names)}
    if optimum:
        columns["of_optimum"] = {other: values / optimum for other, values in columns["account_log_return"].items()}
    intervals = {
        name: percentile_interval(points["agent"][name], values["agent"], confidence)
        for name, values in columns.items()
        if name not in WITHOUT_INTERVAL
    }
    intervals |= _trade_intervals(agent, points["agent"], samples, confidence, seed)
    rows = []
    for metric in METRICS:
        if metric.name not in points["agent"]:
            continue
        value, low, high = intervals.get(metric.name, Interval(points["agent"][metric.name], math.nan, math.nan))
        rows.append(
            Row(metric.name, value, low, high, {o.name: points[o.name].get(metric.name, math.nan) for o in others})
        )
    differences = []
    with np.errstate(invalid="ignore"):
        for name in COMPARED:
            for other in others:
                value = points["agent"][name] - points[other.name][name]
                spread = columns[name]["agent"] - columns[name][other.name]
                differences.append(Difference(name, other.name, *percentile_interval(value, spread, confidence)))
    return tuple(rows), tuple(differences), block


def _complete(
    found: dict[str, float], played: Played, optimum: float | None, trials: Trials | None
) -> dict[str, float]:
    """Add to the figures of a path those of its trades and of its Sharpe ratio."""
    found |= played.figures
    found["costs"] = found["fees"] + found["spread_and_slippage"] + found["funding"]
    if optimum:
        found["of_optimum"] = found["account_log_return"] / optimum
    each = [moments(own) for own in played.curve.returns.T]
    found["probabilistic_sharpe"] = float(np.mean([probabilistic_sharpe(own) for own in each]))
    found["minimum_track_record"] = float(np.mean([minimum_track_record(own) for own in each]))
    if trials is not None and played.name == "agent":
        found["deflated_sharpe"] = float(np.mean([deflated_sharpe(own, trials) for own in each]))
    return found


def _trade_intervals(
    agent: Played, point: Mapping[str, float], samples: int, confidence: float, seed: int
) -> dict[str, Interval]:
    """Return the intervals of what trades have on average; trades are drawn one by one."""
    if len(agent.trades) < 2:
        return {}
    profit, returns = agent.trades["profit"].to_numpy(), agent.trades["return"].to_numpy()
    found = np.empty((samples, 3))
    for sample, order in enumerate(stationary_orders(len(profit), 1.0, samples, seed)):
        chosen = profit[order]
        gains, losses = float(chosen[chosen > 0.0].sum()), float(-chosen[chosen < 0.0].sum())
        factor = gains / losses if losses > 0.0 else (math.inf if gains > 0.0 else math.nan)
        found[sample] = (chosen > 0.0).mean(), returns[order].mean(), factor
    names = ("win_rate", "average_trade", "profit_factor")
    return {name: percentile_interval(point[name], found[:, k], confidence) for k, name in enumerate(names)}


def _moment(nanoseconds: Any) -> str:
    return str(np.datetime64(int(nanoseconds), "ns").astype("datetime64[s]")).replace("T", " ")


def _drawdown(measured: Curve) -> dict[str, Any] | None:
    """Return when the deepest drawdown of the mean curve began, was deepest, and ended."""
    found = deepest_drawdown(measured.growth.mean(axis=1))
    if found is None:
        return None
    time = measured.time
    end = None if found.end is None else _moment(time[found.end])
    return {
        "depth": found.depth,
        "begin": _moment(time[found.begin]),
        "trough": _moment(time[found.trough]),
        "end": end,
    }


def _warnings(
    game: Game, agent: Played, rows: Sequence[Row], differences: Sequence[Difference],
    information: Mapping[str, Any], in_sample: bool, trials: Trials | None,
) -> tuple[str, ...]:  # fmt: skip
    """Return what speaks against trusting the result."""
    by_name = {row.name: row for row in rows}
    found = []
    if in_sample:
        found.append("in sample: the agent was trained on this data; the result says nothing about new data")
    if agent.ended_early:
        found.append(
            f"{agent.ended_early} of {agent.episodes} episodes terminated early (bankrupt or drawdown limit); equity "
            "is flat from there"
        )
    if information["bars"] < FEW_BARS:
        found.append(f"the split has {information['bars']} bars only")
    if information["years"] < SHORT_YEARS:
        days = information["years"] * 365.2425
        found.append(f"the split covers {days:.1f} days: annualised figures and ratios extrapolate from that")
    trades = by_name["trades"].value
    if trades < FEW_TRADES:
        found.append(f"{trades:g} trades are few: win rate, average trade and profit factor say little")
    confidence = f"{information['confidence']:.0%}"
    gain = by_name["mean_log_return"]
    if Interval(gain.value, gain.low, gain.high).includes_zero:
        found.append(f"the {confidence} interval of the agent's log return includes 0")
    elif gain.high < 0.0:
        found.append(f"the agent lost: the {confidence} interval of its log return lies below 0")
    for other in differences:
        if other.metric != COMPARED[0] or other.baseline in HINDSIGHT:
            continue
        ahead = f"the {confidence} interval of agent − {LABELS[other.baseline]} (log return)"
        if Interval(other.value, other.low, other.high).includes_zero:
            found.append(f"{ahead} includes 0")
        elif other.high < 0.0:
            found.append(f"{ahead} lies below 0: the agent did worse")
    if trials is not None and not by_name["deflated_sharpe"].value >= ENOUGH_PROBABILITY:
        found.append(
            f"after {trials.count} trials the deflated Sharpe ratio is below {ENOUGH_PROBABILITY:.0%}: it may be luck"
        )
    if not game.costs:
        found.append("no trading costs are set: fee, spread and slippage are all 0")
    return tuple(found)


def _equity_frame(agent: Played, others: Sequence[Played]) -> pl.DataFrame:
    """Return time and equity over start equity of each policy: means over seeds, and extremes if several."""
    frame: dict[str, Any] = {"time": times(agent.curve.time)}
    for played in (agent, *others):
        growth = played.curve.growth
        frame[played.name] = growth.mean(axis=1)
        if growth.shape[1] > 1:
            frame[f"{played.name}_low"], frame[f"{played.name}_high"] = growth.min(axis=1), growth.max(axis=1)
    return pl.DataFrame(frame)


# The evaluation of any other policy


def episode_intervals(
    played: Episodes, samples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Return the figures of EPISODE_METRICS; episodes are resampled one by one, which takes them as independent."""
    returns, lengths = played.returns, played.lengths.astype(np.float64)
    found = np.empty((samples, 3))
    for sample, order in enumerate(stationary_orders(len(returns), 1.0, samples, seed)):
        total, steps = returns[order].sum(), lengths[order].sum()
        found[sample] = total / len(order), steps / len(order), total / steps
    points = (returns.mean(), lengths.mean(), returns.sum() / lengths.sum())
    names = ("episode_return", "episode_length", "reward_per_step")
    intervals = {n: percentile_interval(float(points[k]), found[:, k], confidence) for k, n in enumerate(names)}
    intervals["worst_episode"] = Interval(float(returns.min()), math.nan, math.nan)
    intervals["best_episode"] = Interval(float(returns.max()), math.nan, math.nan)
    return intervals


def evaluate_episodes(
    policy: Policy, envs: gymnasium.vector.VectorEnv, episodes: int = 100, *, title: str = "environment",
    split: str = "episodes", seed: int = 0, samples: int = 1000, confidence: float = 0.95, baseline: bool = True,
    most_steps: int | None = None,
) -> Evaluation:  # fmt: skip
    """Play episodes in any vector environment with same-step autoreset, beside random actions, and measure them."""
    played = play_episodes(policy, envs, episodes, seed, most_steps)
    others: dict[str, dict[str, Interval]] = {}
    if baseline:
        random = play_episodes(RandomPolicy(envs.single_action_space, seed), envs, episodes, seed, most_steps)
        others[RANDOM] = episode_intervals(random, 1, confidence, seed)
    agent = episode_intervals(played, samples, confidence, seed)
    rows = tuple(
        Row(metric.name, *agent[metric.name], {name: other[metric.name].value for name, other in others.items()})
        for metric in EPISODE_METRICS
    )
    total = max(int(played.actions.sum()), 1)
    information = {
        "title": title, "episodes": len(played), "seed": seed, "confidence": confidence, "bootstrap_samples": samples,
    }  # fmt: skip
    return Evaluation(
        kind="episodes",
        split=split,
        in_sample=False,
        rows=rows,
        differences=(),
        actions=tuple((str(action), int(count) / total) for action, count in enumerate(played.actions)),
        warnings=(f"{len(played)} episodes are few",) if len(played) < FEW_TRADES else (),
        notes=("episodes are resampled one by one, as if they were independent",),
        information=information,
        equity=pl.DataFrame(),
        bars=pl.DataFrame(),
        trades=pl.DataFrame(schema=dict(TRADE_SCHEMA)),
        episodes={"returns": played.returns, "lengths": played.lengths.astype(np.float64)},
    )
