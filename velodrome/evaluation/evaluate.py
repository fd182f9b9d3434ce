"""`evaluate_policy`: plays a policy on data that it never saw, beside baselines, and says what to doubt."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from velodrome.errors import ConfigError, LeakError
from velodrome.evaluation.baselines import HINDSIGHT, LABELS, RANDOM
from velodrome.evaluation.breakdown import benchmark_of, breakdown, moment
from velodrome.evaluation.comparison import compare, doubts
from velodrome.evaluation.episodes import evaluate_episodes
from velodrome.evaluation.evaluator import Evaluator, Params, Played, disagreements, evaluator_for, times, world_on
from velodrome.evaluation.forecast.forecast import Part
from velodrome.evaluation.intervals import Bootstrap, dependence, widening
from velodrome.evaluation.measures import YEAR, Curve, bars_per_year, deepest_drawdown
from velodrome.evaluation.named_policy import NamedPolicy
from velodrome.evaluation.play import Policy
from velodrome.evaluation.result import Evaluation
from velodrome.evaluation.sharpe import Trials
from velodrome.evaluation.training_seeds import (
    SEED_COLUMN,
    SeedResult,
    by_training_seed,
    joined,
    mean_actions,
    seed_doubts,
    seed_notes,
)
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market, WindowedRows
from velodrome.vector.make import make_vec

Telling = Callable[[str, int, int], None] | None  # called with (policy, bars played, bars in all)
FEW_BARS = 250
SHORT_YEARS = 0.25
SIDE_BY_SIDE = 16  # environments that play the episodes of a split
IN_SAMPLE = "in sample: the agent was trained on this data; the result says nothing about new data"
SELECTED = "used for selection: this checkpoint was chosen by its result on {0}, which flatters it there"

# What may be evaluated


def check_out_of_sample(market: WindowedRows, split: str, trained_on: str | None, allow_training_split: bool) -> bool:
    """Return whether the split is the training split; refuse one that shares time with it, unless that is asked for."""
    market.split(split)  # refuses one that is not there
    if trained_on is None:
        return False
    if trained_on not in market.splits:
        there = ", ".join(market.splits) or "none"
        raise ConfigError(
            f"the agent was trained on the split {trained_on!r}, which this market does not have (there are {there}); "
            "evaluate on the market of the run, or say trained_on=None if it saw none of this data"
        )
    overlap = shares_time(market, split, trained_on)
    if overlap and not allow_training_split:
        raise LeakError(
            f"the split {split!r} shares time with {trained_on!r}, which the agent was trained on: a result there says "
            f"nothing about new data. Evaluate on another split ({', '.join(n for n in market.splits if n != split)}), "
            "or pass allow_training_split=True (velodrome eval --allow-training-split) for a result that is labelled "
            "as in sample."
        )
    return overlap


def shares_time(market: WindowedRows, split: str, other: str) -> bool:
    """Tell whether two splits have a moment in common."""
    part, seen = market.split(split), market.split(other)
    return any(
        market.time[low] <= market.time[seen_high - 1] and market.time[seen_low] <= market.time[high - 1]
        for low, high in zip(part.begin, part.end, strict=True)
        for seen_low, seen_high in zip(seen.begin, seen.end, strict=True)
    )


def as_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return seeds given as a number of them (0, 1, …) or one by one."""
    given = tuple(range(seeds)) if isinstance(seeds, int) else tuple(int(seed) for seed in seeds)
    if not given or len(set(given)) != len(given) or min(given) < 0:
        raise ConfigError(f"seeds = {seeds!r}: needs a number of at least 1, or different whole numbers from 0 up")
    return given


# The evaluation on a market


