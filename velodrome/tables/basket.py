"""`Basket`: several instruments on one time grid, as frozen, contiguous, read-only arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.tables.market import WindowedRows


@dataclass(frozen=True, kw_only=True, repr=False)
class Basket(WindowedRows):
    """Bars of K instruments on one grid of T rows; a window's row holds the F features of each instrument in turn.

    The grid has a row wherever any instrument has a bar. Where an instrument has none (not listed yet, halted) it is
    not tradable, and its open and close are its last close, 0 before the first.
    """

    open: NDArray[np.float64]  # [T, K]
    close: NDArray[np.float64]  # [T, K]
    tradable: NDArray[np.uint8]  # [T, K] 1 where the instrument has a bar

    @property
    def stretches(self) -> tuple[str, ...]:
        """The whole grid is one; each piece of a split is."""
        return ("the grid",) * len(self.begin)

    @property
    def members(self) -> tuple[tuple[str, ...], ...]:
        """All instruments are on the one grid."""
        return (self.symbols,) * len(self.begin)


def per_instrument(window: NDArray, instruments: int) -> NDArray:
    """Return a window […, length, K·F] as [… , K, length, F], without copying: one table for each instrument."""
    *lead, length, width = window.shape
    apart = window.reshape(*lead, length, instruments, width // instruments)
    return np.moveaxis(apart, -2, -3)
