"""Portfolios that a quant would try first: weights from a forecast by mean and variance, and weights by momentum.

Both are target weights for every row, long only, known before the split is played. What they choose (the models, how
much better new weights must be, how far momentum looks back) they choose on the training split, after costs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.evaluation.baselines import Memoryless
from velodrome.evaluation.forecast.forecast import Fitted, Part, describe, fill_gains
from velodrome.tables.basket import Basket
from velodrome.tables.scaling import TRAIN
from velodrome.vector.compile.playing import Plan

Values = NDArray[np.float64]
PATIENCE: Values = np.exp2(np.arange(8.0))  # rows in which better weights have to earn their costs
LOOK_BACKS = (5, 10, 20, 40, 80, 160, 320)  # rows
STEPS = 150  # of the search for the best weights
CLOSE_ENOUGH = 1e-6  # by which a step of it moves them
SHRUNK_BARS = 2000  # of the training split, the latest ones, that the covariance is estimated from


class Limits(NamedTuple):
    """How much may be held, and what trading costs."""

    room: float  # the sum of weights
    most: float  # the weight of one instrument
    cost: float  # of one unit of weight that is traded


class Terms(NamedTuple):
    """What tells how much weights are worth."""

    covariance: Values  # [K, K] of the next returns
    cost: float  # of one unit of weight that is traded


class TargetWeights(Memoryless):
    """Asks for the weights of the row, [T, K]; on rows without any for those before."""

    def __init__(self, weights: Values, gross: float) -> None:
        """Make a policy; NaN stands for no weights, and an action of 1 for weights that add up to `gross`."""
        there = np.maximum.accumulate(np.where(np.isnan(weights[:, 0]), 0, np.arange(len(weights))))
        self.actions = np.minimum(np.nan_to_num(weights[there]) / gross, 1.0).astype(np.float32)

    def act(self, observation: Any) -> NDArray:
        """Return the actions of every environment."""
        return self.actions[np.asarray(observation["cursor"])]

    def plan(self, bars: int, rows: int, num_envs: int) -> Plan:
        """Return the actions of every row."""
        return Plan(np.repeat(self.actions[:1], num_envs, axis=0), self.actions, np.zeros(len(self.actions), bool))


def shrunk_covariance(returns: Values) -> Values:
    """Return the covariance of returns [T, K], shrunk towards equal variances without correlation.

    By how much is what Ledoit and Wolf (2004) found to be best.
    """
    rows, count = returns.shape
    centred = returns - returns.mean(axis=0)
    sample = centred.T @ centred / rows
    level = np.trace(sample) / count
    distance = float(((sample - level * np.eye(count)) ** 2).sum())
    noise = float(((centred**2).T @ (centred**2)).sum() / rows - (sample**2).sum()) / rows
    share = min(max(noise / distance, 0.0), 1.0) if distance > 0.0 else 1.0
    return share * level * np.eye(count) + (1.0 - share) * sample


def project(weights: Values, room: float, most: Values) -> Values:
    """Return the closest weights [T, K] that are not negative, add up to `room` at most and keep below `most`."""
    clipped = np.clip(weights, 0.0, most)
    over = clipped.sum(axis=1) > room
    if over.any():
        own, cap = weights[over], most[over]
        low, high = own.min(axis=1) - room, own.max(axis=1)
        for _ in range(40):
            middle = 0.5 * (low + high)
            large = np.clip(own - middle[:, None], 0.0, cap).sum(axis=1) > room
            low, high = np.where(large, middle, low), np.where(large, high, middle)
        clipped[over] = np.clip(own - high[:, None], 0.0, cap)
    return clipped


def mean_variance(expected: Values, covariance: Values, listed: NDArray[np.bool_], limits: Limits) -> Values:
    """Return the weights [T, K] of the largest expected log return, to the second order; nothing is asked of others."""
    step = 1.0 / max(float(np.linalg.eigvalsh(covariance)[-1]), 1e-12)
    most = np.where(listed, min(limits.most, limits.room), 0.0)
    expected = np.where(listed, expected, 0.0)
    found = project(np.zeros_like(expected), limits.room, most)
    rows = np.arange(len(expected))  # that have not found their best weights yet
    weights = ahead = found[rows]
    for k in range(STEPS):
        following = project(ahead + step * (expected[rows] - ahead @ covariance), limits.room, most[rows])
        found[rows] = following
        moving = np.abs(following - ahead).max(axis=1) >= CLOSE_ENOUGH
        ahead = (following + k / (k + 3.0) * (following - weights))[moving]  # Nesterov's momentum
        rows, weights = rows[moving], following[moving]
        if not len(rows):
            break
    return found


def pays(new: Values, held: Values, expected: Values, terms: Terms, patience: Values | float) -> NDArray[np.bool_]:
    """Return whether new weights [n, K] are worth what they cost within so many rows, in place of those held [n, K]."""

    def worth(weights: Values) -> Values:
        return (weights * expected).sum(axis=-1) - 0.5 * ((weights @ terms.covariance) * weights).sum(axis=-1)

    return patience * (worth(new) - worth(held)) > terms.cost * np.abs(new - held).sum(axis=-1)


def patient(wanted: Values, expected: Values, terms: Terms, patience: Values) -> Values:
    """Return the weights that are asked for, [P, T, K]: new ones where they are worth their costs within P rows."""
    held = np.zeros((len(patience), wanted.shape[1]))
    found = np.empty((len(patience), *wanted.shape))
    for row, new in enumerate(wanted):
        held = np.where(pays(new, held, expected[row], terms, patience)[:, None], new, held)
        found[:, row] = held
    return found


def net_growth(weights: Values, gains: Values, cost: float) -> float:
    """Return the mean log return of target weights [T, K], each row's costs paid; unknown gains are 0."""
    traded = np.abs(np.diff(weights, axis=0, prepend=np.zeros((1, weights.shape[1])))).sum(axis=1)
    change = (weights * np.nan_to_num(gains)).sum(axis=1) - cost * traded
    return float(np.log1p(np.maximum(change, -0.999)).mean())


