"""What this process may use of the machine: cores, memory and environments."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from pathlib import Path

# Variables of the process's environment: a service gives each of its trainings so many.
VARIABLE, ENVIRONMENTS = "VELODROME_CORES", "VELODROME_ENVIRONMENTS"
# How long a waiting thread of GNU OpenMP spins before it sleeps. Its default, milliseconds, takes a core from others:
# on a busy machine a step took hundreds of times as long (8 ms for 60 µs), and learning by torch ten times and more.
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "2000"
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
# By version of Linux's control groups: the limit, what is used, and how much of that is files that can be read again.
OLD = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
NEW = ("memory.max", "memory.current", "inactive_file")


def available_cores() -> int:
    """Return the cores that this process may use; in a container, or under a service, fewer than the machine has."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = os.environ.get(VARIABLE, "")
    if is_rank():  # they share the machine
        there = max(1, there // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    return max(1, min(there, int(told))) if told.isdecimal() else there


def bound_spinning(environment: MutableMapping[str, str]) -> bool:
    """Let OpenMP's waiting threads sleep soon, unless the user chose; return whether the environment was changed.

    OpenMP looks there once, when a library brings it: torch, or Numba's threads.
    """
    if {"OMP_WAIT_POLICY", SPIN_VARIABLE} & set(environment):
        return False
    environment[SPIN_VARIABLE] = SPIN_COUNT
    return True


def allowed_envs() -> int | None:
    """Return how many environments this process and those that it starts may have at once; None: any number."""
    told = os.environ.get(ENVIRONMENTS, "")
    return int(told) if told.isdecimal() else None


def is_rank() -> bool:
    """Return whether this process is one of those that torchrun started together."""
    return {"TORCHELASTIC_RUN_ID", "RANK"} <= os.environ.keys()


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

    return max(min(int(psutil.virtual_memory().available), *free_in_groups(), 1 << 62), 0)


def free_in_groups() -> Iterator[int]:
    """Yield what is left in each control group that this process is in: a container, a service, a job of a cluster."""
    try:
        own = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return  # no Linux
    for line in own:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, files = (GROUPS / "memory", OLD) if controllers else (GROUPS, NEW)
        group = top / path.lstrip("/")
        # In a container its own group may be the top, whatever it is called outside.
        for folder in (group, *(parent for parent in group.parents if parent.is_relative_to(top))):
            try:
                limit, used = ((folder / name).read_text().strip() for name in files[:2])
                statistics = dict(entry.split() for entry in (folder / "memory.stat").read_text().splitlines())
                if limit != "max":
                    yield int(limit) - int(used) + int(statistics.get(files[2], 0))
            except (OSError, ValueError):
                continue  # it says nothing
