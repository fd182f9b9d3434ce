"""The loops of `batch.py` compiled for the CPU with a rule in them, or left as plain Python."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
from numba import njit

from velodrome.envs.contract import World, state_dtype
from velodrome.vector import batch
from velodrome.vector.compile import inlining, memcpy, packing, threads
from velodrome.vector.compile.assemble import rebuild, rule_substitutions
from velodrome.vector.compile.inlining import InlinedCompiler
from velodrome.vector.compile.kernel_cache import kernel_folder

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
INLINED = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": InlinedCompiler}
# Compiled functions that replace those of the same name in the loops.
REPLACED = {
    **{name: getattr(memcpy, name) for name in ("copy_floats", "stream_floats", "wait_for_stores", "prefetch_floats")},
    "own_address": threads.own_address,
}
MAKE_ARRAYS = ("unpack", "step_block", "gather_block")  # functions of batch.py and packing.py

# These modules generate code themselves; a fingerprint of bytecode would not notice their changes.
CODE_GENERATION = hashlib.sha256(
    b"".join(Path(str(module.__file__)).read_bytes() for module in (memcpy, inlining, packing, threads))
    + repr(OPTIONS).encode()
).hexdigest()

_compiled: dict[str, Any] = {}
# Functions that loops call: by type of state, then by fingerprint. The loops of a rule share most of them.
_inlined: dict[np.dtype, dict[str, Any]] = {}


def compiled_loop(
    world: World, name: str, unpack: FunctionType, *, parallel: bool = False, specialise: bool = False
) -> Any:
    """Return a loop of `batch.py` with the world's rule in it, compiled; from memory or disk if possible."""
    substitutions = {**rule_substitutions(world, specialise), "unpack": unpack, **REPLACED}
    target = f"{name}, all cores" if parallel else name
    # Kept apart by type of state: to Numba, a record with further columns is a kind of the shorter one.
    known = _inlined.setdefault(state_dtype(world.state_type), {})
    return _compiled_once(world.name, getattr(batch, name), target, substitutions, known)


def compiled_function(name: str, function: Any, target: str) -> Any:
    """Return a function without a rule in it, compiled in the same way."""
    return _compiled_once(name, function, target, {}, {})


def _compiled_once(
    name: str, loop: FunctionType, target: str, substitutions: dict[str, Any], known: dict[str, Any]
) -> Any:
    folder = kernel_folder(name, loop, target, substitutions, CODE_GENERATION)
    key = str(folder)
    if key not in _compiled:
        rebuilt = rebuild(loop, substitutions, _compile_inner, str(folder / f"{loop.__name__}.py"), known)
        _compiled[key] = njit(cache=True, parallel=target.endswith("all cores"), **OPTIONS)(rebuilt)
    return _compiled[key]


def _compile_inner(function: FunctionType) -> Any:
    """Compile a function that a loop calls, inlined.

    Rules allocate nothing, so counting references to tables and outputs would be pure cost (measured: 180 ns a step
    with calls and counts, 43 ns without); only `unpack`, which makes arrays once a block, needs the counts. Nobody
    calls these functions from Python or C; wrappers for that would take as long to compile as the functions.
    """
    needs_counts = function.__module__.startswith("velodrome.vector.") and function.__name__ in MAKE_ARRAYS
    counts = {} if needs_counts else {"_nrt": False}
    return njit(**INLINED, **counts, **OPTIONS)(function)


def compiled_functions() -> list[Any]:
    """Return what this process has compiled so far; the `stats` of each say whether it came from the disk."""
    return list(_compiled.values())


def python_loop(world: World, name: str) -> Any:
    """Return a loop of `batch.py` with the world's rule in it, uncompiled."""
    return rebuild(getattr(batch, name), rule_substitutions(world))
