"""Checks of the whole numbers that people give: counts and seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from velodrome.errors import ConfigError, ConfigTypeError

ALWAYS_FREE = 1 << 26  # bytes that nobody has to be asked for


def is_whole(value: Any, least: int) -> bool:
    """Return whether a value is a whole number, at least this large; booleans do not count."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def checked_count(name: str, value: Any) -> int:
    """Return a whole number of at least 1 as an int, or refuse the value."""
    if not is_whole(value, 1):
        raise ConfigError(f"{name} = {value!r}: needs a whole number of at least 1")
    return int(value)


def check_that_they_fit(
    num_envs: int, bytes_each: float, free_memory: Callable[[], int], of_what: str = "memory"
) -> None:
    """Refuse more environments than memory can hold, before anything is allocated."""
    wanted = num_envs * bytes_each
    if wanted < ALWAYS_FREE or wanted <= (free := free_memory()):
        return
    most = int(free // bytes_each)
    most -= most % max(10 ** (len(str(most)) - 2), 1)  # two digits: the estimate has no more
    raise ConfigError(
        f"num_envs = {num_envs:,}: they take {wanted / 1e9:,.1f} GB of {of_what} or more, and "
        f"{free / 1e9:,.1f} GB are free: at most about {most:,} fit. Take fewer."
    )


def check_seed(seed: Any) -> int:
    """Return a seed as an int, or refuse it."""
    if not is_whole(seed, 0):
        raise ConfigError(f"seed = {seed!r}: a seed is a whole number of at least 0")
    return int(seed)


def seed_of_each(seed: Any, num_envs: int) -> list[int | None]:
    """Return one seed (or None) for each environment from the sequence that was given for them, or refuse it."""
    if isinstance(seed, str) or not isinstance(seed, Sequence | np.ndarray):
        raise ConfigTypeError(f"seed = {seed!r}: a whole number of at least 0, or one for each environment")
    if len(seed) != num_envs:
        raise ConfigError(f"seed has {len(seed)} entries for {num_envs} environments")
    return [None if own is None else check_seed(own) for own in seed]
