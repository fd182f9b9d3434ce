"""Numba's CUDA support, imported with what it needs around it; or its simulator, if NUMBA_ENABLE_CUDASIM is set."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

if not hasattr(np, "row_stack"):
    # numba-cuda 0.30 refers to it at import; NumPy 2.5 has removed it.
    np.row_stack = np.vstack  # noqa: NPY201

with warnings.catch_warnings():
    # The import uses what newer versions of NumPy deprecate; that must not stop people who turn warnings into errors.
    warnings.simplefilter("ignore", DeprecationWarning)
    from numba import config, cuda

# A small batch on a large GPU is the user's choice and needs no warning.
config.CUDA_LOW_OCCUPANCY_WARNINGS = 0

__all__ = ["SIMULATED", "cuda", "separate_rounding"]

SIMULATED = bool(config.ENABLE_CUDASIM)


@contextmanager
def separate_rounding() -> Iterator[None]:
    """Compile with a·b + c rounded twice, as the CPU does; NVVM contracts it by default and Numba offers no switch."""
    if SIMULATED:
        yield
        return
    from numba.cuda.cudadrv import nvvm

    original = nvvm.compile_ir

    def compile_ir(*arguments: Any, **options: Any) -> Any:
        return original(*arguments, **{**options, "fma": False})

    nvvm.compile_ir = compile_ir
    try:
        yield
    finally:
        nvvm.compile_ir = original
