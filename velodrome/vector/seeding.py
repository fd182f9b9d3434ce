"""Seeds of many environments from one.

Gymnasium's own vector environments count upwards from a seed, so runs with neighbouring seeds share all environments
but one: what should be independent repetitions of an experiment are then nearly the same.
"""

from __future__ import annotations

import numpy as np


def spread_seed(seed: int, *indices: int) -> int:
    """Return a seed in [0, 2**31) for a seed and some indices, independent of those for all others."""
    return int(np.random.SeedSequence((seed, *indices)).generate_state(1)[0] >> 1)


def spread_seeds(seed: int, count: int, first: int = 0) -> list[int]:
    """Return the seeds of so many environments, from the number of the first on; more of them change none."""
    return [spread_seed(seed, index) for index in range(first, first + count)]
