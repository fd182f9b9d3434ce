"""How many cores there are for this process."""

from __future__ import annotations

import os


def available_cores() -> int:
    """Return the cores that this process may use; in a container these are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
