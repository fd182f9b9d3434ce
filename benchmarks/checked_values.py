"""What `check_values` costs: steps with it and without, in turns, by the rounds that were disturbed least.

    python benchmarks/checked_values.py [--rounds N] [--json FILE]
    python benchmarks/checked_values.py --instructions     # needs valgrind; a quarter of an hour

CPU time of the process that steps, which other programs on the machine disturb less than they do the clock: of this one
for `serial` and `native`, of the worker for `process` and `async`. Actions are random. "check" is what the default
("finite") adds, in percent of a step without it, "bounds" what `check_values=True` adds; "noise" is what a second batch
without it differs by. Batches of a rule share their memory: where that lies costs more than the check.

`--instructions` counts those of steps on `serial`, which no other program disturbs. A worker of `process` steps its
environments by the same code as `serial` all of them, and one of `async` each as `serial` one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import velodrome as vd
from velodrome.bench.machine import machine_stamp
from velodrome.writing import replace_text

ROUND_SECONDS = 0.005
FAST = 0.1  # quantile of the rounds
CHOICES: dict[str, Any] = {"off": False, "on": "finite", "bounds": True, "off again": False}
WINDOWS = "windows"  # the trading rule with 256 floats of windows beside what it writes itself
CASES: list[tuple[str, str, int]] = [
    *(("CartPole-v1", "serial", count) for count in (1, 4, 8, 16, 64, 256)),
    *(("CartPole-v1", "process", count) for count in (8, 64)),
    ("CartPole-v1", "async", 64),
    *((env, "native", 4096) for env in ("template", "trading", "cage2")),
    (WINDOWS, "native", 256),
]


def batch(env: str, backend: str, num_envs: int, check_values: Any) -> Any:
    """Return a batch in the middle of its episodes."""
    options: dict[str, Any] = {"workers": 1} if backend in ("process", "async") else {}
    if backend == "native":
        options = {"threads": 1}
    if env in ("trading", WINDOWS):
        options["market"] = vd.build_market(vd.synthetic_bars("gbm", 20_000, 0))
        options["observation"] = "flat" if env == WINDOWS else "cursor"
        env = "trading"
    envs = vd.make_vec(env, num_envs, backend=backend, seed=0, check_values=check_values, **options)
    envs.reset()
    return envs


def clock_of(envs: Any) -> Callable[[], float]:
    """Return what tells the CPU seconds of the process that steps."""
    workers = getattr(envs, "workers", None)
    if not workers:
        return time.process_time
    process = psutil.Process(workers[0].process.pid)

    def seconds() -> float:
        # Nanoseconds in the run queue's statistics; what psutil tells has a resolution of 10 ms.
        return int(Path(f"/proc/{process.pid}/schedstat").read_text().split()[0]) * 1e-9

    return seconds


def measure(env: str, backend: str, num_envs: int, rounds: int) -> dict[str, Any]:
    """Return what was found in one case."""
    with contextlib.ExitStack() as stack:
        made = {name: batch(env, backend, num_envs, check) for name, check in CHOICES.items()}
        for envs in made.values():
            stack.callback(envs.close)
            if backend == "native":
                envs._attach(made["off"].buffers)
        space, random = made["off"].action_space, np.random.default_rng(0)
        space.seed(0)
        actions = [space.sample() for _ in range(64)]

        def seconds(envs: Any, steps: int) -> float:
            clock = clock_of(envs)
            started = clock()
            for step in range(steps):
                envs.step(actions[step % 64])
            return (clock() - started) / steps

        once = min(seconds(made["off"], 20) for _ in range(5))
        steps = max(2, int(ROUND_SECONDS / max(once, 1e-7)))
        times: dict[str, list[float]] = {name: [] for name in CHOICES}
        for _ in range(rounds):
            for name in random.permutation(list(CHOICES)):
                times[name].append(seconds(made[name], steps))
    # Other programs only add time, so the fast rounds tell most.
    fast = {name: float(np.quantile(found, FAST)) for name, found in times.items()}
    share = {name: (fast[name] / fast["off"] - 1.0) * 100 for name in CHOICES if name != "off"}
    step = fast["off"] / num_envs
    return {"env": env, "backend": backend, "num_envs": num_envs, "step_nanoseconds": step * 1e9, "percent": share}


COUNTED = (1, 8, 64)  # environments
FEW, MANY = 800, 8800  # steps of environments; the difference is free of what happens once


def instructions(num_envs: int, choice: str, steps: int) -> int:
    """Return how many instructions a process takes that steps environments so often, all together."""
    told = json.dumps([num_envs, choice, steps // num_envs])
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    fixed = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = [*valgrind, sys.executable, "-B", __file__, "--steps", told]
    answer = subprocess.run(command, env=fixed, capture_output=True, text=True, check=True)
    found = re.search(r"I +refs: +([\d,]+)", answer.stderr)
    assert found is not None, answer.stderr
    return int(found[1].replace(",", ""))


def take_steps(num_envs: int, choice: str, steps: int) -> None:
    """Step CartPole in this process, and do nothing else."""
    envs = batch("CartPole-v1", "serial", num_envs, CHOICES[choice])
    actions = np.random.default_rng(0).integers(0, 2, (64, num_envs))
    for step in range(steps):
        envs.step(actions[step % 64])


def count() -> None:
    for num_envs in COUNTED:
        off, on = (instructions(num_envs, name, MANY) - instructions(num_envs, name, FEW) for name in ("off", "on"))
        each = off / (MANY - FEW)
        print(
            f"{num_envs:>3} environments: {each:,.0f} instructions a step, check {100 * (on / off - 1):+.2f}%",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101, help="of which the fast ones count")
    parser.add_argument("--json", type=Path, help="file for the results")
    parser.add_argument("--instructions", action="store_true", help="count them, with valgrind")
    parser.add_argument("--steps", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps:
        take_steps(*given.steps)
        return
    if given.instructions:
        count()
        return
    print(f"{'environment':<12} {'backend':<8} {'batch':>5} {'ns a step':>10} {'check':>8} {'bounds':>8} {'noise':>8}")
    results = []
    for case in CASES:
        found = measure(*case, given.rounds)
        results.append(found)
        costs = "".join(f" {found['percent'][name]:>+7.1f}%" for name in ("on", "bounds", "off again"))
        print(f"{case[0]:<12} {case[1]:<8} {case[2]:>5} {found['step_nanoseconds']:>10,.0f}{costs}", flush=True)
    if given.json:
        replace_text(given.json, json.dumps({"machine": machine_stamp(), "results": results}, indent=2))


if __name__ == "__main__":
    main()
