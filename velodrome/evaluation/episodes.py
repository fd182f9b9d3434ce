"""The evaluation by episodes: of environments without a market, and of those without an account to be measured by."""

from __future__ import annotations

import math
from collections.abc import Sequence

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.evaluation.baselines import RANDOM, RandomPolicy
from velodrome.evaluation.intervals import Bootstrap, Interval, percentile_interval, stationary_orders
from velodrome.evaluation.measures import BY_NAME, EPISODE_METRICS
from velodrome.evaluation.play import Episodes, Policy, play_episodes
from velodrome.evaluation.result import Evaluation, Row
from velodrome.evaluation.training_seeds import (
    SeedDraws,
    SeedResult,
    by_training_seed,
    mean_figures,
    seed_notes,
    spread_of,
)

EPISODES = 100
FEW_EPISODES = 30
MEANS = ("episode_return", "episode_length", "reward_per_step")  # figures with intervals


def episode_resamples(played: Episodes, drawn: Bootstrap) -> tuple[dict[str, float], dict[str, NDArray[np.float64]]]:
    """Return the figures of EPISODE_METRICS, and in every resample [N] those that are means.

    Episodes are resampled one by one, which takes them as independent.
    """
    returns, lengths = played.returns, played.lengths.astype(np.float64)
    found = np.empty((len(MEANS), drawn.samples))
    for sample, order in enumerate(stationary_orders(len(returns), 1.0, drawn.samples, drawn.seed)):
        total, steps = returns[order].sum(), lengths[order].sum()
        found[:, sample] = total / len(order), steps / len(order), total / steps
    means = (float(returns.mean()), float(lengths.mean()), float(returns.sum() / lengths.sum()))
    ends = {"worst_episode": float(returns.min()), "best_episode": float(returns.max())}
    if played.disagreement is not None:
        ends["disagreement"] = played.disagreement
    return {**dict(zip(MEANS, means, strict=True)), **ends}, dict(zip(MEANS, found, strict=True))


def evaluate_episodes(
    policy: Policy | Sequence[Policy],
    envs: gymnasium.vector.VectorEnv,
    episodes: int = EPISODES,
    *,
    title: str = "environment",
    split: str = "episodes",
    seed: int = 0,
    samples: int = 1000,
    confidence: float = 0.95,
    training_seeds: Sequence[int] = (),
    notes: Sequence[str] = (),
) -> Evaluation:
    """Play episodes in any vector environment with same-step autoreset, beside random actions, and measure them.

    policy: or several that differ only in their training seed, `training_seeds`. Each plays this many episodes; figures
        are means over all policies (of worst and best episode too), and intervals cover episodes and training seeds.
    notes: further remarks to carry.
    """
    drawn = Bootstrap(samples, confidence, seed)
    policies, trained = by_training_seed(policy, training_seeds)
    each = [play_episodes(one, envs, episodes, seed) for one in policies]
    by_chance = play_episodes(RandomPolicy(envs.single_action_space, seed), envs, episodes, seed)
    random, _ = episode_resamples(by_chance, drawn._replace(samples=1))
    # Agents play from the same seed. Their episodes are resampled alike, so that what they have in common stays: the
    # same agent again says no more than one of it.
    found = [episode_resamples(one, drawn) for one in each]
    points = [figures for figures, _ in found]
    draws = SeedDraws(len(each), drawn)
    resamples = {name: np.stack([own[name] for _, own in found]) for name in MEANS}  # [seeds, N]
    agent = mean_figures(points)

    def each_of(name: str) -> NDArray[np.float64]:
        return np.array([own[name] for own in points], np.float64)

    def row(name: str, value: float, values: NDArray[np.float64] | None, beside: dict[str, float]) -> Row:
        known = (
            Interval(value, math.nan, math.nan) if values is None else percentile_interval(value, values, confidence)
        )
        return Row(name, *known, beside)

    rows, by_seed = [], []
    for name in (metric.name for metric in (*EPISODE_METRICS, BY_NAME["disagreement"]) if metric.name in agent):
        own = resamples.get(name)
        together = None if own is None else draws.resampled(name, each_of(name), own)
        rows.append(row(name, agent[name], together, {RANDOM: random.get(name, math.nan)}))
        by_seed.append(
            [row(name, figures[name], None if own is None else own[k], {}) for k, figures in enumerate(points)]
        )
    seeds = tuple(map(SeedResult, trained, zip(*by_seed, strict=True))) if len(each) > 1 else ()
    spread = tuple(
        spread_of(name, each_of(name), resamples[name], draws, confidence) for name in MEANS if len(each) > 1
    )
    count = sum(map(len, each))
    actions = np.sum([one.actions for one in each], axis=0)
    names = getattr(getattr(envs, "world", None), "action_names", ()) or [str(place) for place in range(len(actions))]
    about = {"title": title, "episodes": count, "seed": seed, "training_seeds": list(trained)}
    return Evaluation(
        kind="episodes",
        split=split,
        in_sample=False,
        rows=tuple(rows),
        differences=(),
        actions=tuple(
            (name, int(taken) / max(int(actions.sum()), 1)) for name, taken in zip(names, actions, strict=True)
        ),
        warnings=(f"{count} episodes are few",) if count < FEW_EPISODES else (),
        notes=(*notes, *seed_notes(trained), "episodes are resampled one by one, as if they were independent"),
        information={**about, "confidence": confidence, "bootstrap_samples": samples},
        seeds=seeds,
        spread=spread,
        episodes={
            "returns": np.concatenate([one.returns for one in each]),
            "lengths": np.concatenate([one.lengths for one in each]).astype(np.float64),
        },
    )
