"""What settings are worth, as far as noisy trainings can tell, and whether a trial may still become the best.

Steps are the same seeds, or folds, for every trial, so trials are compared step by step, and what is easy or hard about
a step does not count. How far the differences scatter is learnt from all trials together. Rank tests such as Wilcoxon's
look at one pair of trials alone: with five steps they cannot tell anything before the fourth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LEAST_FREEDOM = 4  # differences beyond their means that must be known before their scatter is believed
_NORMAL = NormalDist()


class Judgement(NamedTuple):
    """What a trial's steps so far say of it."""

    chance: float  # of ending above the best
    estimate: float  # of its mean over all steps
    best: float  # mean of the best trial


def judge(values: Sequence[float], rivals: Sequence[Sequence[float]], steps: int) -> Judgement | None:
    """Return how a trial stands beside others, without a model of them; None if nothing can be said yet.

    values: of its steps so far. rivals: of the steps of trials that are over, with as many as each of them did.
    """
    complete = [np.asarray(rival) for rival in rivals if len(rival) == steps]
    done = len(values)
    if not complete or not 0 < done < steps:
        return None
    best = max(complete, key=lambda rival: float(rival.mean()))
    own = np.asarray(values) - best[:done]
    better = sorted(complete, key=lambda rival: -float(rival.mean()))[: max(len(complete) // 2, 2)]
    scattered = [rival - best for rival in better if rival is not best] + ([own] if done > 1 else [])
    freedom = sum(len(each) - 1 for each in scattered)
    if freedom < LEAST_FREEDOM:
        return None
    spread = math.sqrt(sum(float(((each - each.mean()) ** 2).sum()) for each in scattered) / freedom)
    # The mean over all steps, given the first ones, scatters by what is left to come.
    error = spread * math.sqrt(1.0 / done - 1.0 / steps)
    ahead = float(own.mean())
    chance = _NORMAL.cdf(ahead / error) if error > 0.0 else float(ahead >= 0.0)
    top = float(best.mean())
    return Judgement(chance, top + ahead, top)


# A model

FREEDOM = 3.0  # of Student's distribution of the noise: now and then a training is very lucky, or very unlucky
ROUNDS = 6  # of weighing trainings by how far they are from what is expected, and expecting anew
FITTED_IN = (0, 2, 4)  # rounds in which it is also learnt how far each field's values reach
FITTED_BY = 96  # trials that this is learnt from at most: the first and the best
REACH = 0.7  # of a field's range within which worths are alike, before anything is known
FACTORS = (0.5, 0.75, 4.0 / 3.0, 2.0)  # by which a reach is tried to be shorter and longer
LEAST_NOISE = 1e-4  # variance, as a share of that of the trials
DEPTHS = 20.0  # below the middle, in distances of the best tenth from it: what is worse is as bad as that


class Landscape:
    """A model of what settings are worth: a Gaussian process with Student's noise, over all trainings at once.

    What a trial is worth is read from its neighbours as well as from its own steps, the less from a step the stranger
    it is. How lucky a step is for all trials counts for none. places: of each trial's values in their ranges, from 0 to
    1, shape (trials, fields). values: of its steps, shape (trials, steps); NaN: not known. lists: which fields have a
    list of values, where near means nothing.
    """

    def __init__(self, places: Array, values: Array, lists: NDArray[np.bool_]) -> None:
        self.lists, self.places = lists, places
        self.known = np.isfinite(values)
        later = values - values[:, :1]  # how lucky a step is for all trials: by those that did the first one as well
        self.luck = np.array([np.median(step[known]) if known.any() else 0.0 for step, known in _columns(later)])
        middles = np.array([np.median(row[known]) for row, known in _columns((values - self.luck).T)])
        low, self.centre, high = (float(each) for each in np.quantile(middles, (0.1, 0.5, 0.9)))
        self.floor = self.centre - DEPTHS * (high - self.centre) if high > self.centre else -math.inf
        self.unit = high - max(low, self.floor) or 1.0
        self.values = np.where(self.known, self._scaled(values - self.luck), 0.0)
        self.reaches = np.full(places.shape[1], REACH)
        self.height = 1.0  # variance of worths
        self._learn(self._scaled(middles))

    def _scaled(self, values: Array) -> Array:
        return (np.maximum(values, self.floor) - self.centre) / self.unit

    def _learn(self, expected: Array) -> None:
        """Expect something of each trial, weigh its steps by how far they are from that, and expect anew."""
        unsure = np.zeros(len(expected))
        weights, apart = self.known.astype(np.float64), self._apart(self.places, self.places)
        fitted_by = self._fitted_by(expected)
        for turn in range(ROUNDS):
            rest = self.values - expected[:, None]
            luck = (weights * rest).sum(0) / np.maximum(weights.sum(0), 1e-9)  # what is left of it
            luck -= (luck * weights.sum(0)).sum() / weights.sum()
            squares = np.where(self.known, (rest - luck) ** 2 + unsure[:, None], 0.0)
            self.noise = max(float((weights * squares).sum() / self.known.sum()), LEAST_NOISE)
            weights = np.where(self.known, (FREEDOM + 1.0) / (FREEDOM + squares / self.noise), 0.0)
            seen = (weights * (self.values - luck)).sum(1) / weights.sum(1)
            noise = self.noise / weights.sum(1)
            self.level = float((seen / noise).sum() / (1.0 / noise).sum())
            if turn in FITTED_IN:
                self._fit(apart[:, fitted_by][:, :, fitted_by], seen[fitted_by] - self.level, noise[fitted_by])
            alike = self._alike(apart)
            self._factor = np.linalg.cholesky(alike + np.diag(noise))
            self._pulls = np.linalg.solve(self._factor.T, np.linalg.solve(self._factor, seen - self.level))
            expected = self.level + alike @ self._pulls
            unsure = np.maximum(self.height - (np.linalg.solve(self._factor, alike) ** 2).sum(0), 0.0)
        self.expected, self.unsure, self._noise = expected, unsure, noise
        self.luck = self.luck + self.unit * luck

    @property
    def worths(self) -> Array:
        """What the trials are worth, in the unit of their values."""
        return self.centre + self.unit * self.expected

    def judge(self, place: Array, values: Sequence[float]) -> Judgement:
        """Return how a trial stands beside the best of these. values: of its first steps."""
        alike = self._alike(self._apart(place[None], self.places))[0]
        before = self.level + float(alike @ self._pulls)  # what is expected of this place
        vague = max(self.height - float((np.linalg.solve(self._factor, alike) ** 2).sum()), 1e-9)
        seen = self._scaled(np.asarray(values) - self.luck[: len(values)])
        expected, unsure = before, vague
        for _ in range(ROUNDS):
            weights = (FREEDOM + 1.0) / (FREEDOM + ((seen - expected) ** 2 + unsure) / self.noise)
            unsure = 1.0 / (1.0 / vague + float(weights.sum()) / self.noise)
            expected = unsure * (before / vague + float(weights @ seen) / self.noise)
        best = int(self.expected.argmax())
        ahead = (expected - self.expected[best]) / math.sqrt(unsure + self.unsure[best])
        told = [self.centre + self.unit * float(each) for each in (expected, self.expected[best])]
        return Judgement(_NORMAL.cdf(float(ahead)), *told)

    def improvement(self, places: Array, begun: Array) -> Array:
        """Return by how much trials at some places are expected to become better than the best.

        begun: places of trials whose worth is not known yet. They are taken to become what is expected of them, so that
        nothing is tried twice.
        """
        expected = self.level + self._alike(self._apart(places, self.places)) @ self._pulls
        every = np.concatenate((self.places, begun))
        noise = np.concatenate((self._noise, np.full(len(begun), self.noise)))
        factor = np.linalg.cholesky(self._alike(self._apart(every, every)) + np.diag(noise))
        explained = np.linalg.solve(factor, self._alike(self._apart(every, places)))
        unsure = np.sqrt(np.maximum(self.height - (explained**2).sum(0), 1e-12))
        ahead = (expected - self.expected.max()) / unsure
        below = np.array([_NORMAL.cdf(each) for each in ahead])
        return unsure * (ahead * below + np.exp(-0.5 * ahead**2) / math.sqrt(2.0 * math.pi))

    # How alike two places are

    def _apart(self, some: Array, others: Array) -> Array:
        """Return how far places are apart in each field, squared. Shape (fields, some, others)."""
        apart = some.T[:, :, None] - others.T[:, None, :]
        return np.where(self.lists[:, None, None], (apart != 0.0).astype(np.float64), apart**2)

    def _alike(self, apart: Array) -> Array:
        """Return how worths at places vary together (Matérn, 5/2)."""
        far = np.sqrt(5.0 * np.tensordot(self.reaches**-2.0, apart, 1))
        return self.height * (1.0 + far + far**2 / 3.0) * np.exp(-far)

    def _fitted_by(self, expected: Array) -> NDArray[np.int64]:
        best = np.argsort(-expected, kind="stable")[: FITTED_BY // 2]
        return np.unique(np.concatenate((np.arange(min(len(expected), FITTED_BY // 2)), best)))

    def _fit(self, apart: Array, seen: Array, noise: Array) -> None:
        """Let each reach, and the height, be what makes the trials the most likely, one after the other."""
        best = self._likelihood(apart, seen, noise)
        for field in range(-1, len(self.reaches)):
            for factor in FACTORS:
                before = self.reaches.copy(), self.height
                if field < 0:
                    self.height *= factor**2
                else:
                    self.reaches[field] *= factor
                found = self._likelihood(apart, seen, noise)
                if found > best:
                    best = found
                else:
                    self.reaches, self.height = before

    def _likelihood(self, apart: Array, seen: Array, noise: Array) -> float:
        """Return the logarithm of how likely the trials are, and the reaches before anything is known."""
        factor = np.linalg.cholesky(self._alike(apart) + np.diag(noise))
        explained = np.linalg.solve(factor, seen)
        odd = float((np.log(self.reaches / REACH) ** 2).sum() + math.log(self.height) ** 2 / 4.0)
        return -0.5 * (float(explained @ explained) + odd) - float(np.log(np.diag(factor)).sum())


def _columns(values: Array) -> Iterator[tuple[Array, NDArray[np.bool_]]]:
    """Yield each column, and where it is known."""
    return ((column, np.isfinite(column)) for column in values.T)
