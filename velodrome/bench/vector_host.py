"""An interpreter of its own for each contender of the vector benchmark, and the parent's hold on it.

Contenders then take turns though some of them fork their workers (which only a fresh process without threads may),
their processor time and memory are theirs alone, and one that fails or hangs takes nobody with it. Parent and host
talk in lines of JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from velodrome.bench.process_peers import PeerFailedError
from velodrome.bench.timing import Stepper, seconds_per_call, time_slice
from velodrome.bench.vector_contenders import Batch, Contender, open_batch, stepper_of, trajectory, travel_by_value
from velodrome.bench.vector_envs import environment_source
from velodrome.errors import VelodromeError

PATIENCE = 120.0  # seconds beyond what was asked for
CLOSE_SECONDS = 15.0
CODE = "from velodrome.bench.vector_host import serve; serve()"


class Host:
    """The parent's side: one interpreter that has one contender."""

    def __init__(self, folder: Path, contender: Contender | None = None) -> None:
        self.contender = contender
        self.errors = open(folder / f"host-{os.urandom(4).hex()}.log", "w+")  # noqa: SIM115
        source = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(dict.fromkeys([source, *filter(None, sys.path)]))
        # A session of its own: Ctrl-C reaches the parent only, which then ends its hosts in order.
        self.process = subprocess.Popen(
            [sys.executable, "-c", CODE], env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.errors, start_new_session=True,
        )  # fmt: skip
        self.folder = folder
        self.pending = b""

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, command: str, seconds: float = 0.0, /, **values: Any) -> Any:
        """Have something done that takes about so many seconds; return the answer, raise PeerFailedError if none."""
        self.tell(command, **values)
        return self.answer(seconds)

    def tell(self, command: str, /, **values: Any) -> None:
        """Ask without waiting: `answer` returns what comes back."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"command": command, **values}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `answer` says what happened

    def answer(self, seconds: float = 0.0) -> Any:
        """Return the answer to what was told."""
        line = self._line(time.monotonic() + PATIENCE + 3.0 * seconds)
        found = json.loads(line)
        if "error" in found:
            raise PeerFailedError(f"failed: {found['error']}")
        return found["result"]

    def _line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0.0:
                self._kill()
                raise PeerFailedError("failed: no answer in time")
            if select.select([descriptor], [], [], min(left, 1.0))[0]:
                part = os.read(descriptor, 65536)
                if not part:
                    raise PeerFailedError(f"failed: {self._last_words()}")
                self.pending += part
            elif self.process.poll() is not None:
                # Workers that it left behind may hold the pipe open.
                raise PeerFailedError(f"failed: {self._last_words()}")
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def _last_words(self) -> str:
        code = self.process.wait(CLOSE_SECONDS)
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        self.errors.seek(0)
        lines = self.errors.read().strip().splitlines() or [f"exit code {code}"]
        return ([line for line in lines if "Error" in line] or lines)[-1]

    def close(self) -> None:
        """End the interpreter and everything that it started."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()  # it closes its environments and ends
            self.process.wait(CLOSE_SECONDS)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        self._kill()
        self.process.stdout.close()
        self.errors.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # workers that were left behind too
        self.process.wait(CLOSE_SECONDS)


# What the host runs


def serve() -> None:
    """Answer until the parent closes the line."""
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what environments print must not get between the answers
    server = Server()
    try:
        for line in requests:
            _reply(answers, server, json.loads(line))
    finally:
        server.close()


def _reply(answers: IO[str], server: Server, request: dict[str, Any]) -> None:
    command = request.pop("command")
    try:
        reply = {"result": getattr(server, f"on_{command}")(**request)}
    except Exception as error:
        traceback.print_exc()
        reply = {"error": str(error) if isinstance(error, VelodromeError) else f"{type(error).__name__}: {error}"}
    answers.write(json.dumps(reply) + "\n")
    answers.flush()


class Server:
    """One contender and what the parent may ask of it."""

    batch: Batch
    contender: Contender
    stepper: Stepper

    def __init__(self) -> None:
        self.opened = False
        self.gpu: Any = None

    def on_recommend(self, env: str, num_envs: int, seconds: float, folder: str) -> dict[str, Any]:
        """Return the recommendation for an environment."""
        from velodrome.vector.workers.autotune import recommend

        travel_by_value()
        found = recommend(environment_source(env, Path(folder)), num_envs, seconds=seconds)
        return {**dataclasses.asdict(found), "sentence": found.sentence()}

    def on_open(self, contender: dict[str, Any], folder: str) -> None:
        """Make the environments."""
        self.contender = Contender.model_validate(contender)
        # The memory of libraries is not the environments'.
        if self.contender.kind in ("dummy", "subproc"):
            importlib.import_module("stable_baselines3")
        if self.contender.policy != "none":
            importlib.import_module("torch")
        self.memory_before = tree_memory()
        self.batch = open_batch(self.contender, Path(folder))
        self.opened = True

    def on_trajectory(self, steps: int, path: str) -> None:
        """Write what the environments give for known seeds and actions."""
        import numpy as np

        arrays: dict[str, Any] = trajectory(self.batch, self.contender, steps)
        np.savez(path, **arrays)

    def on_warm_up(self, seconds: float) -> dict[str, Any]:
        """Step for so long; return the seconds of a call, and why there are no numbers of a GPU if there are none."""
        self.stepper = stepper_of(self.batch, self.contender)
        missing = None
        if self.contender.policy == "cuda":
            from velodrome.runs.live.machine_use import open_gpu

            self.gpu, missing = open_gpu("cuda")
        return {"seconds": seconds_per_call(self.stepper, seconds), "gpu_missing": missing}

    def on_time(self, calls: int) -> dict[str, Any]:
        """Make so many calls; return their seconds, the cores that were busy, and the GPU's share."""
        from velodrome.runs.live.machine_use import ProcessorUse

        processors = ProcessorUse()
        seconds = time_slice(self.stepper, calls)
        cores = processors.sample()[0]
        busy = None if self.gpu is None else self.gpu.sample().busy
        return {"seconds": seconds, "cores": cores, "gpu": busy}

    def on_memory(self) -> int:
        """Return by how many bytes all processes together grew since before the environments were made."""
        return max(0, tree_memory() - self.memory_before)

    def close(self) -> None:
        """Close the environments."""
        if self.opened:
            self.batch.close()
        if self.gpu is not None:
            self.gpu.close()


def tree_memory() -> int:
    """Return the bytes of this process and its descendants; what several share counts once."""
    import psutil

    total = 0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            sizes = process.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended between being listed and being asked
        total += getattr(sizes, "pss", sizes.uss)
    return total
