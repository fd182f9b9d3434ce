"""The fields of a configuration as people meet them: dotted key, what is legal, default and meaning."""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo


class FieldLine(NamedTuple):
    """One field, ready to be shown."""

    key: str  # dotted, such as ppo.gamma
    legal: str
    default: Any
    meaning: str


def section_model(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that is a section of further fields, else None."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def section_models(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the sections of a model by name."""
    found = {name: section_model(field) for name, field in model.model_fields.items()}
    return {name: section for name, section in found.items() if section is not None}


def field_lines(model: type[BaseModel], prefix: str = "") -> list[FieldLine]:
    """Return a model's own fields in the order of declaration, without those of its sections."""
    return [
        FieldLine(
            f"{prefix}{name}",
            legal_values(field),
            field.get_default(call_default_factory=True),
            field.description or "",
        )
        for name, field in model.model_fields.items()
        if section_model(field) is None
    ]


def legal_values(field: FieldInfo) -> str:
    """Return in words what a field takes."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if "legal" in extra:
        return str(extra["legal"])
    if extra.get("number"):  # a parameter of an environment, which may be a range
        kind = "whole number" if extra["whole"] else "number"
        return f"{kind} {extra['low']:g} … {extra['high']:g}, or a range [low, high]; unit: {extra['unit']}"
    return _kind_text(field.annotation, _range_text(field.metadata))


def _kind_text(kind: Any, bounds: str) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin in (Union, types.UnionType):
        parts = [_kind_text(part, bounds) for part in arguments if part is not type(None)]
        return ", or ".join([*parts, "null"] if type(None) in arguments else parts)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_plural(_kind_text(arguments[0], bounds))}"
        return f"[{', '.join(_kind_text(part, bounds) for part in arguments)}]"
    if origin is dict:
        return f"mapping of {_plural(_kind_text(arguments[0], ''))} to {_plural(_kind_text(arguments[1], bounds))}"
    if kind is Callable or origin is Callable:
        return "a function"
    named = {bool: "true or false", int: f"whole number{bounds}", float: f"number{bounds}", str: "text"}
    return named.get(kind, "any value")


def _plural(kind: str) -> str:
    word, space, rest = kind.partition(" number")
    return f"{word} numbers{rest}" if space else kind.replace("number", "numbers", 1)


def _range_text(metadata: Iterable[Any]) -> str:
    low: Any = None
    high: Any = None
    signs = {"low": "≥", "high": "≤"}
    for bound in metadata:
        if isinstance(bound, annotated_types.Ge):
            low = bound.ge
        elif isinstance(bound, annotated_types.Gt):
            low, signs["low"] = bound.gt, ">"
        elif isinstance(bound, annotated_types.Le):
            high = bound.le
        elif isinstance(bound, annotated_types.Lt):
            high, signs["high"] = bound.lt, "<"
    if low is not None and high is not None and (signs["low"], signs["high"]) == ("≥", "≤"):
        return f" {_number_text(low)} … {_number_text(high)}"
    ends = [(signs["low"], low), (signs["high"], high)]
    written = [f"{sign} {_number_text(end)}" for sign, end in ends if end is not None]
    return f" {' and '.join(written)}" if written else ""


def _number_text(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def accepts(kind: Any, wanted: type) -> bool:
    """Return whether an annotation allows values of a plain type at its top level."""
    if get_origin(kind) in (Union, types.UnionType):
        return any(accepts(part, wanted) for part in get_args(kind))
    return kind in (wanted, Any) or (get_origin(kind) is Literal and any(type(v) is wanted for v in get_args(kind)))


def unknown_key(key: str, legal: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """Return what to say about an unknown dotted key: the nearest one, and the legal names beside it.

    legal: names in the same section. elsewhere: dotted keys of the other sections.
    """
    section, _, name = key.rpartition(".")
    prefix = f"{section}." if section else ""
    names = list(legal)
    by_name: dict[str, str] = {}
    for other in elsewhere:
        by_name.setdefault(other.rpartition(".")[2], other)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    distant = difflib.get_close_matches(name, list(by_name), n=1, cutoff=0.75)
    if name in by_name or (distant and not nearest):
        suggested = by_name.get(name) or by_name[distant[0]]
    else:
        suggested = f"{prefix}{nearest[0]}" if nearest else ""
    hint = f" Did you mean {suggested!r}?" if suggested else ""
    where = f"Legal in {section}" if section else "Legal"
    return f"unknown key {key!r}.{hint} {where}: {', '.join(names)}."
