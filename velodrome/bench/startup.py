"""How long it takes from starting Python to the first step, with kernels compiled by an earlier run."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field

from velodrome.bench.process_peers import run_python

NUM_ENVS = 1024
TIMEOUT = 300.0  # seconds
SCRIPT = f"""
import time
marks = [time.process_time()]
import velodrome as vd
market = vd.build_market(vd.synthetic_bars("gbm", 20_000), check_leaks=False)
marks.append(time.process_time())
envs = vd.make_vec("trading", {NUM_ENVS}, market=market, backend="native", seed=0, fee=0.0005, episode_length=1000)
envs.reset()
envs.step(envs.action_space.sample())
marks.append(time.process_time())
import json
print(json.dumps(marks))
"""


class FirstStep(BaseModel):
    """From starting Python to the first step of a batch, in a fresh process; medians."""

    num_envs: int = Field(description="environments in the batch")
    cpu_seconds: float = Field(description="CPU time in all, from the start of the interpreter")
    market_cpu_seconds: float = Field(description="of this: importing Velodrome and building a market of 20,000 bars")
    environment_cpu_seconds: float = Field(description="of this: make_vec, reset and the first step")
    wall_seconds: float = Field(description="time on the clock")
    runs: int = Field(description="processes that were started after one that filled the cache")


def time_to_first_step(runs: int = 3) -> FirstStep:
    """Start processes that step once; the first one is not counted."""
    marks, walls = [], []
    with tempfile.TemporaryDirectory(prefix="velodrome-bench-") as name:
        for _ in range(runs + 1):
            started = time.perf_counter()
            output = run_python(SCRIPT, Path(name), TIMEOUT)
            walls.append(time.perf_counter() - started)
            marks.append(json.loads(output.strip().splitlines()[-1]))
    begun, built, stepped = np.median(np.array(marks[1:]), axis=0)
    return FirstStep(
        num_envs=NUM_ENVS, cpu_seconds=float(stepped), market_cpu_seconds=float(built - begun),
        environment_cpu_seconds=float(stepped - built), wall_seconds=float(np.median(walls[1:])), runs=runs,
    )  # fmt: skip
