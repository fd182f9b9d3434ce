"""Every field by dotted key, what it takes in words, and what to say about a setting that is wrong."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from velodrome.errors import ConfigError, sentence
from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.config.parameters import parameter_fields
from velodrome.runs.config.run_config import SECTIONS, Choices, RunConfig, section_model


def section_fields(section: str, env: str) -> Mapping[str, FieldInfo]:
    """Return the fields of a section by name; '' has those outside any, and `params` those of an environment."""
    if section == "params":
        return parameter_fields(env)
    model = section_model(section) if section else RunConfig
    return model.model_fields if model else {}


def all_fields(env: str) -> dict[str, FieldInfo]:
    """Return the fields of all sections by dotted key, those of an environment's parameters and of all algorithms."""
    names = dict.fromkeys([*SECTIONS, "params", *ALGORITHMS.names()])
    return {f"{name}.{field}": info for name in names for field, info in section_fields(name, env).items()}


# What a field takes


def legal_values(field: FieldInfo) -> str:
    """Return in words what a field takes."""
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    legal: Any = extra.get("legal")
    if legal is not None:
        return legal() if callable(legal) else legal
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
    return kind if kind.startswith("[") else kind.replace("number", "numbers", 1)


def _range_text(metadata: Sequence[Any]) -> str:
    signs = {annotated_types.Ge: "≥", annotated_types.Gt: ">", annotated_types.Le: "≤", annotated_types.Lt: "<"}
    ends = {}
    for kind, sign in signs.items():
        for bound in (getattr(one, kind.__name__.lower()) for one in metadata if isinstance(one, kind)):
            ends[sign] = f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"
    if list(ends) == ["≥", "≤"]:
        return f" {ends['≥']} … {ends['≤']}"
    return f" {' and '.join(f'{sign} {end}' for sign, end in ends.items())}" if ends else ""


def _accepts(kind: Any, wanted: type) -> bool:
    """Return whether an annotation allows values of a plain type at its top level."""
    if get_origin(kind) in (Union, types.UnionType):
        return any(_accepts(part, wanted) for part in get_args(kind))
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return kind in (wanted, Any) or (get_origin(kind) is Literal and any(type(v) is wanted for v in get_args(kind)))


# What is wrong with a setting


def problem_of(key: str, value: Any, choices: Choices) -> str | None:
    """Return what is wrong with a setting and would not be told by the models: its key, or true where a number goes."""
    section, name = _parts(key)
    fields = section_fields(section, choices.env)
    if section == "params" and not fields:  # parameters that are not declared
        return None
    if name not in fields and (section or section_model(name) is None):
        return unknown_key(key, choices)
    if isinstance(value, bool) and section != "params" and not _accepts(fields[name].annotation, bool):
        return wrong_value(key, fields[name], value)
    return None


def unknown_key(key: str, choices: Choices) -> str:
    """Return what to say about an unknown dotted key: the nearest one, and the legal names beside it."""
    section, name = _parts(key)
    legal = section_fields(section, choices.env)
    field, dot, inner = name.partition(".")
    if dot and field in legal:
        whole = f"{section}.{field}"
        return f"{key!r} is not a key: {whole} is one value. Write it whole, such as {whole}={{{inner}: …}}."
    in_use = [full for full in all_fields(choices.env) if choices.idle(full) is None]
    elsewhere = {_parts(full)[1]: full for full in reversed(in_use)}
    beside = {other: f"{section}.{other}" if section else other for other in legal}
    near = beside if section else {**elsewhere, **beside}  # outside a section the last part of any key will do
    suggested = [
        *(difflib.get_close_matches(key, in_use, n=1) if not legal else ()),
        *(elsewhere[other] for other in elsewhere if other == name),
        *(near[other] for other in near if not section and name in other.split("_")),
        *(near[other] for other in difflib.get_close_matches(name, near, n=1, cutoff=0.6 if section else 0.7)),
        *(elsewhere[other] for other in difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.75)),
    ]
    hint = f" Did you mean {suggested[0]!r}?" if suggested else ""
    where = "Sections" if not legal else f"Legal in {section}" if section else "Legal"
    whose = f" They are parameters of {choices.env!r}." if section == "params" else ""
    return f"unknown key {key!r}.{hint} {where}: {', '.join(legal or SECTIONS)}.{whose}"


def _parts(key: str) -> tuple[str, str]:
    """Return section and name of a dotted key; the section of a field outside any is ''."""
    section, dot, name = key.partition(".")
    return (section, name) if dot else ("", key)


def wrong_value(key: str, field: FieldInfo, received: Any, reason: str = "") -> str:
    """Return what to say about a value that its field does not take."""
    number = isinstance(received, int | float) and _accepts(field.annotation, str)
    number = number and not _accepts(field.annotation, int)
    quotes = " (quotes make a text of it)" if number else ""
    problem = reason or f"not legal; it takes: {legal_values(field)}{quotes}"
    meaning = f" It is: {field.description}." if field.description else ""
    return f"{key} = {_shown(received)}: {sentence(problem)}{meaning}"


def _shown(value: Any) -> str:
    """Return a value as it was received, with YAML's words for None, True and False."""
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)


def model_problems(error: ValidationError, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the dotted key and a sentence for everything that the models refused; '' is the whole configuration."""
    for problem in error.errors():
        location = [str(part) for part in problem["loc"]]
        section = section_model(location[0]) if location else None
        key = ".".join(location[: 2 if section else 1])
        reason = str(problem["msg"]).removeprefix("Value error, ")
        if isinstance(problem.get("ctx", {}).get("error"), ConfigError):  # says all that there is to say
            named = key not in settings or reason.startswith(key)
            yield key, reason if named else f"{key} = {_shown(settings[key])}: {reason}"
        elif key not in settings:  # what fields say together
            yield key, f"{key}: {reason}" if key else reason
        elif section and len(location) == 1:
            example = f"{key}.{next(iter(section.model_fields))}"
            yield key, f"{key} = {_shown(settings[key])}: it is a section; write settings in it, such as {example}."
        else:
            field = (section or RunConfig).model_fields[key.rpartition(".")[2]]
            own = reason if problem["type"] == "value_error" else ""
            yield key, wrong_value(key, field, settings[key], own)
