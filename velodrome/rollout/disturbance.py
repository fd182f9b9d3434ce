"""Noise and masks on what training environments show of a market: the same windows, never twice the same numbers.

Before every rollout the learner's own table of features is written anew from the true one. A number depends on nothing
but (seed, steps done so far, its place): not on threads, the device, the number of environments, or a stop between two
rollouts. Acting, valuing and learning of one rollout see the same table, as PPO's ratio needs it. Rows that no training
window shows are left alone, and evaluations read a table of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from velodrome.outside.kernels import cached_njit
from velodrome.rollout.both_targets import BYTES_DEVIATION, is_masked, noisy
from velodrome.rollout.launch import on_device
from velodrome.rollout.observation import Ranges, WindowBank
from velodrome.tables.windows import WindowTables

STREAM = 0x64697374  # sets these numbers apart from the environments' own
# A feature is masked for a stretch of this many rows: whole windows lack it, and a rollout sees many masks.
STRETCH = 256
EXACT_BITS = 13  # of a scale: times the sum of bytes it has at most 24, so that no device rounds the product
NOISE, ROWS, COLUMNS, PURPOSES = range(4)  # a counter's upper half is steps · PURPOSES + one of the others
ZERO = np.float32(0.0)


class Strength(NamedTuple):
    """How strongly windows are disturbed; 0 each: not at all."""

    noise: float = 0.0  # deviation of what is added, unit: the feature's own deviation over the training rows
    mask_features: float = 0.0  # share of features set to 0, for stretches of rows
    mask_bars: float = 0.0  # share of rows set to 0


class Runs(NamedTuple):
    """Floats of the table that are masked together."""

    first: Any  # [items]
    count: Any  # [items]
    apart: Any  # [items] from one to the next


@cached_njit(nogil=True)
def add_noise(true, scale, key, when, out):
    for i in range(out.size):
        out[i] = noisy(i, true[i], scale[i], key, when)


@cached_njit(nogil=True)
def mask_runs(first, count, apart, limit, key, when, out):
    for i in range(first.size):
        if is_masked(i, limit, key, when):
            for k in range(count[i]):
                out[first[i] + k * apart[i]] = ZERO


class Disturbance:
    """Writes a bank's table anew from the true one."""

    def __init__(self, true: WindowBank, bank: WindowBank, cursors: Ranges, strength: Strength, seed: int) -> None:
        """true: a bank of the same windows that is not touched. cursors: those of training."""
        self.bank, windows, device = bank, true.tables, bank.table.device
        self.true = torch.from_numpy(np.array(windows.values)).to(device)
        # Written here, and from here into a bank of another type.
        self.written = bank.table if bank.table.dtype == torch.float32 else self.true.clone()
        stretches = [_stretches(windows, w, cursors) for w in range(len(windows.length))]
        self.key = np.random.SeedSequence((seed, STREAM)).generate_state(1, np.uint64)[0]

        def placed(arrays: Any) -> tuple[torch.Tensor, ...]:
            return tuple(torch.from_numpy(array).to(device) for array in arrays)

        self.scale = placed([_noise_scale(windows, stretches, strength.noise)])[0] if strength.noise else None
        chosen = ((ROWS, strength.mask_bars, _rows), (COLUMNS, strength.mask_features, _columns))
        self.masks = [
            (purpose, int(share * 2**32), placed(runs(windows, stretches))) for purpose, share, runs in chosen if share
        ]

    def write(self, steps: int) -> None:
        """Write the table of the rollout that begins after this many steps."""
        if self.scale is None:
            self.written.copy_(self.true)
        else:
            self._run(add_noise, len(self.true), self.true, self.scale, *self._when(steps, NOISE))
        for purpose, limit, runs in self.masks:
            self._run(mask_runs, len(runs[0]), *runs, limit, *self._when(steps, purpose))
        if self.written is not self.bank.table:
            self.bank.table.copy_(self.written)

    def _when(self, steps: int, purpose: int) -> tuple[np.uint64, np.uint64]:
        return self.key, np.uint64(steps * PURPOSES + purpose)

    def _run(self, loop: Any, items: int, *arguments: Any) -> None:
        if on_device(self.written):
            from velodrome.rollout import cuda_rows

            getattr(cuda_rows, loop.__name__)(items, *arguments, self.written)
        else:
            loop(*(part.numpy() if isinstance(part, torch.Tensor) else part for part in (*arguments, self.written)))


# Where training windows look


def _stretches(windows: WindowTables, w: int, cursors: Ranges) -> NDArray[np.int64]:
    """Return the rows of window w's table that training shows as (first, end), none longer than STRETCH."""
    last, length = windows.rows[w], int(windows.length[w])
    shown = np.zeros(int(last.max()) + 2, bool)
    for begin, end in cursors:
        if end > begin:
            shown[int(last[begin]) - length + 1 : int(last[end - 1]) + 1] = True
    edges = np.flatnonzero(np.diff(shown, prepend=False)).reshape(-1, 2)
    parts = [np.append(np.arange(first, end, STRETCH), end) for first, end in edges]
    return np.concatenate([np.stack([cuts[:-1], cuts[1:]], 1) for cuts in parts])


def _table(windows: WindowTables, w: int, values: NDArray) -> NDArray:
    """Return window w's table of these values as [rows, features]."""
    base, width = int(windows.base[w]), int(windows.width[w])
    end = int(windows.base[w + 1]) if w + 1 < len(windows.base) else len(values)
    return values[base:end].reshape(-1, width)


def _noise_scale(windows: WindowTables, stretches: list[NDArray[np.int64]], noise: float) -> NDArray[np.float32]:
    """Return by float of the table what a unit of the sum of bytes adds: 0 where training does not look."""
    scale = np.zeros(len(windows.values), np.float32)
    for w, pieces in enumerate(stretches):
        values, own = _table(windows, w, windows.values), _table(windows, w, scale)
        rows = np.concatenate([np.arange(first, end) for first, end in pieces])
        mantissa, exponent = np.frexp(values[rows].std(0, dtype=np.float64) * (noise / BYTES_DEVIATION))
        own[rows] = np.ldexp(np.round(mantissa * 2**EXACT_BITS), exponent - EXACT_BITS)
    # Nothing yet, or nothing happened: what is 0 stays 0.
    scale[windows.values == 0.0] = 0.0
    return scale


def _rows(windows: WindowTables, stretches: list[NDArray[np.int64]]) -> Runs:
    """Return every row by itself."""
    first, count = [], []
    for w, pieces in enumerate(stretches):
        rows = np.concatenate([np.arange(begin, end) for begin, end in pieces])
        first.append(windows.base[w] + rows * windows.width[w])
        count.append(np.full(len(rows), windows.width[w]))
    starts = np.concatenate(first)
    return Runs(starts, np.concatenate(count), np.ones_like(starts))


def _columns(windows: WindowTables, stretches: list[NDArray[np.int64]]) -> Runs:
    """Return every feature of every stretch by itself."""
    found = [
        (windows.base[w] + begin * windows.width[w] + column, end - begin, windows.width[w])
        for w, pieces in enumerate(stretches)
        for begin, end in pieces
        for column in range(windows.width[w])
    ]
    return Runs(*np.ascontiguousarray(np.array(found, np.int64).T))
