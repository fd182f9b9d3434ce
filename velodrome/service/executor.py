"""How the processes of trainings are started, watched and ended: one small interface, and the one for this machine.

`tests/contracts/executor.py` is what every executor promises.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import Any, Protocol

from velodrome.errors import JobError
from velodrome.service.budget import Gpu, Resources
from velodrome.service.machine import Machine, is_alive, is_frozen, kill_session, this_machine
from velodrome.service.worker.task import Task
from velodrome.vector.cores import available_cores, memory_limit

START_SECONDS = 120.0  # that importing everything may take


class Executor(Protocol):
    """Carries out tasks somewhere."""

    name: str
    machine: str  # on which it does; the budget of a machine is shared by all services on it

    def resources(self) -> Resources:
        """Return what there is, and of GPUs what is free now."""

    def prepare(self) -> None:
        """Make ready to start tasks, so that they begin at once; JobError if that cannot be done."""

    def start(self, task: Task) -> str:
        """Start the processes of a task; JobError if that cannot be done. Its keeper enters itself into the store.

        Return what they are known by, or what that begins with.
        """

    def poll(self, machine: str, process: str) -> bool | None:
        """Return whether a process that was started is there, frozen or not; None if that cannot be seen from here."""

    def is_frozen(self, machine: str, process: str) -> bool:
        """Return whether a process that can be seen from here was stopped, as by SIGSTOP."""

    def stop(self, machine: str, process: str) -> bool:
        """End the processes of a task for good; return whether it is certain that none of them is left."""

    def close(self) -> None:
        """Let go of what was needed to start processes; those that run go on."""


class LocalExecutor:
    """Processes on this machine, forked from one that has imported everything."""

    name = "local"

    def __init__(self, machine: Machine | None = None, ends_with_its_owner: bool = False) -> None:
        """ends_with_its_owner: trainings do not outlive this process."""
        self._machine = machine or this_machine()
        self._options = ["--together"] if ends_with_its_owner else []
        self.machine = str(self._machine)
        self._nursery: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def resources(self) -> Resources:
        return Resources(available_cores(), memory_limit(), tuple(gpus_here()))

    def start(self, task: Task) -> str:
        with self._lock:
            try:
                nursery = self._ready()
                assert nursery.stdin is not None
                nursery.stdin.write((json.dumps(task.content()) + "\n").encode())
                nursery.stdin.flush()
                return str(self._answer(nursery, "started")["process"])
            except (OSError, ValueError) as error:
                self._end_nursery()
                raise JobError(f"the process of job {task.job} could not be started: {error}.") from error

    def prepare(self) -> None:
        with self._lock:
            try:
                self._ready()
            except OSError as error:
                self._end_nursery()
                raise JobError(f"trainings cannot be started: {error}.") from error

    def poll(self, machine: str, process: str) -> bool | None:
        if machine != self.machine or not process:
            return None
        return is_alive(process)

    def is_frozen(self, machine: str, process: str) -> bool:
        return machine == self.machine and bool(process) and is_frozen(process)

    def stop(self, machine: str, process: str) -> bool:
        there = Machine.read(machine)
        if there is None or not process:
            return False
        if there == self._machine:
            return kill_session(process)
        return there.is_gone(self._machine)

    def close(self) -> None:
        with self._lock:
            self._end_nursery()

    # The nursery

    def _ready(self) -> subprocess.Popen[bytes]:
        if self._nursery is not None and self._nursery.poll() is None:
            return self._nursery
        self._end_nursery()
        # In a session of its own: what a terminal sends to the service is not meant for it.
        command = [sys.executable, "-m", "velodrome.service.worker.nursery", *self._options]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._nursery = subprocess.Popen(command, start_new_session=True, env=_environment(), **pipes)  # type: ignore[call-overload]
        assert self._nursery is not None
        self._answer(self._nursery, "ready")
        return self._nursery

    def _answer(self, nursery: subprocess.Popen[bytes], wanted: str) -> dict[str, Any]:
        """Read answers until the one that is waited for, and return it."""
        assert nursery.stdout is not None
        watchdog = threading.Timer(START_SECONDS, nursery.kill)
        watchdog.start()
        try:
            while line := nursery.stdout.readline():
                if wanted in (answer := json.loads(line)):
                    return answer
        finally:
            watchdog.cancel()
        raise OSError(f"the process that starts trainings ended with code {nursery.wait()}")

    def _end_nursery(self) -> None:
        nursery, self._nursery = self._nursery, None
        if nursery is None:
            return
        for pipe in (nursery.stdin, nursery.stdout):
            if pipe is not None:
                try:
                    pipe.close()  # which ends it
                except OSError:
                    continue
        try:
            nursery.wait(5.0)
        except subprocess.TimeoutExpired:
            nursery.kill()
            nursery.wait()


def _environment() -> dict[str, str]:
    """Return the environment of trainings, without what is about this process alone."""
    from velodrome.runs.folder import LEASE

    return {name: value for name, value in os.environ.items() if name != LEASE}


def gpus_here() -> list[Gpu]:
    """Return the GPUs that this process may use, and what is free of each whoever uses the rest."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return []
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        found = []
        for number in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(number)
            memory, identity = pynvml.nvmlDeviceGetMemoryInfo(handle), pynvml.nvmlDeviceGetUUID(handle)
            found.append(Gpu(str(identity), int(memory.total), int(memory.free)))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            return found
        named = [name.strip() for name in visible.split(",")]
        return [gpu for number, gpu in enumerate(found) if str(number) in named or gpu.id in named]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()
