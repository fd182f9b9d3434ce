"""Gymnasium's own vectorisers: environments in a loop, or in a process each."""

from __future__ import annotations

from typing import Any

from velodrome.bench.options import Peer
from velodrome.bench.timing import Batch, Source


def open_sync(source: Source) -> Batch:
    """Return the environments in a loop."""
    from gymnasium.vector import AutoresetMode, SyncVectorEnv

    return gymnasium_batch(SyncVectorEnv(source.makers, copy=False, autoreset_mode=AutoresetMode.SAME_STEP))


def open_async(source: Source) -> Batch:
    """Return the environments in a process each, forked from this one, with shared memory: their best case."""
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode

    envs = AsyncVectorEnv(
        source.makers, shared_memory=True, copy=False, context="fork", autoreset_mode=AutoresetMode.SAME_STEP
    )
    return gymnasium_batch(envs)


def gymnasium_batch(envs: Any) -> Batch:
    """Return any vector environment of Gymnasium's kind as a batch."""

    def step(actions: Any) -> tuple[Any, ...]:
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        return observations, rewards, terminated | truncated

    return Batch(lambda seed: envs.reset(seed=seed)[0], step, envs.close, envs, envs.single_action_space)


SYNC = Peer("gymnasium SyncVectorEnv", open_sync)
ASYNC = Peer("gymnasium AsyncVectorEnv", open_async, processes=True)
