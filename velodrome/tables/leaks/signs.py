"""Every row at once, for features without a bound: alter all bars at random and see which later ones a row follows.

Each call moves every bar up or down at random. Over some dozens of calls an honest value follows its own bar, those
before it and its own past; what is left of it then has nothing to do with the signs of later bars. A row that knows a
later bar follows that bar's sign. The rows that follow one best are cut, so chance can raise no false alarm.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from velodrome.tables.leaks.probe import Probe

CALLS = (16, 48)  # fewest and most random alterations …
NUMBERS = 25_000_000  # … so that this many numbers are kept
MOST_NUMBERS = 4 * NUMBERS  # longer data are not screened
LEADS = 32  # bars ahead
CHUNK = 8192  # rows worked on at a time
SURE, CONFIRMED = 0.85, 12  # correlations above it are always looked at, and so many of the highest besides
AGAINST_CHANCE = 40


def screen(probe: Probe) -> Iterator[None]:
    """Alter all bars at random, and cut after the rows that follow later bars best."""
    bars, columns = probe.values.shape
    if bars * columns * CALLS[0] > MOST_NUMBERS:
        return
    calls = int(np.clip(NUMBERS // max(1, bars * columns), *CALLS))
    signs = probe.draws.random((calls, bars)) < 0.5
    blocks = np.empty((calls, bars, columns))
    for number in range(calls):
        yield
        block = probe.call(probe.alterations.mixed(signs[number]))
        if block is None:
            return
        blocks[number] = block
    noise = np.where(signs, np.float32(1.0), np.float32(-1.0))
    best = np.zeros(bars, np.float32)
    for column in range(columns):
        yield
        best = np.maximum(best, _following(blocks[..., column], noise, probe.look_back))
    probe.screened = True
    order = np.argsort(best)[::-1][: CONFIRMED + AGAINST_CHANCE]
    for rank, row in enumerate(order.tolist()):
        if best[row] == 0.0 or (rank >= CONFIRMED and best[row] < SURE):
            return
        yield
        if probe.confirm(row):
            return


def _following(values: NDArray[np.float64], noise: NDArray[np.float32], look_back: int | None) -> NDArray[np.float32]:
    """Return for each row the highest correlation with the sign of a later bar, of what its past does not explain."""
    bars, before = values.shape[1], (look_back or 0) + 3
    best = np.zeros(bars, np.float32)
    for begin in range(0, bars, CHUNK):
        end = min(bars, begin + CHUNK)
        part = slice(max(0, begin - before), min(bars, end + LEADS))
        rest = _unexplained(values[:, part], noise[:, part], look_back)
        for lead in range(1, min(LEADS + 1, rest.shape[1])):
            followed = np.abs(np.einsum("kt,kt->t", rest[:, :-lead], noise[:, part][:, lead:]))[begin - part.start :]
            shown = best[begin : begin + len(followed)]
            np.maximum(shown, followed[: len(shown)], out=shown)
    return best / np.float32(np.sqrt(len(values)))


def _unexplained(values: NDArray[np.float64], noise: NDArray[np.float32], look_back: int | None) -> NDArray[np.float32]:
    """Return what a value's own past and the bars up to it leave unexplained, [calls, rows], of length 1."""
    # What a recursion or a window is made of: the values before, and the bars that come in and go out.
    lags = [0, 1, 2] + ([look_back, look_back + 1] if look_back else [])
    known = [_moved(values, 1), _moved(values, 2), *(_moved(noise, lag).astype(np.float64) for lag in lags)]
    base = [np.full(values.shape, 1.0 / np.sqrt(len(values)))]
    for each in [*known, values]:
        rest = np.nan_to_num(each - each[:1])
        for other in base:
            rest -= other * np.einsum("kt,kt->t", other, rest)
        length = np.sqrt(np.einsum("kt,kt->t", rest, rest))
        base.append(rest / np.where(length > 0, length, 1.0))
    return base[-1].astype(np.float32)


def _moved(matrix: NDArray, lag: int) -> NDArray:
    """Return the columns of so many rows before, zeros where there are none."""
    moved = np.zeros_like(matrix)
    moved[:, lag:] = matrix[:, : matrix.shape[1] - lag]
    return moved
