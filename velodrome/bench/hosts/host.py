"""A host: a fresh interpreter that has one contender, and the parent's hold on it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil

from velodrome.bench.hosts.batches import BatchSpec, open_batch, stepper_of, trajectory
from velodrome.bench.peers import pufferlib
from velodrome.bench.report import OURS
from velodrome.bench.timing import Batch, PeerFailedError
from velodrome.errors import VelodromeError
from velodrome.vector.workers.worker.starting import without_main_module

PATIENCE = 120.0  # seconds beyond what was asked for
CLOSE_SECONDS = 15.0
LIBRARIES: dict[str, Callable[[], Any]] = {
    OURS: partial(importlib.import_module, "velodrome.vector.make"),
    **dict.fromkeys(("dummy", "subproc"), partial(importlib.import_module, "stable_baselines3")),
    **dict.fromkeys(pufferlib.PUFFERLIB, pufferlib.imported),
}


class Host(contextlib.AbstractContextManager):
    """The parent's side. It is timed like any contender."""

    per_call = 0.0  # seconds

    def __init__(self, spec: BatchSpec) -> None:
        self.spec = spec
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, spec))
        with without_main_module():
            self.process.start()
        theirs.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self, seconds: float) -> float:
        """Step for that long at least; return the seconds of a call."""
        self.per_call = self.ask("warm_up", seconds, seconds=seconds)
        return self.per_call

    def time(self, calls: int) -> dict[str, float]:
        """Return the seconds of some calls, the cores that were busy, and the GPU's share if there is one."""
        return self.ask("time", calls * self.per_call, calls=calls)

    def ask(self, command: str, duration: float = 0.0, /, **values: Any) -> Any:
        """Have something done that takes about that long; return the answer, raise PeerFailedError if none comes."""
        deadline = time.monotonic() + PATIENCE + 3.0 * duration
        error, found = "", None
        with contextlib.suppress(BrokenPipeError, EOFError, ConnectionResetError):  # it is said below what happened
            self.line.send((command, values))
            # Looked at now and then: workers that a dead host left behind may hold the line open.
            while not self.line.poll(1.0) and self.process.is_alive():
                if time.monotonic() > deadline:
                    self._kill()
                    raise PeerFailedError("failed: no answer in time")
            error, found = self.line.recv() if self.line.poll() else ("", None)
        if error == "":
            self.process.join(CLOSE_SECONDS)
            code = self.process.exitcode or 0
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise PeerFailedError(f"failed: its process was ended {how}")
        if error is not None:
            raise PeerFailedError(f"failed: {error}")
        return found

    def close(self) -> None:
        """End the interpreter and everything that it started."""
        if not self.line.closed:
            self.line.close()  # it closes its environments and ends
            self.process.join(CLOSE_SECONDS)
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)  # workers that were left behind too
        self.process.join(CLOSE_SECONDS)


# What the host runs


def serve(line: Connection, spec: BatchSpec) -> None:
    """Answer until the parent closes the line."""
    os.setsid()  # Ctrl-C reaches the parent only, which then ends its hosts in order
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    hosted = Hosted(spec)
    with contextlib.suppress(EOFError):
        while True:
            command, values = line.recv()
            try:
                line.send((None, getattr(hosted, command)(**values)))
            except Exception as error:
                told = str(error) if isinstance(error, VelodromeError) else f"{type(error).__name__}: {error}"
                line.send((told or type(error).__name__, None))
    hosted.close()


class Hosted:
    """One contender and what the parent may ask of it."""

    batch: Batch | None = None
    gpu: Any = None
    gpu_missing: str | None = None  # why its use is not known, if it was asked for

    def __init__(self, spec: BatchSpec) -> None:
        self.spec = spec
        # The memory of libraries is not the environments'.
        if spec.peer in LIBRARIES:
            LIBRARIES[spec.peer]()
        if spec.policy != "none":
            importlib.import_module("torch")
        self.memory_before = tree_memory()

    def recommend(self, seconds: float) -> dict[str, Any]:
        """Return the recommendation for the environment."""
        from velodrome.vector.workers.autotune import recommend

        found = recommend(self.spec.source(), self.spec.num_envs, seconds=seconds)
        return {**dataclasses.asdict(found), "sentence": found.sentence()}

    def open(self) -> None:
        """Make the environments, unless they are there."""
        self.batch = self.batch or open_batch(self.spec)

    def trajectory(self, steps: int) -> list[dict[str, Any]]:
        """Return what the environments give for known seeds and actions."""
        assert self.batch is not None
        return trajectory(self.batch, self.spec, steps)

    def warm_up(self, seconds: float) -> float:
        """Step for a while; return the seconds of a call."""
        self.open()
        assert self.batch is not None
        self.stepper = stepper_of(self.batch, self.spec)
        if self.spec.policy == "cuda":
            from velodrome.runs.machine.use import open_gpu

            self.gpu, self.gpu_missing = open_gpu("cuda")
        found = self.stepper.warm_up(seconds)
        self.stepper.rest()
        return found

    def time(self, calls: int) -> dict[str, float]:
        """Make some calls; return their seconds, the cores that were busy, and the GPU's share if there is one."""
        from velodrome.runs.machine.use import ProcessorUse

        processors = ProcessorUse()
        found = {**self.stepper.time(calls), "cores": processors.sample()[0]}
        self.stepper.rest()
        return found if self.gpu is None else {**found, "gpu": self.gpu.sample().busy}

    def memory(self) -> tuple[int, str | None]:
        """Return by how many bytes all processes have grown with the environments, and why no GPU is watched."""
        return max(0, tree_memory() - self.memory_before), self.gpu_missing

    def close(self) -> None:
        """Close the environments."""
        for opened in (self.batch, self.gpu):
            if opened is not None:
                opened.close()


def tree_memory() -> int:
    """Return the bytes of this process and its descendants; what several share counts once."""
    total = 0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ended between list and look
            sizes = process.memory_full_info()
            total += getattr(sizes, "pss", sizes.uss)
    return total
