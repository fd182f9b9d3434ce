"""Trials per hour on a Ray cluster of local nodes with one core each, against as many local workers.

    python benchmarks/ray_trials.py --nodes 2 --trials 16 --rounds 2

A trial is a training of the preset `smoke` without evaluation. The clock runs from the submission of all trials until
the last has ended, after one trial on each node, which imports everything. Overhead is the time that the cores had for
each trial, less what the trial took from its beginning to its end, by the store.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from tests.ray_cluster import ray_cluster
from velodrome.runs.versions import machine
from velodrome.service.executor import LocalExecutor
from velodrome.service.executors.ray import RayExecutor
from velodrome.service.service import AgentTrainingService
from velodrome.writing import replace_text


def measured(executor: Any, cores: int, trials: int, steps: int) -> tuple[float, float]:
    """Return trials per hour, and the overhead of a trial in seconds."""
    with (
        tempfile.TemporaryDirectory() as folder,
        AgentTrainingService(Path(folder) / "runs", cores=cores, executor=executor) as service,
    ):

        def submit(count: int) -> list[Any]:
            about: dict[str, Any] = {"evaluate": False, "steps": steps, "market.check_leaks": False}
            return [service.submit("smoke", seed=seed, memory="1GB", **about) for seed in range(count)]

        service.wait(submit(2 * cores))
        began = time.perf_counter()
        jobs = service.wait(submit(trials))
        seconds = time.perf_counter() - began
        assert {job.status for job in jobs} == {"finished"}, [job.message for job in jobs]
        moments = [[event.time for event in service.events(job) if event.kind != "submitted"] for job in jobs]
        took = [max(each) - min(each) for each in moments]
        executor.close = lambda: None  # the next round uses it again
    return 3600.0 * trials / seconds, cores * seconds / trials - statistics.mean(took)


def main() -> None:
    """Measure in turn, and print all rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"local": [], "ray": []}
    with ray_cluster(cores=0, nodes=given.nodes) as cluster:
        executors = {"local": LocalExecutor(), "ray": RayExecutor(cluster.address)}
        for _ in range(given.rounds):
            for name, executor in executors.items():
                found[name].append(measured(executor, given.nodes, given.trials, given.steps))
    print(f"{given.trials} trials of {given.steps} steps, {given.nodes} cores; {machine()}")
    for name, rounds in found.items():
        rates = "  ".join(f"{rate:,.0f}" for rate, _ in rounds)
        overheads = "  ".join(f"{overhead:.2f}" for _, overhead in rounds)
        print(f"{name:>6}: {rates} trials an hour; {overheads} s besides each")
    ratio = statistics.median(rate for rate, _ in found["ray"]) / statistics.median(rate for rate, _ in found["local"])
    print(f"ray / local: {ratio:.1%}")
    if given.out is not None:
        about = {**vars(given), "out": str(given.out)}
        replace_text(given.out, json.dumps({"about": about, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
