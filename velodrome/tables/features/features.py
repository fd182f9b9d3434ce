"""Features of a timeframe's bars: names, columns of the file, or a user's functions, parsed and computed as a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from velodrome.bars.frame import PRICE_COLUMNS, Series
from velodrome.bars.timeframe import parse_timeframe
from velodrome.errors import ConfigError, did_you_mean
from velodrome.tables.features.families import FAMILIES, Family

FeatureSpec: TypeAlias = "str | Callable[[Series], Any] | tuple[str, Callable[[Series], Any]]"

COLUMN_PREFIX = "column:"
BAR_COLUMNS = (*PRICE_COLUMNS, "volume")


@dataclass(frozen=True)
class Feature:
    """One feature: its name as given, and a function of (bars, time zone) with one value, or one row, a bar."""

    name: str
    compute: Callable[[Series, str], Any]
    function: Callable[[Series], Any] | None = None  # the user's own, if it is one


def describe_features() -> dict[str, str]:
    """Return one line of explanation by an example of how each feature is written."""
    described = {family.example: family.explanation for family in FAMILIES.values()}
    described.update({name: f"the {name} itself, as in the data" for name in BAR_COLUMNS})
    described["column:NAME"] = "any further column of the data (NAME alone will do if no feature has that name)"
    return described


def parse_features(specs: Sequence[FeatureSpec], columns: Sequence[str] = ()) -> tuple[Feature, ...]:
    """Return the features that are asked for; `columns` are the further columns that the data has."""
    check_list(specs)
    return tuple(parse_feature(spec, columns) for spec in specs)


def check_list(specs: Sequence[FeatureSpec]) -> None:
    """Refuse what is no list, an empty one, and one that has a name twice."""
    if isinstance(specs, str) or callable(specs):
        raise ConfigError(f"features is {specs!r}; a list is needed, for instance ['log_return', 'rsi_14'].")
    if not specs:
        raise ConfigError("features is empty; give at least one, for instance ['log_return'].")
    twice = _more_than_once([name_of(spec) for spec in specs])
    if twice:
        raise ConfigError(
            f"features has {', '.join(twice)} more than once; give each once, and name functions as ('name', function)."
        )


def _more_than_once(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def name_of(spec: FeatureSpec) -> str:
    """Return the name of a feature as it is given: its own, or that of its function."""
    if isinstance(spec, tuple):
        return str(spec[0])
    return spec if isinstance(spec, str) else getattr(spec, "__name__", type(spec).__name__).strip("<>")


def parse_feature(spec: FeatureSpec, columns: Sequence[str] = ()) -> Feature:
    """Return one feature from its name, a function of the bars, or a pair of name and function."""
    if isinstance(spec, str):
        return _named(spec, columns)
    if isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], str) and spec[0] and callable(spec[1]):
        function = spec[1]
    elif callable(spec):
        function = spec
    else:
        raise ConfigError(
            f"feature {spec!r} is none of: a name such as 'rsi_14', a function of the bars, a pair ('name', function)."
        )
    return Feature(name_of(spec), lambda series, timezone: function(series), function)


def _column(name: str, column: str) -> Feature:
    return Feature(name, lambda series, timezone: series.column(column))


def _named(name: str, columns: Sequence[str]) -> Feature:
    legal = (*BAR_COLUMNS, *columns)
    if name.startswith(COLUMN_PREFIX):
        column = name[len(COLUMN_PREFIX) :]
        if column not in legal:
            raise ConfigError(
                f"feature {name!r}: the data has no column {column!r}; there are {', '.join(legal)}."
                f"{did_you_mean(column, legal)}"
            )
        return _column(name, column)
    family, rest = _split_name(name)
    if family is not None and all(re.fullmatch(r"-?\d+(\.\d+)?", part) for part in rest):
        numbers = _numbers(name, family, rest)
        return Feature(name, lambda series, timezone: family.compute(series, timezone, *numbers))
    if name in legal:
        return _column(name, name)
    if family is not None and not did_you_mean(name, columns):
        _numbers(name, family, rest)
    shown = re.sub(r"(_\d+(\.\d+)?)+$", "", name)
    raise ConfigError(
        f"no feature or column {name!r}.{did_you_mean(shown, (*FAMILIES, *legal))} Features: {', '.join(FAMILIES)}; "
        f"columns: {', '.join(legal)}. Numbers follow the name, as in rsi_14; a function of the bars is a feature too."
    )


def _split_name(name: str) -> tuple[Family | None, list[str]]:
    """Return the family with the longest name that this one starts with, and the parts that follow it."""
    parts = name.split("_")
    for count in range(len(parts), 0, -1):
        family = FAMILIES.get("_".join(parts[:count]))
        if family is not None:
            return family, parts[count:]
    return None, []


def _numbers(name: str, family: Family, written: Sequence[str]) -> tuple[int | float, ...]:
    """Return the numbers of a member of a family, or say what is wrong with them."""
    if len(written) > len(family.numbers):
        takes = ", ".join(number.name for number in family.numbers) or "none"
        raise ConfigError(
            f"feature {name!r} has {len(written)} numbers; {family.name} takes {takes}. Write it as {family.example!r}."
        )
    values: list[int | float] = []
    for index, number in enumerate(family.numbers):
        if index >= len(written):
            if number.default is None:
                raise ConfigError(f"feature {name!r} needs its {number.name}: write it as {family.example!r}.")
            values.append(int(number.default) if number.whole else float(number.default))
            continue
        text = written[index]
        pattern = r"\d+" if number.whole else r"\d+(\.\d+)?"
        value = float(text) if re.fullmatch(pattern, text) else -1.0
        if value < number.minimum or value == 0:
            legal = f"a whole number of at least {number.minimum:g}" if number.whole else "a number above 0"
            raise ConfigError(
                f"feature {name!r} has the {number.name} {text!r}; it must be {legal}, as in {family.example!r}."
            )
        values.append(int(value) if number.whole else value)
    if family.name.startswith("macd") and values[0] >= values[1]:
        raise ConfigError(f"feature {name!r} has fast {values[0]} and slow {values[1]}; fast must be the smaller.")
    return tuple(values)


def compute_features(
    series: Series, features: Sequence[Feature], timezone: str, where: str = "these bars"
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return the table [bars, columns] and the column names; a function with several columns gives name_0, name_1 …"""
    blocks: list[NDArray[np.float64]] = []
    names: list[str] = []
    for feature in features:
        block = compute_feature(series, feature, timezone, where)
        blocks.append(block)
        names += column_names(feature, block)
    twice = _more_than_once(names)
    if twice:
        raise ConfigError(f"features give the column {', '.join(twice)} more than once; rename one of the functions.")
    return np.concatenate(blocks, axis=1), tuple(names)


