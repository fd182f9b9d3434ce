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
from pydantic import BaseModel, Field

import velodrome
from velodrome.runs.versions import git_commit, installed_version, machine

THREAD_VARIABLES = ("OMP_", "GOMP_", "KMP_", "NUMBA_", "MKL_", "OPENBLAS_")
LIBRARIES = ("numpy", "numba", "torch", "gymnasium", "stable-baselines3", "torchtrade", "torchrl", "tensordict")


class MachineStamp(BaseModel):
    """The machine, the software and the moment of a measurement."""

    cpu: str = Field(description="model of the processor")
    cores: int = Field(description="logical cores that this process may use")
    memory_gib: float = Field(description="installed memory, GiB")
    system: str = Field(description="operating system and kernel")
    python: str = Field(description="version of Python")
    libraries: dict[str, str] = Field(description="version by library; 'not installed' where there is none")
    numba_threads: int = Field(description="threads that Numba may use")
    threading_layer: str = Field(description="Numba's threading layer; 'none yet' before its first parallel kernel")
    environment: dict[str, str] = Field(description="environment variables that steer threads")
    load_average: tuple[float, float, float] = Field(description="over 1, 5 and 15 minutes, when the run began")
    velodrome: str = Field(description="version of Velodrome")
    git_commit: str = Field(description="commit of the source tree, '+ changes' if it has any; 'unknown' elsewhere")
    command: str = Field(description="the command of the run")
    time: str = Field(description="when the run began, UTC")


def machine_stamp() -> MachineStamp:
    """Return what this process runs on, now."""
    known: dict[str, Any] = {name: value for name, value in machine().items() if name in MachineStamp.model_fields}
    return MachineStamp(
        **known,
        python=platform.python_version(),
        libraries={name: installed_version(name) or "not installed" for name in LIBRARIES},
        numba_threads=numba.config.NUMBA_NUM_THREADS,
        threading_layer=threading_layer(),
        environment={name: value for name, value in os.environ.items() if name.startswith(THREAD_VARIABLES)},
        load_average=psutil.getloadavg(),
        velodrome=velodrome.__version__,
        git_commit=git_commit(Path(__file__).parent) or "unknown",
        command=shlex.join([Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]]),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def threading_layer() -> str:
    """Return the layer that Numba's parallel kernels run on; it is chosen when the first of them runs."""
    try:
        return numba.threading_layer()
    except ValueError:
        return "none yet"
