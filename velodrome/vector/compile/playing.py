"""Plays many bars of a batch without going back to Python: decide, step, note what became of it, again.

The step is the one that `NativeVectorEnv` has compiled, called by its address, so that this loop is compiled once for
all rules. Who decides takes the place of `decide`. What is noted is copied byte by byte from the state's columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.envs.contract import LANES
from velodrome.vector.batch import WRONG
from velodrome.vector.compile.memcpy import clear_bytes, copy_bytes
from velodrome.vector.compile.threads import call_part

PLAYED, UNDECIDED, WRONG_VALUE = 0, 1, 2  # how a stretch of bars ended


class Seen(NamedTuple):
    """What a batch of n environments shows after each step, in place."""

    observations: NDArray[np.float32]  # [n, D]
    cursors: NDArray[np.int32]  # [n]
    rewards: NDArray[np.float32]  # [n]
    terminated: NDArray[np.bool_]  # [n]
    truncated: NDArray[np.bool_]  # [n]


class Copied(NamedTuple):
    """A state column on its way into a record, as numbers: addresses and sizes in bytes."""

    source: int  # of the first block
    block: int  # from one block to the next
    target: int  # where the rows of bar 0 go
    bar: int  # from one bar to the next
    item: int
    rows: int  # values of an environment
    kept: int  # environments
    cleared: int  # 1: the column is emptied once it is copied


class Notes(NamedTuple):
    """Where a batch is recorded."""

    actions: NDArray  # [T, kept · numbers of an action]
    rewards: NDArray[np.float64]  # [T, n]
    bars: NDArray[np.int64]  # [n] steps of the episode so far
    alive: NDArray[np.bool_]  # [n] whether it goes on
    columns: NDArray[np.int64]  # [C, …] as in `Copied`
    fault: NDArray[np.int64]  # [2] how it ended, and the environment that nothing was decided for


def decide(policy: Any, bar: int, seen: Seen, actions: NDArray) -> int:
    """Write the actions of a bar; return −1, or the environment for which there is none. A stand-in."""
    return -1


class Plan(NamedTuple):
    """Actions that are known before the first bar is played."""

    first: NDArray  # [n, …] that go on until others are planned
    table: NDArray  # [bars, n · numbers] of every bar; or [rows, numbers] of a row of the market, for any environment
    unplanned: NDArray[np.bool_]  # [rows] where the action before goes on; empty: the table is of bars


def as_planned(plan: Plan, bar: int, seen: Seen, actions: NDArray) -> int:
    """Decide by a plan."""
    flat = actions.reshape(-1)
    if plan.unplanned.size == 0:
        for k in range(flat.size):
            flat[k] = plan.table[bar, k]
        return -1
    numbers = flat.size // seen.cursors.size
    for n in range(seen.cursors.size):
        row = seen.cursors[n]
        if not plan.unplanned[row]:
            for k in range(numbers):
                flat[n * numbers + k] = plan.table[row, k]
    return -1


def copy_columns(columns: NDArray[np.int64], bar: int) -> None:
    """Copy every column into the rows of a bar."""
    for c in range(columns.shape[0]):
        item, rows, kept = columns[c, 4], columns[c, 5], columns[c, 6]
        place = columns[c, 2] + bar * columns[c, 3]
        for row in range(rows):
            for first in range(0, kept, LANES):
                count = min(LANES, kept - first) * item
                source = columns[c, 0] + first // LANES * columns[c, 1] + row * LANES * item
                copy_bytes(source, place, count)
                if columns[c, 7]:
                    clear_bytes(source, count)
                place += count


def play_bars(
    address: int, begin: int, end: int, actions: NDArray, pack: NDArray[np.int64], seen: Seen, policy: Any, notes: Notes
) -> int:
    """Play the bars from one up to another, or until no episode goes on; return the bar that comes next.

    address: of a compiled `step_part`. actions: [n] or [n, numbers], written over in each bar.
    """
    chosen = actions.reshape(-1)
    for bar in range(begin, end):
        row = decide(policy, bar, seen, actions)
        if row >= 0:
            notes.fault[0], notes.fault[1] = UNDECIDED, row
            return bar
        for k in range(notes.actions.shape[1]):
            notes.actions[bar, k] = chosen[k]
        if call_part(address, 0, 1, actions, False, pack) >= WRONG:
            notes.fault[0] = WRONG_VALUE
            return bar
        left = 0
        for k in range(notes.alive.size):
            notes.rewards[bar, k] = seen.rewards[k]
            notes.bars[k] += notes.alive[k]
            notes.alive[k] = notes.alive[k] and not (seen.terminated[k] or seen.truncated[k])
            left += notes.alive[k]
        copy_columns(notes.columns, bar)
        if left == 0:
            return bar + 1
    return end
