"""Who is measured: the native environment, and the peers that run in this process."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import numba

from velodrome.bench.batched_peer import BatchedTradingEnv
from velodrome.bench.options import LARGEST_IN_PROCESS, PEERS, StepBenchmarkOptions
from velodrome.bench.peers import PlainTradingEnv
from velodrome.bench.problem import StepProblem
from velodrome.bench.timing import Stepper
from velodrome.vector.make import make_vec

SPECIALISED = "velodrome, specialised"

Group = Literal["same rule", "torchtrade default"]


@dataclass(frozen=True)
class Contender:
    """Something that steps a batch, and how to get it ready."""

    peer: str  # "native" or a name in PEERS
    label: str
    group: Group  # contenders of one group and size are compared with each other
    num_envs: int
    threads: int
    observation: Literal["windows", "cursor"]  # cursor: no windows are written
    floats: int  # in an observation
    ready: Callable[[ExitStack], Stepper]  # what it opens is closed with the stack


def missing_reason(peer: str) -> str | None:
    """Return why a peer cannot be measured here, or None."""
    _, module, extra = PEERS[peer]
    if module is None or importlib.util.find_spec(module) is not None:
        return None
    return f"not installed: pip install 'velodrome[{extra}]'"


def thread_counts(options: StepBenchmarkOptions) -> tuple[int, ...]:
    """Return one thread and all threads, or just one where there is no more."""
    available = numba.config.NUMBA_NUM_THREADS
    return tuple(sorted({1, min(options.threads or available, available)}))


def native_stepper(num_envs: int, threads: int, actions: list, **values: Any) -> Callable[[ExitStack], Stepper]:
    """Return how to get a native batch ready."""

    def ready(stack: ExitStack) -> Stepper:
        envs = make_vec("trading", num_envs, backend="native", threads=threads, **values)
        stack.callback(envs.close)
        envs.reset()
        ring = len(actions)
        return Stepper(lambda k: envs.step(actions[k % ring]))

    return ready


def same_rule_contenders(options: StepBenchmarkOptions, problem: StepProblem, num_envs: int) -> list[Contender]:
    """Return who steps the benchmark's own problem, in this process, at one size."""
    actions = problem.actions(num_envs)
    found = []
    floats = int(problem.market.window_floats) + 8
    for threads in thread_counts(options):
        for observation, shown, label, specialise in (
            ("windows", "flat", "velodrome", False),
            ("windows", "flat", SPECIALISED, True),
            ("cursor", "cursor", "velodrome, no windows", False),
        ):
            ready = native_stepper(
                num_envs, threads, actions, market=problem.market, seed=problem.seed, observation=shown,
                specialise=specialise, **problem.parameters,
            )  # fmt: skip
            width = floats if observation == "windows" else 8
            found.append(Contender("native", label, "same rule", num_envs, threads, observation, width, ready))  # type: ignore[arg-type]
    openers = {"numpy": _ready_numpy, "dummy": _ready_dummy, "sync": _ready_sync}
    for peer, opener in openers.items():
        if peer not in options.peers or missing_reason(peer):
            continue
        if peer != "numpy" and num_envs > LARGEST_IN_PROCESS:
            continue
        found.append(
            Contender(
                peer, PEERS[peer][0], "same rule", num_envs, 1, "windows", floats,
                lambda stack, opener=opener: opener(stack, problem, num_envs, actions),  # type: ignore[misc]
            )
        )  # fmt: skip
    return found


def _ready_numpy(stack: ExitStack, problem: StepProblem, num_envs: int, actions: list) -> Stepper:
    envs = BatchedTradingEnv(problem.peer_tables, num_envs, seed=problem.seed)
    envs.reset()
    return Stepper(lambda k: envs.step(actions[k % len(actions)]))


def _ready_dummy(stack: ExitStack, problem: StepProblem, num_envs: int, actions: list) -> Stepper:
    from stable_baselines3.common.vec_env import DummyVecEnv

    tables = problem.peer_tables
    envs = DummyVecEnv([lambda: PlainTradingEnv(tables)] * num_envs)
    stack.callback(envs.close)
    envs.seed(problem.seed)
    envs.reset()
    return Stepper(lambda k: envs.step(actions[k % len(actions)]))


def _ready_sync(stack: ExitStack, problem: StepProblem, num_envs: int, actions: list) -> Stepper:
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    tables = problem.peer_tables
    envs = SyncVectorEnv([lambda: PlainTradingEnv(tables)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    stack.callback(envs.close)
    envs.reset(seed=problem.seed)
    return Stepper(lambda k: envs.step(actions[k % len(actions)]))
