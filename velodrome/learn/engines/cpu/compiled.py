"""How the CPU's loops are compiled, and what makes their machine code on disk out of date."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache

# Sums may take another order; that not-a-number or infinity is absent is never assumed.
FAST = ("contract", "nsz", "reassoc")
EXACT = ("contract",)


def loop(function: Callable[..., Any], fastmath: Iterable[str] = FAST, counted: bool = True) -> Any:
    """Compile a loop that releases Python's lock; its machine code is kept on disk.

    counted: whether it counts who holds an array. What makes no arrays need not, and a call that takes a dozen of them
    spends a tenth of a microsecond on it.
    """
    counts = {} if counted else {"_nrt": False}
    compiled = njit(nogil=True, error_model="numpy", fastmath=set(fastmath), **counts)(function)
    compiled._cache = SourcesCache(function)
    return compiled


def inner(function: Callable[..., Any]) -> Any:
    """Compile a scalar function for use inside loops; it keeps its order of operations, whatever the loop's flags."""
    return njit(error_model="numpy", fastmath=set(EXACT), forceinline=True)(function)


class SourcesCache(FunctionCache):
    """Numba's disk cache looks at a function's own file only; this one at all files that are compiled into it."""

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the machine code on disk, or None; Numba asks here before it compiles and saves."""
        # Not earlier: while a module is imported, not all that it takes from others is there yet.
        self._cache_file._source_stamp = sources_hash(self._py_func.__module__)
        return super().load_overload(signature, context)


@functools.cache
def sources_hash(module: str) -> str:
    """Return a hash of the source of a module and of all of Velodrome's that it takes compiled functions from."""
    pending, found = [module], set()
    while pending:
        name = pending.pop()
        if name not in found and name in sys.modules:
            found.add(name)
            compiled = (value for value in vars(sys.modules[name]).values() if is_compiled(value))
            pending += [value.__module__ for value in compiled if value.__module__.startswith("velodrome.")]
    sources = (inspect.getsource(sys.modules[name]) for name in sorted(found))
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()


def is_compiled(value: Any) -> bool:
    """Whether something is a function that Numba compiles, or an intrinsic."""
    return hasattr(value, "py_func") or hasattr(value, "_defn")
