"""Market windows as the kernels gather them: every window of every timeframe and instrument in one flat array.

A window w of an observation at cursor t is `length[w]` consecutive rows of `width[w]` floats, oldest first, that end at
row `rows[w, t]` of table w. Its first float is `values[base[w] + (rows[w, t] - length[w] + 1) * width[w]]`, so that a
window is one contiguous copy whatever the timeframe. Each instrument's rows are preceded by `length[w]` rows of
zeros: a window that reaches back before the first bar shows zeros there, and can never show another instrument.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError


class WindowTables(NamedTuple):
    """Read-only arrays over all windows; w counts windows, t counts execution bars of all instruments."""

    values: NDArray[np.float32]  # [floats]
    base: NDArray[np.int64]  # [w] first float of table w
    width: NDArray[np.int64]  # [w] floats per row: the number of features
    length: NDArray[np.int64]  # [w] rows per window
    rows: NDArray[np.int32]  # [w, t] last row of the window at cursor t


class WindowPart(NamedTuple):
    """One timeframe's rows of one instrument."""

    values: NDArray[np.float32]  # [rows, features]
    last_row: NDArray[np.int64]  # [execution bars] last row that had closed; −1 while there is none


def no_windows(bars: int) -> WindowTables:
    """Return tables without a window over a number of execution bars: observations are the account vector only."""
    nothing = np.zeros(0, np.int64)
    return _frozen(WindowTables(nothing.astype(np.float32), nothing, nothing, nothing, np.zeros((0, bars), np.int32)))


def _frozen(tables: WindowTables) -> WindowTables:
    for array in tables:
        array.flags.writeable = False
    return tables


def stack_windows(windows: list[tuple[int, list[WindowPart]]]) -> WindowTables:
    """Lay windows out for the kernels; each is (length, parts), one part for every instrument in order."""
    values: list[NDArray[np.float32]] = []
    rows: list[NDArray[np.int32]] = []
    base = np.zeros(len(windows), np.int64)
    width = np.zeros(len(windows), np.int64)
    floats = 0
    for index, (length, parts) in enumerate(windows):
        if length < 1:
            raise ConfigError(f"a window must have at least 1 row, received {length}")
        features = parts[0].values.shape[1]
        base[index], width[index] = floats, features
        first_row = 0
        row_of_bar = []
        for part in parts:
            first_row += length
            values += [np.zeros(length * features, np.float32), part.values.astype(np.float32).ravel()]
            row_of_bar.append(np.maximum(part.last_row, -1) + first_row)
            first_row += len(part.values)
        rows.append(np.concatenate(row_of_bar).astype(np.int32))
        floats += first_row * features
    lengths = np.array([length for length, _ in windows], np.int64)
    return _frozen(WindowTables(np.concatenate(values), base, width, lengths, np.stack(rows)))


def window_at(windows: WindowTables, index: int, cursor: int) -> NDArray[np.float32]:
    """Return window `index` at a cursor as [length, width]: the readable form of what the kernels copy."""
    length, width = int(windows.length[index]), int(windows.width[index])
    first = int(windows.base[index]) + (int(windows.rows[index, cursor]) - length + 1) * width
    return windows.values[first : first + length * width].reshape(length, width)
