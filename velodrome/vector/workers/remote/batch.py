"""The backend for slow environments on many machines: first come, first served, in actors of a Ray cluster."""

from __future__ import annotations

from typing import Any

from velodrome.outside.cluster import joined_cluster
from velodrome.vector.workers.asynchronous import AsyncVectorEnv
from velodrome.vector.workers.env_host import HostSettings
from velodrome.vector.workers.remote.handle import RemoteHandle
from velodrome.vector.workers.worker.parent_side import WorkerHandle


class RayVectorEnv(AsyncVectorEnv):
    """n environments in actors, one for each core of the cluster or as `options.workers` says, at most n.

    What `AsyncVectorEnv` promises holds here, faults included: an actor whose node is lost is replaced elsewhere.
    """

    backend = "ray"

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.ray = joined_cluster()
        self.objects: dict[str, Any] = {}  # in the object store, by their content
        super().__init__(*arguments, **keywords)

    def _default_workers(self) -> int:
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def _new_worker(self, index: int, settings: HostSettings) -> WorkerHandle:
        return RemoteHandle(index, settings, self.control, self.ray, self.objects)
