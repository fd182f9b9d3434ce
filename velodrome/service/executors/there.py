"""What carries out a task on another machine, whoever has placed it there: the same processes as on this one."""

from __future__ import annotations

import functools
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import replace

from velodrome import __version__
from velodrome.errors import JobError
from velodrome.service.executor import LocalExecutor, gpus_here
from velodrome.service.executors.parcels import Parcel
from velodrome.service.machine import is_alive, kill_session
from velodrome.service.worker.task import Task

LOOK_SECONDS = 0.02  # between two looks at whether a task has ended


@functools.cache
def _executor() -> LocalExecutor:
    """Return what starts processes here; the first task in a process waits until it has imported everything."""
    return LocalExecutor(ends_with_its_owner=True)


class Attempt:
    """A task on its way to another machine. version: of Velodrome, where it comes from."""

    def __init__(self, task: Task, version: str = __version__) -> None:
        self.content, self.version = task.content(), version
        self.process = ""

    def __call__(self) -> str:
        """Carry it out as a job of Slurm, and return when it has ended."""
        from submitit import JobEnvironment

        return self.carry_out(f"{JobEnvironment().job_id}/")

    def carry_out(self, place: str, gpus: str | None = None) -> str:
        """Carry it out, and return when its processes have ended. If this process is killed, they are.

        place: what the processes are known by begins with it. gpus: that they may use; None: as the job says.
        """
        if self.version != __version__:
            raise JobError(
                f"Velodrome {self.version} sent a task to {socket.gethostname()}, where {__version__} is installed. "
                "Install the same version on all machines."
            )
        self.process = _executor().start(replace(Task(**self.content), place=place, gpus=gpus))
        self._wait()
        return self.process

    def checkpoint(self) -> None:
        """Save when Slurm takes the machine away. The queue begins it again elsewhere, so that Slurm need not."""
        if self.process:
            os.kill(int(self.process.partition(":")[0]), signal.SIGUSR1)
            self._wait(float(self.content["drain_seconds"]) + 5.0)
            kill_session(self.process)

    def _wait(self, seconds: float = float("inf")) -> None:
        deadline = time.monotonic() + seconds
        while is_alive(self.process) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)


def carry_out_for_ray(attempt: Attempt, place: str, has_gpu: bool, parcels: Mapping[str, Parcel]) -> str:
    """Carry out a task with the GPU that Ray has given to this process, if it has, and the files that it needs."""
    import ray

    attempt.content["sources"] = {name: str(parcel.unpacked(ray.get)) for name, parcel in parcels.items()}
    return attempt.carry_out(place, os.environ.get("CUDA_VISIBLE_DEVICES", "") if has_gpu else None)


def gpu_sizes() -> list[int]:
    """Return the bytes of each GPU of this machine."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides them from tasks that ask for none
    return [gpu.total for gpu in gpus_here()]
