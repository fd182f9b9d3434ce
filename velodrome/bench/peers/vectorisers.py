"""How others step many environments: Gymnasium and Stable-Baselines3, in a loop or in a process each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium

from velodrome.bench.options import Peer
from velodrome.bench.timing import Batch, Source
from velodrome.outside.extras import install

NEEDS_SB3: dict[str, Any] = {"modules": ("stable_baselines3",), "install": install("sb3")}


def gymnasium_batch(envs: Any) -> Batch:
    """Return any vector environment of Gymnasium's kind as a batch."""

    def step(actions: Any) -> tuple[Any, ...]:
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        return observations, rewards, terminated | truncated

    return Batch(lambda seed: envs.reset(seed=seed)[0], step, envs.close, envs, envs.single_action_space)


def open_gymnasium(kind: str, source: Source, **given: Any) -> Batch:
    """Return the environments under one of Gymnasium's vectorisers, without copies and as Velodrome resets."""
    same_step = gymnasium.vector.AutoresetMode.SAME_STEP
    make = getattr(gymnasium.vector, kind)
    return gymnasium_batch(make(source.makers, copy=False, autoreset_mode=same_step, **given))


def sb3_envs(kind: str, makers: Sequence[Any], **given: Any) -> Any:
    """Return the environments under one of Stable-Baselines3's vectorisers."""
    from stable_baselines3.common import vec_env

    return getattr(vec_env, kind)(makers, **given)


def open_sb3(kind: str, source: Source, **given: Any) -> Batch:
    """Return the environments under one of Stable-Baselines3's vectorisers as a batch."""
    envs = sb3_envs(kind, source.makers, **given)

    def reset(seed: int) -> Any:
        envs.seed(seed)  # of the next reset; environment i has seed + i, as in Gymnasium
        return envs.reset()

    return Batch(reset, lambda actions: envs.step(actions)[:3], envs.close, envs, envs.action_space)


# Processes are forked from the one that asks for them, with shared memory where there is some: their best case.
FORKED_SB3 = partial(open_sb3, "SubprocVecEnv", start_method="fork")
FORKED_GYMNASIUM = partial(open_gymnasium, "AsyncVectorEnv", context="fork")
VECTORISERS: dict[str, Peer] = {
    "dummy": Peer("SB3 DummyVecEnv", partial(open_sb3, "DummyVecEnv"), **NEEDS_SB3),
    "subproc": Peer("SB3 SubprocVecEnv", FORKED_SB3, **NEEDS_SB3, processes=True),
    "sync": Peer("gymnasium SyncVectorEnv", partial(open_gymnasium, "SyncVectorEnv")),
    "async": Peer("gymnasium AsyncVectorEnv", FORKED_GYMNASIUM, processes=True),
}
