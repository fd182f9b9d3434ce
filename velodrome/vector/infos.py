"""Infos of single environments, combined as Gymnasium does: arrays over all environments, with masks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# An info of at most this many numbers is sent as numbers; larger ones, or those with anything else, are pickled.
MOST_NUMBERS = 32
EXACT = 2**53  # whole numbers up to here are exact as float64

Schema = tuple[tuple[str, type], ...]


class RowInfo(NamedTuple):
    """What one environment said about one step."""

    row: int
    info: dict[str, Any]
    final_info: dict[str, Any] | None = None  # of the episode that ended; None: none ended


def add_info(infos: dict[str, Any], info: dict[str, Any], row: int, num_envs: int) -> dict[str, Any]:
    """Add one environment's info to those of all, with the same types as gymnasium.vector.VectorEnv._add_info."""
    for key, value in info.items():
        array: Any = infos.get(key)
        if isinstance(value, dict) and key != "final_obs":
            array = add_info({} if array is None else array, value, row, num_envs)
        else:
            if array is None:
                array = _array_for(None if key == "final_obs" else value, num_envs)
            array[row] = value
        mask = infos.get(f"_{key}")
        if mask is None:
            mask = np.zeros(num_envs, bool)
        mask[row] = True
        infos[key], infos[f"_{key}"] = array, mask
    return infos


def _array_for(value: Any, num_envs: int) -> NDArray:
    kind = type(value)
    if kind in (int, float, bool) or issubclass(kind, np.number):
        return np.zeros(num_envs, kind)
    if isinstance(value, np.ndarray):
        return np.zeros((num_envs, *value.shape), value.dtype)
    return np.full(num_envs, None, object)


def schema_of(info: dict[str, Any]) -> Schema | None:
    """Return the keys and types of an info of numbers only; None for any other."""
    if len(info) > MOST_NUMBERS:
        return None
    schema = []
    for key, value in info.items():
        kind = type(value)
        if kind is float or kind is bool:
            pass
        elif kind is int or issubclass(kind, np.integer):
            if not -EXACT <= value <= EXACT:
                return None
        elif not issubclass(kind, np.floating) or kind is np.longdouble:
            return None
        schema.append((key, kind))
    return tuple(schema)


def numbers_of(schema: Schema, values: NDArray[np.float64]) -> dict[str, Any]:
    """Return the info with this schema and these numbers."""
    return {key: kind(value) for (key, kind), value in zip(schema, values.tolist(), strict=False)}


def add_numbers(
    infos: dict[str, Any], schema: Schema, rows: NDArray[np.int64], values: NDArray[np.float64], num_envs: int
) -> None:
    """Add infos of one schema, [rows, numbers], for many environments at once; its keys must be new."""
    for column, (key, kind) in enumerate(schema):
        array: NDArray = np.zeros(num_envs, kind)
        mask = np.zeros(num_envs, bool)
        array[rows] = values[:, column]
        mask[rows] = True
        infos[key], infos[f"_{key}"] = array, mask
