"""Which engine serves: the fastest that can, and in one table why a faster one cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from velodrome.learn.engines.autograd import AutogradEngine, Task
from velodrome.rollout.storage import Rollout
from velodrome.vector.cuda import is_rocm
from velodrome.vector.messages import tell

try:
    from velodrome.learn.engines.cpu.engine import FusedEngine, perceptrons_of
except (ImportError, AttributeError) as error:
    NUMBA_CHANGED = f"Numba has changed names that this engine builds on ({error})"
    tell(f"learning on a CPU is by autograd, which is slower: {NUMBA_CHANGED}")
else:
    NUMBA_CHANGED = ""

logger = logging.getLogger(__name__)

ON_A_GPU = ("relu", "tanh")  # activations that its engine has


Engine: TypeAlias = "AutogradEngine | FusedEngine"  # the GPU's is a subclass of the first


def _perceptron(task: Task) -> str | None:
    parts = perceptrons_of(task.policy, task.activation)
    return None if parts is None else parts.cannot_be_served()


# Why an engine cannot serve, by the names of those it concerns: the sentence, and when it is true. The last row asks
# the layers themselves (`cpu/perceptrons.py`) and has their sentence.
BOTH, CPU, GPU = ("fused", "cuda"), ("fused",), ("cuda",)
REASONS: tuple[tuple[tuple[str, ...], str, Callable[[Task], object]], ...] = (
    (CPU, NUMBA_CHANGED, lambda task: NUMBA_CHANGED),
    (GPU, "torch is built for ROCm; this engine's kernels are NVIDIA's", lambda task: is_rocm()),
    (BOTH, "network.layer_norm = true; this engine has no norms", lambda task: task.policy.layer_norm),
    (BOTH, "network.dropout = {found:g}; this engine leaves no units out", lambda task: task.policy.dropout),
    (BOTH, "the network is not a plain perceptron", lambda task: task.policy.linear_layers() is None),
    (
        BOTH,
        "network.head = dirichlet; this engine has discrete and Gaussian actions",
        lambda task: task.policy.distribution.kind == "dirichlet",
    ),
    (BOTH, "compile = true asks for torch.compile", lambda task: task.config.compile),
    (BOTH, "per_bar = always", lambda task: task.config.per_bar == "always"),
    (CPU, "precision = {task.config.precision} on a CPU", lambda task: task.config.precision != "float32"),
    (
        GPU,
        "network.activation = {task.activation!r}; this engine has " + " and ".join(ON_A_GPU),
        lambda task: task.activation not in ON_A_GPU,
    ),
    (CPU, "{found}", _perceptron),
)


def cannot_serve(engine: str, task: Task) -> str | None:
    """Return why an engine cannot serve, or None if it can."""
    for engines, sentence, is_true in REASONS:
        found = is_true(task) if engine in engines else None
        if found:
            return sentence.format(task=task, found=found)
    return None


def make_engine(task: Task, rollout: Rollout) -> Engine:
    """Return the fastest engine that can serve; why a faster one cannot is logged."""
    if task.config.engine == "autograd":
        return AutogradEngine(task, rollout)
    on_gpu = rollout.values.device.type == "cuda"
    reason = cannot_serve("cuda" if on_gpu else "fused", task)
    if reason is not None:
        logger.info("learning by autograd: %s", reason)
        return AutogradEngine(task, rollout)
    if not on_gpu:
        return FusedEngine(task, rollout)
    from velodrome.learn.engines.gpu.engine import CudaEngine

    return CudaEngine(task, rollout)
