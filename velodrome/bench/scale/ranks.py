"""One training in several ranks, each a process of its own, as `velodrome train --nproc` starts them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from velodrome.errors import RunError
from velodrome.runs.store.sinks import read_lines
from velodrome.vector.cores import VARIABLE

ROLLOUT = 32  # steps of each environment in an iteration
WARM_UP = 5  # iterations that are not counted
SPEED = "time/steps_per_second"  # of all ranks together
SAID = 2_000  # characters of what a training that failed said last


class RankedTraining(NamedTuple):
    """What every rank has, however many there are."""

    envs: int  # environments of a rank
    device: str
    iterations: int
    hidden: tuple[int, ...]
    threads: int  # of a process
    seed: int

    def rate(self, ranks: int) -> float:
        """Train, and return the steps per second of all ranks together. 0 ranks: the same training in one process."""
        total = self.envs * max(1, ranks)
        settings = {
            "num_envs": total,
            "steps": total * ROLLOUT * self.iterations,
            "device": self.device,
            "seed": self.seed,
            "ppo.rollout_length": ROLLOUT,
            "network.hidden": list(self.hidden),
            "teacher.policy": "null",  # a lesson is the same for any number of ranks
            "market.check_leaks": "false",
            "evaluation.every_steps": "null",
            "evaluation.patience": "null",
            "logging.log_every": 1,
        }
        with tempfile.TemporaryDirectory(prefix="velodrome-bench-") as folder:
            words = ["train", "demo", *(f"{name}={value}".replace(" ", "") for name, value in settings.items())]
            words += [f"logging.folder={folder}", "--quiet", "--no-evaluation"]
            words += ["--nproc", str(ranks)] if ranks else []
            # Each rank may use as many cores as the one process that it is compared with.
            shared = {"OMP_NUM_THREADS": str(self.threads), VARIABLE: str(self.threads)}
            command = [sys.executable, "-m", "velodrome", *words]
            done = subprocess.run(command, env={**os.environ, **shared}, capture_output=True, text=True)
            if done.returncode:
                said = (done.stderr or done.stdout).strip()[-SAID:]
                raise RunError(f"a training in {ranks} ranks ended with exit code {done.returncode}: {said}")
            (metrics,) = Path(folder).glob("*/metrics.jsonl")
            rates = [entry.values[SPEED] for entry in read_lines(metrics) if SPEED in entry.values]
        return statistics.median(rates[WARM_UP:])
