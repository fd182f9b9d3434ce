"""What a host steps: any Gymnasium environment, or one made for the purpose.

A fresh interpreter makes it from its name alone, so that every contender gets the same.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError

TIMED = re.compile(r"(burn|sleep):(\d+(?:\.\d+)?)(us|µs|ms|s)")
UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}  # seconds
STRAGGLER_FACTOR = 10.0
LONGEST_STEP = 60.0  # seconds


class TimedEnv(gymnasium.Env):
    """An environment whose step takes a given time: on a core (`burn`), or waiting (`sleep`).

    It burns processor time rather than time on the clock: else a process that the system has put aside would count as
    working, and more processes than cores would seem to do more than the machine can.
    """

    def __init__(self, seconds: float, waits: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (8,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(3)
        self.seconds, self.waits = seconds, waits
        self.left = 0  # steps of the episode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start an episode of 5 to 60 steps."""
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(5, 61))
        return self.np_random.random(8, np.float32), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Take the time, then return random numbers; the reward depends on the action, for the check of parity."""
        if self.waits:
            time.sleep(self.seconds)
        else:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                pass
        observation = self.np_random.random(8, np.float32)
        self.left -= 1
        return observation, float(observation[0]) * (1.0 + float(action)), False, self.left <= 0, {}


def timed_environment(name: str, factor: float = 1.0) -> Callable[[], TimedEnv] | None:
    """Return what makes a timed environment, with steps longer by a factor; None for any other name."""
    found = TIMED.fullmatch(name)
    if found is None:
        return None
    seconds = float(found[2]) * UNITS[found[3]]
    if seconds > LONGEST_STEP:
        raise ConfigError(f"{name}: a step of {seconds:g} s; legal are up to {LONGEST_STEP:g} s")
    return functools.partial(TimedEnv, factor * seconds, found[1] == "sleep")


def environment_source(name: str) -> Any:
    """Return what makes the environment: an id of Gymnasium, a class or a function; raises ConfigError if none does."""
    timed = timed_environment(name)
    if timed is not None:
        return timed
    if name.startswith(("burn:", "sleep:")):
        raise ConfigError(f"env {name!r}: needs a number and a unit (us, ms or s), such as burn:20us or sleep:2ms")
    if ":" in name and (found := _from_module(name)) is not None:
        return found
    try:
        gymnasium.spec(name)
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(
            f"env {name!r} is no Gymnasium id ({error}). Legal: an id, module:Class or module:function, "
            f"trading-plain, burn:20us, sleep:2ms"
        ) from error
    return name


def _from_module(name: str) -> Callable[..., Any] | None:
    """Return the callable `module:name`, None if the module has none of that name (it may register an id of it)."""
    module_name, _, attribute = name.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does: the user's module lies here
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(f"env {name!r}: the module {module_name!r} cannot be imported: {error}") from error
    found = getattr(module, attribute, None)
    return found if callable(found) else None


def straggler_sources(name: str, num_envs: int) -> list[Any]:
    """Return what makes timed environments, the first of them many times slower than the rest."""
    slow, fast = timed_environment(name, STRAGGLER_FACTOR), timed_environment(name)
    if slow is None:
        raise ConfigError(f"env {name!r}: a straggler is made of burn:… or sleep:… environments only")
    return [slow, *[fast] * (num_envs - 1)]
