"""Pools for tests: of environments that count themselves and do nothing else, and what the tests of pools share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from velodrome.vector.fleet.pool import EnvPool, Lease


class Census:
    """How many environments exist, and the most that ever did."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0
        self.made: list[Dummies] = []

    def change(self, by: int) -> None:
        with self.lock:
            self.now += by
            self.most = max(self.most, self.now)


class Dummies(gymnasium.vector.VectorEnv):
    """Environments that are only counted."""

    def __init__(self, census: Census, kind: str, num_envs: int) -> None:
        self.census, self.kind, self.num_envs = census, kind, num_envs
        self.faults: list[str] = []
        self.seeds: list[Any] = []
        census.change(num_envs)
        census.made.append(self)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert not self.closed
        self.seeds.append(seed)
        return None, {}

    def resize(self, num_envs: int) -> str:
        self.census.change(num_envs - self.num_envs)
        self.num_envs = num_envs
        return f"observations of {num_envs}"

    def close_extras(self, **kwargs: Any) -> None:
        self.census.change(-self.num_envs)


class DummyPool(EnvPool):
    """A pool of environments that are only counted; `bytes_each` is what one of a kind seems to weigh."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.census = Census()

    def _make(self, env: Any, num_envs: int, options: dict[str, Any]) -> Any:
        return Dummies(self.census, env, num_envs)


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def lease(pool: EnvPool, num_envs: int, **options: Any) -> Lease:
    return pool.lease("template", num_envs, **{"threads": 1, "timeout": 5.0, **options})


def trajectory(envs: Any, steps: int = 30) -> np.ndarray:
    """Return observations of some steps after a reset that goes on with the seed that they have."""
    envs.reset()
    return np.stack([np.array(envs.step(np.arange(envs.num_envs) % 2)[0]) for _ in range(steps)])


class Request:
    """Asks for a lease in a thread of its own."""

    def __init__(self, pool: EnvPool, kind: str, num_envs: int, timeout: float | None = None) -> None:
        self.kind, self.num_envs = kind, num_envs
        self.lease: Lease | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self.ask, args=(pool, timeout), daemon=True)
        self.thread.start()

    def ask(self, pool: EnvPool, timeout: float | None) -> None:
        try:
            self.lease = pool.lease(self.kind, self.num_envs, timeout=timeout)
        except Exception as error:
            self.error = error

    @property
    def done(self) -> bool:
        return not self.thread.is_alive()
