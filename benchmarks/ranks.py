"""Weak scaling of one training in several ranks, and what one rank costs against none.

    python benchmarks/ranks.py --ranks 1 2 4 8 --envs 1024 --out benchmarks/results/ranks.json
    python benchmarks/ranks.py --device cuda --ranks 1 --envs 16384

Every training has so many environments for each rank. The rate is the median over the iterations after the first ten,
of three trainings each; 0 ranks are the same training without torchrun. Every process has one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from velodrome.runs.versions import machine
from velodrome.writing import replace_text

WARM_UP = 10  # iterations that are not counted


def rate(ranks: int, envs: int, device: str, iterations: int, network: str, threads: int) -> float:
    """Train, and return the steps per second of all ranks together."""
    with tempfile.TemporaryDirectory() as folder:
        total, length = envs * max(1, ranks), 32
        words = ["train", "demo", f"num_envs={total}", f"steps={total * length * iterations}", f"device={device}"]
        words += [f"ppo.rollout_length={length}", f"network.hidden={network}", "market.check_leaks=false"]
        words += [f"logging.folder={folder}", "evaluation.every_steps=null", "logging.log_every=1"]
        words += ["--quiet", "--no-evaluation"]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks else []
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "VELODROME_CORES": str(threads)}
        done = subprocess.run(
            [sys.executable, *launch, "-m", "velodrome", *words], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        (metrics,) = Path(folder).glob("*/metrics.jsonl")
        found = [json.loads(line) for line in metrics.read_text().splitlines()]
    rates = [values["time/steps_per_second"] for line in found if "time/steps_per_second" in (values := flat(line))]
    return statistics.median(rates[WARM_UP:])


def flat(line: dict[str, object]) -> dict[str, float]:
    """Return the metrics in a line of a run's file, however they are nested there."""
    inner = line.get("values", line)
    assert isinstance(inner, dict)
    return {**{key: value for key, value in line.items() if isinstance(value, float)}, **inner}


def main() -> None:
    """Measure, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--envs", type=int, default=1024, help="environments of each rank")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hidden", default="[64,64]")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found: dict[int, list[float]] = {ranks: [] for ranks in (0, *given.ranks)}
    for _ in range(given.repeats):  # in turn, so that a busy moment of the machine hits all
        for ranks, rates in found.items():
            rates.append(rate(ranks, given.envs, given.device, given.iterations, given.hidden, given.threads))
            print(f"{ranks} ranks: {rates[-1]:,.0f} steps/s", file=sys.stderr, flush=True)
    alone = statistics.median(found[0])
    print(f"{given.device}, {given.envs} environments a rank, network {given.hidden}; {machine()}")
    print("ranks   steps/s      of one process x ranks   each time")
    for ranks, rates in found.items():
        middle = statistics.median(rates)
        each = "  ".join(f"{rate:,.0f}" for rate in rates)
        print(f"{ranks or 'none':>5}   {middle:>12,.0f}  {middle / alone / max(1, ranks):>8.1%}   {each}")
    if given.out is not None:
        about = {**vars(given), "out": str(given.out), "machine": machine()}
        replace_text(given.out, json.dumps({"about": about, "rates": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
