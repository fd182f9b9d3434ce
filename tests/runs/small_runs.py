"""Tiny runs for the tests of training, and processes that train them and may be killed.

Processes are forked from one that has imported everything, so that twenty of them cost seconds and not minutes.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401
import torch
import torch._dynamo  # the first optimiser would import it
from safetensors.torch import load_file

import velodrome.evaluation.evaluate
import velodrome.learn.acting
import velodrome.learn.dqn
import velodrome.learn.ppo
import velodrome.vector.make  # noqa: F401
from velodrome import cli
from velodrome.runs import checkpoint
from velodrome.runs.folder import run_folders
from velodrome.runs.run import Run, train
from velodrome.runs.session import Session
from velodrome.runs.store.sinks import read_lines
from velodrome.tables.scaling import column_moments

# The first compiled function that a process calls lets Numba set itself up, which takes half of a tiny run. Processes
# that are forked from this one find it done.
column_moments(np.zeros((2, 1)))

# 64 steps an iteration, 10 iterations, a checkpoint every second one and an evaluation every third.
TINY: dict[str, Any] = {
    "steps": 640, "num_envs": 8, "ppo.rollout_length": 8, "market.length": 300, "market.windows": 4,
    "market.features": ("return",), "market.check_leaks": False, "network.hidden": (8,), "params.episode_length": 16,
    "checkpoint.every_steps": 128, "evaluation.every_steps": 192, "evaluation.bootstrap_samples": 20,
}  # fmt: skip
TIMEOUT = 300.0  # seconds; a process that takes longer hangs, even on a busy machine that compiles first


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Waking a second core costs more than these tensors do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(folder: Path, **settings: Any) -> dict[str, Any]:
    """Return settings on top of the preset `smoke`, by dotted key, without those that others leave without effect."""
    chosen = {**TINY, "logging.folder": str(folder), **settings}
    if "market.source" in settings:
        del chosen["market.length"]
    other = chosen.get("algorithm", "ppo") != "ppo"
    return {key: value for key, value in chosen.items() if not (other and key.startswith("ppo."))}


def small_run(folder: Path, evaluate: bool = False, **settings: Any) -> Run:
    """Train a tiny run without a word."""
    return train("smoke", mode="quiet", evaluate=evaluate, **tiny(folder, **settings))


class Dropping(torch.nn.Module):
    """A network of a user's own that draws random numbers from torch's generator while it learns."""

    out_features = 8

    def __init__(self, windows: Any, values: int) -> None:
        super().__init__()
        inputs = sum(rows * features for rows, features in windows) + values
        self.layers = torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.Tanh(), torch.nn.Dropout(0.5))

    def forward(self, windows: list[torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        """Return features."""
        return self.layers(torch.cat([*(window.flatten(1) for window in windows), values], 1))


# What two runs are compared by


def rows(run: Run) -> list[tuple[int, str, float]]:
    """Return a run's metrics as the store has them, but for times and what the machine was busy with."""
    with run.store() as store:
        kept = store.metrics(run.folder.id).filter(~pl.col("name").str.contains("^(time|resources)/"))
    return kept.select("step", "name", "value").rows()


def lines(run: Run) -> list[tuple[int, str, float]]:
    """Return a run's metrics as its file has them, likewise, in the order of `rows`; doubles stay double."""
    found = [
        (entry.step, name, value)
        for entry in read_lines(run.folder.metrics_path)
        for name, value in entry.values.items()
        if not name.startswith(("time/", "resources/"))
    ]
    return sorted(found, key=lambda row: row[:2])


def last_tensors(run: Run) -> dict[str, torch.Tensor]:
    """Return the tensors of a run's last checkpoint."""
    last = checkpoint.latest_checkpoint(run.path)
    assert last is not None
    return load_file(last / checkpoint.TENSORS)


def checkpoint_names(run: Run) -> list[tuple[str, bool]]:
    """Return the name of everything in the folder of checkpoints, and whether it is pinned."""
    home = checkpoint.checkpoint_home(run.path)
    return sorted((path.name, (path / checkpoint.PINNED).exists()) for path in home.iterdir())


