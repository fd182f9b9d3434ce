"""A host: a fresh interpreter that has one contender, and the parent's hold on it."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from velodrome.bench.hosts.batches import BatchSpec, open_batch, stepper_of, trajectory
from velodrome.bench.hosts.environments import environment_source
from velodrome.bench.timing import Batch, PeerFailedError, Stepper
from velodrome.errors import VelodromeError

PATIENCE = 120.0  # seconds beyond what was asked for
CLOSE_SECONDS = 15.0


class Host(contextlib.AbstractContextManager):
    """The parent's side. Once opened it is timed like any contender."""

    per_call = 0.0  # seconds
    gpu_missing: str | None = None  # why the GPU's use is not known, if it was asked for

    def __init__(self, folder: Path, spec: BatchSpec | None = None) -> None:
        self.folder, self.spec = folder, spec
        self.line, theirs = multiprocessing.Pipe()
        code = f"from velodrome.bench.hosts.host import serve; serve({theirs.fileno()})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Not `multiprocessing`, which would run the parent's main program again. A session of its own: Ctrl-C reaches
        # the parent only, which then ends its hosts in order.
        with open(folder / f"host-{os.urandom(4).hex()}.log", "w") as log:
            shared: dict[str, Any] = {"env": environment, "pass_fds": [theirs.fileno()], "start_new_session": True}
            self.process = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log, **shared)
        theirs.close()
        if spec is not None:
            self.tell("open", spec=spec, folder=folder)

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self, seconds: float) -> float:
        """Step for that long at least; return the seconds of a call."""
        self.per_call, self.gpu_missing = self.ask("warm_up", seconds, seconds=seconds)
        return self.per_call

    def time(self, calls: int) -> dict[str, float]:
        """Return the seconds of some calls, the cores that were busy, and the GPU's share if there is one."""
        return self.ask("time", calls * self.per_call, calls=calls)

    def ask(self, command: str, duration: float = 0.0, /, **values: Any) -> Any:
        """Have something done that takes about that long; return the answer, raise PeerFailedError if none comes."""
        self.tell(command, **values)
        return self.answer(duration)

    def tell(self, command: str, /, **values: Any) -> None:
        """Ask without waiting: `answer` returns what comes back."""
        with contextlib.suppress(BrokenPipeError):  # `answer` says what happened
            self.line.send((command, values))

    def answer(self, duration: float = 0.0) -> Any:
        """Return the answer to what was told."""
        deadline = time.monotonic() + PATIENCE + 3.0 * duration
        # Looked at now and then: workers that a dead host left behind may hold the line open.
        while not self.line.poll(1.0) and self.process.poll() is None:
            if time.monotonic() > deadline:
                self._kill()
                raise PeerFailedError("failed: no answer in time")
        try:
            error, found = self.line.recv() if self.line.poll() else ("", None)
        except (EOFError, ConnectionResetError):
            error = ""
        if error == "":
            code = self.process.wait(CLOSE_SECONDS)
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            raise PeerFailedError(f"failed: its process was ended {how}")
        if error is not None:
            raise PeerFailedError(f"failed: {error}")
        return found

    def close(self) -> None:
        """End the interpreter and everything that it started."""
        self.line.close()  # it closes its environments and ends
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_SECONDS)
        self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # workers that were left behind too
        self.process.wait(CLOSE_SECONDS)


# What the host runs


def serve(descriptor: int) -> None:
    """Answer until the parent closes the line."""
    line = Connection(descriptor)
    os.set_inheritable(descriptor, False)
    server = Server()
    with contextlib.suppress(EOFError):
        while True:
            command, values = line.recv()
            try:
                line.send((None, getattr(server, f"on_{command}")(**values)))
            except Exception as error:
                traceback.print_exc()
                told = str(error) if isinstance(error, VelodromeError) else f"{type(error).__name__}: {error}"
                line.send((told or type(error).__name__, None))
    server.close()


class Server:
    """One contender and what the parent may ask of it."""

    batch: Batch | None = None
    spec: BatchSpec
    stepper: Stepper
    gpu: Any = None

    def on_recommend(self, env: str, num_envs: int, seconds: float, folder: Path) -> dict[str, Any]:
        """Return the recommendation for an environment."""
        from velodrome.vector.workers.autotune import recommend

        found = recommend(environment_source(env, folder), num_envs, seconds=seconds)
        return {**dataclasses.asdict(found), "sentence": found.sentence()}

    def on_open(self, spec: BatchSpec, folder: Path) -> None:
        """Make the environments."""
        self.spec = spec
        # The memory of libraries is not the environments'.
        if spec.peer in ("dummy", "subproc"):
            importlib.import_module("stable_baselines3")
        if spec.policy != "none":
            importlib.import_module("torch")
        self.memory_before = tree_memory()
        self.batch = open_batch(spec, folder)

    def on_trajectory(self, steps: int) -> dict[str, Any]:
        """Return what the environments give for known seeds and actions."""
        assert self.batch is not None
        return trajectory(self.batch, self.spec, steps)

    def on_warm_up(self, seconds: float) -> tuple[float, str | None]:
        """Step for a while; return the seconds of a call, and why the GPU's use is not known, if it was asked for."""
        assert self.batch is not None
        self.stepper = stepper_of(self.batch, self.spec)
        missing = None
        if self.spec.policy == "cuda":
            from velodrome.runs.live.machine_use import open_gpu

            self.gpu, missing = open_gpu("cuda")
        return self.stepper.warm_up(seconds), missing

    def on_time(self, calls: int) -> dict[str, float]:
        """Make some calls; return their seconds, the cores that were busy, and the GPU's share if there is one."""
        from velodrome.runs.live.machine_use import ProcessorUse

        processors = ProcessorUse()
        found = {**self.stepper.time(calls), "cores": processors.sample()[0]}
        return found if self.gpu is None else {**found, "gpu": self.gpu.sample().busy}

    def on_memory(self) -> int:
        """Return by how many bytes all processes together have grown since before the environments were made."""
        return max(0, tree_memory() - self.memory_before)

    def close(self) -> None:
        """Close the environments."""
        for opened in (self.batch, self.gpu):
            if opened is not None:
                opened.close()


def tree_memory() -> int:
    """Return the bytes of this process and its descendants; what several share counts once."""
    import psutil

    total = 0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it ended between list and look
            sizes = process.memory_full_info()
            total += getattr(sizes, "pss", sizes.uss)
    return total
