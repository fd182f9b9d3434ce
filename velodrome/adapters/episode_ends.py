"""What a vector environment says about episodes that ended: their statistics and last observations."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.vector.space_arrays import map_nested, on_host

# Keys of infos that describe the episode that ended in this step.
FINAL_KEYS = ("final_obs", "final_info")


def statistics_of(infos: dict[str, Any], rows: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return what a rule counted of the episodes that ended in these rows, by name."""
    if not len(rows):
        return []
    columns = {name: on_host(values[rows]).tolist() for name, values in infos["statistics"].items()}
    return [{name: values[k] for name, values in columns.items()} for k in range(len(rows))]


def ended_episodes(infos: dict[str, Any], rows: NDArray[np.int64]) -> Iterator[tuple[int, Any, dict[str, Any]]]:
    """Yield row, last observation and statistics of a rule's episodes that ended in these rows."""
    if len(rows):
        yield from zip(rows.tolist(), last_observations(infos, rows), statistics_of(infos, rows), strict=True)


def last_observations(infos: dict[str, Any], rows: NDArray[np.int64]) -> list[Any]:
    """Return copies of the last observations of the episodes that ended in these rows.

    Gymnasium gives them one by one in an array of objects, rule environments as arrays over all environments.
    """
    final = infos["final_obs"]
    if isinstance(final, np.ndarray) and final.dtype == object:
        return [deepcopy(final[row]) for row in rows]
    chosen = map_nested(lambda part: on_host(part[rows]), final)
    return [map_nested(itemgetter(k), chosen) for k in range(len(rows))]