def assert_equal_runs(run: Run, reference: Run) -> None:
    """Check that a run is another one to the bit: metrics, the last checkpoint, and what lies in its folder."""
    assert repr(rows(run)) == repr(rows(reference))  # as text, because NaN equals NaN there
    assert repr(lines(run)) == repr(lines(reference))
    assert lines(run)
    assert repr(lines(run)) == repr(sorted(set(rows(run)), key=lambda row: row[:2]))
    tensors, wanted = last_tensors(run), last_tensors(reference)
    assert tensors.keys() == wanted.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == wanted[name].dtype
        assert tensor.numpy().tobytes() == wanted[name].numpy().tobytes(), name
    assert checkpoint_names(run) == checkpoint_names(reference)
    left = {path.name for path in run.path.iterdir()}
    assert left == {path.name for path in reference.path.iterdir()}
    assert not [name for name in left if name.startswith(".")]


# Processes


def processes() -> Any:
    """Return the context of processes that are forked from one that has imported this module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def command_line(folder: Path, settings: dict[str, Any]) -> list[str]:
    """Return the words that begin a run in a folder, or continue the one that is there."""
    found = run_folders(folder)
    if found:
        return ["train", "--resume", str(found[0].path), "--quiet", "--no-evaluation"]
    words = [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in settings.items()]
    return ["train", "smoke", *words, "--quiet", "--no-evaluation"]


def _carry_out(words: list[str], begun: Event, end: End | None, output: str) -> None:
    torch.set_num_threads(1)
    with open(output, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        begun.set()
        # Not before: whoever dies while setting an event leaves its lock to nobody.
        if end is not None:
            end.arrange()
        code = cli.run(words)
    os._exit(code)


def die() -> None:
    """End this process by SIGKILL: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


class End(Protocol):
    """When a process is to die; it is carried there."""

    def arrange(self) -> None:
        """Make sure that this process dies then."""


@dataclass(frozen=True)
class AfterIterations:
    """Some seconds after a number of iterations, wherever the process is then."""

    iterations: int
    seconds: float

    def arrange(self) -> None:
        left, iterate = self.iterations, Session._iterate

        def counted(*arguments: Any) -> None:
            nonlocal left
            iterate(*arguments)
            left -= 1
            if left == 0:
                threading.Timer(self.seconds, die).start()

        if left == 0:
            threading.Timer(self.seconds, die).start()
        Session._iterate = counted  # type: ignore[method-assign]


@dataclass(frozen=True)
class AtFileOperation:
    """Before the n-th call that changes files for good."""

    number: int

    def arrange(self) -> None:
        lock, left = threading.Lock(), self.number

        def deadly(operation: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal left
                with lock:
                    left -= 1
                    if left == 0:
                        die()
                return operation(*arguments, **named)

            return call

        for module, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir"), (shutil, "rmtree")):
            setattr(module, name, deadly(getattr(module, name)))


@dataclass(frozen=True)
class WhenAFileGrows:
    """In the middle of the first write that makes a file larger than this, whatever language writes it."""

    size: int  # bytes

    def arrange(self) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.size))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)


def start(words: list[str], output: Path, end: End | None = None) -> BaseProcess:
    """Carry out a command line in a process of its own, and return when it has begun."""
    context = processes()
    begun = context.Event()
    process = context.Process(target=_carry_out, args=(words, begun, end, str(output)))
    process.start()
    until = time.monotonic() + TIMEOUT
    while not begun.wait(1.0):
        assert process.is_alive(), f"ended with {process.exitcode} before it began"
        assert time.monotonic() < until, f"not begun after {TIMEOUT} s"
    return process


def ended(process: BaseProcess) -> int:
    """Wait for a process and return its exit code."""
    process.join(TIMEOUT)
    assert process.exitcode is not None
    return process.exitcode


# Signals, in this process


def signals_after(
    monkeypatch: pytest.MonkeyPatch, iterations: int, times: int = 1, number: int = signal.SIGINT
) -> None:
    """Let the run that is trained next receive a signal in the middle of an iteration."""
    iterate, done = Session._iterate, 0

    def interrupted(*arguments: Any) -> None:
        nonlocal done
        done += 1
        if done == iterations:
            for _ in range(times):
                signal.raise_signal(number)
        iterate(*arguments)

    monkeypatch.setattr(Session, "_iterate", interrupted)
