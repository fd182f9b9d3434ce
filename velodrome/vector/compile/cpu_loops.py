"""The loops of `batch.py` compiled for the CPU with a rule in them, or left as plain Python."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np
from numba import njit

from velodrome.envs.contract import World, state_dtype
from velodrome.outside.kernels import kept_privately
from velodrome.vector import batch
from velodrome.vector.compile.assemble import rebuild, rule_substitutions
from velodrome.vector.compile.kernel_cache import kernel_folder
from velodrome.vector.compile.taught import OPTIONS, code_generation, compile_inner, replaced

_compiled: dict[str, Any] = {}
# Functions that loops call: by type of state, then by fingerprint. The loops of a rule share most of them.
_inlined: dict[np.dtype, dict[str, Any]] = {}


CHECKING = {"wrong_among": batch.not_finite_among}


def compiled_loop(
    world: World,
    name: str,
    unpack: FunctionType,
    *,
    parallel: bool = False,
    specialise: bool = False,
    check_values: bool = False,
) -> Any:
    """Return a loop of `batch.py` with the world's rule in it, compiled; from memory or disk if possible."""
    checking = CHECKING if check_values else {}
    substitutions = {**rule_substitutions(world, specialise), "unpack": unpack, **checking, **replaced()}
    target = f"{name}, all cores" if parallel else name
    # Kept apart by type of state: to Numba, a record with further columns is a kind of the shorter one.
    known = _inlined.setdefault(state_dtype(world.state_type), {})
    return _compiled_once(world.name, getattr(batch, name), target, substitutions, known)


def compiled_function(name: str, function: Any, target: str, substitutions: dict[str, Any] | None = None) -> Any:
    """Return a function without a rule in it, compiled in the same way."""
    return _compiled_once(name, function, target, substitutions or {}, {})


def _compiled_once(
    name: str, loop: FunctionType, target: str, substitutions: dict[str, Any], known: dict[str, Any]
) -> Any:
    folder = kernel_folder(name, loop, target, substitutions, code_generation())
    key = str(folder)
    if key not in _compiled:
        rebuilt = rebuild(loop, substitutions, compile_inner, str(folder / f"{loop.__name__}.py"), known)
        compiled = njit(cache=True, parallel=target.endswith("all cores"), **OPTIONS)(rebuilt)
        _compiled[key] = kept_privately(compiled)
    return _compiled[key]


def compiled_functions() -> list[Any]:
    """Return what this process has compiled so far; the `stats` of each say whether it came from the disk."""
    return list(_compiled.values())


def python_loop(world: World, name: str, *, check_values: bool = False) -> Any:
    """Return a loop of `batch.py` with the world's rule in it, uncompiled."""
    return rebuild(getattr(batch, name), {**rule_substitutions(world), **(CHECKING if check_values else {})})
