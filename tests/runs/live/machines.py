"""What the counters of a machine say, for tests of those who read them."""

from __future__ import annotations

from typing import Any

from velodrome.runs.machine.use import MachineUse

GIB = 1024**3


def machine(**changes: Any) -> MachineUse:
    """Return a machine of 8 busy cores with room left and no GPU."""
    values = {
        "cores": 8, "process_cpu": 7.5, "machine_cores": 8, "machine_cpu": 7.6, "disk_wait": 0.0,
        "process_memory": GIB, "memory_used": 4 * GIB, "memory_total": 32 * GIB, "disk_free": 100 * GIB,
        "disk_total": 200 * GIB, "gpu": None,
    }  # fmt: skip
    return MachineUse(**{**values, **changes})