def evaluate_policy(
    policy: Policy | Sequence[Policy],
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
    named: NamedPolicy | None = None,
    refitted: Sequence[Part] = (),
    notes: Sequence[str] = (),
    progress: Telling = None,
) -> Evaluation:
    """Play a policy and the baselines over a whole split of a market, and measure them with intervals.

    policy: or several that differ only in their training seed (`named` has them; else 0, 1, …). Figures are then means
        over all of them, and intervals cover the data and the training seeds.
    env: the environment, by name; None: "trading" on a market, "portfolio" on a basket.
    env_params: its parameters, as in training; starts and lengths of episodes are replaced by the split.
    seeds: of drawn parameters and slippage; where nothing is drawn, one is enough. random_seeds: of the random
        baseline. samples, confidence, bootstrap_seed: of the stationary bootstrap.
    trials: if this policy is the best of many, how many there were and how their Sharpe ratios per bar varied.
    trained_on: the split that the agent saw, None if it saw none of this market. Sharing time with it is a LeakError
        unless `allow_training_split`, which labels the result.
    named: which policy it is; the result carries it, and is labelled where the split chose the checkpoint.
    refitted: of a walk-forward, the market of each fold with its own training split, and the split that the fold
        plays: baselines that are fitted are fitted for each.
    notes: further remarks to carry. progress: called with (policy, bars played, bars in all).
    """
    notes = (*notes, *market.notes)
    in_sample = check_out_of_sample(market, split, trained_on, allow_training_split)
    if samples < 1 or random_seeds < 1:
        raise ConfigError(f"samples = {samples!r} and random_seeds = {random_seeds!r}: each needs to be at least 1")
    given, drawn = as_seeds(seeds), Bootstrap(samples, confidence, bootstrap_seed)
    evaluator = evaluator_for(env, market, split, env_params)
    evaluator.parts = refitted or evaluator.parts
    policies, trained = by_training_seed(policy, () if named is None else named.single_seeds)
    notes = (*(() if named is None else named.notes), *notes)
    chosen_on = None if named is None else named.selected_on
    selected = chosen_on in market.splits and shares_time(market, split, str(chosen_on))
    standing: dict[str, Any] = {"in_sample": in_sample, "used_for_selection": selected, "policy": named}
    labels = [*([IN_SAMPLE] if in_sample else []), *([SELECTED.format(chosen_on)] if selected else [])]
    if not evaluator.has_equity:
        found = _evaluate_on_split(policies, trained, evaluator, given[0], drawn, notes)
        return replace(found, **standing, warnings=(*labels, *found.warnings))

    agents, others, remarks = _play_all(evaluator, policies, given, as_seeds(random_seeds), progress)
    agent = joined(agents, trained)
    per_year = bars_per_year(market.time)
    compared = compare(agents, others, market.optimum, per_year, drawn, trials)
    by_seed = tuple(map(SeedResult, trained, compared.seeds)) if len(agents) > 1 else ()
    information = {
        "environment": evaluator.entry.name,
        "title": market.name,
        "symbols": list(market.symbols),
        "timeframe": market.timeframe,
        "data_hash": market.content_hash,
        "optimum": market.optimum,
        "first_bar": moment(agent.curve.time[0]),
        "last_bar": moment(agent.curve.time[-1]),
        "bars": len(agent.curve.time) - 1,
        "years": _years(agent),
        "bars_per_year": per_year,
        "seeds": list(agent.backtest.seeds),
        "random_seeds": random_seeds,
        "confidence": confidence,
        "bootstrap_samples": samples,
        "bootstrap_block": compared.block,
        "training_seeds": list(trained if named is None else named.seeds),
        "autocorrelation": autocorrelation(agent.curve, compared.block, confidence),
        "trials": None if trials is None else asdict(trials),
        "params": {key: str(value) if callable(value) else value for key, value in env_params.items()},
        "drawdown": _drawdown(agent.curve),
        "hindsight": [other.name for other in others if other.name in HINDSIGHT],
        "disagreement": _disagreement(policies[0], agent),
        **evaluator.information(agent),
    }
    doubtful = [
        *labels,
        *_account_warnings(agents, information),
        *doubts(compared.rows, compared.differences, drawn, trials),
        *seed_doubts("backtest", by_seed, compared.spread),
    ]
    if not evaluator.costs:
        doubtful.append("no trading costs are set: fee, spread and slippage are all 0")
    return Evaluation(
        kind="backtest",
        split=split,
        **standing,
        rows=compared.rows,
        differences=compared.differences,
        actions=mean_actions([evaluator.actions(one) for one in agents]),
        warnings=tuple(doubtful),
        notes=(*notes, *seed_notes(trained), *remarks),
        information=information,
        seeds=by_seed,
        spread=compared.spread,
        equity=_equity_frame(agent, others, agents, trained),
        bars=evaluator.bars(agent),
        trades=agent.trades,
        breakdown=breakdown(evaluator, agent, benchmark_of(agent, others), per_year, agents),
    )


def _play_all(
    evaluator: Evaluator,
    policies: Sequence[Policy],
    seeds: tuple[int, ...],
    random_seeds: tuple[int, ...],
    progress: Telling,
) -> tuple[list[Played], list[Played], list[str]]:
    """Play the agents and the baselines; return them with remarks about what was played, and why something was not."""

    def play(name: str, policy: Policy, seeds: tuple[int, ...], traded: int, params: Params = None) -> Played:
        told = None if progress is None else functools.partial(progress, name)
        return evaluator.play(name, policy, seeds, traded, told, params)

    remarks = []
    used = seeds if evaluator.draws else seeds[:1]
    agents = [play("agent", policy, used, len(used)) for policy in policies]
    agent = agents[0]
    if (pieces := max(map(len, agent.backtest.accounts))) > 1:
        remarks.append(
            f"the split has {pieces} pieces, which are one account: each goes on with what the one before left. A "
            "position that is open at the end of a piece is closed there, at the last close and without costs"
        )
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
    return agents, others, remarks


