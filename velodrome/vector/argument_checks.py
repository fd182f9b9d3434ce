"""Whole numbers that people give, checked in one place."""

from __future__ import annotations

from typing import Any

import numpy as np

from velodrome.errors import ConfigError


def checked_count(name: str, value: Any) -> int:
    """Return a whole number of at least 1, or refuse what was given for it."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{name} = {value!r}: needs a whole number of at least 1")
    return int(value)


def check_num_envs(num_envs: Any) -> int:
    """Return a number of environments as an int, or refuse it."""
    return checked_count("num_envs", num_envs)
