"""The pieces of a split as one account: each goes on with what the one before left.

Every piece is played with the start equity, side by side with the others. What is counted in money or in units is then
multiplied by what the account had grown to, so that all that is made of the tracks (curves, trades, costs) is that of
one account. A position ends with its piece, at its last close and without costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from velodrome.evaluation.play import AnyTrack, Track

# Columns of the state, and notes, that are amounts of money or of units; the others are shares, prices and counts.
AMOUNTS = (
    *("equity", "cash", "units", "fees", "funding", "spread_sum"),
    *("bought", "sold", "buy_fees", "sell_fees", "spread"),
)


def carried_on(
    tracks: Sequence[AnyTrack], amounts_in: Mapping[str, NDArray[np.bool_]] | None = None
) -> tuple[AnyTrack, ...]:
    """Return tracks of which each begins with what the one before it left, if that is of the same instrument.

    Once nothing is left, nothing more is done. amounts_in: of notes that mix amounts with prices, which rows of them
        are amounts.
    """
    found: list[AnyTrack] = []
    for track in tracks:
        follows = bool(found) and found[-1].symbol == track.symbol
        found.append(_after(found[-1], track, amounts_in or {}) if follows else track)
    return tuple(found)


def _after(before: Track, track: AnyTrack, amounts_in: Mapping[str, NDArray[np.bool_]]) -> AnyTrack:
    level = before.equity[-1] / track.equity[0]  # [S]
    track = track.until(np.where(level > 0.0, track.bars, 0))

    def carried(name: str, values: NDArray) -> NDArray:
        """Return [T + 1, S] or [T, rows, D] as the account has it."""
        own = level[: values.shape[-1]].astype(values.dtype)
        if name in amounts_in:
            return np.where(amounts_in[name][:, None], values * own, values)
        return values * own if name in AMOUNTS else values

    columns, notes = (
        {name: carried(name, values) for name, values in own.items()} for own in (track.columns, track.notes)
    )
    return replace(track, columns=columns, notes=notes, began_with=before.start_equity)
