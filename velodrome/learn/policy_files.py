"""Policies as files for other programs: ONNX and TorchScript, each read back and checked before it is put in place.

The function in the file takes `observation`, [n, floats] float32 in the layout of observation="flat" (windows, then
values as the environment gives them: normalisation is inside, and so is the division of bytes by 255), and, if the
network remembers, `memory`, [n, width], zeros at the beginning of an episode. It returns `actions` (the likeliest,
within their range), `parameters` (logits, means or action values; of an ensemble those of all members side by side), of
an ensemble `disagreement`, [n], and, if the network remembers, `next_memory` for the next step. n is free.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from velodrome.errors import BackendError, ConfigError, MissingDependencyError
from velodrome.learn.acting import TrainedPolicy, outputs_of
from velodrome.learn.ensembles import EnsemblePolicy, disagreement
from velodrome.outside.extras import install
from velodrome.rollout.moments import LIMIT
from velodrome.rollout.observation import Observation
from velodrome.writing import replacing

OPSET = 18
INPUTS = ("observation", "memory")
CHECKED_ROWS = (1, 2, 64)  # sizes of the batches on which a file is compared with the policy
TOLERANCE = 1e-4  # of parameters and continuous actions, relative to the largest

Function = Callable[[list[NDArray]], list[NDArray]]
exporter_logger = logging.getLogger("torch.onnx")


class FlatPolicy(nn.Module):
    """A policy as one function of flat observations, with constants in place of running moments."""

    divisors: Tensor
    mean: Tensor
    scale: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, policy: TrainedPolicy) -> None:
        super().__init__()
        self.network = copy.deepcopy(policy.network).cpu().eval().requires_grad_(False)
        # Of an ensemble it lies where the network does.
        self.distribution = getattr(self.network, "distribution", policy.distribution)
        self.disagrees = isinstance(policy, EnsemblePolicy)
        self.window_floats = policy.shape.window_floats
        self.remembers = policy.memory_size > 0
        moments, low, high = policy.moments, policy.low, policy.high
        self.normalises, self.bounded = moments is not None, low is not None
        divisors = policy.shape.divisors()
        self.divides = divisors is not None
        if divisors is not None:
            self.register_buffer("divisors", divisors)
        if moments is not None:
            self.register_buffer("mean", moments.mean.float().cpu())
            self.register_buffer("scale", moments.scale.cpu())
        if low is not None and high is not None:
            self.register_buffer("low", low.cpu())
            self.register_buffer("high", high.cpu())

    def forward(self, observation: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return what `output_names` says."""
        windows = observation[:, : self.window_floats] if self.window_floats else None
        values = observation[:, self.window_floats :]
        if self.divides:
            values = values / self.divisors
        if self.normalises:
            values = ((values - self.mean) * self.scale).clamp(-LIMIT, LIMIT)
        before = observation.new_zeros((observation.shape[0], 0)) if memory is None else memory
        parameters, after = outputs_of(self.network, Observation(values, None, windows), before)
        actions = self.distribution.mode(parameters)
        if self.bounded:
            actions = torch.minimum(torch.maximum(actions, self.low), self.high)
        apart = (disagreement(self.distribution, parameters),) if self.disagrees else ()
        return (actions, parameters, *apart, *((after,) if self.remembers else ()))


def output_names(policy: TrainedPolicy) -> list[str]:
    """Return what the function of a policy returns, by name."""
    apart = ["disagreement"] if isinstance(policy, EnsemblePolicy) else []
    return ["actions", "parameters", *apart, *(["next_memory"] if policy.memory_size else [])]


