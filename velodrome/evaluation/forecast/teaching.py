"""How a policy begins as a rule that is known to be worth something: the rule plays, and the policy imitates it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from velodrome.evaluation.forecast.forecast import Part
from velodrome.evaluation.play import one_thread
from velodrome.learn.imitation import Lessons, imitate
from velodrome.learn.learner import Learner
from velodrome.tables.basket import Basket
from velodrome.tables.market import Market
from velodrome.tables.scaling import TRAIN
from velodrome.vector.make import make_vec

ENVIRONMENTS = 256  # that the rule plays side by side
MOST_HELD, HELD_BARS = 0.1, 5_000  # of the way back, and the training bars over which that is spread


def hold_for(market: Market | Basket) -> float:
    """Return how firmly a policy is to hold on to what it was taught: the fewer training bars, the more firmly.

    Chosen on the markets of docs/generalisation.md: with 1,400 bars whatever else a policy learns is mostly chance.
    """
    return min(MOST_HELD, HELD_BARS / len(Part(market, TRAIN).rows))


class Teacher(Protocol):
    """A rule as an environment's entry makes it, from a market and the environment's parameters."""

    about: str  # what it was fitted to, for people

    def targets(self, cursor: NDArray[np.int64], account: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return what it does: [n, actions] probabilities of discrete actions, or [n, size] continuous ones."""


class Lesson(NamedTuple):
    """How much is taught."""

    samples: int
    epochs: int
    seed: int
    hold: float = 0.0  # share of the way back to what it was taught that a policy goes after every update


@one_thread()  # the same bits on any number of them
def teach(
    learner: Learner, teacher: Teacher, env: str, market: Market | Basket, params: Mapping[str, Any], lesson: Lesson
) -> float:
    """Let the teacher play the training split, and the learner's policy imitate it; return how far they are apart.

    It plays by drawing from its targets, so that the policy also sees where other actions lead.
    """
    count = min(ENVIRONMENTS, lesson.samples)
    options: dict[str, Any] = {"backend": "native", "seed": lesson.seed, "observation": "cursor", "threads": 1}
    envs = make_vec(env, count, market=market, split=TRAIN, **options, **params)
    generator = np.random.default_rng(lesson.seed)
    account, cursor, targets = [], [], []
    try:
        seen, _ = envs.reset()
        for _ in range(-(-lesson.samples // count)):
            account.append(np.array(seen["account"], np.float32))
            cursor.append(np.array(seen["cursor"], np.int64))
            targets.append(teacher.targets(cursor[-1], account[-1]))
            seen, *_ = envs.step(_drawn(targets[-1], envs.single_action_space, generator))
    finally:
        envs.close()
    found = (np.concatenate(account), np.concatenate(cursor), np.concatenate(targets).astype(np.float32))
    return imitate(learner, Lessons(*map(torch.from_numpy, found)), lesson.epochs, lesson.seed, lesson.hold)


def _drawn(targets: NDArray[np.float64], space: Any, generator: np.random.Generator) -> NDArray:
    """Draw discrete actions by their probabilities; continuous ones are taken as they are."""
    if hasattr(space, "n"):
        chance = generator.random((len(targets), 1))
        return np.minimum((targets.cumsum(axis=1) < chance).sum(axis=1), targets.shape[1] - 1)
    return targets.astype(np.float32)
