"""Trainings as tasks of a Ray cluster, which places them by what they need.

Ray holds nothing that matters: jobs, leases and results are in the store, runs in their folder. A node that is lost
costs the steps since the last checkpoint; without the head, the same command goes on once there is one again.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from velodrome.errors import BackendError, ConfigError, JobError, RunError, sentence
from velodrome.outside.cluster import joined_cluster, told, why_silent
from velodrome.service.budget import Gpu, Resources
from velodrome.service.executors.parcels import Packer
from velodrome.service.executors.there import Attempt, carry_out_for_ray, gpu_sizes
from velodrome.service.worker.task import Task

LOOK_SECONDS = 1.0  # between two looks at the nodes
HEAD_SECONDS = 10.0  # without an answer of the head, after which it is lost
END_SECONDS = 10.0  # that a worker may take to be gone
START_SECONDS = 60.0  # that a node may take to answer
LEASE_SECONDS = 60.0  # for a task to begin: its node may have to import everything first
LOOPBACK = ("127.", "localhost", "::1")


@dataclass
class Placed:
    """A task that Ray has."""

    reference: Any
    job: str
    attempt: int
    has_failed: bool = False


class RayExecutor:
    """Tasks on the nodes of a Ray cluster that this process belongs to.

    address: of its head, "HOST:PORT"; "auto" is the cluster that this machine is a node of. `ray job submit` starts
    this process inside a cluster from anywhere. is_shared: whether other machines reach the store.
    """

    name = "ray"
    sends_files = True  # that only this machine has
    lease_seconds = LEASE_SECONDS

    def __init__(self, address: str | None = None, is_shared: bool = False) -> None:
        self.ray = joined_cluster(address)
        with told(address or "auto"):
            context = self.ray.get_runtime_context()
        self.head = str(context.gcs_address)
        self._nodes: list[dict[str, Any]] = []
        self._looked_at = self._answered_at = 0.0
        self._look()
        self._check_safety(is_shared)
        # As `Machine` has them; nothing can be said of another cluster's processes.
        self.machine = f"ray-{self.head.replace('|', '-')}|{context.get_job_id()}|ray"
        self._task = self.ray.remote(carry_out_for_ray)
        self._packer = Packer(self.ray.put)
        self._gpu_sizes: dict[str, list[int]] = {}  # bytes of each GPU, by node
        self._placed: dict[str, Placed] = {}  # by the beginning of the name of its process
        self._problem = ""

    # What is there

    def _look(self) -> None:
        """Look at the nodes, after a while; a head that is gone is an error, and not the end of this process."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        if (lost := why_silent(self.head, 2.0)) is not None:  # Ray's own calls would wait for it for a minute
            if now - self._answered_at < HEAD_SECONDS:
                return
            raise RunError(
                f"The head of the Ray cluster at {self.head} does not answer ({lost}). What was begun is in the store "
                "and in the run folders: start a cluster again, and the same command goes on."
            )
        with told(self.head):
            self._nodes = [node for node in self.ray.nodes() if node["Alive"]]
        self._looked_at = self._answered_at = time.monotonic()

    def _check_safety(self, is_shared: bool) -> None:
        """Refuse a cluster of several machines to which everybody has access, or whose nodes share no store."""
        own = self.ray.util.get_node_ip_address()
        others = {node["NodeManagerAddress"] for node in self._nodes} - {own}
        others = {address for address in others if not address.startswith(LOOPBACK)}
        if not others:
            return
        if os.environ.get("RAY_AUTH_MODE") != "token":
            raise ConfigError(
                f"The Ray cluster at {self.head} has nodes on other machines ({', '.join(sorted(others)[:3])}), and "
                "whoever reaches it may run code there. Ray 2.54 and later can ask for a token: set "
                "RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN on all of them before ray start, and here "
                "(docs/many_machines.md)."
            )
        if not is_shared:
            raise ConfigError(
                "The Ray cluster has nodes on other machines, which cannot use a store in a file here. Give "
                "all of them one: --store postgresql://…, and a --folder that they share."
            )

    def resources(self) -> Resources:
        """Return what all nodes have together."""
        self._look()
        total = [node["Resources"] for node in self._nodes]
        cores, memory = (int(sum(node.get(name, 0.0) for node in total)) for name in ("CPU", "memory"))
        sizes = [size for node in self._nodes for size in self._gpus_of(node)]
        return Resources(cores, memory, tuple(Gpu(f"ray-{number}", size, size) for number, size in enumerate(sizes)))

    def _gpus_of(self, node: dict[str, Any]) -> list[int]:
        """Return the bytes of each GPU of a node, which it is asked for once: Ray counts GPUs, not their memory."""
        identity, count = node["NodeID"], int(node["Resources"].get("GPU", 0))
        if count and identity not in self._gpu_sizes:
            there = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(identity, soft=False)
            asked = self.ray.remote(gpu_sizes).options(num_cpus=0, scheduling_strategy=there).remote()
            with told(self.head):
                self._gpu_sizes[identity] = self.ray.get(asked, timeout=START_SECONDS)[:count]
        return self._gpu_sizes.get(identity, [])

    def prepare(self) -> None:
        """Look at the cluster; what a node could not carry out is an error, told once."""
        self._look()
        for key, placed in list(self._placed.items()):
            if placed.has_failed or not self._is_done(placed):
                continue
            try:
                self.ray.get(placed.reference)
                del self._placed[key]
            except Exception as error:  # of Ray, or of a node
                placed.has_failed = True  # kept, so that whoever asks is told that nothing is left of it
                cause = getattr(error, "cause", None) or error
                if isinstance(cause, JobError) and str(cause) != self._problem:
                    self._problem = str(cause)
                    raise JobError(str(cause)) from error
                logging.getLogger("velodrome.service").info("job %s: %s", placed.job, sentence(str(error))[:300])

    # Tasks

    def start(self, task: Task) -> str:
        """Let Ray place a task where there is what it needs; return what its processes are known by."""
        for key, placed in list(self._placed.items()):
            if placed.job == task.job:  # an attempt that never began
                self._cancel(placed)
                del self._placed[key]
        place = f"{task.job}-{task.attempt}/"
        smallest = min((size for sizes in self._gpu_sizes.values() for size in sizes), default=1)
        share = min(1.0, math.ceil(100 * task.gpu_memory / smallest) / 100)  # several small trainings on one GPU
        options = {"num_cpus": task.cores, "num_gpus": share, "memory": task.memory, "max_retries": 0}
        with _as_a_fault_of_the_task(), told(self.head):
            parcels = {name: self._packer.packed(Path(path)) for name, path in task.sources.items()}
            named = self._task.options(name=f"velodrome {task.job}", **options)
            reference = named.remote(Attempt(task), place, bool(share), parcels)
        self._placed[place] = Placed(reference, task.job, task.attempt)
        return place

    def poll(self, machine: str, process: str) -> bool | None:
        """Return whether a process that was started is there; None if another cluster, or service, has it."""
        placed = self._placed.get(_place(process))
        if machine != self.machine or not process or placed is None:
            return None
        return not self._is_done(placed)

    def is_frozen(self, machine: str, process: str) -> bool:
        """Return False: its keeper says so itself."""
        return False

    def stop(self, machine: str, process: str) -> bool:
        """Let Ray end the worker of a task, with which its processes end."""
        if machine != self.machine or not process:
            return False
        placed = self._placed.get(_place(process))
        return placed is None or self._cancel(placed)

    def _cancel(self, placed: Placed) -> bool:
        with contextlib.suppress(Exception):  # it may have ended meanwhile
            self.ray.cancel(placed.reference, force=True)
        done, _ = self.ray.wait([placed.reference], timeout=END_SECONDS)
        return bool(done)

    def _is_done(self, placed: Placed) -> bool:
        done, _ = self.ray.wait([placed.reference], timeout=0, fetch_local=False)
        return bool(done)

    def close(self) -> None:
        """Leave the cluster; tasks that run are ended with it, and go on from their checkpoints."""
        if why_silent(self.head, 2.0) is None:
            with contextlib.suppress(Exception):  # the head may go in this very moment
                self.ray.shutdown()


@contextlib.contextmanager
def _as_a_fault_of_the_task() -> Iterator[None]:
    """Let a task that a full object store keeps back be tried again later, with a sentence in the queue."""
    try:
        yield
    except BackendError as error:
        raise JobError(str(error)) from error


def _place(process: str) -> str:
    place, slash, _ = process.partition("/")
    return place + slash