def export_onnx(policy: TrainedPolicy, path: Path | str) -> Path:
    """Write a policy as ONNX (opset 18) for any runtime, check it with onnxruntime, and return the path."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError as error:
            raise MissingDependencyError(
                f"export to ONNX needs {package}, which is not installed: {install('onnx')}."
            ) from error

    def write(function: FlatPolicy, examples: tuple[Tensor, ...], target: Path) -> None:
        count = len(examples)
        names: dict[str, Any] = {"input_names": list(INPUTS[:count]), "output_names": output_names(policy)}
        shapes = tuple({0: torch.export.Dim("n")} for _ in examples)
        how: dict[str, Any] = {"dynamo": True, "verbose": False, "external_data": False, "opset_version": OPSET}
        torch.onnx.export(function, examples, target, dynamic_shapes=shapes, **names, **how)

    def read(target: Path) -> Function:
        import onnxruntime

        session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]
        return lambda arrays: session.run(None, dict(zip(names, arrays, strict=True)))

    return _export(policy, Path(path), Format(".onnx", write, read))


def export_torchscript(policy: TrainedPolicy, path: Path | str) -> Path:
    """Write a policy as TorchScript for programs without Python, check it, and return the path."""

    def write(function: FlatPolicy, examples: tuple[Tensor, ...], target: Path) -> None:
        torch.jit.trace(function, examples, check_trace=False).save(str(target))

    def read(target: Path) -> Function:
        loaded = torch.jit.load(str(target), map_location="cpu")
        return lambda arrays: [found.numpy() for found in loaded(*map(torch.from_numpy, arrays))]

    return _export(policy, Path(path), Format(".pt", write, read))


class Format(NamedTuple):
    """A kind of file."""

    suffix: str
    write: Callable[[FlatPolicy, tuple[Tensor, ...], Path], None]
    read: Callable[[Path], Function]


def _export(policy: TrainedPolicy, path: Path, kind: Format) -> Path:
    """Write a file under another name, compare what it computes with the policy, then put it in place."""
    if path.suffix != kind.suffix:
        raise ConfigError(f"{path}: the file's name must end in {kind.suffix}.")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: {path.parent} is no folder; make it first.")
    function = FlatPolicy(policy)
    examples = tuple(torch.from_numpy(array) for array in random_inputs(policy, max(CHECKED_ROWS), seed=0))
    with replacing(path) as new, torch.no_grad(), warnings.catch_warnings():
        # Exporters warn of their own future and of packages that they could use; none of it concerns the file.
        warnings.simplefilter("ignore")
        level = exporter_logger.level
        exporter_logger.setLevel(logging.ERROR)
        try:
            kind.write(function, examples, new)
            loaded = kind.read(new)
            for seed, rows in enumerate(CHECKED_ROWS):
                inputs = random_inputs(policy, rows, seed)
                _compare(path, loaded(inputs), policy, inputs)
        except (BackendError, OSError):
            raise
        except Exception as error:
            raise BackendError(
                f"{path}: this network cannot be exported ({type(error).__name__}: {error}). Your own "
                f"networks must consist of what torch.export and torch.jit.trace can follow."
            ) from error
        finally:
            exporter_logger.setLevel(level)
    return path


def random_inputs(policy: TrainedPolicy, rows: int, seed: int) -> list[NDArray[np.float32]]:
    """Return inputs like those of training: values spread as their running moments say, windows standard normal."""
    generator = np.random.default_rng(seed)
    observation = generator.normal(size=(rows, policy.shape.floats))
    values = observation[:, policy.shape.window_floats :]
    if policy.normalisation is not None:
        mean, scale = (moment.double().cpu().numpy() for moment in policy.normalisation)
        values /= scale
        values += mean
    divisors = policy.shape.divisors()
    if divisors is not None:
        values *= divisors.numpy()
    inputs = [observation.astype(np.float32)]
    if policy.memory_size:
        inputs.append(generator.uniform(-1.0, 1.0, (rows, policy.memory_size)).astype(np.float32))
    return inputs


def _compare(path: Path, found: list[NDArray], policy: TrainedPolicy, inputs: list[NDArray]) -> None:
    """Raise unless the file gives the same outputs as the policy."""
    rows = torch.from_numpy(inputs[0]).to(policy.device)
    memory = torch.from_numpy(inputs[1]).to(policy.device) if policy.memory_size else rows.new_zeros((len(rows), 0))
    at = policy.shape.window_floats
    seen = Observation(policy.scaled(rows[:, at:]), None, rows[:, :at] if at else None)
    actions, parameters, after = policy.decide(seen, memory)
    expected = {"actions": actions, "parameters": parameters, "next_memory": after}
    if isinstance(policy, EnsemblePolicy):
        expected["disagreement"] = torch.as_tensor(policy.disagreement)
    for name, theirs in zip(output_names(policy), found, strict=True):
        wanted = expected[name].cpu().numpy()
        if wanted.shape != theirs.shape or wanted.dtype != theirs.dtype or not _close(theirs, wanted):
            raise BackendError(
                f"{path}: the exported function gives other {name} than the policy, so it was not kept. The network is "
                f"{type(policy.network).__name__}; a file of the other kind (ONNX, TorchScript) may do."
            )


def _close(found: NDArray, wanted: NDArray) -> bool:
    if wanted.dtype.kind == "i":
        return bool((found == wanted).all())
    return np.allclose(found, wanted, rtol=0.0, atol=TOLERANCE * max(float(np.abs(wanted).max(initial=0.0)), 1e-3))
