"""What an environment takes: memory traffic of its windows beside memcpy, bytes of its state, time to a first step."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any

import numba
import numpy as np
import psutil
from numba import njit, prange

from velodrome.bench.report import BESIDE, OURS, Comparison, Measurement
from velodrome.bench.timing import Contender, PeerFailedError, Stepper
from velodrome.envs.catalog import CATALOG
from velodrome.vector.compile.memcpy import copy_floats
from velodrome.vector.make import make_vec
from velodrome.vector.native import NativeVectorEnv

MEASURED_ENVS = 65_536  # fewer might fit into memory that the process had before
ALONE, BLOCKS, WHOLE = "velodrome, windows alone", "memcpy of windows", "memcpy of one block"
PERIOD = 64  # calls after which the windows are back where they began


# Windows


@njit(cache=True, nogil=True)
def copy_rows(values, firsts, shift, count, target, stride):
    """Copy a block of floats from `firsts[i] + shift` to row i of the target, for each i."""
    for i in range(firsts.size):
        copy_floats(values, firsts[i] + shift, count, target, i * stride)


@njit(cache=True, nogil=True, parallel=True)
def copy_rows_parallel(values, firsts, shift, count, target, stride):
    """Do the same on all threads."""
    for i in prange(firsts.size):
        copy_floats(values, firsts[i] + shift, count, target, i * stride)


def window_contenders(env: str, values: dict[str, Any], size: int, threads: tuple[int, ...]) -> list[Contender]:
    """Return what writes the windows of a step and nothing else: the native environment's own loop, and memcpy."""
    floats = int(values["market"].window_floats)
    found = []
    for count in threads:
        for label, ready in ((ALONE, _own_loop), (BLOCKS, _memcpy_of_windows), (WHOLE, _memcpy_of_one_block)):
            row = Measurement(
                peer=BESIDE, label=label, num_envs=size, steps_per_call=size, threads=count, floats=floats
            )

            def start(stack: ExitStack, ready: Any = ready, count: int = count) -> Stepper:
                stack.callback(numba.set_num_threads, numba.get_num_threads())
                return Stepper(ready(env, values, size, count), lambda: numba.set_num_threads(count))

            found.append(Contender(row, start))
    return found


def _own_loop(env: str, values: dict[str, Any], size: int, threads: int) -> Any:
    envs = NativeVectorEnv(CATALOG.get(env).make_world(**values), size, seed=0)
    envs.reset()
    write_windows, cursors = envs.window_writer(threads), envs.buffers.out.cursors

    def write(k: int) -> None:
        # As in stepping, each window moves on by a bar from call to call; back again before any leaves the data.
        cursors[...] += 1 if k % PERIOD else 1 - PERIOD
        write_windows()

    return write


def _memcpy_of_windows(env: str, values: dict[str, Any], size: int, threads: int) -> Any:
    windows, count = values["market"].windows, int(values["market"].window_floats)
    width, length = int(windows.width[0]), int(windows.length[0])
    last = len(windows.values) // width - 2 * length - PERIOD
    first = np.random.default_rng(0).integers(0, last, size) * width
    stride = count + 8  # an observation row: the account values stay as they are
    target = np.zeros(size * stride, np.float32)
    kernel = copy_rows if threads == 1 else copy_rows_parallel
    # As in stepping, each row moves on by a bar from call to call.
    return lambda k: kernel(windows.values, first, k % PERIOD * width, count, target, stride)


def _memcpy_of_one_block(env: str, values: dict[str, Any], size: int, threads: int) -> Any:
    source = np.ones(size * int(values["market"].window_floats), np.float32)
    target = np.zeros_like(source)
    if threads == 1:
        return lambda k: np.copyto(target, source)
    firsts = np.linspace(0, len(source), threads + 1).astype(np.int64)
    # Equal parts; a remainder of less than `threads` floats is left out.
    part = int(np.diff(firsts).min())
    return lambda k: copy_rows_parallel(source, firsts[:-1], 0, part, target, part)


