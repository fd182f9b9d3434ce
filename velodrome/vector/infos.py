"""Infos of single environments, combined as Gymnasium does: arrays over all environments, with masks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# An info of at most this many numbers is sent as numbers; larger ones, or those with anything else, are pickled.
MOST_NUMBERS = 32
EXACT = 2**53  # whole numbers up to here are exact as float64

ANYTHING = np.dtype(object)

Schema = tuple[tuple[str, type], ...]
KINDS: tuple[Any, ...] = (bool, int, float, *np.sctypeDict.values())
# The types of arrays that hold numbers: Python's, and NumPy's own.
NUMBERS: dict[type, np.dtype] = {kind: np.dtype(kind) for kind in KINDS if np.dtype(kind).kind in "biufc"}


class RowInfo(NamedTuple):
    """What one environment said about one step."""

    row: int
    info: dict[str, Any]
    final_info: dict[str, Any] | None = None  # of the episode that ended; None: none ended


def add_info(infos: dict[str, Any], info: dict[str, Any], row: int, num_envs: int) -> dict[str, Any]:
    """Add one environment's info to those of all.

    Where rows agree, the arrays are those of gymnasium.vector.VectorEnv._add_info. Where they do not, Gymnasium casts a
    value to the type of the first; here the array changes instead, and every value stays what it was.
    """
    for key, value in info.items():
        array: Any = infos.get(key)
        mask: Any
        if array is None:
            array = _first(key, value, num_envs)
            mask = np.zeros(num_envs, bool)
            infos.pop(f"__{key}", None)  # a value named "_x" gives way to the mask of "x": they have one place
            infos[key], infos[f"_{key}"] = array, mask
        else:
            mask = infos.get(f"_{key}")
            if mask is None:
                continue  # this is the mask of another key
        kind = NUMBERS.get(type(value))
        if isinstance(array, dict):
            if isinstance(value, dict):
                add_info(array, value, row, num_envs)
            else:
                infos[key] = _mixed(array, value, row, mask)
        elif array.dtype is ANYTHING and array.ndim == 1:
            array[row] = value if key == "final_obs" else kept(value)
        elif kind is array.dtype and array.ndim == 1:
            try:
                array[row] = value
            except OverflowError:  # a whole number beyond 64 bits
                infos[key] = _mixed(array, value, row, mask)
        elif isinstance(value, np.ndarray) and value.dtype == array.dtype and value.shape == array.shape[1:]:
            array[row] = value
        else:
            infos[key] = _wider(array, value, row, mask)
        mask[row] = True
    return infos


def add_end(infos: dict[str, Any], last: Any, info: dict[str, Any], row: int, num_envs: int) -> None:
    """Add the last observation and the last info of one environment's episode."""
    final: Any = infos.get("final_info")
    if final is None or type(final) is not dict or "_final_obs" not in infos:
        add_info(infos, {"final_obs": last, "final_info": info}, row, num_envs)
        return
    # As `add_info` would, without asking of what kind they are: episodes of a few steps end in every call.
    infos["final_obs"][row] = last
    infos["_final_obs"][row] = infos["_final_info"][row] = True
    if info:
        add_info(final, info, row, num_envs)


def _first(key: str, value: Any, num_envs: int) -> Any:
    """Return what Gymnasium makes for a first value."""
    if key == "final_obs":
        return np.full(num_envs, None, object)
    return {} if isinstance(value, dict) else _array_for(value, num_envs)


def _array_for(value: Any, num_envs: int) -> NDArray:
    dtype = NUMBERS.get(type(value))
    if dtype is not None and not isinstance(value, np.bool_):
        return np.zeros(num_envs, dtype)
    if isinstance(value, np.ndarray):
        return np.zeros((num_envs, *value.shape), value.dtype)
    return np.full(num_envs, None, object)


def _wider(array: NDArray, value: Any, row: int, mask: NDArray[np.bool_]) -> NDArray:
    """Return an array of a type that holds numbers of both types exactly; if there is none, each row's own value."""
    if not isinstance(value, np.ndarray) and type(value) not in NUMBERS:
        return _mixed(array, value, row, mask)
    given = np.asarray(value)
    if given.shape != array.shape[1:] or {array.dtype.kind, given.dtype.kind} - set("iufc"):
        return _mixed(array, value, row, mask)
    wider = array.astype(np.result_type(array, given))
    if wider.dtype.kind in "fc":
        whole = [part for part in (array[mask], given) if part.dtype.kind in "iu"]
        if len(whole) == 2 or any((np.abs(part.astype(np.float64)) >= EXACT).any() for part in whole):
            return _mixed(array, value, row, mask)
    wider[row] = given
    return wider


def _mixed(before: Any, value: Any, row: int, mask: NDArray[np.bool_]) -> NDArray:
    """Return an array of objects with the values that are there before, and one more."""
    mixed = np.full(len(mask), None, object)
    for one, said in take_apart({"value": before}, np.flatnonzero(mask)).items():
        mixed[one] = said["value"]
    mixed[row] = kept(value)
    return mixed


def kept(value: Any) -> Any:
    """Return a value whose dicts, lists, tuples and arrays are copies: an environment may write into its own later."""
    if isinstance(value, dict):
        return {key: kept(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(kept, value))
    return value.copy() if isinstance(value, np.ndarray) else value


def take_apart(infos: dict[str, Any], rows: NDArray[np.int64]) -> dict[int, dict[str, Any]]:
    """Return the infos of some environments by row; a key without a mask holds for all of them."""
    found: dict[int, dict[str, Any]] = {row: {} for row in rows.tolist()}
    masks = {f"_{key}" for key in infos}
    for key, value in infos.items():
        if key in masks:
            continue
        mask = infos.get(f"_{key}")
        chosen = rows if mask is None else rows[np.asarray(mask)[rows]]
        parts = take_apart(value, chosen) if isinstance(value, dict) else value
        for row in chosen.tolist():
            found[row][key] = parts[row]
    return found


def schema_of(info: dict[str, Any]) -> Schema | None:
    """Return the keys and types of an info of numbers only; None for any other."""
    if len(info) > MOST_NUMBERS:
        return None
    schema = []
    for key, value in info.items():
        kind = type(value)
        if kind is float or kind is bool:
            pass
        elif kind is int or (issubclass(kind, np.integer) and kind is not np.timedelta64):
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
    masks = {f"_{key}" for key, _ in schema}
    for column, (key, kind) in enumerate(schema):
        if key in masks:
            continue
        array: NDArray = np.zeros(num_envs, kind)
        mask = np.zeros(num_envs, bool)
        array[rows] = values[:, column]
        mask[rows] = True
        infos[key], infos[f"_{key}"] = array, mask
