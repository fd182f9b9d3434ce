"""A trial of a study, what its trainings came to, and the settings of the search itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from velodrome.runs.config.sections import Section, setting

RUNNING, COMPLETE, PRUNED, FAILED = "running", "complete", "pruned", "failed"
STATUSES = (RUNNING, COMPLETE, PRUNED, FAILED)
# Ends of a training that its settings are to blame for; a study avoids what they have in common.
ITS_OWN_FAULT = ("error", "not_a_number", "out_of_memory")


class StudySettings(Section):
    """How a study searches, and how it makes sure of what it found."""

    seeds: int = setting(
        3, "trainings of a trial that differ only in their seed; it may be pruned after each", ge=1, le=100
    )
    folds: int | None = setting(
        None,
        "walk-forward folds before the test split that a trial is trained and judged on, in place of seeds; null: none",
        ge=2,
        le=100,
    )
    score: str = setting("sharpe", "figure of the validation split that trials are compared by")
    sampler: Literal["model", "tpe"] = setting(
        "model",
        "what chooses after the first trials, and which of the best wins: model, of the landscape, which reads what a "
        "trial is worth from its neighbours as well (TPE beyond 200 trials); tpe: Optuna's TPE, and means over seeds",
    )
    search_seed: int = setting(0, "of the search itself; with the same seeds a study is the same study", ge=0)
    window: int = setting(
        8,
        "trials that are open at once at most; a new one is chosen by what those so many before it came to, however "
        "many workers there are, so that the same seeds give the same study. More workers than this have nothing to do",
        ge=1,
        le=10_000,
    )
    startup: int | None = setting(
        None, "first trials, spread evenly over the space; null: two for each field that is searched, 8 to 24", ge=1
    )
    pruning: bool = setting(True, "end a trial early that will hardly become the best")
    prune_below: float = setting(
        0.05, "chance of a trial of becoming better than the best before it, below which it is pruned", gt=0.0, lt=0.5
    )
    confirm: int = setting(
        5, "best trials that are trained again with fresh seeds before one is called the winner", ge=1
    )
    confirm_seeds: int = setting(3, "fresh seeds for each of them", ge=1, le=100)
    final_seeds: int = setting(5, "fresh seeds with which the winner is trained anew and tested", ge=1, le=100)
    test: bool = setting(True, "train the winner anew and evaluate it, once, on the test split")
    auto_promote: bool = setting(False, "promote the winner at the end, if it passes (velodrome promote)")

    @property
    def steps(self) -> int:
        """Trainings of a trial that is not pruned."""
        return self.folds or self.seeds

    @property
    def fresh_steps(self) -> range:
        """Numbers of the trainings with fresh seeds."""
        return range(self.steps, self.steps + (self.folds or self.confirm_seeds))

    @property
    def final_step(self) -> int:
        """Number of the winner's last training."""
        return self.fresh_steps.stop

    def startup_of(self, dimensions: int) -> int:
        """Return how many trials are spread evenly over a space of so many fields."""
        return self.startup or min(max(2 * dimensions, 8), 24)


@dataclass(frozen=True)
class Outcome:
    """What a training of a trial came to."""

    value: float  # its score; NaN: it has none
    reason: str = ""  # why it has none
    kind: str = "finished"  # how its training ended
    figures: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""  # id

    @property
    def is_good(self) -> bool:
        """Whether it has a score."""
        return math.isfinite(self.value)


@dataclass
class Trial:
    """A trial: the values that it tries, and what its trainings came to."""

    number: int
    params: dict[str, Any]  # by dotted key
    status: str = RUNNING
    value: float = math.nan  # mean over its steps; of a pruned one, what all of them would have come to
    reason: str = ""  # why it was pruned, or failed
    created: float = 0.0  # seconds since 1970
    updated: float = 0.0
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by step

    @property
    def is_over(self) -> bool:
        """Whether its search is; trainings with fresh seeds may follow."""
        return self.status != RUNNING

    def values(self, steps: int) -> list[float]:
        """Return the scores of its first steps, as far as they are known without a gap."""
        found: list[float] = []
        for step in range(steps):
            outcome = self.outcomes.get(step)
            if outcome is None or not outcome.is_good:
                break
            found.append(outcome.value)
        return found

    def failure(self, steps: range) -> Outcome | None:
        """Return the first of some steps that has no score though it is over."""
        known = (self.outcomes[step] for step in steps if step in self.outcomes)
        return next((outcome for outcome in known if not outcome.is_good), None)

    @property
    def is_its_own_fault(self) -> bool:
        """Whether it failed because of what it tried."""
        failed = [outcome for outcome in self.outcomes.values() if not outcome.is_good]
        return all(outcome.kind in ITS_OWN_FAULT for outcome in failed)

    def mean(self, steps: Sequence[int]) -> float:
        """Return its mean score over some steps; NaN if one is missing or has none."""
        known = [self.outcomes[step].value for step in steps if step in self.outcomes]
        return math.fsum(known) / len(steps) if len(known) == len(steps) else math.nan
