"""What Numba is taught beyond its public interface: raw copies, inlined functions, threads over a loop.

That builds on names which Numba may change. Where it has, rules are compiled in the ordinary way, with a note: the
first start takes longer and a batch is stepped on one core, but the numbers are the same.
"""

from __future__ import annotations

import functools
import hashlib
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba import njit

from velodrome.errors import VelodromeError
from velodrome.vector.compile.kernel_cache import cache_folder, package_versions
from velodrome.vector.messages import tell

MODULES = ("memcpy", "threads", "inlining")
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
COPIES = ("copy_floats", "stream_floats", "wait_for_stores", "prefetch_floats")
MAKE_ARRAYS = ("unpack", "step_block", "gather_block")  # functions of batch.py and packing.py


@functools.cache
def lessons() -> dict[str, ModuleType]:
    """Return the modules by name, tried out once for each version of Numba; none if one of them does not work."""
    try:
        found = {name: import_module(f"velodrome.vector.compile.{name}") for name in MODULES}
        content = b"".join(Path(str(module.__file__)).read_bytes() for module in found.values())
        proof = cache_folder() / f"taught-{hashlib.sha256(content + package_versions().encode()).hexdigest()[:24]}"
        if not proof.exists():
            _try_out(found)
            proof.touch()
    except VelodromeError:  # a cache that is refused
        raise
    except Exception as error:  # whatever Numba has changed: a missing name, another argument, another meaning
        reason = str(error).strip().splitlines()[:1]
        tell(
            f"Numba {numba.__version__} has changed names that Velodrome builds on ({type(error).__name__}: "
            f"{' '.join(reason)}). Rules are compiled in the ordinary way: the first start takes longer, and a batch "
            "is stepped on one core."
        )
        return {}
    return found


def replaced() -> dict[str, Any]:
    """Return compiled functions that replace those of the same name in the loops."""
    known = lessons()
    if not known:
        return {}
    return {"own_address": known["threads"].own_address, **{name: getattr(known["memcpy"], name) for name in COPIES}}


def compile_inner(function: FunctionType) -> Any:
    """Compile a function that a loop calls, inlined.

    Rules allocate nothing, so counting references to tables and outputs would be pure cost (measured: 180 ns a step
    with calls and counts, 43 ns without); only `unpack`, which makes arrays once a block, needs the counts. Nobody
    calls these functions from Python or C; wrappers for that would take as long to compile as the functions.
    """
    known = lessons()
    return _inlined(function, known["inlining"]) if known else njit(**OPTIONS)(function)


def _inlined(function: Any, inlining: ModuleType) -> Any:
    needs_counts = function.__module__.startswith("velodrome.vector.") and function.__name__ in MAKE_ARRAYS
    counts = {} if needs_counts else {"_nrt": False}
    without = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return njit(pipeline_class=inlining.InlinedCompiler, forceinline=True, **without, **counts, **OPTIONS)(function)


def _double(value: float) -> float:
    return 2.0 * value


def _try_out(found: dict[str, ModuleType]) -> None:
    """Compile the smallest loop that needs all of it, and raise if it does anything else than it should."""
    double, copy_floats = _inlined(_double, found["inlining"]), found["memcpy"].copy_floats
    own_address = found["threads"].own_address

    def part(part: int, parts: int, actions: Any, autoreset: bool, pack: Any) -> int:
        if parts == 0:
            return own_address()
        copy_floats(actions, 0, 2, actions, 2)
        return int(double(float(pack[part])))

    actions, pack = np.array([1.0, 2.0, 0.0, 0.0], np.float32), np.array([3, 4])
    address = njit(**OPTIONS)(part)(0, 0, actions, True, pack)
    answer = njit(**OPTIONS)(found["threads"].step_parts)(address, 2, actions, True, pack)
    if answer != 14 or actions.tolist() != [1.0, 2.0, 1.0, 2.0]:
        raise RuntimeError(f"a loop to try returned {answer} and {actions.tolist()}")


@functools.cache
def code_generation() -> str:
    """Return a hash of what generates code here; a fingerprint of bytecode would not notice its changes."""
    from velodrome.vector.compile import packing

    known = {**lessons(), "packing": packing}
    names = (name for name in ("memcpy", "inlining", "packing", "threads") if name in known)
    sources = b"".join(Path(str(known[name].__file__)).read_bytes() for name in names)
    return hashlib.sha256(sources + repr(OPTIONS).encode()).hexdigest()
