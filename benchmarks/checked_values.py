"""What `check_values` costs: steps with it and without, in turns, by the rounds that were disturbed least.

    python benchmarks/checked_values.py [--rounds N] [--json FILE]

CPU time of the process that steps, which other programs on the machine disturb less than they do the clock: of this one
for `serial` and `native`, of the worker for `process` and `async`. Actions are random. "check" is what the default
("finite") adds, in percent of a step without it, "bounds" what `check_values=True` adds; "noise" is what a second batch
without it differs by. Batches of a rule share their memory: where that lies costs more than the check.
"""

from __future__ import annotations

import argparse
import contextlib
import json
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101, help="of which the fast ones count")
    parser.add_argument("--json", type=Path, help="file for the results")
    given = parser.parse_args()
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
