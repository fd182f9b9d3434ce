"""What one SQLite store takes from several processes of a machine, written by each itself or through one Ray actor.

    python benchmarks/store_writers.py --writers 1 2 8 --seconds 4

A write is what a training sends about once a second: 25 metrics in one transaction. Printed are writes per second of
all writers together, and how long one took at the median and at worst. `--pause 0.5` is the load of trainings, which
write their metrics and a sign of life once a second; without it the store is as busy as it can be. PostgreSQL, if it is
installed, runs on the same machine and without fsync, as in the tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))

from tests.contracts.store import RUN
from tests.postgres import server
from tests.ray_cluster import ray_cluster
from velodrome.outside.cluster import joined_cluster
from velodrome.runs.store.rows import MetricRow
from velodrome.runs.store.store import open_store

ROWS = 25


def rows(step: int) -> list[MetricRow]:
    """Return the metrics of an iteration."""
    return [MetricRow(step, f"name{number}", 1.0, 0.0) for number in range(ROWS)]


def timed(write: Any, seconds: float, pause: float) -> list[float]:
    """Write for so long, with a pause after each write, and return how long each write took."""
    took, end, step = [], time.perf_counter() + seconds, 0
    while (began := time.perf_counter()) < end:
        write(rows(step))
        took.append(time.perf_counter() - began)
        step += 1
        time.sleep(pause)
    return took


def by_itself(folder: str, name: str, seconds: float, pause: float, url: str | None = None) -> list[float]:
    """Write into the store from this process."""
    with open_store(folder, url) as store:
        return timed(lambda some: store.add_metrics(name, some), seconds, pause)


class Owner:
    """An actor that alone has the store."""

    def __init__(self, folder: str) -> None:
        self.store = open_store(folder)

    def write(self, name: str, some: list[MetricRow]) -> None:
        """Write rows of a run."""
        self.store.add_metrics(name, some)


def through(owner: Any, name: str, seconds: float, pause: float) -> list[float]:
    """Write through the actor, and wait for it, as who must know that it is written does."""
    import ray

    return timed(lambda some: ray.get(owner.write.remote(name, some)), seconds, pause)


def told(way: str, writers: int, each: list[list[float]], seconds: float) -> None:
    took = np.concatenate(each) * 1e3
    median, worst = np.median(took), took.max()
    rate = len(took) / seconds
    spent = f"median {median:.2f} ms, slowest {worst:.0f} ms"
    print(f"{way:8} {writers} writers: {rate:6.0f} writes/s ({rate * ROWS:7.0f} rows/s), {spent}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two writes of a writer")
    asked = parser.parse_args()
    spent = (asked.seconds, asked.pause)
    for writers in asked.writers:
        names = [f"writer{number}" for number in range(writers)]
        with tempfile.TemporaryDirectory() as folder:
            with open_store(folder) as store:
                for name in names:
                    store.create_run(dataclasses.replace(RUN, id=name))
            with multiprocessing.get_context("fork").Pool(writers) as pool:
                each = pool.starmap(by_itself, [(folder, name, *spent) for name in names], chunksize=1)
            told("itself", writers, each, asked.seconds)
            with ray_cluster(cores=0, nodes=1, each=writers + 1) as cluster:
                ray = joined_cluster(cluster.address)
                owner = ray.remote(Owner).options(num_cpus=1).remote(folder)
                work = ray.remote(through).options(num_cpus=1)
                ray.get(
                    [work.remote(owner, name, 0.2, 0.0) for name in names]
                )  # processes that have imported everything
                each = ray.get([work.remote(owner, name, *spent) for name in names])
            told("actor", writers, each, asked.seconds)
            with server() as url:
                if url is None:
                    continue
                with open_store(folder, url) as store:
                    for name in names:
                        store.create_run(dataclasses.replace(RUN, id=name))
                with multiprocessing.get_context("fork").Pool(writers) as pool:
                    each = pool.starmap(by_itself, [(folder, name, *spent, url) for name in names], chunksize=1)
                told("postgres", writers, each, asked.seconds)


if __name__ == "__main__":
    main()
