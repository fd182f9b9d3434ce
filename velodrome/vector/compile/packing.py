"""Passes all arrays of a batch to compiled code as one array of addresses.

Numba needs about a quarter of a microsecond for each array argument, and a step has thirty of them: longer than a small
batch takes to step. The addresses do not change, so they are written down once, and a generated function turns them
back into the same tuples of arrays inside the compiled loop.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import numpy as np
from numba import carray, njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from velodrome.errors import ConfigError


@intrinsic
def _as_pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit
def pointer(address):
    """Return an address as the pointer that `carray` takes."""
    return _as_pointer(address)


class Packer:
    """Collects arrays and integers, and writes the source of the function that restores them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.names: dict[str, Any] = {"carray": carray, "pointer": pointer}

    def name(self, value: Any) -> str:
        """Return a name for a type or a class in the generated function.

        The source is made of such names and of positions alone: nothing that anybody else has named gets into it.
        """
        name = f"name_{len(self.names)}"
        self.names[name] = value
        return name

    def expression(self, value: Any) -> str:
        """Write a value down and return the expression that restores it."""
        at = len(self.numbers)
        if isinstance(value, tuple):
            parts = ", ".join(self.expression(part) for part in value)
            return f"{self.name(type(value))}({parts})" if hasattr(value, "_fields") else f"({parts},)"
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise ConfigError(f"tables of an environment must be C-contiguous, received strides {value.strides}")
            self.numbers += [value.ctypes.data, *value.shape]
            shape = "".join(f"pack[{at + 1 + k}], " for k in range(value.ndim))
            dtype = value.dtype if value.dtype.names else value.dtype.type
            return f"carray(pointer(pack[{at}]), ({shape}), {self.name(dtype)})"
        self.numbers.append(int(value))
        return f"pack[{at}]"


def pack_arguments(arguments: tuple) -> tuple[NDArray[np.int64], FunctionType]:
    """Return (pack, unpack): unpack(pack) restores nested tuples of arrays and integers in compiled code.

    The arrays must stay in place as long as the pack is used: keep a reference to them.
    """
    packer = Packer()
    source = f"def unpack(pack):\n    return {packer.expression(arguments)}\n"
    return np.array(packer.numbers, np.int64), _unpack(source, tuple(packer.names.items()))


@functools.lru_cache(maxsize=256)
def _unpack(source: str, names: tuple[tuple[str, Any], ...]) -> FunctionType:
    """Return the function of a source. Each evaluation makes environments anew, and theirs are the same."""
    namespace: dict[str, Any] = {"__name__": __name__, **dict(names)}
    exec(compile(source, "<velodrome unpack>", "exec"), namespace)
    found: FunctionType = namespace["unpack"]
    return found
