"""Proof for every row of a feature with a bounded look-back: alter bars in blocks, all over the data at once.

A value that depends on its own bar and L before it must stay the same when those are true and the ones right after it
are altered. Blocks of altered bars stand L + 1 true ones apart, so one call tests a row before each block; moved by one
bar each time, the blocks have stood after every row when the period is through.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from velodrome.tables.leaks.cuts import spread
from velodrome.tables.leaks.probe import Probe, different

PLACES = 6  # single bars that are altered in one call …
SETS = 4  # … at so many sets of places
NARROW, WIDE = 4, 256  # bars of a block: what follows at once, and what follows later
CONFIRMED = 3  # suspected rows of one call that are looked at
LAST_DIGITS_LOOKED_AT = 8  # rows that change by rounding only, so that their digits are judged
RESTARTS = 3  # times that a look-back may turn out longer than measured


def measure(probe: Probe) -> Iterator[None]:
    """Alter single bars and see for how long values change after them: sets `look_back`, None if there is no bound."""
    bars = len(probe.series)
    gap = bars // PLACES
    if gap < 4:
        return
    longest = 0
    for number in range(SETS):
        rows = (gap * (2 * number + 1)) // (2 * SETS) + gap * np.arange(PLACES)
        for variant in probe.alterations.pair:
            yield
            block = probe.call(probe.alterations.put(rows, variant))
            if block is None:
                return
            differing = different(probe.values, block)
            changed = np.any(probe.beyond_rounding(probe.values, block, differing), axis=1)
            if changed[: rows[0]].any() and probe.confirm(int(np.flatnonzero(changed[: rows[0]])[-1])):
                return
            for row, end in zip(rows, [*rows[1:], bars], strict=True):
                after = np.flatnonzero(changed[row:end])
                longest = max(longest, int(after[-1]) if len(after) else 0)
            if longest > gap // 2:
                return
    probe.look_back = longest


def prove(probe: Probe, which: int, width: int) -> Iterator[None]:
    """Let blocks of altered bars stand after every row; a row that changes is suspected and then cut."""
    restarts = looked_at = 0
    while probe.look_back is not None and probe.leak is None:
        period = probe.look_back + 1 + width
        for phase in spread(period):
            yield
            starts = np.arange(phase + 1, len(probe.series), period)
            altered = (starts[:, None] + np.arange(width)).ravel()
            altered = altered[altered < len(probe.series)]
            block = probe.call(probe.alterations.put(altered, probe.alterations.pair[which])) if len(starts) else None
            if block is None:
                continue
            before = starts - 1
            differing = different(probe.values[before], block[before])
            large = probe.beyond_rounding(probe.values[before], block[before], differing).any(axis=1)
            small = differing.any(axis=1) & ~large
            if small.any() and looked_at < LAST_DIGITS_LOOKED_AT:
                looked_at += 1
                probe.cut(int(before[np.argmax(small)]))
            suspected = before[large]
            for row in suspected[:: max(1, -(-len(suspected) // CONFIRMED))]:
                if probe.confirm(int(row)):
                    return
            if len(suspected):
                break  # an honest value that depends on bars further back than was measured
            probe.proven[before] |= 1 << which
        else:
            return
        restarts += 1
        probe.proven[:] = 0
        too_long = 2 * probe.look_back + 8 > len(probe.series) // 8
        probe.look_back = None if restarts > RESTARTS or too_long else 2 * probe.look_back + 8
