"""Whether learning has gone wrong: numbers that are none any more, or curves that tell of overfitting."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import LearningError
from velodrome.evaluation.measures import Unit, format_figure
from velodrome.runs.checkpoint import latest_checkpoint
from velodrome.runs.metrics import RETURNS

if TYPE_CHECKING:
    import polars as pl
    import torch

    from velodrome.runs.config.run_config import RunConfig

FEWEST = 5  # validations from which a course can be told from chance
CERTAIN = 3.0  # standard errors: the best of many means is above the others by chance, too
NOTABLE = 0.1  # of the best validation; a smaller fall is not worth a sentence
VITAL = ("loss/", "policy/", "optimiser/", "episode/mean_reward")  # metrics that learning depends on


def broken_metrics(metrics: Mapping[str, float]) -> str:
    """Return which of the numbers that learning depends on are not finite, '' if all are."""
    broken = {name: value for name, value in metrics.items() if name.startswith(VITAL) and not math.isfinite(value)}
    return ", ".join(f"{name} = {value}" for name, value in broken.items())


def broken_weights(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return which of a policy's weights is not finite, '' if all are.

    The last gradient step may have broken it, which the metrics show only one iteration later.
    """
    for name, tensor in tensors.items():
        if name.startswith("policy.") and not bool(tensor.isfinite().all()):
            return f"{name.removeprefix('policy.')} of the network is not finite"
    return ""


def refuse(broken: str, folder: Path, steps: int, algorithm: str) -> None:
    """Stop a run if something has broken, before a checkpoint could hold what is left of it."""
    if not broken:
        return
    last = latest_checkpoint(folder)
    kept = "There is no checkpoint yet" if last is None else f"The last good checkpoint is kept ({last})"
    raise LearningError(
        f"Learning broke at step {steps:,}: {broken}. {kept}. Usual causes: learning_rate too high, rewards or "
        f"observations that are huge or not a number; try a smaller {algorithm}.learning_rate, or "
        "normalise_rewards=true."
    )


# Overfitting


class Parting(NamedTuple):
    """Where training and validation part: means of neighbouring returns, at the best of validation and at the end."""

    step: int  # of the last validation of the best ones; training went on after it
    last_step: int
    training: tuple[float, float]
    validation: tuple[float, float]

    def sentence(self, split: str, account: bool) -> str:
        """Return it for people; account: returns are an account's, not sums of rewards."""
        unit: Unit = "change" if account else "number"
        inside, outside = (
            " to ".join(format_figure(value, unit) for value in values) for values in (self.training, self.validation)
        )
        return (
            f"overfitting: from step {self.step:,} to {self.last_step:,} the return in training went from {inside}, "
            f"while that on {split} fell from {outside}"
        )


class Series(NamedTuple):
    """The course of one metric."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, metrics: pl.DataFrame, name: str) -> Series:
        """Take one metric out of those of a run."""
        own = metrics.filter((metrics["name"] == name) & metrics["value"].is_finite()).sort("step")
        return cls(own["step"].to_numpy(), own["value"].to_numpy())

    @property
    def noise(self) -> float:
        """Standard deviation of one value, from the differences of neighbours: a slow course hardly adds to it."""
        return math.sqrt(float(np.square(np.diff(self.values)).sum()) / (2 * max(len(self.values) - 1, 1)))


def overfitting_of(metrics: pl.DataFrame, split: str) -> Parting | None:
    """Return where the curves of a run part; metrics: its rows, with step, name and value; of a group, with seed.

    The curves of a group are means over its seeds, at the steps that all of them have. If others counted, a good seed
    that ends early would look like a fall.
    """
    if "seed" in metrics.columns:
        by_step = metrics.select("step", "name", "value").group_by("step", "name")
        means = by_step.mean().join(by_step.len(), on=("step", "name"))
        metrics = means.filter(means["len"] == metrics["seed"].n_unique())
    # Beside an account's return on validation stands that of its equity, not the sum of its rewards.
    training = next((name for name in RETURNS if (metrics["name"] == name).any()), RETURNS[-1])
    return overfitting(Series.of(metrics, training), Series.of(metrics, f"evaluation/{split}/return"))


def overfitting(training: Series, validation: Series) -> Parting | None:
    """Return where validation fell for good while training did not; None if it did not, or if too little is known.

    A fifth of the validations is averaged, so that one lucky checkpoint is no peak and one unlucky is no fall.
    """
    count = len(validation.values)
    if count < FEWEST or len(training.values) < FEWEST:
        return None
    width = max(2, count // 5)
    means = np.convolve(validation.values, np.full(width, 1.0 / width), "valid")
    best, end = int(np.argmax(means)), count - width
    if best + width > end:
        return None
    fall = float(means[best] - means[end])
    if fall <= CERTAIN * validation.noise * math.sqrt(2.0 / width) or fall < NOTABLE * abs(float(means[best])):
        return None
    then, now = (_mean_up_to(training, validation.steps, place, width) for place in (best, end))
    slack = training.noise / math.sqrt(max(1, len(training.values) // 5))
    if math.isnan(then) or now < then - slack:
        return None
    step, last_step = int(validation.steps[best + width - 1]), int(validation.steps[-1])
    return Parting(step, last_step, (then, now), (float(means[best]), float(means[end])))


def _mean_up_to(training: Series, steps: NDArray[np.int64], place: int, width: int) -> float:
    """Return the mean in training over the steps that led to some neighbouring validations; NaN if there are none."""
    begin, end = (0 if place == 0 else steps[place - 1]), steps[place + width - 1]
    within = (training.steps > begin) & (training.steps <= end)
    return float(training.values[within].mean()) if within.any() else math.nan


def learns_nothing(config: RunConfig) -> list[str]:
    """Return a warning if the policy of a run is never allowed to learn."""
    name, alone = config.learner.idle_at_first()
    if config.steps > alone:
        return []
    setting, until = f"{config.algorithm}.{name}", getattr(config.learner, name)
    return [
        f"warning: the policy learns nothing in this run. It stays as it is until step {until:,} ({setting}), and the "
        f"run has {config.steps:,}. Give more steps, or a smaller {setting}."
    ]


def enough_episodes(episodes: int, steps: int) -> str:
    """Return that a training has ended because its episodes have."""
    return f"training ended at step {steps:,}: {episodes:,} episodes have ended (episodes)"


def ended_early(config: RunConfig, steps: int) -> str:
    """Return why a training has ended before all its steps were done."""
    chosen = config.evaluation
    by, why = f" by {chosen.margin:g} standard errors", ("evaluation.patience", "evaluation.margin")
    return (
        f"training ended at step {steps:,} of {config.steps:,}: the last {chosen.patience} validations were no better "
        f"than the best one before them{by if chosen.margin else ''} ({', '.join(why if chosen.margin else why[:1])})"
    )
