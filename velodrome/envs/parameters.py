"""Parameters of environments, each declared once with meaning, unit and range; a number may be drawn per episode."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from velodrome.errors import ConfigError, did_you_mean

Number = float | tuple[float, float]  # a value, or a range (low, high) that is drawn anew for every episode


def number(default: Number, low: float, high: float, meaning: str, *, unit: str, whole: bool = False) -> Any:
    """Declare a numeric parameter that may be a range; low and high are the legal bounds, both included."""
    return Field(
        default,
        description=meaning,
        json_schema_extra={"number": True, "low": low, "high": high, "unit": unit, "whole": whole},
    )


def _number_bounds(model: type[BaseModel], name: str) -> dict[str, Any] | None:
    extra = model.model_fields[name].json_schema_extra
    return extra if isinstance(extra, dict) and extra.get("number") else None


class EnvConfig(BaseModel):
    """Base of the parameters of an environment: frozen, unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_numbers(cls, value: Any, info: Any) -> Any:
        parts = value if isinstance(value, tuple | list) else (value,)
        if _number_bounds(cls, info.field_name) and any(isinstance(part, str | bool) for part in parts):
            raise ValueError("needs a number, or a range (low, high)")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _numbers_in_range(cls, value: Any, info: Any) -> Any:
        bounds = _number_bounds(cls, info.field_name)
        if bounds is None:
            return value
        ends = value if isinstance(value, tuple) else (value, value)
        legal = f"{bounds['low']:g} … {bounds['high']:g} ({bounds['unit']})"
        for end in ends:
            if not (math.isfinite(end) and bounds["low"] <= end <= bounds["high"]):
                raise ValueError(f"out of range; legal: {legal}")
            if bounds["whole"] and end != int(end):
                raise ValueError(f"must be a whole number; legal: {legal}")
        if ends[0] > ends[1]:
            raise ValueError("a range is written (low, high) with low ≤ high")
        return value

    @classmethod
    def create(cls, **values: Any) -> Any:
        """Validate values into a configuration; a problem is a ConfigError that says what is legal."""
        legal = tuple(cls.model_fields)
        for name in values:
            if name not in legal:
                raise ConfigError(
                    f"unknown parameter {name!r}.{did_you_mean(name, legal)} Legal parameters: {', '.join(legal)}."
                )
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else ""
            problem = str(first["msg"]).removeprefix("Value error, ")
            received = f"{name} = {values[name]!r}: " if name in values else ""
            meaning = cls.model_fields[name].description if name in legal else None
            stop = "" if problem.endswith("?") else "."
            raise ConfigError(received + problem + (f"{stop} {name}: {meaning}." if meaning else "")) from error


class EpisodeConfig(EnvConfig):
    """Base of the parameters of an environment on a market: how long episodes are and where they begin."""

    episode_length: int | tuple[int, int] | None = Field(
        None, description="decisions in an episode, or a range drawn per episode; None: until the data ends"
    )
    start: Literal["random", "sequential", "first"] = Field("random", description="where episodes begin")

    @field_validator("episode_length")
    @classmethod
    def _length_is_legal(cls, length: int | tuple[int, int] | None) -> int | tuple[int, int] | None:
        ends = length if isinstance(length, tuple) else (length, length)
        if length is not None and not (1 <= ends[0] <= ends[1]):  # type: ignore[operator]
            raise ValueError("needs at least 1 decision; a range is written (low, high) with low ≤ high")
        return length

    @model_validator(mode="after")
    def _start_suits_the_length(self) -> EpisodeConfig:
        if self.start == "sequential" and isinstance(self.episode_length, tuple):
            raise ValueError("start='sequential' needs one episode_length, not a range")
        return self

    @property
    def episode_lengths(self) -> tuple[int, int]:
        """(low, high) of the episode length; (0, 0) when episodes run until the data ends."""
        if self.episode_length is None:
            return (0, 0)
        return self.episode_length if isinstance(self.episode_length, tuple) else (self.episode_length,) * 2


def with_preset(
    model: type[EnvConfig], presets: Mapping[str, Mapping[str, Any]], preset: str | None, values: Mapping[str, Any]
) -> Any:
    """Return the parameters of a preset (or the defaults) with some values replaced."""
    if preset is None:
        return model.create(**values)
    if preset not in presets:
        legal = tuple(presets)
        raise ConfigError(f"unknown preset {preset!r}; there are {', '.join(legal)}.{did_you_mean(preset, legal)}")
    return model.create(**{**presets[preset], **values})


def number_names(model: type[EnvConfig]) -> tuple[str, ...]:
    """Return the numeric parameters in the order of declaration: the order in which ranges are drawn."""
    return tuple(name for name in model.model_fields if _number_bounds(model, name))


def number_places(names: Sequence[str]) -> tuple[Any, ...]:
    """Return the places 0, 1, … of numeric parameters in the state.

    As NumPy's integers: Numba compiles what takes one of Python's as an argument once for each value of it.
    """
    return tuple(np.arange(len(names), dtype=np.int64))


def number_ranges(config: EnvConfig) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint8]]:
    """Return (low, high, whole) of every numeric parameter; low equals high where there is nothing to draw."""
    names = number_names(type(config))
    ends = [value if isinstance(value, tuple) else (value, value) for value in (getattr(config, n) for n in names)]
    whole = [bool((_number_bounds(type(config), name) or {})["whole"]) for name in names]
    low, high = (np.array(side, np.float64) for side in zip(*ends, strict=True))
    return low, high, np.array(whole, np.uint8)


def params_type(module: str, model: type[EnvConfig], further: tuple[str, ...]) -> Any:
    """Make the NamedTuple of scalars that a rule receives: the numeric parameters, then further integers.

    It must be the attribute `Params` of the named module: Numba's cache finds it there.
    """
    return namedtuple("Params", (*number_names(model), *further), module=module)


def low_ends(config: EnvConfig) -> dict[str, float]:
    """Return every numeric parameter as one float; of a range, its lower end."""
    low, _, _ = number_ranges(config)
    return dict(zip(number_names(type(config)), map(float, low), strict=True))
