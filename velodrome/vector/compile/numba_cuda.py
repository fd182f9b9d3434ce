"""Numba's CUDA support, imported with what it needs around it; or its simulator, if NUMBA_ENABLE_CUDASIM is set."""

from __future__ import annotations

import functools
import hashlib
import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.vector.compile.kernel_cache import cache_folder, package_versions, version_of
from velodrome.vector.messages import tell
from velodrome.writing import replace_text

if not hasattr(np, "row_stack"):
    # numba-cuda 0.30 refers to it at import; NumPy 2.5 has removed it.
    np.row_stack = np.vstack  # noqa: NPY201

with warnings.catch_warnings():
    # The import uses what newer versions of NumPy deprecate; that must not stop people who turn warnings into errors.
    warnings.simplefilter("ignore", DeprecationWarning)
    from numba import config, cuda

# A small batch on a large GPU is the user's choice and needs no warning.
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

__all__ = ["SIMULATED", "cuda", "remember_parity", "remembered_parity", "separate_rounding", "tell_of_parity"]

SIMULATED = bool(config.ENABLE_CUDASIM)

_compiling = threading.local()  # `separately` is set in a thread whose kernels are to round twice
_patch = threading.Lock()


@contextmanager
def separate_rounding() -> Iterator[None]:
    """Compile with a·b + c rounded twice, as the CPU does; NVVM contracts it by default and Numba offers no switch.

    What other threads compile meanwhile is none of our business and stays as it is.
    """
    _patch_compiler()
    before = getattr(_compiling, "separately", False)
    _compiling.separately = True
    try:
        yield
    finally:
        _compiling.separately = before


def _patch_compiler() -> None:
    """Put a function that can leave contraction out in place of Numba's, once and for good."""
    if SIMULATED or getattr(_compiling, "patched", False):
        return
    try:
        from numba.cuda.cudadrv import nvvm

        with _patch:
            if not hasattr(nvvm.compile_ir, "velodrome"):
                nvvm.compile_ir = _without_contraction(nvvm.compile_ir)
    except (ImportError, AttributeError) as error:
        _tell_of_contraction(str(error))
    _compiling.patched = True  # for this thread: a launch must not look for it again


def _without_contraction(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiler that leaves contraction out for threads inside `separate_rounding`."""

    def compile_ir(*arguments: Any, **options: Any) -> Any:
        if not getattr(_compiling, "separately", False):
            return original(*arguments, **options)
        try:
            return original(*arguments, **{**options, "fma": False})
        except Exception as error:
            compiled = original(*arguments, **options)  # raises again if the option was not the reason
            _tell_of_contraction(str(error))
            return compiled

    compile_ir.velodrome = True  # type: ignore[attr-defined]
    return compile_ir


@functools.cache
def _tell_of_contraction(reason: str) -> None:
    tell(
        f"this numba-cuda has changed names that Velodrome builds on ({reason}): kernels are compiled in the ordinary "
        "way, and their last bits may differ from the CPU's. `velodrome doctor` compares them."
    )


# Whether the kernels of this installation were found to give the CPU's numbers


def parity_file() -> Path:
    """Return where it is noted; another numba-cuda, Numba or NumPy has another file."""
    versions = hashlib.sha256(package_versions().encode()).hexdigest()[:12]
    return cache_folder() / f"parity-cuda-{version_of('numba-cuda')}-{versions}.json"


def remember_parity(same: bool, device: str) -> None:
    """Note how the comparison ended."""
    when = datetime.now(UTC).isoformat(timespec="minutes")
    replace_text(parity_file(), json.dumps({"same": same, "device": device, "when": when}))


def remembered_parity() -> dict[str, Any] | None:
    """Return how the comparison ended; None if there was none yet."""
    try:
        return dict(json.loads(parity_file().read_text()))
    except (OSError, ValueError, TypeError):
        return None


@functools.cache
def tell_of_parity() -> None:
    """Say once in a process if these kernels were never compared with the CPU's, or found to differ."""
    found = {"same": True} if SIMULATED else remembered_parity()
    version = version_of("numba-cuda")
    if found is None:
        tell(f"kernels of numba-cuda {version} were not compared with the CPU's here; `velodrome doctor` does it once")
    elif not found.get("same"):
        tell(f"kernels of numba-cuda {version} gave other numbers than the CPU's: see `velodrome doctor`")
