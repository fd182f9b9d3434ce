"""What this process may use of the machine: cores and memory."""

from __future__ import annotations

import os
from pathlib import Path


def available_cores() -> int:
    """Return the cores that this process may use; in a container these are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
