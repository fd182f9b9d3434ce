"""A real Ray cluster on this machine: a head and nodes, each with processes and resources of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIZE = {"object_store_memory": 80 << 20, "memory": 4 << 30}  # bytes


@contextmanager
def ray_cluster(cores: int = 2, nodes: int = 0, each: int = 1, **system: Any) -> Iterator[Any]:
    """Give a cluster whose head has so many cores, and further nodes `each`. system: settings of Ray's own."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cores, "include_dashboard": False, "_system_config": system, **SIZE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            add_node(cluster, each)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Any, cores: int = 1) -> Any:
    """Add a node with cores of its own."""
    return cluster.add_node(num_cpus=cores, **SIZE)
