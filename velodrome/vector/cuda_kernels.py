"""CUDA kernels around a rule: one thread per environment, and one warp per window gather.

`batch.advance` and `batch.begin` are the same functions as on the CPU. Contraction of a·b + c into one rounding is
switched off, so that money has the same bits as on the CPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from velodrome.envs.contract import LANES, World
from velodrome.tables.windows import WindowTables
from velodrome.vector.assemble import kernel_folder, rebuild, rule_substitutions, tell
from velodrome.vector.batch import Outputs, advance, begin

if not hasattr(np, "row_stack"):
    # numba-cuda 0.30 still names it while it is imported; NumPy 2.5 has removed it.
    np.row_stack = np.vstack  # type: ignore[attr-defined]  # noqa: NPY201

from numba import config, cuda, njit

WARP = 32
SIMULATED = bool(config.ENABLE_CUDASIM)


class Memory(NamedTuple):
    """The arrays of a batch that kernels see as records."""

    blocks: Any  # [blocks] of the world's state
    params: Any  # [1]


class Kernels(NamedTuple):
    """The compiled kernels of one rule."""

    step: Any
    reset: Any
    gather: Any
    gather_final: Any


def step_kernel(actions: Any, autoreset: bool, memory: Memory, tables: Any, out: Outputs) -> None:
    """Step one environment per thread."""
    row = cuda.grid(1)
    if row < actions.shape[0]:
        state = memory.blocks[row // LANES]
        advance(row % LANES, row, actions[row], autoreset, state, tables, memory.params[0], out)


def reset_kernel(chosen: Any, memory: Memory, tables: Any, out: Outputs) -> None:
    """Start an episode of each chosen environment."""
    row = cuda.grid(1)
    if row < chosen.shape[0] and chosen[row]:
        begin(row % LANES, row, memory.blocks[row // LANES], tables, memory.params[0], out)


def gather_row(row: int, lane: int, cursor: int, windows: WindowTables, observations: Any) -> None:
    """Copy the windows at a cursor into an observation row; neighbouring lanes copy neighbouring floats."""
    at = 0
    for w in range(windows.length.size):
        width = windows.width[w]
        count = windows.length[w] * width
        first = windows.base[w] + (windows.rows[w, cursor] - windows.length[w] + 1) * width
        for k in range(lane, count, WARP):
            observations[row, at + k] = windows.values[first + k]
        at += count


def gather_kernel(windows: WindowTables, out: Outputs) -> None:
    """Write the windows of every environment, one warp each."""
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row < out.cursors.shape[0]:
        gather_row(row, cuda.threadIdx.x, out.cursors[row], windows, out.observations)


def gather_final_kernel(windows: WindowTables, out: Outputs) -> None:
    """Write the last windows of the episodes that ended in this step."""
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row < out.cursors.shape[0] and (out.terminated[row] or out.truncated[row]):
        gather_row(row, cuda.threadIdx.x, out.final_cursors[row], windows, out.final_observations)


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


_compiled: dict[str, Any] = {}


def _compile(world: World, kernel: Any) -> Any:
    name = kernel.__name__
    if SIMULATED:
        # The simulator runs Python: the rule itself takes the place of the compiled one.
        return cuda.jit(rebuild(kernel, rule_substitutions(world)))
    folder, known = kernel_folder(world, kernel, f"cuda-{name}")
    key = str(folder)
    if key not in _compiled:
        if not known:
            tell(f"compiling {world.name} for CUDA ({name}); the next start is faster")
        device_function = rebuild(
            kernel,
            rule_substitutions(world),
            lambda function: function if function.__name__ == name else njit(function),
            filename=str(folder / f"{name}.py"),
        )
        # Link-time optimisation would generate the code again, with contraction.
        no_link_time = {"lto": False} if "lto" in inspect.signature(cuda.jit).parameters else {}
        _compiled[key] = cuda.jit(cache=True, **no_link_time)(device_function)
    return _compiled[key]


def compile_kernels(world: World) -> Kernels:
    """Return the kernels of a world's rule; they are compiled when first launched, inside `separate_rounding`."""
    kernels = (step_kernel, reset_kernel, gather_kernel, gather_final_kernel)
    return Kernels(*(_compile(world, kernel) for kernel in kernels))
