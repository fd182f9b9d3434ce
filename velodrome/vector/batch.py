"""The loops around a rule, written once. The functions of a rule replace the four that are imported below.

`compile/assemble.py` puts a rule's functions (and `copy_floats`) in place of these stand-ins, `compile/cpu_loops.py`
compiles the result, and `compile/threads.py` runs it on several cores. `compile/cuda_loops.py` calls the same `advance`
and `begin`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from velodrome.envs._template import finish, observe, reset, step
from velodrome.envs.contract import LANES
from velodrome.tables.windows import WindowTables

WRONG = 1 << 32  # added to the number of episodes that ended, for each place with a wrong value


class Outputs(NamedTuple):
    """What a step leaves behind, one row per environment; an observation has D floats."""

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
    """Copy floats; compiled code uses a raw memcpy instead, several times faster than a loop."""
    target[at : at + count] = source[first : first + count]


def stream_floats(source: NDArray[np.float32], first: int, count: int, target: NDArray[np.float32], at: int) -> None:
    """Copy floats; compiled code uses a copy past the caches instead."""
    target[at : at + count] = source[first : first + count]


def wait_for_stores() -> None:
    """Do nothing; compiled code waits until what was written past the caches has arrived."""


def prefetch_floats(source: NDArray[np.float32], first: int, count: int) -> None:
    """Do nothing; compiled code requests these floats from memory, so that they are there when they are copied."""


def wrong_in_row(values: NDArray[np.float32], first: int, count: int) -> int:
    """Return 0; in this place, loops that check values look at what stands beside windows."""
    return 0


def wrong_in_block(values: NDArray[np.float32], first: int, count: int) -> int:
    """Return 0; in this place, loops that check values look at what the environments of a block have in one piece."""
    return 0


def not_finite_among(values: NDArray[np.float32], first: int, count: int) -> int:
    """Return WRONG if some of these values is NaN or infinite, else 0; compiled loops have others in its place."""
    return 0 if np.isfinite(values[first : first + count]).all() else WRONG


def chosen_params(params: Any) -> Any:
    """Return the rule's scalars, which come as an array of one record; specialised loops have constants instead."""
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
    """Request the windows that `gather` will read one step after a cursor."""
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
    """Step one environment; if its episode ended, keep its results and start the next. Return whether it ended."""
    reward, terminated, truncated = step(lane, action, state, tables, params)
    observed = out.observations[row][out.window_floats :]
    # Directly after the step, so that the compiler can keep values in registers. If the episode ended, this is its
    # final observation.
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
    """Return (blocks, tables, params, windows, out); compiled loops use one from `packing.py` instead."""
    return pack


def step_block(block: int, actions: Any, autoreset: bool, pack: Any) -> int:
    """Step the environments of one block; return how many episodes ended, plus WRONG for each wrong value found."""
    blocks, tables, params, windows, out = unpack(pack)
    state = blocks[block]
    first = block * LANES
    finished = 0
    count = min(LANES, actions.shape[0] - first)
    width = out.observations.shape[1]
    observations, finals = out.observations.reshape(-1), out.final_observations.reshape(-1)
    for k in range(count):
        # Unsigned: with a signed index, Numba adds a test for counting from the end to every access.
        lane, row = np.uint32(k), np.uint32(first + k)
        # The next environment's windows arrive while this one computes.
        prefetch(out.cursors[first + min(k + 1, count - 1)], windows)
        observed = (first + k) * width + out.window_floats
        if advance(lane, row, actions[row], autoreset, state, tables, chosen_params(params), out):
            gather(out.final_cursors[row], windows, out.final_observations[row], out.streamed)
            finished += 1 + wrong_in_row(finals, observed, width - out.window_floats)
        # Before windows that are written past the caches drive the rest of the row out of them.
        finished += wrong_in_row(observations, observed, width - out.window_floats)
        gather(out.cursors[row], windows, out.observations[row], out.streamed)
    if not out.window_floats:
        if finished:
            # Those of earlier steps too: to choose takes longer, and they were right.
            finished += wrong_in_block(finals, first * width, count * width)
        finished += wrong_in_block(observations, first * width, count * width)
    finished += wrong_in_block(out.rewards, first, count)
    if out.streamed:
        wait_for_stores()
    return finished


def own_address() -> int:
    """Return 0; compiled code returns the address of its machine code instead."""
    return 0


def step_part(part: int, parts: int, actions: Any, autoreset: bool, pack: Any) -> int:
    """Step the environments of one of `parts` equal parts; return how many episodes ended.

    With `parts` = 0 it returns the address of its machine code instead.
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
    """Write the windows of the first environments and nothing else, for a benchmark to compare with memcpy."""
    for block in prange((rows + LANES - 1) // LANES):
        gather_block(block, rows, pack)