def _years(agent: Played) -> float:
    """Return how long was played, without the time between the pieces of a split."""
    between = [
        sum(int(later.time[0] - earlier.time[-1]) for earlier, later in pairwise(account))
        for account in agent.backtest.accounts
    ]
    return float(agent.curve.time[-1] - agent.curve.time[0] - min(between)) / YEAR


def autocorrelation(measured: Curve, block: float, confidence: float) -> dict[str, Any] | None:
    """Return how log returns depend on each other, and by how much that widens the interval of their mean."""
    returns = measured.log_returns.mean(axis=1)
    found = dependence(returns)
    if found is None:
        return None
    return {
        "correlation": found.correlation,
        "effective_bars": found.effective,
        "widening": widening(returns, block, confidence),
        "doubtful": found.is_doubtful(len(returns)),
    }


def _disagreement(policy: Policy, agent: Played) -> dict[str, Any] | None:
    """Return how far the members of an ensemble are apart, and in what; None of one policy."""
    found = disagreements(agent.backtest.tracks)
    if found is None:
        return None
    shares = {"mean": float(found.mean()), "median": float(np.median(found)), "highest": float(found.max())}
    return {"meaning": getattr(policy, "disagreement_meaning", ""), **shares, "agreed": float((found == 0.0).mean())}


def _drawdown(measured: Curve) -> dict[str, Any] | None:
    """Return when the deepest drawdown of the mean curve began, was deepest, and ended."""
    found = deepest_drawdown(measured.growth.mean(axis=1))
    if found is None:
        return None
    rows = {"begin": found.begin, "trough": found.trough, "end": found.end}
    moments = {name: None if row is None else moment(measured.time[row]) for name, row in rows.items()}
    return {"depth": found.depth, **moments}


def _account_warnings(agents: Sequence[Played], information: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the data and the episodes have against trusting the result."""
    if early := sum(agent.ended_early for agent in agents):
        episodes = sum(agent.episodes for agent in agents)
        yield (
            f"{early} of {episodes} episodes terminated early (bankrupt or drawdown limit); equity is flat from there"
        )
    if (found := information["autocorrelation"]) and found["doubtful"]:
        yield (
            f"returns are autocorrelated ({found['correlation']:.2f} from bar to bar): {information['bars']:,} bars "
            f"say as much about their mean as {found['effective_bars']:,.0f} independent ones. The intervals were "
            "widened for that and may still be too narrow"
        )
    if information["bars"] < FEW_BARS:
        yield f"the split has {information['bars']} bars only"
    if information["years"] < SHORT_YEARS:
        days = information["years"] * 365.2425
        yield f"the split covers {days:.1f} days: annualised figures and ratios extrapolate from that"


def _equity_frame(
    agent: Played, others: Sequence[Played], agents: Sequence[Played], trained: Sequence[int]
) -> pl.DataFrame:
    """Return time and equity over start equity of each policy: means over seeds, and extremes if several.

    Agents of several training seeds have a column each besides.
    """
    frame: dict[str, Any] = {"time": times(agent.curve.time)}
    for played in (agent, *others):
        growth = played.curve.growth
        frame[played.name] = growth.mean(axis=1)
        if growth.shape[1] > 1:
            frame[f"{played.name}_low"], frame[f"{played.name}_high"] = growth.min(axis=1), growth.max(axis=1)
    if len(agents) > 1:
        for one, seed in zip(agents, trained, strict=True):
            frame[f"{SEED_COLUMN}{seed}"] = one.curve.growth.mean(axis=1)
    return pl.DataFrame(frame)


def _evaluate_on_split(
    policies: Sequence[Policy],
    trained: Sequence[int],
    evaluator: Evaluator,
    seed: int,
    drawn: Bootstrap,
    notes: Sequence[str],
) -> Evaluation:
    """Play episodes on a split of a market, for an environment without an account to be measured by."""
    world = world_on(evaluator.entry, evaluator.part, evaluator.params)
    envs = make_vec(world, SIDE_BY_SIDE, backend="native", observation="cursor", seed=seed, threads=1)
    drawing: dict[str, Any] = {"seed": seed, "samples": drawn.samples, "confidence": drawn.confidence}
    drawing["training_seeds"] = trained
    try:
        found = evaluate_episodes(policies, envs, title=evaluator.market.name, split=evaluator.split, **drawing)
    finally:
        envs.close()
    about = {**found.information, "environment": evaluator.entry.name, "data_hash": evaluator.market.content_hash}
    return replace(found, notes=(*notes, *found.notes), information=about)
