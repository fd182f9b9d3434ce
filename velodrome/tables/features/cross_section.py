"""Features that compare instruments: rank, z-score and mean of another feature across those that have a bar.

They are written as `rank:log_return_5`, `zscore:rsi_14` and `mean:log_return`; `market_return` is `mean:return`. Only
instruments with a bar at that time, and with a value, take part. The others keep showing their last value, except that
a mean belongs to everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError, did_you_mean
from velodrome.tables.features.features import FeatureSpec, check_list, name_of

ALIASES = {"market_return": "mean:return"}
MIDDLE_RANK = 0.5


def rank(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the place of each value in its row, 0 the lowest and 1 the highest; equal values share the mean place."""
    rows, columns = values.shape
    order = np.argsort(values, axis=1, kind="stable")  # NaN comes last
    ordered = np.take_along_axis(values, order, axis=1)
    place = np.broadcast_to(np.arange(columns), values.shape)
    new = np.concatenate([np.ones((rows, 1), bool), ordered[:, 1:] != ordered[:, :-1]], axis=1)
    last = np.concatenate([new[:, 1:], np.ones((rows, 1), bool)], axis=1)
    first_equal = np.maximum.accumulate(np.where(new, place, 0), axis=1)
    last_equal = np.minimum.accumulate(np.where(last, place, columns)[:, ::-1], axis=1)[:, ::-1]
    places = np.empty(values.shape)
    np.put_along_axis(places, order, 0.5 * (first_equal + last_equal), axis=1)
    count = _known(values)
    result = np.where(count > 1, places / np.maximum(count - 1, 1), MIDDLE_RANK)
    return np.where(np.isnan(values), np.nan, result)


def zscore(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each value from its row's mean in the row's population deviations; 0 if all are equal."""
    centred = values - mean(values)
    deviation = np.sqrt(_ordered_sum(centred * centred) / np.maximum(_known(values), 1))
    # Equal values may leave a rounding of the mean behind, which is no deviation.
    level = 1e-13 * np.nanmax(np.abs(np.where(np.isnan(values), 0.0, values)), axis=1, keepdims=True)
    return np.where(deviation > level, centred / np.where(deviation > level, deviation, 1.0), centred * 0.0)


def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each row's mean, in every column; NaN where nobody has a value."""
    count = _known(values)
    total = np.where(count > 0, _ordered_sum(values) / np.maximum(count, 1), np.nan)
    return np.broadcast_to(total, values.shape).copy()


def _known(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.count_nonzero(~np.isnan(values), axis=1, keepdims=True)


def _ordered_sum(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add up each row from left to right: NumPy's own order depends on the number of rows, and so would the bits."""
    total = np.zeros((len(values), 1))
    for column in range(values.shape[1]):
        total[:, 0] += np.where(np.isnan(values[:, column]), 0.0, values[:, column])
    return total


@dataclass(frozen=True)
class Comparison:
    """One way of comparing instruments, over [rows, instruments] with NaN where there is no value."""

    explanation: str
    compute: Callable[[NDArray[np.float64]], NDArray[np.float64]]
    for_all: bool = False  # whether an instrument without a bar has the value too


COMPARISONS = {
    "rank": Comparison("place among the instruments, 0 the lowest … 1 the highest", rank),
    "zscore": Comparison("distance from the instruments' mean in their deviations", zscore),
    "mean": Comparison("mean over the instruments", mean, for_all=True),
}


@dataclass(frozen=True)
class CrossFeature:
    """A comparison of one of the features of each instrument."""

    name: str
    comparison: Comparison
    of: str  # the name of that feature


def describe_cross_features() -> dict[str, str]:
    """Return one line of explanation by how each comparison is written."""
    described = {f"{name}:FEATURE": f"{kind.explanation}, of any feature" for name, kind in COMPARISONS.items()}
    return described | {alias: f"the same as {meaning}" for alias, meaning in ALIASES.items()}


def split_features(specs: Sequence[FeatureSpec]) -> tuple[list[FeatureSpec], tuple[CrossFeature, ...]]:
    """Return the features to compute of each instrument, and the comparisons to show after them.

    What a comparison needs and the list does not have is computed as well, after those that the list has.
    """
    check_list(specs)
    found = [_cross_feature(spec) for spec in specs]
    own = [spec for spec, cross in zip(specs, found, strict=True) if cross is None]
    crosses = tuple(cross for cross in found if cross is not None)
    known = {name_of(spec) for spec in own}
    return [*own, *dict.fromkeys(cross.of for cross in crosses if cross.of not in known)], crosses


def _cross_feature(spec: FeatureSpec) -> CrossFeature | None:
    if not isinstance(spec, str):
        return None
    written = ALIASES.get(spec, spec)
    kind, colon, of = written.partition(":")
    if not colon or kind == "column":
        return None
    if kind not in COMPARISONS:
        legal = tuple(COMPARISONS)
        raise ConfigError(
            f"feature {spec!r}: instruments are not compared by {kind!r}; there are {', '.join(legal)}."
            f"{did_you_mean(kind, legal)}"
        )
    if not of or _cross_feature(of) is not None:
        raise ConfigError(f"feature {spec!r} needs a feature of one instrument after the colon, as in '{kind}:rsi_14'.")
    return CrossFeature(spec, COMPARISONS[kind], of)
