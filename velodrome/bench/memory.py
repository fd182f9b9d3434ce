"""Memory: how fast this machine copies blocks of a window's size, and what an environment takes."""

from __future__ import annotations

import gc
from contextlib import ExitStack

import numba
import numpy as np
import psutil
from numba import njit, prange
from pydantic import BaseModel, Field

from velodrome.bench.contenders import Contender, thread_counts
from velodrome.bench.options import StepBenchmarkOptions
from velodrome.bench.problem import StepProblem
from velodrome.bench.timing import Stepper
from velodrome.envs.catalog import CATALOG
from velodrome.vector.compile.memcpy import copy_floats
from velodrome.vector.make import make_vec
from velodrome.vector.native import NativeVectorEnv

MEASURED_ENVS = 65_536  # fewer might fit into memory that the process had before
ALONE, BLOCKS, WHOLE = "velodrome, windows alone", "memcpy of windows", "memcpy of one block"


class MemoryUse(BaseModel):
    """What an environment takes, windows not counted."""

    num_envs: int = Field(description="environments that were made")
    bytes_allocated: float = Field(description="state and bookkeeping per environment, as allocated")
    bytes_resident: float = Field(
        description="growth of the process' resident memory per environment; statistics come with ended episodes"
    )


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


def memory_contenders(options: StepBenchmarkOptions, problem: StepProblem, num_envs: int) -> list[Contender]:
    """Return what writes the windows of a step and nothing else: the native environment's own loop, and memcpy."""
    floats = int(problem.market.window_floats)
    found = []
    for threads in thread_counts(options):
        for label in (ALONE, BLOCKS, WHOLE):
            found.append(
                Contender(
                    "memcpy", label, "same rule", num_envs, threads, "windows", floats,
                    lambda stack, label=label, threads=threads: _ready(problem, num_envs, label, threads, stack),  # type: ignore[misc]
                )
            )  # fmt: skip
    return found


def _ready(problem: StepProblem, num_envs: int, label: str, threads: int, stack: ExitStack) -> Stepper:
    windows = problem.market.windows
    count, width = int(problem.market.window_floats), int(windows.width[0])
    stride = count + 8  # an observation row: the account values stay as they are
    stack.callback(numba.set_num_threads, numba.get_num_threads())
    if label == ALONE:
        world = CATALOG.get("trading").make_world(market=problem.market, **problem.parameters)
        envs = NativeVectorEnv(world, num_envs, seed=problem.seed)
        envs.reset()
        write_windows, cursors = envs.window_writer(threads), envs.buffers.out.cursors

        def write(k: int) -> None:
            # As in stepping, each window moves on by a bar from call to call; back again before any leaves the data.
            cursors[...] += 1 if k % 64 else -63
            write_windows()

        return Stepper(write, lambda: numba.set_num_threads(threads))
    if label == WHOLE:
        source = np.ones(num_envs * count, np.float32)
        target = np.zeros(num_envs * count, np.float32)
        if threads == 1:
            return Stepper(lambda k: np.copyto(target, source))
        pieces = np.linspace(0, len(source), threads + 1).astype(np.int64)
        # Equal pieces; a remainder of less than `threads` floats is left out.
        piece = int(np.diff(pieces).min())
        return Stepper(
            lambda k: copy_rows_parallel(source, pieces[:-1], 0, piece, target, piece),
            lambda: numba.set_num_threads(threads),
        )
    generator = np.random.default_rng(problem.seed)
    first = generator.integers(0, len(windows.values) // width - 2 * int(windows.length[0]) - 64, num_envs) * width
    target = np.zeros(num_envs * stride, np.float32)
    kernel = copy_rows if threads == 1 else copy_rows_parallel
    # As in stepping, each row moves on by a bar from call to call.
    return Stepper(
        lambda k: kernel(windows.values, first, k % 64 * width, count, target, stride),
        lambda: numba.set_num_threads(threads),
    )


def memory_use(problem: StepProblem, num_envs: int = MEASURED_ENVS) -> MemoryUse:
    """Make environments without windows and see what they take."""
    process = psutil.Process()
    actions = np.zeros(num_envs, np.int64)
    # The first batch pays for code that every later one shares.
    make_vec(
        "trading", 64, market=problem.market, observation="cursor", seed=0, threads=1, **problem.parameters
    ).reset()
    gc.collect()
    before = process.memory_info().rss
    envs = make_vec(
        "trading", num_envs, market=problem.market, observation="cursor", seed=0, threads=1, **problem.parameters
    )
    envs.reset()
    envs.step(actions)
    grown = process.memory_info().rss - before
    return MemoryUse(
        num_envs=num_envs, bytes_allocated=float(envs.buffers.bytes_per_environment), bytes_resident=grown / num_envs
    )
