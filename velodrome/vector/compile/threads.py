"""Runs a compiled loop on several cores, with a part of the environments on each, without compiling it again.

Numba's own way, `prange` around the body of the loop, optimises the body four more times: in a function of its own, in
two wrappers of that and in the caller (docs/decisions/0013-one-loop-for-every-number-of-cores.md). Here the loop for
one core takes the part of the environments to step as an argument, and a small loop over parts, the same for all rules,
calls it by its address.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def own_address(typing_context: Any) -> Any:
    """Return the address of the machine code of the calling function.

    Numba would look it up by name. Loops that other processes have compiled and kept on disk may have exactly the same
    name, and the answer would be the one that was loaded last.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(builder.function, context.get_value_type(types.int64))

    return types.int64(), generate


@intrinsic
def call_part(typing_context: Any, address: Any, part: Any, parts: Any, actions: Any, autoreset: Any, pack: Any) -> Any:
    """Call the `step_part` at an address."""
    # Read-only actions are another type to Numba, but the code is the same.
    actions = types.Array(actions.dtype, actions.ndim, "C")
    taken = (types.int64, types.int64, actions, types.boolean, pack)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        convention = context.call_conv
        kind = convention.get_function_type(types.int64, taken)
        function = builder.inttoptr(arguments[0], ir.PointerType(kind))
        status, finished = convention.call_function(builder, function, types.int64, taken, arguments[1:])
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
        return finished

    return types.int64(types.int64, *taken), generate


def step_parts(address: int, parts: int, actions: Any, autoreset: bool, pack: Any) -> int:
    """Step every environment, a part of them on each core; return how many episodes ended.

    address: of `step_part` with a rule in it.
    """
    finished = 0
    for part in prange(parts):
        finished += call_part(address, part, parts, actions, autoreset, pack)
    return finished
