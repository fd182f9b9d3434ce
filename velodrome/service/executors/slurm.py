"""Trainings as jobs of Slurm, through submitit. One whose machine Slurm takes away saves, and is begun again."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from velodrome.errors import ConfigError, JobError, MissingDependencyError, did_you_mean, sentence
from velodrome.outside.extras import install
from velodrome.service.budget import Resources
from velodrome.service.executors.there import Attempt
from velodrome.service.worker.task import Task

CLUSTERS = ("slurm", "local", "debug")  # the last two run jobs on this machine, to try things; debug one at a time
MINUTES = 24 * 60  # that a job may take, unless a person says otherwise; one that takes longer saves and goes on
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "FINISHED")
END_SECONDS, LOOK_SECONDS = 30.0, 0.1  # that a job may take to be gone, and between two looks
ANY_MEMORY = 1 << 50  # Slurm knows what there is


class SlurmExecutor:
    """Jobs of Slurm. folder: of what submitit writes, where all machines see it.

    cores: of all jobs that may be in Slurm's queue at once. options: of sbatch, such as partition=gpu, account=me.
    """

    name = "slurm"
    lease_seconds = 7 * 86_400.0  # Slurm's queue may be long

    def __init__(self, folder: Path, cores: int | None, cluster: str = "slurm", **options: str) -> None:
        try:
            import submitit
        except ImportError as error:
            raise MissingDependencyError(f"submitit is not installed: {install('slurm')}.") from error
        if cluster not in CLUSTERS:
            legal = ", ".join(CLUSTERS)
            raise ConfigError(
                f"--address {cluster}: with --executor slurm it is {legal}.{did_you_mean(cluster, CLUSTERS)}"
            )
        if cores is None:
            raise ConfigError("--executor slurm needs --cores N: so many may be in Slurm's queue for you at once.")
        self.cluster = cluster
        self.cores, self.options, self.folder = cores, options, folder / "slurm"
        self.submitit = submitit
        try:
            self._executor = submitit.AutoExecutor(folder=self.folder, cluster=cluster)
        except RuntimeError as error:
            raise ConfigError(f"Slurm is not on this machine: {sentence(str(error))} Use a login node.") from error
        self.machine = f"slurm-{cluster}|{self.folder}|slurm"
        self._jobs: dict[str, Any] = {}

    def resources(self) -> Resources:
        """Return what may be asked for at once."""
        return Resources(self.cores, ANY_MEMORY)

    def prepare(self) -> None:
        """Slurm is always ready."""

    def start(self, task: Task) -> str:
        """Put a task into Slurm's queue; return what its processes are known by."""
        mebibytes = max(1024, 2 * task.memory >> 20)
        needs = {"cpus_per_task": task.cores, "mem_gb": -(-mebibytes // 1024), "timeout_min": MINUTES}
        if task.gpu_memory:
            needs["gpus_per_node"] = 1
        slurm = {f"slurm_{name}": value for name, value in self.options.items()}
        try:
            self._executor.update_parameters(name=f"velodrome-{task.job}", **needs, **slurm)
            job = self._executor.submit(Attempt(task))
            if self.cluster == "debug":  # which does nothing by itself; a training at a time, in this process
                job.results()
        except Exception as error:  # sbatch may refuse in many ways
            raise JobError(f"Slurm does not take job {task.job}: {sentence(str(error))}") from error
        self._jobs[str(job.job_id)] = job
        return f"{job.job_id}/"

    def poll(self, machine: str, process: str) -> bool | None:
        """Return whether a job is there, in the queue or on a machine."""
        job = self._jobs.get(process.partition("/")[0])
        if machine != self.machine or not process or job is None:
            return None
        return not job.done() and str(job.state).upper().split()[0] not in ENDED

    def is_frozen(self, machine: str, process: str) -> bool:
        """Return False: its keeper says so itself."""
        return False

    def stop(self, machine: str, process: str) -> bool:
        """Let Slurm end a job."""
        if machine != self.machine or not process:
            return False
        job = self._jobs.get(process.partition("/")[0])
        if job is None:
            return False
        with contextlib.suppress(Exception):  # it may have ended meanwhile
            job.cancel(check=False)
        deadline = time.monotonic() + END_SECONDS
        while self.poll(machine, process) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        return not self.poll(machine, process)

    def close(self) -> None:
        """Leave the jobs in Slurm's queue; the next service finds them by what they write into the store."""
