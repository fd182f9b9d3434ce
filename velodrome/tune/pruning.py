"""Whether a trial that has done some of its steps may still become the best.

Steps are the same seeds, or folds, for every trial, so trials are compared step by step, and what is easy or hard about
a step does not count. How far the differences scatter is learnt from all trials together. Rank tests such as Wilcoxon's
look at one pair of trials alone: with five steps they cannot tell anything before the fourth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

LEAST_FREEDOM = 4  # differences beyond their means that must be known before their scatter is believed
_NORMAL = NormalDist()


class Judgement(NamedTuple):
    """What a trial's steps so far say of it."""

    chance: float  # of ending above the best
    estimate: float  # of its mean over all steps
    best: float  # mean of the best trial


def judge(values: Sequence[float], rivals: Sequence[Sequence[float]], steps: int) -> Judgement | None:
    """Return how a trial stands beside others; None if nothing can be said yet.

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
