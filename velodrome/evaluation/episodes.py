"""The evaluation by episodes: of environments without a market, and of those without an account to be measured by."""

from __future__ import annotations

import math

import gymnasium
import numpy as np

from velodrome.evaluation.baselines import RANDOM, RandomPolicy
from velodrome.evaluation.intervals import Bootstrap, Interval, percentile_interval, stationary_orders
from velodrome.evaluation.measures import EPISODE_METRICS
from velodrome.evaluation.play import Episodes, Policy, play_episodes
from velodrome.evaluation.result import Evaluation, Row

EPISODES = 100
FEW_EPISODES = 30


def episode_intervals(played: Episodes, drawn: Bootstrap) -> dict[str, Interval]:
    """Return the figures of EPISODE_METRICS; episodes are resampled one by one, which takes them as independent."""
    returns, lengths = played.returns, played.lengths.astype(np.float64)
    found = np.empty((drawn.samples, 3))
    for sample, order in enumerate(stationary_orders(len(returns), 1.0, drawn.samples, drawn.seed)):
        total, steps = returns[order].sum(), lengths[order].sum()
        found[sample] = total / len(order), steps / len(order), total / steps
    points = (returns.mean(), lengths.mean(), returns.sum() / lengths.sum())
    names = ("episode_return", "episode_length", "reward_per_step")
    intervals = {n: percentile_interval(float(points[k]), found[:, k], drawn.confidence) for k, n in enumerate(names)}
    intervals["worst_episode"] = Interval(float(returns.min()), math.nan, math.nan)
    intervals["best_episode"] = Interval(float(returns.max()), math.nan, math.nan)
    return intervals


def evaluate_episodes(
    policy: Policy,
    envs: gymnasium.vector.VectorEnv,
    episodes: int = EPISODES,
    *,
    title: str = "environment",
    split: str = "episodes",
    seed: int = 0,
    samples: int = 1000,
    confidence: float = 0.95,
) -> Evaluation:
    """Play episodes in any vector environment with same-step autoreset, beside random actions, and measure them."""
    played = play_episodes(policy, envs, episodes, seed)
    by_chance = play_episodes(RandomPolicy(envs.single_action_space, seed), envs, episodes, seed)
    agent = episode_intervals(played, Bootstrap(samples, confidence, seed))
    random = episode_intervals(by_chance, Bootstrap(1, confidence, seed))
    names = [metric.name for metric in EPISODE_METRICS]
    rows = tuple(Row(name, *agent[name], {RANDOM: random[name].value}) for name in names)
    total = max(int(played.actions.sum()), 1)
    about = {"title": title, "episodes": len(played), "seed": seed}
    return Evaluation(
        kind="episodes",
        split=split,
        in_sample=False,
        rows=rows,
        differences=(),
        actions=tuple((str(action), int(count) / total) for action, count in enumerate(played.actions)),
        warnings=(f"{len(played)} episodes are few",) if len(played) < FEW_EPISODES else (),
        notes=("episodes are resampled one by one, as if they were independent",),
        information={**about, "confidence": confidence, "bootstrap_samples": samples},
        episodes={"returns": played.returns, "lengths": played.lengths.astype(np.float64)},
    )