def column_names(feature: Feature, block: NDArray[np.float64]) -> list[str]:
    """Return the names of a feature's columns: its own, or numbered ones if its function returned several."""
    if block.shape[1] == 1:
        return [feature.name]
    return [f"{feature.name}_{index}" for index in range(block.shape[1])]


def compute_feature(series: Series, feature: Feature, timezone: str, where: str) -> NDArray[np.float64]:
    """Return one feature as [bars, columns]."""
    try:
        value = feature.compute(series, timezone)
    except Exception as error:
        error.add_note(f"raised by feature {feature.name!r} on {len(series)} bars of {where}")
        raise
    if feature.function is None:
        return value.reshape(-1, 1)
    try:
        block = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"feature {feature.name!r} returned {type(value).__name__} on {where}, which is not an array of numbers; "
            f"return one number a bar."
        ) from error
    if block.ndim not in (1, 2) or len(block) != len(series) or block.shape[-1] == 0 < len(series):
        raise ConfigError(
            f"feature {feature.name!r} returned shape {block.shape} for {len(series)} bars of {where}; "
            f"return ({len(series)},) or ({len(series)}, k): one value a bar, NaN where there is none yet."
        )
    return block.reshape(len(series), -1) if len(series) else block.reshape(0, block.shape[1] if block.ndim == 2 else 1)


def features_by_timeframe(
    features: Sequence[FeatureSpec] | Mapping[str, Sequence[FeatureSpec]], timeframes: Sequence[str]
) -> dict[str, Sequence[FeatureSpec]]:
    """Return the list of features of each timeframe, given one list for all or one by timeframe."""
    if not isinstance(features, Mapping):
        return dict.fromkeys(timeframes, features)
    given = {parse_timeframe(key).text: value for key, value in features.items()}
    missing = [timeframe for timeframe in timeframes if timeframe not in given]
    unused = [timeframe for timeframe in given if timeframe not in timeframes]
    if missing or unused:
        raise ConfigError(
            f"features are given for {', '.join(given)} and windows for {', '.join(timeframes)}; "
            "give features for exactly the timeframes that have a window, or one list for all."
        )
    return given
