"""What a policy sees of n environments: a few values each, and the bar at which their market windows end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from velodrome.envs.contract import InstrumentLayout
from velodrome.tables.windows import WindowTables

Ranges = tuple[tuple[int, int], ...]  # (first, end) each
Device = torch.device | str
LARGEST_BYTE = 255.0


class Observation(NamedTuple):
    """Observations of n environments; windows are given by their cursor and gathered when needed."""

    values: Tensor  # [n, V] float32: the account vector, or the whole observation where there are no windows
    cursor: Tensor | None = None  # [n] integers: the bar observed last
    windows: Tensor | None = None  # [n, floats] if the caller has the windows themselves

    def select(self, rows: Tensor) -> Observation:
        """Return the observations of some rows."""
        return Observation(self.values[rows], None if self.cursor is None else self.cursor[rows])


@dataclass(frozen=True)
class ObservationShape:
    """How large an observation is."""

    values: int
    windows: tuple[tuple[int, int], ...] = ()  # [rows, features] of each window
    instruments: InstrumentLayout | None = None  # how values, windows and actions divide by instrument, if at all
    bytes: Ranges = ()  # which of the values were bytes, and are divided by 255

    @property
    def window_floats(self) -> int:
        """Floats of all windows together."""
        return sum(rows * features for rows, features in self.windows)

    @property
    def floats(self) -> int:
        """Floats of an observation laid out flat: windows, then values."""
        return self.window_floats + self.values

    def divisors(self, device: Device = "cpu") -> Tensor | None:
        """What values are divided by before a network sees them, [values]; None if all stay as they are."""
        if not self.bytes:
            return None
        found = torch.ones(self.values)
        for first, end in self.bytes:
            found[first:end] = LARGEST_BYTE
        return found.to(device)


class WindowBank:
    """Market windows on a device, gathered by cursor without ever being laid out for all bars."""

    def __init__(
        self, windows: WindowTables, cursors: Ranges = (), device: Device = "cpu", dtype: torch.dtype = torch.float32
    ) -> None:
        bars = windows.rows.shape[1]
        # Copied: torch refuses read-only arrays, and a table that is disturbed must be nobody else's.
        self.table = torch.from_numpy(np.array(windows.values)).to(device=device, dtype=dtype)
        self.tables = windows
        if self.table.device.type == "cpu" and dtype == torch.float32:  # compiled loops read the very same numbers
            values = self.table.numpy()
            values.flags.writeable = False
            self.tables = windows._replace(values=values)
        self.is_disturbed = False  # whether the table is written anew before each rollout
        self.shapes = tuple((int(rows), int(width)) for rows, width in zip(windows.length, windows.width, strict=True))
        self.floats = sum(rows * width for rows, width in self.shapes)
        self.first_rows: list[Tensor] = []  # [bars] by window: row of the table at which the window of a bar begins
        self.bases = [int(base) for base in windows.base]  # first float of each window's rows in the table
        self.views: list[Tensor] = []  # [rows of the table, floats of a window], overlapping
        for index, (rows, width) in enumerate(self.shapes):
            last = int(windows.rows[index].max())
            self.first_rows.append(
                torch.from_numpy(windows.rows[index].astype(np.int64) - rows + 1).to(device).contiguous()
            )
            self.views.append(self.table.as_strided((last - rows + 2, rows * width), (width, 1), self.bases[index]))
        ranges = cursors or ((0, bars),)
        reached = np.concatenate([np.arange(begin, end) for begin, end in ranges])
        self.bars = torch.from_numpy(reached).to(device)  # [B] those a cursor can be at
        position = np.zeros(bars, np.int64)
        position[reached] = np.arange(len(reached))
        self.position = torch.from_numpy(position).to(device)  # [bars] place of each in `bars`

    def gather(self, cursor: Tensor) -> Tensor:
        """Return the windows at some cursors, [n, floats]."""
        parts = [
            view.index_select(0, first.index_select(0, cursor))
            for view, first in zip(self.views, self.first_rows, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def split_windows(windows: Tensor, shapes: tuple[tuple[int, int], ...]) -> list[Tensor]:
    """Return flat windows, [n, floats], as [n, rows, features] each."""
    parts, at = [], 0
    for rows, width in shapes:
        parts.append(windows[:, at : at + rows * width].unflatten(1, (rows, width)))
        at += rows * width
    return parts
