"""Whether learning has broken: losses, gradients or weights that are not a number any more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from velodrome.errors import LearningError
from velodrome.runs.checkpoint import latest_checkpoint

if TYPE_CHECKING:
    import torch

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
