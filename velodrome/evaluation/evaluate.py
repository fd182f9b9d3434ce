"""`evaluate_policy`: plays a policy on data that it never saw, beside baselines, and says what to doubt."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import polars as pl

from velodrome.errors import ConfigError, LeakError
from velodrome.evaluation.baselines import HINDSIGHT, LABELS, RANDOM
from velodrome.evaluation.comparison import compare, doubts
from velodrome.evaluation.episodes import evaluate_episodes
from velodrome.evaluation.evaluator import Evaluator, Params, Played, evaluator_for, times, world_on
from velodrome.evaluation.intervals import Bootstrap
from velodrome.evaluation.measures import YEAR, Curve, bars_per_year, deepest_drawdown
from velodrome.evaluation.play import Policy
from velodrome.evaluation.result import Evaluation
from velodrome.evaluation.sharpe import Trials
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market, WindowedRows
from velodrome.vector.make import make_vec

Telling = Callable[[str, int, int], None] | None  # called with (policy, bars played, bars in all)
FEW_BARS = 250
SHORT_YEARS = 0.25
SIDE_BY_SIDE = 16  # environments that play the episodes of a split
IN_SAMPLE = "in sample: the agent was trained on this data; the result says nothing about new data"

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


def evaluate_policy(
    policy: Policy,
    market: Market | Basket,
    split: str,
    env_params: Mapping[str, Any],
    *,
    env: str | None = None,
    seeds: int | Sequence[int] = 5,
    random_seeds: int = 10,
    samples: int = 1000,
    confidence: float = 0.95,
    bootstrap_seed: int = 0,
    trials: Trials | None = None,
    trained_on: str | None = "train",
    allow_training_split: bool = False,
    notes: Sequence[str] = (),
    progress: Telling = None,
) -> Evaluation:
    """Play a policy and the baselines over a whole split of a market, and measure them with intervals.

    env: the environment, by name; None: "trading" on a market, "portfolio" on a basket.
    env_params: its parameters, as in training; starts and lengths of episodes are replaced by the split.
    seeds: of drawn parameters and slippage; where nothing is drawn, one is enough. random_seeds: of the random
        baseline. samples, confidence, bootstrap_seed: of the stationary bootstrap.
    trials: if this policy is the best of many, how many there were and how their Sharpe ratios per bar varied.
    trained_on: the split that the agent saw, None if it saw none of this market. Sharing time with it is a LeakError
        unless `allow_training_split`, which labels the result.
    notes: further remarks to carry. progress: called with (policy, bars played, bars in all).
    """
    notes = (*notes, *market.notes)
    in_sample = check_out_of_sample(market, split, trained_on, allow_training_split)
    if samples < 1 or random_seeds < 1:
        raise ConfigError(f"samples = {samples!r} and random_seeds = {random_seeds!r}: each needs to be at least 1")
    given, drawn = as_seeds(seeds), Bootstrap(samples, confidence, bootstrap_seed)
    evaluator = evaluator_for(env, market, split, env_params)
    if not evaluator.has_equity:
        return _evaluate_on_split(policy, evaluator, given[0], drawn, in_sample, notes)

    agent, others, remarks = _play_all(evaluator, policy, given, as_seeds(random_seeds), progress)
    per_year = bars_per_year(np.unique(market.time))
    rows, differences, block = compare(agent, others, market.optimum, per_year, drawn, trials)
    information = {
        "environment": evaluator.entry.name,
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
        "seeds": list(agent.backtest.seeds),
        "random_seeds": random_seeds,
        "confidence": confidence,
        "bootstrap_samples": samples,
        "bootstrap_block": block,
        "trials": None if trials is None else asdict(trials),
        "params": {key: str(value) if callable(value) else value for key, value in env_params.items()},
        "drawdown": _drawdown(agent.curve),
        "hindsight": [other.name for other in others if other.name in HINDSIGHT],
        **evaluator.information(agent),
    }
    found = [*_account_warnings(agent, information, in_sample), *doubts(rows, differences, drawn, trials)]
    if not evaluator.costs:
        found.append("no trading costs are set: fee, spread and slippage are all 0")
    return Evaluation(
        kind="backtest",
        split=split,
        in_sample=in_sample,
        rows=rows,
        differences=differences,
        actions=evaluator.actions(agent),
        warnings=tuple(found),
        notes=(*notes, *remarks),
        information=information,
        equity=_equity_frame(agent, others),
        bars=evaluator.bars(agent),
        trades=agent.trades,
    )


def _play_all(
    evaluator: Evaluator, policy: Policy, seeds: tuple[int, ...], random_seeds: tuple[int, ...], progress: Telling
) -> tuple[Played, list[Played], list[str]]:
    """Play the agent and the baselines; return them with remarks about what was played, and why something was not."""

    def play(name: str, policy: Policy, seeds: tuple[int, ...], traded: int, params: Params = None) -> Played:
        told = None if progress is None else functools.partial(progress, name)
        return evaluator.play(name, policy, seeds, traded, told, params)

    remarks = []
    used = seeds if evaluator.draws else seeds[:1]
    agent = play("agent", policy, used, len(used))
    if len(used) < len(seeds):
        remarks.append(f"nothing is drawn in this environment, so one seed stands for all {len(seeds)}")
    if agent.traded_seeds < agent.seeds:
        remarks.append(
            f"agent: {evaluator.in_detail} are those of the first {agent.traded_seeds} of {agent.seeds} seeds, because "
            "more would fill the memory; the rest are means over seeds"
        )
    others: list[Played] = []
    for baseline in evaluator.baselines(agent, seeds[0]):
        remarks.append(f"{LABELS[baseline.name]}: {baseline.note}")
        if baseline.policy is not None:
            own = random_seeds if baseline.name == RANDOM else used
            others.append(play(baseline.name, baseline.policy, own, 1, baseline.params))
    for other in others:
        if other.ended_early:
            remarks.append(f"{LABELS[other.name]}: {other.ended_early} of {other.episodes} episodes terminated early")
    if evaluator.of_first_seed and any(other.traded_seeds < other.seeds for other in others):
        remarks.append(f"baselines: {evaluator.of_first_seed} are those of the first seed, the rest means over seeds")
    return agent, others, remarks


def _moment(nanoseconds: Any) -> str:
    return str(np.datetime64(int(nanoseconds), "ns").astype("datetime64[s]")).replace("T", " ")


def _drawdown(measured: Curve) -> dict[str, Any] | None:
    """Return when the deepest drawdown of the mean curve began, was deepest, and ended."""
    found = deepest_drawdown(measured.growth.mean(axis=1))
    if found is None:
        return None
    rows = {"begin": found.begin, "trough": found.trough, "end": found.end}
    moments = {name: None if row is None else _moment(measured.time[row]) for name, row in rows.items()}
    return {"depth": found.depth, **moments}


def _account_warnings(agent: Played, information: Mapping[str, Any], in_sample: bool) -> Iterator[str]:
    """Yield what the data and the episodes have against trusting the result."""
    if in_sample:
        yield IN_SAMPLE
    if agent.ended_early:
        yield (
            f"{agent.ended_early} of {agent.episodes} episodes terminated early (bankrupt or drawdown limit); equity "
            "is flat from there"
        )
    if information["bars"] < FEW_BARS:
        yield f"the split has {information['bars']} bars only"
    if information["years"] < SHORT_YEARS:
        days = information["years"] * 365.2425
        yield f"the split covers {days:.1f} days: annualised figures and ratios extrapolate from that"


def _equity_frame(agent: Played, others: Sequence[Played]) -> pl.DataFrame:
    """Return time and equity over start equity of each policy: means over seeds, and extremes if several."""
    frame: dict[str, Any] = {"time": times(agent.curve.time)}
    for played in (agent, *others):
        growth = played.curve.growth
        frame[played.name] = growth.mean(axis=1)
        if growth.shape[1] > 1:
            frame[f"{played.name}_low"], frame[f"{played.name}_high"] = growth.min(axis=1), growth.max(axis=1)
    return pl.DataFrame(frame)


def _evaluate_on_split(
    policy: Policy, evaluator: Evaluator, seed: int, drawn: Bootstrap, in_sample: bool, notes: Sequence[str]
) -> Evaluation:
    """Play episodes on a split of a market, for an environment without an account to be measured by."""
    world = world_on(evaluator.entry, evaluator.part, evaluator.params)
    envs = make_vec(world, SIDE_BY_SIDE, backend="native", observation="cursor", seed=seed, threads=1)
    drawing: dict[str, Any] = {"seed": seed, "samples": drawn.samples, "confidence": drawn.confidence}
    try:
        found = evaluate_episodes(policy, envs, title=evaluator.market.name, split=evaluator.split, **drawing)
    finally:
        envs.close()
    warnings = (IN_SAMPLE, *found.warnings) if in_sample else found.warnings
    about = {**found.information, "environment": evaluator.entry.name, "data_hash": evaluator.market.content_hash}
    remarks = (*notes, *found.notes)
    return replace(found, in_sample=in_sample, warnings=warnings, notes=remarks, information=about)
