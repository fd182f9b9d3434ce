"""The loops around a rule, written once. The rule's four functions take the places of the names below.

`assemble.py` puts a rule's functions (and `copy_floats`) in place of the stand-ins and compiles the result, or not.
`parts.py` runs it on several cores. `cuda_kernels.py` calls the same `advance` and `begin`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from velodrome.envs._template import finish, observe, reset, step
from velodrome.envs.contract import LANES
from velodrome.tables.windows import WindowTables


class Outputs(NamedTuple):
    """What a step leaves behind, one row per environment; D floats of observation."""

    rewards: NDArray[np.float32]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]
    observations: NDArray[np.float32]  # [n, D] windows, then what `observe` writes
    cursors: NDArray[np.int32]  # [n]
    final_observations: NDArray[np.float32]  # [n, D] of the episode that ended in this step; else old
    final_cursors: NDArray[np.int32]  # [n]
    statistics: NDArray[np.float64]  # [n, s] of the episode that ended in this step; else old
    window_floats: int  # where the observed part of a row begins
    streamed: int  # 1: windows are written past the caches, which could not hold them anyway


def copy_floats(source: NDArray[np.float32], first: int, count: int, target: NDArray[np.float32], at: int) -> None:
    """Copy floats; compiled code has a raw memcpy in this one's place, several times faster than a loop."""
    target[at : at + count] = source[first : first + count]


def stream_floats(source: NDArray[np.float32], first: int, count: int, target: NDArray[np.float32], at: int) -> None:
    """Copy floats; compiled code has a copy past the caches in this one's place."""
    target[at : at + count] = source[first : first + count]


def wait_for_stores() -> None:
    """Do nothing; compiled code lets what was written past the caches arrive before anything that follows."""


def prefetch_floats(source: NDArray[np.float32], first: int, count: int) -> None:
    """Do nothing; compiled code asks the memory for these floats, so that they are there when they are copied."""


def chosen_params(params: Any) -> Any:
    """Return the rule's scalars from the array of one record that they come in; specialised loops have constants."""
    return params[0]


def gather(cursor: int, windows: WindowTables, row: NDArray[np.float32], streamed: int) -> None:
    """Write every window at a cursor into the front of an observation row."""
    at = 0
    for w in range(windows.length.size):
        width = windows.width[w]
        count = windows.length[w] * width
        first = windows.base[w] + (windows.rows[w, cursor] - windows.length[w] + 1) * width
        if streamed:
            stream_floats(windows.values, first, count, row, at)
        else:
            copy_floats(windows.values, first, count, row, at)
        at += count


def prefetch(cursor: int, windows: WindowTables) -> None:
    """Ask for the windows that `gather` will read one step after a cursor."""
    for w in range(windows.length.size):
        width = windows.width[w]
        first = windows.base[w] + (windows.rows[w, cursor] - windows.length[w] + 1) * width
        prefetch_floats(windows.values, first, (windows.length[w] + 1) * width)


def begin(lane: Any, row: Any, state: Any, tables: Any, params: Any, out: Outputs) -> None:
    """Start an episode of the environment in a lane of a block; `row` is its row in the outputs."""
    reset(lane, state, tables, params)
    observe(lane, state, tables, params, out.observations[row][out.window_floats :])
    out.cursors[row] = state.cursor[lane]


def advance(
    lane: Any, row: Any, action: Any, autoreset: bool, state: Any, tables: Any, params: Any, out: Outputs
) -> bool:
    """Step one environment; if its episode ended, keep what belongs to it and start the next. Return whether it did."""
    reward, terminated, truncated = step(lane, action, state, tables, params)
    observed = out.observations[row][out.window_floats :]
    # Straight after the step: the compiler may then take what it reads from registers. In an episode that ended, it
    # is the final observation.
    observe(lane, state, tables, params, observed)
    ended = terminated or truncated
    if ended:
        final = out.final_observations[row][out.window_floats :]
        for k in range(observed.size):
            final[k] = observed[k]
        out.final_cursors[row] = state.cursor[lane]
        finish(lane, state, tables, params, out.statistics[row])
        if autoreset:
            reset(lane, state, tables, params)
            observe(lane, state, tables, params, observed)
    out.cursors[row] = state.cursor[lane]
    out.rewards[row] = reward
    out.terminated[row] = terminated
    out.truncated[row] = truncated
    return ended


def unpack(pack: Any) -> Any:
    """Return (blocks, tables, params, windows, out); compiled loops have one from `packing.py` in this one's place."""
    return pack


def step_block(block: int, actions: Any, autoreset: bool, pack: Any) -> int:
    """Step the environments of one block; return how many episodes ended."""
    blocks, tables, params, windows, out = unpack(pack)
    state = blocks[block]
    first = block * LANES
    finished = 0
    count = min(LANES, actions.shape[0] - first)
    for k in range(count):
        # Unsigned: for a signed index Numba adds a test for counting from the end to every access.
        lane, row = np.uint32(k), np.uint32(first + k)
        # While this environment computes, the next one's windows arrive.
        prefetch(out.cursors[first + min(k + 1, count - 1)], windows)
        if advance(lane, row, actions[row], autoreset, state, tables, chosen_params(params), out):
            gather(out.final_cursors[row], windows, out.final_observations[row], out.streamed)
            finished += 1
        gather(out.cursors[row], windows, out.observations[row], out.streamed)
    if out.streamed:
        wait_for_stores()
    return finished


def own_address() -> int:
    """Return 0; compiled code has the address of its machine code in this one's place."""
    return 0


def step_part(part: int, parts: int, actions: Any, autoreset: bool, pack: Any) -> int:
    """Step the environments of one of so many parts of equal size; return how many episodes ended.

    Asked for a part of none, it says instead where its machine code begins.
    """
    if parts == 0:
        return own_address()
    blocks = (actions.shape[0] + LANES - 1) // LANES
    finished = 0
    for block in range(part * blocks // parts, (part + 1) * blocks // parts):
        finished += step_block(block, actions, autoreset, pack)
    return finished


def reset_all(chosen: NDArray[np.bool_], pack: Any) -> None:
    """Start an episode of every chosen environment."""
    blocks, tables, params, windows, out = unpack(pack)
    for row in range(chosen.size):
        if chosen[row]:
            begin(np.uint32(row % LANES), np.uint32(row), blocks[row // LANES], tables, chosen_params(params), out)
            gather(out.cursors[row], windows, out.observations[row], out.streamed)


def gather_block(block: int, rows: int, pack: Any) -> None:
    """Write the windows of one block."""
    _, _, _, windows, out = unpack(pack)
    first = block * LANES
    for row in range(first, min(first + LANES, rows)):
        prefetch(out.cursors[min(row + 1, rows - 1)], windows)
        gather(out.cursors[row], windows, out.observations[row], out.streamed)
    if out.streamed:
        wait_for_stores()


def gather_all(rows: int, pack: Any) -> None:
    """Write the windows of so many environments and nothing else: what a benchmark compares with memcpy."""
    for block in prange((rows + LANES - 1) // LANES):
        gather_block(block, rows, pack)
