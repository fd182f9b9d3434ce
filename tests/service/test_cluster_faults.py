"""What is wrong with a cluster, each with its real cause: one sentence, and nothing that hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from velodrome.errors import RunError
from velodrome.outside.cluster import joined_cluster

CLUSTER = """
import ray
ray.__version__ = {version} or ray.__version__
from tests.ray_cluster import ray_cluster
with ray_cluster(cores=1, **{system}) as cluster:
    print(cluster.address, flush=True)
    input()
"""
CLIENT = """
import sys
import numpy as np
from velodrome.errors import VelodromeError
from velodrome.outside.cluster import joined_cluster, told
try:
    ray = joined_cluster(sys.argv[1])
    with told(sys.argv[1]):
        kept = [ray.put(np.zeros(int(size), np.uint8)) for size in sys.argv[2:]]
    print("cores", ray.cluster_resources()["CPU"])
except VelodromeError as error:
    print(error)
"""
TOKEN = "a" * 64


@contextmanager
def cluster(version: str = "", system: dict[str, float] | None = None, **variables: str) -> Iterator[str]:
    """Give the address of a cluster in a process of its own."""
    command = [sys.executable, "-c", CLUSTER.format(version=repr(version), system=repr(system or {}))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, env={**os.environ, **variables}, text=True, **pipes)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.communicate("\n", timeout=60)


def said(address: str, *sizes: int, **variables: str) -> tuple[str, str]:
    """What a process that joins says, on both of its streams. sizes: bytes of what it puts into the object store."""
    command = [sys.executable, "-c", CLIENT, address, *map(str, sizes)]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr.strip()


def test_an_address_where_nobody_listens_is_told_at_once():
    pytest.importorskip("ray").shutdown()
    with pytest.raises(RunError, match=r"No Ray cluster answers at '127\.0\.0\.1:1' \(.*refused\)"):
        joined_cluster("127.0.0.1:1")


@pytest.mark.slow
def test_a_cluster_with_a_token_lets_in_who_has_it():
    with cluster(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as address:
        assert said(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)[0] == "cores 1.0"
        for wrong in ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "b" * 64}, {}):
            told, noise = said(address, **wrong)
            assert told.startswith(
                f"A Ray cluster answers at '{address}' and does not let this process in. Set RAY_AUTH"
            )
            assert "\n" not in told
            assert noise == ""
        told, _ = said(address, RAY_AUTH_MODE="token")
        assert told.startswith("RAY_AUTH_MODE=token is set here, and there is no token")


@pytest.mark.slow
def test_another_version_of_ray_on_the_cluster_is_told():
    with cluster(version="2.54.0") as address:
        told, _ = said(address)
    assert "2.54.0" in told
    assert told.endswith("Install the same versions of Ray and Python on all machines.")
    assert "\n" not in told


@pytest.mark.slow
def test_a_full_object_store_is_told():
    """80 MB of memory, and a disk that counts as full: where else would 300 MB go?"""
    with cluster(system={"local_fs_capacity_threshold": 0.01}) as address:
        told, _ = said(address, *[60 << 20] * 5)
    assert told.startswith("Ray's object store is full")
    assert "--object-store-memory=BYTES" in told
    assert "\n" not in told
