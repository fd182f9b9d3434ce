"""What a service costs: trainings at once against one after the other on the same cores, and how soon one begins.

    python benchmarks/service.py [--trainings 3] [--steps 300000] [--cores 2] [--repeats 3] [--out FILE]

Both ways are carried out by a service, in turns, so that what else the machine does meets both. Budgets are sampled
from the store while trainings run. With --runs N, also how long `velodrome runs list` takes over N runs of 10,000
metrics.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from pathlib import Path

from rich.console import Console

from velodrome.bench.machine import machine_stamp
from velodrome.runs.report import listing
from velodrome.runs.store.rows import RunRecord
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import open_store
from velodrome.service.executor import LocalExecutor
from velodrome.service.service import AgentTrainingService
from velodrome.writing import replace_text


def seconds_of(executor: LocalExecutor, cores: int, cores_of_each: int, chosen: argparse.Namespace) -> dict[str, float]:
    """Carry out trainings, and return how long that took, when the first began, and the most cores that were given."""
    with tempfile.TemporaryDirectory() as folder:
        service = AgentTrainingService(folder, cores=cores, executor=executor)
        begin = time.perf_counter()
        about = {"steps": chosen.steps, "cores": cores_of_each, "evaluate": False}
        jobs = [service.submit("demo", seed=seed, **about) for seed in range(chosen.trainings)]
        service.__enter__()
        most, first = 0, 0.0
        for job in service.watch(jobs):
            running = service.queue.running()
            most = max(most, sum(one.cores for one in running))
            first = first or (time.perf_counter() - begin if job.status == "running" else 0.0)
        took = time.perf_counter() - begin
        assert all(job.status == "finished" for job in service.queue.refreshed(jobs))
        service.stop()
        service.store.close()
    return {"seconds": took, "first began after": first, "most cores": most}


def list_seconds(runs: int) -> dict[str, float]:
    """Return how long the list of many runs takes: asking the store, and printing the table."""
    names = [f"metric/{number}" for number in range(19)] + [listing.SPEED]
    with tempfile.TemporaryDirectory() as folder, open_store(folder) as store:
        for number in range(runs):
            run = RunRecord(
                f"{number:08x}", f"run{number}", f"/nowhere/{number}", config={"steps": 1}, status="finished"
            )
            store.create_run(run)
            about = {"run": run.id, "value": 1.0, "time": 1.0}
            rows = [{**about, "name": name, "step": step} for name in sorted(names) for step in range(500)]
            store.write(lambda connection, rows=rows: connection.execute(tables().metrics.insert(), rows))
        listing.list_table(store, limit=1)
        begin = time.process_time()
        table = listing.list_table(store)
        asked = time.process_time() - begin
        Console(file=io.StringIO(), width=120).print(table)
        return {"runs": runs, "metrics": runs * len(names) * 500, "asked": asked, "all": time.process_time() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainings", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    executor = LocalExecutor()
    executor.prepare()
    ways = {"at once": (chosen.cores, 1), "one after the other": (chosen.cores, chosen.cores)}
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(chosen.repeats + 1):  # the first loads kernels
        for way, (cores, each) in ways.items():
            found[way].append(seconds_of(executor, cores, each, chosen))
            print(way, found[way][-1], flush=True)
    executor.close()
    total = chosen.trainings * chosen.steps
    speeds = {way: total / statistics.median(one["seconds"] for one in taken[1:]) for way, taken in found.items()}
    ratio = speeds["at once"] / speeds["one after the other"]
    for way, speed in speeds.items():
        print(f"{way:>20}: {speed:,.0f} steps/s")
    print(f"{chosen.trainings} at once: {ratio:.0%} of the throughput of one after the other on {chosen.cores} cores")
    result = {"machine": machine_stamp(), "trainings": found, "steps_per_second": speeds, "ratio": ratio}
    if chosen.runs:
        result["runs list"] = list_seconds(chosen.runs)
        print(result["runs list"])
    if chosen.out is not None:
        replace_text(chosen.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
