"""The loops around a rule as CUDA kernels: one thread per environment, and one warp per row of windows.

`batch.advance` and `batch.begin` are the same functions as on the CPU. Contraction of a·b + c into one rounding is
switched off, so that money has the same bits as on the CPU.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np

from velodrome.envs.contract import LANES, World
from velodrome.envs.terms import always_drawn, never_drawn
from velodrome.outside.kernels import kept_privately
from velodrome.tables.windows import WindowTables
from velodrome.vector.batch import Outputs, advance, begin
from velodrome.vector.compile.assemble import rebuild, rule_substitutions
from velodrome.vector.compile.kernel_cache import kernel_folder
from velodrome.vector.compile.numba_cuda import SIMULATED, cuda

UNSIGNED_LANES = np.uint32(LANES)
WARP = 32


class Memory(NamedTuple):
    """The state of a batch as kernels see it; in a tuple, because the simulator would copy a bare array."""

    blocks: Any  # [blocks] of the world's state


class Kernels(NamedTuple):
    """The compiled kernels of one rule."""

    step: Any
    reset: Any
    gather: Any


def chosen_params(params: Any) -> Any:
    """Return the rule's scalars; specialised kernels have constants instead."""
    return params


def step_kernel(actions: Any, autoreset: bool, memory: Memory, tables: Any, params: Any, out: Outputs) -> None:
    """Step one environment per thread. Parameters come by value: a GPU reads them from its constant memory."""
    # Unsigned: with a signed index, Numba adds a test for counting from the end to every access.
    row = np.uint32(cuda.grid(1))
    if row < actions.shape[0]:
        state = memory.blocks[row // UNSIGNED_LANES]
        advance(row % UNSIGNED_LANES, row, actions[row], autoreset, state, tables, chosen_params(params), out)


def reset_kernel(chosen: Any, memory: Memory, tables: Any, params: Any, out: Outputs) -> None:
    """Start an episode of each chosen environment."""
    row = np.uint32(cuda.grid(1))
    if row < chosen.shape[0] and chosen[row]:
        begin(row % UNSIGNED_LANES, row, memory.blocks[row // UNSIGNED_LANES], tables, chosen_params(params), out)


def gather_row(row: int, lane: int, cursor: int, windows: WindowTables, observations: Any) -> None:
    """Copy the windows at a cursor into an observation row; neighbouring lanes copy neighbouring floats."""
    at = 0
    for w in range(windows.length.size):
        width = windows.width[w]
        count = windows.length[w] * width
        first = windows.base[w] + (windows.rows[w, cursor] - windows.length[w] + 1) * width
        k = lane
        # Four loads before the first store: the compiler may not reorder them, since the arrays could overlap.
        while k + 3 * WARP < count:
            value_0 = windows.values[first + k]
            value_1 = windows.values[first + k + WARP]
            value_2 = windows.values[first + k + 2 * WARP]
            value_3 = windows.values[first + k + 3 * WARP]
            observations[row, at + k] = value_0
            observations[row, at + k + WARP] = value_1
            observations[row, at + k + 2 * WARP] = value_2
            observations[row, at + k + 3 * WARP] = value_3
            k += 4 * WARP
        while k < count:
            observations[row, at + k] = windows.values[first + k]
            k += WARP
        at += count


def gather_kernel(after_step: bool, windows: WindowTables, out: Outputs) -> None:
    """Write the windows of every environment, and the last ones of episodes that ended in this step; a warp each."""
    row = cuda.blockIdx.x * cuda.blockDim.y + cuda.threadIdx.y
    if row < out.cursors.shape[0]:
        gather_row(row, cuda.threadIdx.x, out.cursors[row], windows, out.observations)
        if after_step and (out.terminated[row] or out.truncated[row]):
            gather_row(row, cuda.threadIdx.x, out.final_cursors[row], windows, out.final_observations)


def atomic_increment(counts: Any, row: int, i: int) -> None:
    """Replace `contract.increment` on the GPU."""
    cuda.atomic.add(counts, (row, i), 1)


_compiled: dict[str, Any] = {}


def _compile(world: World, kernel: Any, specialise: bool) -> Any:
    name = kernel.__name__
    substitutions = {**rule_substitutions(world, specialise), "LOCKSTEP": True}
    substitutions["are_drawn"] = always_drawn if getattr(world.params, "randomised", False) else never_drawn
    if SIMULATED:
        # The simulator runs Python, so the rule is not compiled.
        return cuda.jit(rebuild(kernel, substitutions))
    substitutions["increment"] = atomic_increment
    folder = kernel_folder(world.name, kernel, f"{name}, CUDA", substitutions)
    key = str(folder)
    if key not in _compiled:
        # Link-time optimisation would generate the code again, with contraction.
        no_link_time = {"lto": False} if "lto" in inspect.signature(cuda.jit).parameters else {}

        def on_device(function: Any) -> Any:
            return cuda.jit(function, device=True, **no_link_time)

        rebuilt = rebuild(kernel, substitutions, on_device, str(folder / f"{name}.py"))
        # Not as a decorator with arguments: numba-cuda 0.30 forgets `lto` on that path.
        _compiled[key] = kept_privately(cuda.jit(rebuilt, cache=True, **no_link_time))
    return _compiled[key]


def compile_kernels(world: World, specialise: bool, with_windows: bool) -> Kernels:
    """Return the kernels of a world's rule; they are compiled when first launched, inside `separate_rounding`."""
    return Kernels(
        step=_compile(world, step_kernel, specialise),
        reset=_compile(world, reset_kernel, specialise=False),
        gather=_compile(world, gather_kernel, specialise=False) if with_windows else None,
    )
