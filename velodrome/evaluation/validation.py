"""A quick look at a policy on a split: the split is cut into pieces that are played side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from velodrome.evaluation.evaluate import check_out_of_sample
from velodrome.evaluation.play import WHOLE_SPLIT, Policy, world_on
from velodrome.evaluation.threads import one_thread
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market, WindowedRows
from velodrome.vector.make import make_vec


@one_thread()
def play_pieces(
    policy: Policy, market: Market | Basket, split: str, params: Mapping[str, Any], pieces: int = 16, seed: int = 0
) -> dict[str, float]:
    """Return figures of a policy over a split, played once in so many pieces, each with a flat account of its own.

    It takes a fraction of the time of playing the split in one piece, and differs by what is held across the cuts.
    """
    check_out_of_sample(market, split, "train" if "train" in market.splits else None, False)
    part = market.split(split)
    first, last = _cut(part, pieces)
    world = world_on(part, {**params, **WHOLE_SPLIT})
    count = len(first)
    envs = make_vec(world, count, observation="cursor", autoreset=False, threads=1)
    observation, _ = envs.reset(seed=seed, options={"cursor": first, "last": last})
    policy.begin(count)
    running = np.ones(count, bool)
    found = {name: np.zeros(count) for name in ("return", "reward", "turnover", "max_drawdown")}
    while running.any():
        observation, _, terminated, truncated, infos = envs.step(policy.act(observation))
        ended = (terminated | truncated) & running
        if ended.any():
            for name, values in found.items():
                values[ended] = infos["statistics"][name][ended]
            running &= ~ended
    envs.close()
    bars = int((last - first).sum())
    # Ruin leaves nothing to take a logarithm of; the smallest positive number stands for it.
    growth = np.maximum(1.0 + found["return"], np.finfo(np.float64).tiny)
    mean = float(np.log(growth).sum() / bars)
    result = {
        "return": float(np.expm1(np.log(growth).sum())),
        "mean_log_return": mean,
        "reward": float(found["reward"].sum() / bars),
        "turnover": float(found["turnover"].sum()),
        "max_drawdown": float(found["max_drawdown"].max()),
    }
    return result | ({"of_optimum": mean / market.optimum} if market.optimum else {})


def _cut(part: WindowedRows, pieces: int) -> tuple[Any, Any]:
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
