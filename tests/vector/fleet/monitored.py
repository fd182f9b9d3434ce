"""Environments under a monitor, and how the tests of monitors play them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.vector.foreign_envs import Counting


def counting(lengths: tuple[int, ...], mode: AutoresetMode = AutoresetMode.SAME_STEP) -> SyncVectorEnv:
    return SyncVectorEnv([partial(Counting, length) for length in lengths], autoreset_mode=mode)


def zeros(envs: Any) -> np.ndarray:
    return np.zeros(envs.num_envs, np.int64)


def play(envs: Any, steps: int, actions: Any = None) -> list[tuple[int, float, int]]:
    """Step, resetting what ended where that is the caller's to do; return (environment, return, length) by end."""
    found = []
    for t in range(steps):
        *_, terminated, truncated, infos = envs.step(zeros(envs) if actions is None else actions[t])
        ended = np.asarray(terminated | truncated)
        if "_episode" in infos:
            episode = infos["episode"]
            rows = np.flatnonzero(infos["_episode"])
            found += [(int(row), float(episode["r"][row]), int(episode["l"][row])) for row in rows]
            unset = ~np.asarray(infos["_episode"])
            assert not any(np.asarray(episode[name])[unset].any() for name in "rlt")
        if envs.metadata["autoreset_mode"] is AutoresetMode.DISABLED and ended.any():
            envs.reset(options={"reset_mask": ended})
    return found
