"""What a run was made with: the versions, the machine and the commit of the code that started it."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import velodrome
from velodrome.vector.cores import available_cores

LIBRARIES = ("torch", "numpy", "numba", "polars", "gymnasium", "pydantic", "safetensors", "sqlalchemy")


def versions() -> dict[str, str]:
    """Return the versions of Velodrome, Python and the libraries that results depend on, those that are installed."""
    installed = {name: installed_version(name) for name in LIBRARIES}
    own = {"velodrome": velodrome.__version__, "python": platform.python_version()}
    return own | {name: version for name, version in installed.items() if version is not None}


def installed_version(distribution: str) -> str | None:
    """Return the version of a distribution, None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    """Return what this process runs on; the GPUs only if torch has been imported, which takes seconds."""
    import psutil

    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": available_cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": _gpus(),
    }


def git_commit(folder: Path) -> str | None:
    """Return the commit that a folder's files are of, with '+ changes' if some differ; None outside a repository."""

    def ask(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        commit = ask("rev-parse", "HEAD")
        return f"{commit} + changes" if ask("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def cpu_model() -> str:
    """Return the processor's name as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # no such file outside Linux
        pass
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
