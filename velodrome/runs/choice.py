"""Which checkpoint of a training to keep: the best by validation, and only if it is better by more than chance."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np


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
        kept = {"best": self.value[1], "averaged": self.value[0], "validations_since_best": self.since}
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
