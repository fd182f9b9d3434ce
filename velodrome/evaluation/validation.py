"""A quick look at a policy on a split while it trains: the split is cut into pieces that are played side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.catalog import CATALOG
from velodrome.envs.contract import World
from velodrome.evaluation.evaluate import check_out_of_sample
from velodrome.evaluation.evaluator import keeps_account, world_on
from velodrome.evaluation.play import Policy, one_thread, play_episodes
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market, WindowedRows
from velodrome.vector.make import make_vec

SEED = 0


def validate(
    policy: Policy, env: str, market: Market | Basket, split: str, params: Mapping[str, Any], pieces: int = 16
) -> dict[str, float]:
    """Return figures of a policy over a split; `return` is the one to choose the best policy by.

    An environment that keeps an account plays the split once, in this many pieces with a fresh account each. That takes
    a fraction of the time of playing it in one piece, and differs by what would be held across the cuts. Any other
    environment plays this many episodes on the split, and `return` is the mean sum of their rewards.
    """
    check_out_of_sample(market, split, "train" if "train" in market.splits else None, False)
    entry, part = CATALOG.get(env), market.split(split)
    world = world_on(entry, part, params, whole=True)
    if keeps_account(world):
        return _play_pieces(policy, world, part, pieces)
    envs = make_vec(world_on(entry, part, params), pieces, observation="cursor", seed=SEED, threads=1)
    try:
        played = play_episodes(policy, envs, pieces, SEED)
    finally:
        envs.close()
    return {"return": float(played.returns.mean()), "length": float(played.lengths.mean())}


@one_thread()
def _play_pieces(policy: Policy, world: World, part: Market | Basket, pieces: int) -> dict[str, float]:
    first, last = cut(part, pieces)
    count = len(first)
    envs = make_vec(world, count, observation="cursor", autoreset=False, threads=1)
    observation, _ = envs.reset(seed=SEED, options={"cursor": first, "last": last})
    policy.begin(count)
    running = np.ones(count, bool)
    found = {name: np.zeros(count) for name in ("return", "reward", "turnover", "max_drawdown")}
    known = [name for name in found if name in world.statistics]
    while running.any():
        observation, reward, terminated, truncated, infos = envs.step(policy.act(observation))
        found["reward"] += np.where(running, reward, 0.0)
        ended = (terminated | truncated) & running
        if ended.any():
            for name in known:
                found[name][ended] = infos["statistics"][name][ended]
            running &= ~ended
    envs.close()
    bars = int((last - first).sum())
    # Ruin leaves nothing to take a logarithm of; the smallest positive number stands for it.
    growth = float(np.log(np.maximum(1.0 + found["return"], np.finfo(np.float64).tiny)).sum())
    result = {
        "return": float(np.expm1(growth)),
        "mean_log_return": growth / bars,
        "reward": float(found["reward"].sum() / bars),
    }
    if "turnover" in known:
        result["turnover"] = float(found["turnover"].sum())
    if "max_drawdown" in known:
        result["max_drawdown"] = float(found["max_drawdown"].max())
    if part.optimum:
        result["of_optimum"] = growth / bars / part.optimum
    return result


def cut(part: WindowedRows, pieces: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return first and last bar of the pieces: neighbours of about equal length, none across two stretches of bars."""
    firsts, lasts = [], []
    for begin, end in zip(part.begin, part.end, strict=True):
        bars = int(end - 1 - begin)
        if bars < 1:
            continue
        number = max(1, min(bars, pieces // len(part.begin)))
        edges = begin + np.arange(number + 1) * bars // number
        firsts.append(edges[:-1])
        lasts.append(edges[1:])
    return np.concatenate(firsts), np.concatenate(lasts)
