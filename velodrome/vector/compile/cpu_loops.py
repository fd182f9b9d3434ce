"""The loops of `batch.py` compiled for the CPU with a rule in them, or left as plain Python."""

from __future__ import annotations

from collections.abc import Mapping
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


# Sums may be taken in any order, so of several values at once; NaN and infinities stay what they are.
SUMS: dict[str, Any] = {"fastmath": {"reassoc", "contract"}, **OPTIONS}


@njit(**SUMS)
def not_finite_in_block(values, first, count):
    """Replace `batch.wrong_in_block`: one pass over many values."""
    chosen, total = values[first : first + count], np.float32(0.0)
    for k in range(chosen.size):
        total += chosen[k] * np.float32(0.0)  # NaN, if the value is not finite
    return 0 if total == np.float32(0.0) else batch.WRONG


def not_finite_among_few(observed: int) -> Any:
    """Return what replaces `batch.wrong_in_row`: the same without a loop, as it is known how many values there are."""

    @njit(**SUMS)
    def not_finite_in_row(values, first, count):
        total = np.float32(0.0)
        for k in range(observed):
            total += values[np.uint64(first + k)] * np.float32(0.0)
        return 0 if total == np.float32(0.0) else batch.WRONG

    return not_finite_in_row


def value_checks(world: World, windows: bool, compiled: bool = True) -> dict[str, Any]:
    """Return what looks at values in a loop.

    As little as possible stands within the loop over environments, where it takes registers from the rule: all of it
    there cost 4.4 % of a step of 18 ns, this costs 1.5 % (docs/vectorising.md).
    """
    in_row = not_finite_among_few(len(world.observed)) if compiled else batch.not_finite_among
    in_block = not_finite_in_block if compiled else batch.not_finite_among
    return {"wrong_in_block": in_block, **({"wrong_in_row": in_row} if windows else {})}


def compiled_loop(
    world: World,
    name: str,
    unpack: FunctionType,
    *,
    parallel: bool = False,
    specialise: bool = False,
    checks: Mapping[str, Any] | None = None,
) -> Any:
    """Return a loop of `batch.py` with the world's rule in it, compiled; from memory or disk if possible."""
    substitutions = {**rule_substitutions(world, specialise), "unpack": unpack, **(checks or {}), **replaced()}
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


def python_loop(world: World, name: str, checks: Mapping[str, Any] | None = None) -> Any:
    """Return a loop of `batch.py` with the world's rule in it, uncompiled."""
    return rebuild(getattr(batch, name), {**rule_substitutions(world), **(checks or {})})
