"""The weight of the value's loss, which other libraries take of the whole squared error and Velodrome of half of it."""

from __future__ import annotations

from typing import Any


def of_half_the_square(weight: Any) -> Any:
    """Return the weight that means the same here; what is no number is left for the configuration to refuse."""
    return 2.0 * weight if isinstance(weight, int | float) and not isinstance(weight, bool) else weight
