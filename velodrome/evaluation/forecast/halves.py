"""Halves of the rows that a regression is fitted to, so that several regressions differ as if by other data.

Each pair of seeds shares out the rows among its two: what one half has by chance, the other lacks, and the mean of the
two is nearly the regression on all rows (complementary pairs; Shah and Samworth, 2013). Halves are made of blocks of
neighbouring rows, which have to do with one another. A regression on half of the rows varies as much as one on a
bootstrap of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

STREAM = 0x68616C66  # sets these random numbers apart from others of the same seed


def runs_of(*labels: NDArray[np.int64]) -> list[slice]:
    """Return the longest runs of rows whose labels are all the same, in their order."""
    if not len(labels[0]):
        return []
    changes = np.any([own[1:] != own[:-1] for own in labels], axis=0)
    edges = np.r_[0, np.flatnonzero(changes) + 1, len(labels[0])].tolist()
    return [slice(begin, end) for begin, end in pairwise(edges)]


def block_length(rows: int) -> int:
    """Return the rows of a block: the cube root of their number, as Hall, Horowitz and Jing (1995) found."""
    return max(round(rows ** (1.0 / 3.0)), 1)


def half_of_the_blocks(runs: Sequence[slice], seed: int) -> NDArray[np.int64]:
    """Return 2 for the rows of one half of the blocks and 0 for the others, [rows]: how often each is fitted to.

    runs: of rows that follow one another, inside which all blocks lie. The seeds 2k and 2k + 1 have the two halves.
    """
    pair, side = divmod(seed, 2)
    rows = sum(run.stop - run.start for run in runs)
    length, counts = block_length(rows), np.zeros(rows, np.int64)
    for number, run in enumerate(runs):
        generator = np.random.default_rng((pair, STREAM, number))
        place = (np.arange(run.stop - run.start) + int(generator.integers(length))) // length
        order = generator.permutation(int(place[-1]) + 1) + int(generator.integers(2))
        counts[run] = 2 * ((order[place] + side) % 2)
    return counts