def window_rates(comparison: Comparison) -> list[dict[str, float]]:
    """Set the native environment beside memcpy, for every size and number of threads for which both were measured.

    In GB (1e9 bytes) of windows per second: `stepping`, by whole steps, rule included; `windows_alone`, by the native
    environment's own loop over windows; `memcpy_windows`, memcpy of the same windows from random bars; `memcpy_block`,
    of as many bytes in one block, on as many threads or fewer. `share` is windows_alone over memcpy_block.
    """
    rows = {(row.label, row.num_envs, row.threads): row for row in comparison.measurements if row.rounds}
    found = []
    for (label, size, threads), alone in sorted(rows.items(), key=lambda item: item[0][1:]):
        native, blocks, whole = (rows.get((name, size, threads)) for name in (OURS, BLOCKS, WHOLE))
        if label != ALONE or native is None or blocks is None or whole is None:
            continue
        # More threads do not make the machine's memcpy slower: where they seem to, other load took the cores, and a
        # share of that would flatter.
        fewer = [row for row in comparison.rows(label=WHOLE, num_envs=size) if row.threads <= threads]
        fastest = max(fewer, key=lambda row: row.steps_per_second)
        rates = {"stepping": native, "windows_alone": alone, "memcpy_windows": blocks, "memcpy_block": fastest}
        gigabytes = (alone.floats or 0) * 4 / 1e9  # in the windows of one environment
        written = {name: gigabytes * row.steps_per_second for name, row in rates.items()}
        share = alone.steps_per_second / fastest.steps_per_second
        found.append({"num_envs": size, "threads": threads, **written, "share": share})
    return found


# Memory


def memory_use(env: str, values: dict[str, Any], num_envs: int = MEASURED_ENVS) -> dict[str, float]:
    """Make environments without windows and see what they take, in bytes per environment.

    `bytes_allocated` is state and bookkeeping, `bytes_resident` the growth of the process' resident memory; the memory
    of statistics is touched only when episodes end.
    """
    process = psutil.Process()
    given = {**values, "observation": "cursor", "seed": 0, "threads": 1}
    make_vec(env, 64, **given).reset()  # the first batch pays for code that every later one shares
    gc.collect()
    before = process.memory_info().rss
    envs = make_vec(env, num_envs, **given)
    envs.reset()
    envs.step(np.zeros(num_envs, np.int64))
    resident = (process.memory_info().rss - before) / num_envs
    allocated = float(envs.buffers.bytes_per_environment)
    return {"num_envs": num_envs, "bytes_allocated": allocated, "bytes_resident": resident}


# Start

FIRST_ENVS = 1_024
FIRST_STEP = f"""
import time
marks = [time.process_time()]
import velodrome as vd
market = vd.build_market(vd.synthetic_bars("gbm", 20_000), check_leaks=False)
marks.append(time.process_time())
envs = vd.make_vec("trading", {FIRST_ENVS}, market=market, backend="native", seed=0, fee=0.0005, episode_length=1000)
envs.reset()
envs.step(envs.action_space.sample())
marks.append(time.process_time())
import json
print(json.dumps(marks))
"""


def time_to_first_step(runs: int = 3) -> dict[str, float]:
    """Start processes that step once, after one that fills the cache; return medians in seconds.

    `cpu_seconds` is all CPU time from the start of the interpreter; of this `market_cpu_seconds` go into importing
    Velodrome and building a market, `environment_cpu_seconds` into make_vec, reset and the first step.
    """
    marks, walls = [], []
    for _ in range(runs + 1):
        started = time.perf_counter()
        output = run_python(FIRST_STEP, 300.0)
        walls.append(time.perf_counter() - started)
        marks.append(json.loads(output.strip().splitlines()[-1]))
    begun, built, stepped = (float(mark) for mark in np.median(np.array(marks[1:]), axis=0))
    parts = {"market_cpu_seconds": built - begun, "environment_cpu_seconds": stepped - built}
    wall = float(np.median(walls[1:]))
    return {"num_envs": FIRST_ENVS, "cpu_seconds": stepped, **parts, "wall_seconds": wall, "runs": runs}


def run_python(code: str, timeout: float) -> str:
    """Run code in a fresh interpreter that finds this Velodrome; return what it printed."""
    paths = os.pathsep.join(filter(None, sys.path))
    given: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": paths}, "timeout": timeout}
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, **given)
    except subprocess.TimeoutExpired as error:
        raise PeerFailedError(f"not finished after {timeout:.0f} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise PeerFailedError(f"failed: {([line for line in lines if 'Error' in line] or lines)[-1]}")
    return done.stdout
