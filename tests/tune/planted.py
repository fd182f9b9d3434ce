"""A landscape of settings whose best is known: noisy, and noisier where settings are bold, as trainings are."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from velodrome.tune.course import simulate
from velodrome.tune.space import Dimension
from velodrome.tune.trial import StudySettings

SPACE = (
    Dimension("ppo.learning_rate", 1e-5, 1e-2, log=True),
    Dimension("ppo.gamma", 0.8, 0.999),
    Dimension("ppo.clip", 0.05, 0.5),
    Dimension("ppo.epochs", 1, 10, whole=True),
    Dimension("network.activation", choices=("tanh", "relu", "silu")),
    Dimension("ppo.entropy", 0.0, 0.02),
)
START = {
    "ppo.learning_rate": 3e-4,
    "ppo.gamma": 0.9,
    "ppo.clip": 0.2,
    "ppo.epochs": 4,
    "network.activation": "tanh",
    "ppo.entropy": 0.0,
}
WEIGHTS = (12.0, 6.0, 4.0, 3.0, 0.5, 0.2)


class Landscape:
    """One landscape, by its number. Steps are seeds: each is lucky or not for all trials, and noisy for each."""

    def __init__(self, number: int, noise: float = 0.3) -> None:
        chance = np.random.default_rng(number)
        self.number, self.noise = number, noise
        self.best = chance.uniform(0.15, 0.85, len(SPACE))
        self.category = str(chance.choice(["tanh", "relu", "silu"]))

    def places(self, params: Mapping[str, Any]) -> list[float]:
        """Return where values lie in their ranges, from 0 to 1; of a category, how far it is from the best."""
        found = []
        for one, best in zip(SPACE, self.best, strict=True):
            value = params[one.key]
            if one.choices:
                found.append(best + float(value != self.category))
            elif one.log:
                found.append(math.log(value / one.low) / math.log(one.high / one.low))
            else:
                found.append((value - one.low) / (one.high - one.low))
        return found

    def truth(self, params: Mapping[str, Any]) -> float:
        """Return what settings are worth; 1 is the best there is."""
        away = zip(WEIGHTS, self.places(params), self.best, strict=True)
        return 1.0 - sum(weight * (place - best) ** 2 for weight, place, best in away)

    def __call__(self, params: Mapping[str, Any], step: int) -> float:
        """Return what a training with a seed comes to."""
        deviation = self.noise * (0.5 + 2.0 * self.places(params)[0])
        values = [params[one.key] for one in SPACE]
        # Student's t with two degrees of freedom: now and then a training is very lucky, or very unlucky.
        rare = math.sqrt(max(-math.log(self._share("rare", step, *values)), 1e-3))
        return self.truth(params) + deviation * self._draw(step, *values) / rare + self.noise * self._draw(step)

    def _draw(self, *parts: object) -> float:
        """Return a normal number that some values stand for."""
        radius = math.sqrt(-2.0 * math.log(self._share("radius", *parts)))
        return radius * math.cos(2.0 * math.pi * self._share("angle", *parts))

    def _share(self, *parts: object) -> float:
        """Return a number above 0 and below 1 that some values stand for."""
        digest = hashlib.sha256(repr((self.number, *parts)).encode()).digest()
        return (int.from_bytes(digest[:6], "big") + 0.5) / 2**48


def studied(landscape: Landscape, trials: int, **settings: Any) -> tuple[float, int]:
    """Return what the winner of a study is worth, and how many trainings it took."""
    chosen = StudySettings(search_seed=landscape.number, **settings)
    course, calls = simulate(SPACE, chosen, START, trials, landscape)
    assert course.winner is not None
    return landscape.truth(course.winner.params), calls


def searched_at_random(landscape: Landscape, trainings: int, seeds: int) -> float:
    """Return what the best of random settings is worth, each judged by so many seeds."""
    chance = random.Random(landscape.number)
    best = (-math.inf, START)
    for _ in range(trainings // seeds):
        params = {one.key: one.at(chance.random()) for one in SPACE}
        best = max(best, (sum(landscape(params, step) for step in range(seeds)), params), key=lambda each: each[0])
    return landscape.truth(best[1])


def tpe_of_single_seeds(landscape: Landscape, trainings: int) -> float:
    """Return what Optuna's TPE finds, as it comes, that judges each of its trials by one training."""
    import optuna

    from velodrome.tune.search import _distribution, _value

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=landscape.number))
    asked = {one.key: _distribution(optuna, one) for one in SPACE}
    best = (-math.inf, START)
    for _ in range(trainings):
        trial = study.ask(asked)
        params = {one.key: _value(one, trial.params[one.key]) for one in SPACE}
        value = landscape(params, 0)
        study.tell(trial, value)
        best = max(best, (value, params), key=lambda each: each[0])
    return landscape.truth(best[1])


def our_tpe_of_single_seeds(landscape: Landscape, trainings: int) -> float:
    """Return what a study by TPE finds that judges by one training: spread evenly at first, several trials open."""
    own = {"seeds": 1, "confirm": 1, "confirm_seeds": 1, "pruning": False, "sampler": "tpe"}
    chosen = StudySettings(search_seed=landscape.number, **own)
    course, _ = simulate(SPACE, chosen, START, trainings, landscape)
    assert course.best is not None
    return landscape.truth(course.best.params)
