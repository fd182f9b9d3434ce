"""Runs a compiled loop on several cores, a part of the environments on each, without compiling it a second time.

Numba's own way, `prange` around the body of the loop, optimises the body four times more: in a function of its own, in
two wrappers of that and in the caller (docs/decisions/0013-one-loop-for-every-number-of-cores.md). Here the loop for
one core is told which part of the environments is its own, and a small loop over parts, the same for all rules, calls
it by its address.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import from_dtype, prange, types
from numba.extending import intrinsic
from numpy.typing import NDArray


def address_of_part(loop: Any, actions: NDArray, pack: NDArray) -> int:
    """Return where the machine code of `loop(part, parts, actions, autoreset, pack)` begins, compiled if it was not."""
    arrays = [types.Array(from_dtype(values.dtype), values.ndim, "C") for values in (actions, pack)]
    result = loop.get_compile_result(types.int64(types.int64, types.int64, arrays[0], types.boolean, arrays[1]))
    return result.library.get_pointer_to_function(result.fndesc.llvm_cfunc_wrapper_name)


@intrinsic
def _call_part(
    typing_context: Any, address: Any, part: Any, parts: Any, actions: Any, autoreset: Any, pack: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        result, *taken = (context.get_value_type(kind) for kind in (signature.return_type, *signature.args[1:]))
        function = builder.inttoptr(arguments[0], ir.FunctionType(result, taken).as_pointer())
        return builder.call(function, arguments[1:])

    return types.int64(types.int64, types.int64, types.int64, actions, types.boolean, pack), generate


def step_parts(address: int, parts: int, actions: Any, autoreset: bool, pack: Any) -> int:
    """Step every environment, a part of them on each core; return how many episodes ended."""
    finished = 0
    for part in prange(parts):
        finished += _call_part(address, part, parts, actions, autoreset, pack)
    return finished
