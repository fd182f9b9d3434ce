"""Scalers: one centre and one scale for each feature, fitted on what the training split can show and stored with it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError, did_you_mean
from velodrome.outside.kernels import cached_njit

TRAIN = "train"  # the split that scalers are fitted on
SCALER_KINDS = ("standard", "robust", "minmax", "none")


@dataclass(frozen=True)
class Scaler:
    """The scaling of one window's features: (value − centre)/scale, then clipped to ±clip if that is given."""

    timeframe: str
    kind: str
    features: tuple[str, ...]
    symbols: tuple[str, ...] = ()  # one row each in centre and scale; empty: one row for all instruments
    centre: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))  # [1 or instruments, features]
    scale: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))  # likewise, never 0
    clip: float | None = None

    def __post_init__(self) -> None:
        shape = (len(self.symbols) or 1, len(self.features))
        for name in ("centre", "scale"):
            array = np.broadcast_to(np.array(getattr(self, name), np.float64), shape).copy()
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scaler) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.timeframe, self.kind, self.features, self.symbols, self.centre.tobytes()))

    def fit(self, rows: Mapping[str, NDArray[np.float64]]) -> Scaler:
        """Return the same scaler fitted to training rows [rows, features] by instrument: together, or each alone."""
        empty = [symbol for symbol, part in rows.items() if len(part) == 0]
        if self.kind != "none" and (len(empty) == len(rows) or (self.symbols and empty)):
            raise ConfigError(
                f"{', '.join(empty)} has no bar with every feature in the split {TRAIN!r} that scalers are fitted to; "
                "leave it out, take per_instrument=False, or give the split more data."
            )
        groups = [rows[symbol] for symbol in self.symbols] or [np.concatenate(list(rows.values()))]
        centres, scales = zip(*(centre_and_scale(group, self.kind) for group in groups), strict=True)
        return replace(self, centre=np.stack(centres), scale=np.stack(scales))

    def apply(self, values: NDArray[np.float64], symbol: str) -> NDArray[np.float32]:
        """Return the scaled values [rows, features]; NaN, which only warm-up rows have, becomes 0."""
        row = self.symbols.index(symbol) if self.symbols else 0
        scaled = values - self.centre[row]
        scaled /= self.scale[row]
        if self.clip is not None:
            np.clip(scaled, -self.clip, self.clip, out=scaled)
        np.nan_to_num(scaled, copy=False, nan=0.0)
        return scaled.astype(np.float32)

    def undo(self, scaled: NDArray[np.float32], symbol: str) -> NDArray[np.float64]:
        """Return the values that were scaled, as far as float32 has kept them."""
        row = self.symbols.index(symbol) if self.symbols else 0
        return scaled.astype(np.float64) * self.scale[row] + self.centre[row]

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists and numbers, for a run's record; `Scaler.from_dict` reads them back to the bit."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain.update({name: list(plain[name]) for name in ("features", "symbols")})
        return plain | {name: plain[name].tolist() for name in ("centre", "scale")}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Scaler:
        return cls(**{**record, "features": tuple(record["features"]), "symbols": tuple(record["symbols"])})


def same_column(one: Scaler, other: Scaler, column: int) -> bool:
    """Return whether two scalers treat a feature alike, to the bit."""
    pairs = ((one.centre, other.centre), (one.scale, other.scale))
    return all(np.array_equal(mine[:, column], theirs[:, column]) for mine, theirs in pairs)


def check_kind(kind: str, clip: float | None) -> None:
    """Refuse a scaler that does not exist, or a clip that is not positive."""
    if kind not in SCALER_KINDS:
        raise ConfigError(
            f"scaler is {kind!r}; it must be one of {', '.join(SCALER_KINDS)}.{did_you_mean(str(kind), SCALER_KINDS)}"
        )
    if clip is not None and not clip > 0:
        raise ConfigError(f"clip is {clip!r}; give the largest scaled value to keep, such as 5.0, or None.")


def check_training_split(kind: str, splits: Collection[str]) -> None:
    """Refuse to fit where there is no training split."""
    if kind != "none" and TRAIN not in splits:
        raise ConfigError(
            f"scaler {kind!r} is fitted on the split {TRAIN!r}, and splits are {', '.join(splits) or 'none'}; add that "
            "split, give scalers=… of other data, or take scaler='none'."
        )


def centre_and_scale(values: NDArray[np.float64], kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return centre and scale of each column; a constant column has scale 1.

    standard: mean and population deviation. robust: median and distance between the quartiles (the deviation where
    that is 0). minmax: the middle and half of the range, so that the training values fill −1 … 1.
    """
    columns = values.shape[1]
    if kind == "none":
        return np.zeros(columns), np.ones(columns)
    low, high = values.min(axis=0), values.max(axis=0)
    if kind == "minmax":
        centre, scale = low + (high - low) / 2.0, (high - low) / 2.0
    else:
        centre, scale = column_moments(values)
        if kind == "robust":
            lower, median, upper = np.percentile(values, [25.0, 50.0, 75.0], axis=0)
            centre, scale = median, np.where(upper > lower, upper - lower, scale)
    constant = (high == low) | (scale == 0.0)
    return np.where(high == low, low, centre), np.where(constant, 1.0, scale)


@cached_njit
def column_moments(values):
    """Mean and population deviation of each column, in one fixed order of additions so that bits do not vary."""
    rows, columns = values.shape
    mean = np.zeros(columns)
    deviation = np.zeros(columns)
    for column in range(columns):
        total = 0.0
        lost = 0.0  # Kahan: what the last addition rounded away
        for row in range(rows):
            term = values[row, column] - lost
            larger = total + term
            lost = (larger - total) - term
            total = larger
        mean[column] = total / rows
        square = 0.0
        for row in range(rows):
            distance = values[row, column] - mean[column]
            square += distance * distance
        deviation[column] = np.sqrt(square / rows)
    return mean, deviation


def check_given(
    scalers: Sequence[Scaler], windows: Sequence[tuple[str, tuple[str, ...]]], symbols: Sequence[str]
) -> tuple[Scaler, ...]:
    """Return given scalers if they fit the windows, each (timeframe, features), one for one."""
    received = [(scaler.timeframe, scaler.features) for scaler in scalers]
    if received != list(windows):
        had, wanted = (
            "; ".join(f"{timeframe}: {', '.join(features)}" for timeframe, features in pairs) or "none"
            for pairs in (received, windows)
        )
        raise ConfigError(
            f"scalers are for {had} and the windows are {wanted}; build with the same windows and features as the "
            "market that the scalers come from."
        )
    for scaler in scalers:
        missing = [symbol for symbol in symbols if scaler.symbols and symbol not in scaler.symbols]
        if missing:
            raise ConfigError(
                f"scalers were fitted per instrument for {', '.join(scaler.symbols)} and not for {', '.join(missing)}; "
                "fit them with per_instrument=False to use them on other instruments."
            )
    return tuple(scalers)
