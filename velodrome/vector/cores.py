"""What this process may use of the machine: cores and memory."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "VELODROME_CORES"  # of the environment: a service gives each of its trainings so many


def available_cores() -> int:
    """Return the cores that this process may use; in a container, or under a service, fewer than the machine has."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get(VARIABLE, "")
    return max(1, min(there, int(told))) if told.isdecimal() else there


def memory_limit() -> int:
    """Return the bytes that all processes here may take together: the machine's, or less where a container says so."""
    import psutil

    total = int(psutil.virtual_memory().total)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


def free_memory() -> int:
    """Return the bytes that can still be taken: what the machine has free, or less where a container sets a limit."""
    import psutil

    found = [int(psutil.virtual_memory().available)]
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        found += [int(limit) - int(used)] if limit != "max" else []
    except (OSError, ValueError):
        pass  # no container, or one that says nothing
    return max(min(found), 0)
