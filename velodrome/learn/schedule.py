"""How the learning rate falls over a run."""

from __future__ import annotations

import math

from velodrome.learn.config import LearnerConfig


def learning_rate(config: LearnerConfig, done: float) -> float:
    """Return the learning rate when a fraction `done` of the run is over."""
    left = 1.0 - min(max(done, 0.0), 1.0)
    factors = {"constant": 1.0, "linear": left, "cosine": 0.5 * (1.0 - math.cos(math.pi * left))}
    return config.learning_rate * factors[config.schedule]
