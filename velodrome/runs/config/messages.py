"""Settings in layers (preset, file, overrides), and what to say of a setting that is wrong: its full key and origin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from velodrome.errors import ConfigError
from velodrome.runs.config.fields import accepts, legal_values, section_model, section_models, unknown_key
from velodrome.runs.config.parameters import check_environment, parameter_names
from velodrome.runs.config.run_config import Idle, RunConfig, idle_keys

SECTIONS = section_models(RunConfig)


class Layer(NamedTuple):
    """Settings from one place, nested by section; a later layer wins."""

    origin: str  # file, for messages; '' for what was typed just now
    content: dict[str, Any]


def made_choices(content: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return env, algorithm and market.source; an illegal one is left for the models to refuse."""
    env, algorithm = content.get("env"), content.get("algorithm")
    market = content.get("market")
    source = market.get("source") if isinstance(market, dict) else None
    if isinstance(env, str):
        check_environment(env)
    plain = RunConfig.model_construct()
    return (
        env if isinstance(env, str) else plain.env,
        algorithm if isinstance(algorithm, str) else plain.algorithm,
        str(source) if isinstance(source, str | Path) else plain.market.source,
    )


def all_keys(env: str) -> list[str]:
    """Return the dotted keys of all sections and of an environment's parameters."""
    keys = [f"{section}.{name}" for section, model in SECTIONS.items() for name in model.model_fields]
    return keys + [f"params.{name}" for name in parameter_names(env) if name != "preset"]


def idle_part(key: str, idle: Mapping[str, Idle]) -> Idle | None:
    """Return why a field, or the section it is in, has no effect; None if it has."""
    return idle.get(key) or idle.get(key.partition(".")[0])


def has_key(content: Mapping[str, Any], key: str) -> bool:
    """Return whether settings have something at a dotted key."""
    section, dot, name = key.partition(".")
    inner = content.get(section)
    return section in content and (not dot or (isinstance(inner, dict) and name in inner)) and inner != {}


def place(layer: Layer) -> str:
    """Return where a layer comes from, as the begin of a message."""
    return f"{layer.origin}: " if layer.origin else ""


def _leaves(content: Mapping[str, Any]) -> Iterator[tuple[str, FieldInfo, Any]]:
    """Yield dotted key, field and value of every setting that has a field."""
    for name, value in content.items():
        field = RunConfig.model_fields.get(name)
        model = section_model(field) if field else None
        if model is not None and isinstance(value, dict):
            known = model.model_fields
            yield from ((f"{name}.{inner}", known[inner], value[inner]) for inner in value if inner in known)
        elif field is not None:
            yield name, field, value


def refuse_booleans(content: Mapping[str, Any], layers: Sequence[Layer]) -> None:
    """Refuse true and false where a number is wanted: Python would take them for 1 and 0."""
    for key, field, value in _leaves(content):
        if isinstance(value, bool) and not accepts(field.annotation, bool):
            raise ConfigError(_wrong_value(key, field, value, "", layers))


def problems(error: ValidationError, content: Mapping[str, Any], layers: Sequence[Layer]) -> Iterator[str]:
    """Yield one sentence for every key that is wrong."""
    told: set[str] = set()
    for problem in error.errors():
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):  # says all that there is to say
            yield f"{_origin('.'.join(map(str, problem['loc'])), layers)}{cause}" if problem["loc"] else str(cause)
            continue
        location = [str(part) for part in problem["loc"]]
        if not location:
            yield str(problem["msg"])
            continue
        model: type[BaseModel] = SECTIONS.get(location[0], RunConfig) if len(location) > 1 else RunConfig
        key = ".".join(location[: 1 if model is RunConfig else 2])
        name = key.rpartition(".")[2]
        if key in told:  # a union tells of each of its members
            continue
        told.add(key)
        if problem["type"] == "extra_forbidden" and name not in model.model_fields:
            yield f"{_origin(key, layers)}{_unknown(key, model, made_choices(content))}"
            continue
        section, dot, inner = key.partition(".")
        received = content[section][inner] if dot else content[section]
        own = str(problem["msg"]).removeprefix("Value error, ") if problem["type"] == "value_error" else ""
        yield _wrong_value(key, model.model_fields[name], received, own, layers)


def _unknown(key: str, model: type[BaseModel], choices: tuple[str, str, str]) -> str:
    section, _, name = key.partition(".")
    field, dot, inner = name.partition(".")
    if dot and field in model.model_fields:
        whole = f"{section}.{field}"
        return f"{key!r} is not a key: {whole} is one value. Write it whole, such as {whole}={{{inner}: …}}."
    idle = idle_keys(*choices)
    in_use = [full for full in all_keys(choices[0]) if idle_part(full, idle) is None]
    return unknown_key(key, model.model_fields, in_use)


def _wrong_value(key: str, field: FieldInfo, received: Any, own: str, layers: Sequence[Layer]) -> str:
    if section_model(field) is not None:
        example = f"{key}.{next(iter(SECTIONS[key].model_fields))}"
        said = own or f"= {_shown(received)}: it is a section; write settings in it, such as {example}."
        return f"{_origin(key, layers)}{key}{':' if own else ''} {said}"
    number = isinstance(received, int | float) and accepts(field.annotation, str)
    quotes = " (quotes make a text of it)" if number else ""
    problem = own.removesuffix(".") or f"not legal; it takes: {legal_values(field)}{quotes}"
    stop = "" if problem.endswith("?") else "."
    meaning = f" It is: {field.description}." if field.description else ""
    return f"{_origin(key, layers)}{key} = {_shown(received)}: {problem}{stop}{meaning}"


def _shown(value: Any) -> str:
    """Return a value as it was received, with what YAML calls null, true and false."""
    plain = value is None or isinstance(value, bool)
    return {None: "null", True: "true", False: "false"}[value] if plain else repr(value)


def _origin(key: str, layers: Sequence[Layer]) -> str:
    """Return the file in which a key was set last, as the begin of a message."""
    return next((place(layer) for layer in reversed(layers) if has_key(layer.content, key)), "")
