"""A Gymnasium environment whose every number is known beforehand, and the ways to have many of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import velodrome as vd
from velodrome.adapters.gymnasium import from_gymnasium

ACTIONS = {
    "discrete": Discrete(3),
    "multi_discrete": MultiDiscrete([3, 2]),
    "multi_binary": MultiBinary(4),
    "box": Box(-2.0, 2.0, (2,), np.float32),
}


class Spaces(gymnasium.Env):
    """Has spaces and does nothing: for refusals."""

    def __init__(self, observation: gymnasium.Space, action: gymnasium.Space) -> None:
        self.observation_space, self.action_space = observation, action


class ScriptedEnv(gymnasium.Env):
    """Observes (episode, step, a draw); rewards step + sum of the action / 10.

    Episode k lasts 3 + k modulo 3 steps; even ones are terminated, odd ones truncated, every fifth is both.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, action: str = "discrete", observation: str = "flat", render_mode: str | None = None) -> None:
        self.action_space = ACTIONS[action]
        self.render_mode = render_mode
        self.observation = observation
        self.gain = 1.0
        self.episode = -1
        clock = Box(-np.inf, np.inf, (3,), np.float32)
        parts = {"parity": Discrete(2), "bits": MultiBinary(2), "image": Box(0, 9, (2, 2), np.uint8)}
        self.observation_space = clock if observation == "flat" else Dict({"clock": clock, **parts})

    def _observation(self) -> Any:
        clock = np.array([self.episode, self.time, self.np_random.uniform()], np.float32)
        if self.observation == "flat":
            return clock
        bits = np.array([self.time % 2, self.episode % 2], np.int8)
        return {"clock": clock, "parity": self.time % 2, "bits": bits, "image": np.full((2, 2), self.time, np.uint8)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode = (options or {}).get("episode", self.episode + 1)
        self.time = 0
        return self._observation(), {"began": self.episode}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        ended = self.time >= 3 + self.episode % 3
        both = ended and self.episode % 5 == 4
        terminated, truncated = ended and self.episode % 2 == 0, ended and self.episode % 2 == 1
        reward = self.gain * (self.time + float(np.sum(action)) / 10.0)
        info: dict[str, Any] = {"time": self.time, "nested": {"half": self.time / 2}}
        if self.time == 2:
            info["word"] = f"episode {self.episode}"
        return self._observation(), reward, terminated or both, truncated or both, info

    def shout(self, word: str, times: int = 1) -> str:
        return f"{self.episode}: {word * times}"

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.time, np.uint8)


class Locked(ScriptedEnv):
    """Has an attribute that cannot be sent to another process, and methods that must not be called to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def needs(self, argument: int) -> int:
        if argument < 0:
            raise ValueError(f"argument = {argument}")
        return argument


def layered(clipped: bool) -> gymnasium.Env:
    return gymnasium.wrappers.ClipReward(Locked(), 0.0) if clipped else gymnasium.wrappers.TimeLimit(Locked(), 9)


def gymnasium_sync(make: Callable[[], gymnasium.Env], n: int, mode: AutoresetMode) -> VectorEnv:
    return SyncVectorEnv([make] * n, autoreset_mode=mode)


def gymnasium_async(make: Callable[[], gymnasium.Env], n: int, mode: AutoresetMode) -> VectorEnv:
    return AsyncVectorEnv([make] * n, autoreset_mode=mode, context="forkserver")


def velodrome_backend(backend: str, make: Callable[[], gymnasium.Env], n: int, mode: AutoresetMode) -> VectorEnv:
    return vd.make_vec(make, n, backend=backend, autoreset=mode.name.lower())


VECTORS: dict[str, Callable[..., VectorEnv]] = {
    "gymnasium sync": gymnasium_sync,
    "gymnasium async": gymnasium_async,
    **{backend: partial(velodrome_backend, backend) for backend in ("serial", "process", "async")},
}
MODES = {"same step": AutoresetMode.SAME_STEP, "next step": AutoresetMode.NEXT_STEP, "disabled": AutoresetMode.DISABLED}
# Every kind as it is made by default, and the two other modes of the quick ones.
CASES = {
    **{name: (name, AutoresetMode.SAME_STEP) for name in VECTORS},
    "gymnasium sync, next step": ("gymnasium sync", AutoresetMode.NEXT_STEP),
    "serial, disabled": ("serial", AutoresetMode.DISABLED),
}


def scripted(case: str, n: int = 3, **options: Any) -> VectorEnv:
    """Return n scripted environments of a case, with the next episode begun in the step that ends one."""
    vector, mode = CASES[case]
    return from_gymnasium(VECTORS[vector](partial(ScriptedEnv, **options), n, mode))


def actions_for(space: gymnasium.Space, n: int, steps: int, seed: int = 0) -> list[np.ndarray]:
    """Return random actions, [n, …] for each step."""
    space.seed(seed)
    return [np.stack([space.sample() for _ in range(n)]) for _ in range(steps)]
