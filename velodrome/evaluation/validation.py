"""A quick look at a policy on a split while it trains, and whether it is the best of its training so far.

The split is cut into pieces that are played side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import state_columns
from velodrome.evaluation.evaluate import check_out_of_sample
from velodrome.evaluation.evaluator import Evaluator, evaluator_for, world_on
from velodrome.evaluation.measures import Curve, PathMeter, account_values, bars_per_year, curve
from velodrome.evaluation.play import Pieces, Policy, Recording, carried_on, play_episodes, play_split
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market, WindowedRows
from velodrome.vector.make import make_vec

SEED = 0
PARTS = 32  # stretches of time whose log returns say by how much two policies differ, and how surely
# Of the figures that an evaluation has, those that are told during training, in this order.
FIGURES = ("return", "sharpe", "max_drawdown", "turnover", "of_optimum", "mean_log_return", "reward")


def validate(
    policy: Policy, env: str, market: Market | Basket, split: str, params: Mapping[str, Any], pieces: int = 16
) -> dict[str, float]:
    """Return figures of a policy over a split; `return` is the one to choose the best policy by.

    The environment's evaluator says what is played, as in the evaluation at the end. One that keeps an account plays
    the split once, in this many pieces with a fresh account each. That takes a fraction of the time of playing it in
    one piece, and differs by what would be held across the cuts. The pieces of an instrument are chained to one curve,
    and all figures are of that curve, defined as in an evaluation; those that are not defined are left out. Any other
    environment plays this many episodes on the split, and `return` is the mean sum of their rewards.
    """
    return validate_parts(policy, env, market, split, params, pieces)[0]


def validate_parts(
    policy: Policy, env: str, market: Market | Basket, split: str, params: Mapping[str, Any], pieces: int = 16
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Return the figures of `validate`, and what `return` is made of.

    With an account these are the log returns of stretches of time, PARTS at most; else the rewards of each episode.
    """
    check_out_of_sample(market, split, "train" if "train" in market.splits else None, False)
    evaluator = evaluator_for(env, market, split, params)
    if evaluator.has_equity:
        figures, returns = _play_pieces(policy, evaluator, pieces)
        growth = np.log(np.maximum(1.0 + returns, np.finfo(np.float64).tiny))
        return figures, np.array([part.sum() for part in np.array_split(growth, min(PARTS, len(growth)))])
    world = world_on(evaluator.entry, evaluator.part, params)
    envs = make_vec(world, pieces, observation="cursor", seed=SEED, threads=1)
    try:
        played = play_episodes(policy, envs, pieces, SEED)
    finally:
        envs.close()
    figures = {"return": float(played.returns.mean()), "length": float(played.lengths.mean())}
    return figures, played.returns.astype(np.float64).ravel()


def validate_bars(
    policy: Policy, env: str, market: Market | Basket, split: str, params: Mapping[str, Any], pieces: int = 16
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Return the figures of `validate` and the return of each bar [T], of an environment that keeps an account."""
    check_out_of_sample(market, split, "train" if "train" in market.splits else None, False)
    return _play_pieces(policy, evaluator_for(env, market, split, params), pieces)


def _play_pieces(policy: Policy, evaluator: Evaluator, pieces: int) -> tuple[dict[str, float], NDArray[np.float64]]:
    world, part = evaluator.world(), evaluator.part
    recorded = [name for name in ("equity", "turnover") if name in state_columns(world.state_type)]
    tracks = play_split(policy, world, part, (SEED,), Recording(tuple(recorded)), pieces=cut(part, pieces))
    tracks = carried_on(tracks)
    measured = _finite(curve(tracks, [account_values(track) for track in tracks]))
    meter = PathMeter(measured, bars_per_year(evaluator.market.time))
    found = dict(zip(meter.names, map(float, meter.figures()), strict=True))
    if part.optimum:
        found["of_optimum"] = found["account_log_return"] / part.optimum
    figures = {name: found[name] for name in FIGURES if name in found and not np.isnan(found[name])}
    return figures, measured.returns.mean(axis=1)


def _finite(measured: Curve) -> Curve:
    """Return a curve whose logarithms are finite: of ruin, that of the smallest positive number."""
    least = np.finfo(np.float64).tiny
    logs = np.maximum(measured.per_bar["account_log_return"], np.log(least))
    per_bar = {**measured.per_bar, "account_log_return": logs}
    return Curve(measured.time, np.maximum(measured.growth, least), per_bar)


def cut(part: WindowedRows, pieces: int) -> Pieces:
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
    return Pieces(np.concatenate(firsts), np.concatenate(lasts))


# Which policy of a training to keep


class Validation(NamedTuple):
    """What came of playing the validation split, or some episodes."""

    figures: dict[str, float]  # `return` is the one to choose by
    parts: tuple[float, ...]  # of it: by stretch of time, or by episode; each validation has the same


class BestSoFar:
    """The best of the validations so far, each judged by its mean with those just before it.

    averaged: how many in a row are judged by their mean. margin: a later one takes the place of the best only if it is
    better by so many standard errors of their difference. Both played the same bars, so that the difference is taken
    part by part: what the market did to both is no noise. The best of many that differ by chance alone is the luckiest,
    and the longer a training, the more there are.
    """

    def __init__(self, averaged: int, margin: float) -> None:
        self.averaged, self.margin = averaged, margin
        self.recent: list[tuple[float, tuple[float, ...]]] = []  # return and parts of as many as are averaged
        self.value = (0, -math.inf)  # number and mean of the best ones; the mean of more is worth more
        self.parts: tuple[float, ...] = ()  # the mean of theirs
        self.since = 0  # validations after it

    def is_improved_by(self, found: Validation, taught: bool) -> bool:
        """Note a validation; return whether it is the best so far. taught: nothing has been learnt before it.

        What a policy was taught counts as if it had been there all along.
        """
        own = (found.figures["return"], found.parts)
        self.recent = [*([own] * self.averaged if taught else self.recent), own][-self.averaged :]
        judged = (len(self.recent), math.fsum(value for value, _ in self.recent) / len(self.recent))
        known = [of for _, of in self.recent if len(of) == len(found.parts)]  # older checkpoints have none
        parts = tuple(np.mean(known, axis=0).tolist())
        improved = judged > self.value and (judged[0] > self.value[0] or self._is_beyond_chance(parts))
        if improved:
            self.value, self.parts = judged, parts
        self.since = 0 if improved else self.since + 1
        return improved

    def _is_beyond_chance(self, parts: tuple[float, ...]) -> bool:
        if not self.margin or len(parts) < 2 or len(parts) != len(self.parts):
            return True
        gained = np.subtract(parts, self.parts)
        return bool(gained.sum() > self.margin * gained.std(ddof=1) * math.sqrt(len(gained)))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint says of it."""
        kept: dict[str, Any] = {"best": self.value[1], "averaged": self.value[0], "validations_since_best": self.since}
        kept |= {"recent": [value for value, _ in self.recent]}
        if not self.margin:
            return kept
        return kept | {"recent_parts": [list(parts) for _, parts in self.recent], "best_parts": list(self.parts)}

    def load(self, saved: dict[str, Any], anew: bool) -> None:
        """Go on from what a checkpoint says. anew: the run is told something new, which is tried with new patience."""
        recent = saved.get("recent", [])
        parts = saved.get("recent_parts", [[]] * len(recent))
        self.recent = [(value, tuple(of)) for value, of in zip(recent, parts, strict=True)]
        self.value, self.parts = (saved.get("averaged", 1), saved["best"]), tuple(saved.get("best_parts", ()))
        self.since = 0 if anew else saved.get("validations_since_best", 0)
