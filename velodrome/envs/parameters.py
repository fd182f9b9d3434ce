"""Parameters of environments. Each is declared once, with its meaning, unit and legal range."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from velodrome.errors import ConfigError, did_you_mean, sentence

Ranged = float | tuple[float, float]  # a value, or a range (low, high) from which each episode draws its own


def option(default: Any, meaning: str, **limits: Any) -> Any:
    """Declare a parameter; limits are those of a pydantic field, such as ge=1."""
    return Field(default, description=meaning, **limits)


def ranged(
    default: Ranged | None,
    low: float,
    high: float,
    meaning: str,
    unit: str,
    *,
    whole: bool = False,
    covers: tuple[str, ...] = (),
) -> Any:
    """Declare a numeric parameter that may be a range; low and high are the legal bounds, both included.

    covers: parameters that this one is a short way to write; it has no value of its own in an episode.
    """
    bounds: dict[str, Any] = {"number": True, "low": low, "high": high, "unit": unit, "whole": whole}
    bounds["covers"] = list(covers)
    return Field(default, description=meaning, json_schema_extra=bounds)


def _bounds(model: type[BaseModel], name: str) -> dict[str, Any] | None:
    extra = model.model_fields[name].json_schema_extra
    return extra if isinstance(extra, dict) and extra.get("number") else None


def covered_names(model: type[BaseModel], name: str) -> tuple[str, ...]:
    """Return the parameters that this one is a short way to write; mostly none."""
    return tuple((_bounds(model, name) or {}).get("covers", ()))


def _as_range(value: Any) -> Any:
    """Return a range as a tuple: files write lists."""
    return tuple(value) if isinstance(value, list) else value


class EnvConfig(BaseModel):
    """Base of the parameters of an environment: frozen, unknown names are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @field_validator("*", mode="before")
    @classmethod
    def _ranged_are_numbers(cls, value: Any, info: Any) -> Any:
        parts = value if isinstance(value, tuple | list) else (value,)
        if _bounds(cls, info.field_name) and any(isinstance(part, str | bool) for part in parts):
            raise ValueError("needs a number, or a range (low, high)")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _ranged_within_bounds(cls, value: Any, info: Any) -> Any:
        bounds = _bounds(cls, info.field_name)
        if bounds is None or value is None:
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

    @property
    def softmax_of_actions(self) -> float | None:
        """By what actions are multiplied before a softmax makes weights of them; None: none does."""
        return None

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
            return cls(**cls.spelled_out(values))
        except ValidationError as error:
            raise refusal(cls, values, error) from error

    @classmethod
    def spelled_out(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values, those of parameters that cover others under the names of the others, too."""
        found = dict(values)
        for name in cls.model_fields:
            given = values.get(name)
            covered = covered_names(cls, name)
            for other in covered if given is not None else ():
                if other in values and _as_range(values[other]) != _as_range(given):
                    raise ConfigError(
                        f"{name} = {given!r} stands for {' and '.join(covered)}, and {other} = {values[other]!r} is "
                        f"given besides. Give {name}, or {' and '.join(covered)}."
                    )
                found[other] = given
        return found


def refusal(model: type[BaseModel], values: Mapping[str, Any], error: ValidationError) -> ConfigError:
    """Return the first problem that pydantic found in values as an error: what was received, and what it means."""
    first, legal = error.errors()[0], tuple(model.model_fields)
    name = str(first["loc"][0]) if first["loc"] else ""
    problem = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "literal_error":
        choices = re.findall("'(.*?)'", first["ctx"]["expected"])
        problem = f"{problem}.{did_you_mean(str(first['input']), choices)}".removesuffix(".")
    if first["type"] == "extra_forbidden":
        problem = f"there is no such field; there are {', '.join(legal)}.{did_you_mean(name, legal)}"
    received = f"{name} = {values[name]!r}: " if name in values else ""
    meaning = model.model_fields[name].description if name in legal else None
    return ConfigError(received + (f"{sentence(problem)} {name}: {meaning}." if meaning else problem))


def with_preset(
    presets: Mapping[str, Mapping[str, Any]], preset: Any, values: Mapping[str, Any], model: type[EnvConfig] | None
) -> dict[str, Any]:
    """Return the values on top of those of a preset; None is no preset. model: of the parameters, where declared."""
    if preset is None:
        return dict(values)
    if preset not in presets:
        close = did_you_mean(str(preset), presets)
        raise ConfigError(f"unknown preset {preset!r}; there are {', '.join(presets)}.{close}")
    return {**presets[preset], **(values if model is None else model.spelled_out(values))}


@functools.cache
def ranged_names(model: type[EnvConfig]) -> tuple[str, ...]:
    """Return the numeric parameters of an episode in the order of declaration, in which ranges are drawn."""
    return tuple(name for name in model.model_fields if _bounds(model, name) and not covered_names(model, name))


def ranges_of(config: EnvConfig) -> dict[str, tuple[float, float, bool]]:
    """Return (low, high, whole numbers only) of every numeric parameter, in the order of declaration."""
    found = {}
    for name in ranged_names(type(config)):
        value, bounds = getattr(config, name), _bounds(type(config), name) or {}
        low, high = value if isinstance(value, tuple) else (value, value)
        found[name] = (float(low), float(high), bool(bounds["whole"]))
    return found