class ForecastRule(NamedTuple):
    """What a ridge regression of every instrument's next return expects on some rows, and what follows from it."""

    expected: Values  # [rows, K]
    wanted: Values  # [rows, K] weights by mean and variance
    terms: Terms
    patience: float  # rows in which new weights have to earn their costs; 0: nothing is worth trading
    about: str  # what was done, for people


def forecast_rule(
    part: Part[Basket], prices: Values, limits: Limits, refined: bool = False, half: int | None = None
) -> ForecastRule:
    """Return what a regression fitted to the training split, or to one half of it, makes of the rows of a part."""
    basket, rows = part.market, part.rows
    gains = fill_gains(prices, basket.begin, basket.end)
    tradable = basket.tradable == 1
    fitted = Fitted(basket, TRAIN, np.where(tradable, gains, np.nan), refined, half)
    model = fitted.regression.ridge()
    terms = Terms(shrunk_covariance(np.nan_to_num(fitted.gains[-SHRUNK_BARS:])), limits.cost)

    def wanted(expected: Values, rows: NDArray[np.int64]) -> Values:
        return mean_variance(expected, terms.covariance, tradable[rows], limits)

    unseen = fitted.unseen(model)
    there = np.isfinite(unseen).any(axis=1)
    said = np.nan_to_num(unseen[there])
    judged = patient(wanted(said, fitted.rows[there]), said, terms, PATIENCE)
    growths = [net_growth(weights, fitted.gains[there], limits.cost) for weights in judged]
    best = int(np.argmax(growths))
    about = f"{describe(model, fitted)}; weights by mean and variance, with a shrunk covariance"
    expected = fitted.expected(model, rows)
    if growths[best] <= 0.0:
        nothing = f"{about}; nothing gained anything there after costs: all in cash"
        return ForecastRule(expected, np.zeros_like(expected), terms, 0.0, nothing)
    about = f"{about}; they change where that is worth its costs within {PATIENCE[best]:g} bars"
    return ForecastRule(expected, wanted(expected, rows), terms, float(PATIENCE[best]), about)


def forecast_weights(part: Part[Basket], prices: Values, limits: Limits) -> tuple[Values, str]:
    """Return weights [rows, K] from a ridge regression of every instrument's next return, and what was done."""
    found = forecast_rule(part, prices, limits)
    return patient(found.wanted, found.expected, found.terms, np.array([found.patience]))[0], found.about


def momentum_weights(part: Part[Basket], prices: Values, limits: Limits) -> tuple[Values, str]:
    """Return equal weights of the better half of what rose, and how far that looks back."""
    basket = part.market
    gains = fill_gains(prices, basket.begin, basket.end)
    train = basket.split(TRAIN)
    known = np.concatenate(
        [np.arange(low, max(high - 2, low)) for low, high in zip(train.begin, train.end, strict=True)]
    )

    def targets(rows: NDArray[np.int64], look_back: int) -> Values:
        before = basket.close[np.maximum(rows - look_back, 0)]
        rose = np.where(before > 0.0, basket.close[rows] / np.where(before > 0.0, before, 1.0) - 1.0, -1.0)
        chosen = (rose > 0.0) & (rose >= np.median(rose, axis=1, keepdims=True)) & (basket.tradable[rows] == 1)
        share = limits.room * chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1)
        return np.minimum(share, limits.most)

    found = {own: net_growth(targets(known, own), gains[known], limits.cost) for own in LOOK_BACKS}
    look_back = max(found, key=lambda own: found[own])
    note = "equal weights in every bar of the better half of the instruments, of those that rose"
    return targets(
        part.rows, look_back
    ), f"{note} over {look_back} bars (which gained most on the training split, after costs)"
