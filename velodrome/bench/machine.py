"""What a number was measured on: without it a number says nothing."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numba
import psutil

import velodrome
from velodrome.runs.versions import git_commit, installed_version, machine

THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "NUMBA_", "MKL_", "OPENBLAS_")
LIBRARIES = (
    *("numpy", "numba", "torch", "gymnasium", "stable-baselines3", "torchtrade", "torchrl", "tensordict", "jax"),
    *("pufferlib", "finrl", "pandas"),
)


def machine_stamp() -> dict[str, Any]:
    """Return the machine, the software and the moment of a measurement."""
    found = machine()
    return {
        **{name: found[name] for name in ("cpu", "cores", "memory_gib", "system")},  # cores: that this process may use
        "python": platform.python_version(),
        "libraries": {name: installed_version(name) or "not installed" for name in LIBRARIES},
        "numba_threads": numba.config.NUMBA_NUM_THREADS,
        "threading_layer": threading_layer(),
        # Variables that steer threads.
        "environment": {name: value for name, value in os.environ.items() if name.startswith(THREAD_VARIABLES)},
        "load_average": list(psutil.getloadavg()),  # over 1, 5 and 15 minutes, when the run began
        "velodrome": velodrome.__version__,
        "git_commit": git_commit(Path(__file__).parent) or "unknown",  # with '+ changes' if there are any
        "command": shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def threading_layer() -> str:
    """Return the layer that Numba's parallel kernels run on; it is chosen when the first of them runs."""
    try:
        return numba.threading_layer()
    except ValueError:
        return "none yet"
