"""What a training can be told: every field with its meaning, unit and range, and the check of what somebody chose."""

from __future__ import annotations

import functools
import re
import shlex
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import Field
from pydantic.fields import FieldInfo

from velodrome.dashboard.answers import Asked, Question, Refusal, Routes
from velodrome.dashboard.site import Site
from velodrome.envs.catalog import CATALOG
from velodrome.errors import ConfigError
from velodrome.learn.catalog import ALGORITHMS
from velodrome.outside import code
from velodrome.runs.config.explain import RUN, section_lines, section_meaning, value_text
from velodrome.runs.config.files import (
    SettingsError,
    describe_presets,
    load_run_config,
    parse_value,
    preset_names,
    preset_settings,
)
from velodrome.runs.config.messages import section_fields
from velodrome.runs.config.run_config import RunConfig, dotted

routes = Routes()
KEY = re.compile(r"[A-Za-z_][\w.-]{0,120}")
MOST_SETTINGS = 500
# Where a run and its rows go is the server's business.
PLACES = ("logging.folder", "logging.store")
UNITS = {"number": None}
KINDS = {bool: "bool", int: "integer", float: "number", str: "text"}
# The first unit that a meaning names in brackets or after "in".
UNIT = re.compile(r"\b(seconds|bytes|steps|bars|episodes|per cent|share|days)\b")


class EnvQuery(Asked):
    """Whose parameters stand under params."""

    env: str = Field("trading", max_length=200, description="an environment of the catalogue")


@routes.get("/api/config/fields", EnvQuery)
def fields(site: Site, question: Question[EnvQuery]) -> Any:
    """Return every field that a training can be told, with its meaning, unit and range, and the presets."""
    env = question.asked.env
    if env not in CATALOG:
        raise Refusal(422, f"env {env[:80]!r}: the fields are known of {', '.join(CATALOG.names())}.")
    return _fields(env)


@functools.lru_cache(maxsize=16)
def _fields(env: str) -> dict[str, Any]:
    sections = []
    for name, lines in section_lines(env).items():
        declared = section_fields("" if name == RUN else name, env)
        own = [
            _field(line.key, line.legal, line.meaning, declared.get(line.key.rpartition(".")[2]))
            for line in lines
            if line.key not in PLACES
        ]
        algorithm = name if name in ALGORITHMS else None
        sections.append({"name": name, "meaning": section_meaning(name, env), "algorithm": algorithm, "fields": own})
    about = describe_presets()
    presets = [
        {"name": name, "about": about[name], "env": settings.get("env", "trading"), "settings": settings}
        for name, settings in ((name, preset_settings(name)) for name in preset_names())
    ]
    catalogue = {"envs": list(CATALOG.names()), "algorithms": list(ALGORITHMS.names())}
    return {**catalogue, "presets": presets, "sections": sections}


def _field(key: str, legal: str, meaning: str, field: FieldInfo | None) -> dict[str, Any]:
    """Return one field for a form."""
    found: dict[str, Any] = {"key": key, "meaning": meaning, "legal": legal, "default": None, "kind": "text"}
    found |= {"nullable": False, "choices": None, "low": None, "high": None}
    found |= {"low_open": False, "high_open": False, "unit": None}
    if field is None:
        return found
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    found["default"] = field.get_default(call_default_factory=True)
    found |= _kind(field.annotation)
    for one in field.metadata:
        for kind, end, is_open in _ENDS:
            if isinstance(one, kind):
                found |= {end: getattr(one, kind.__name__.lower()), f"{end}_open": is_open}
    if extra.get("number"):  # a parameter of an environment, which may be a range
        found |= {"kind": "integer" if extra["whole"] else "number", "low": extra["low"], "high": extra["high"]}
        found["unit"] = extra["unit"]
    elif named := UNIT.search(meaning):
        found["unit"] = named[1] if found["kind"] in ("integer", "number") else None
    if key == "algorithm":
        found |= {"kind": "choice", "choices": list(ALGORITHMS.names())}
    if key == "env":
        found["choices"] = list(CATALOG.names())
    listed = legal.removesuffix(", or null").removeprefix("one of ")
    if found["kind"] == "text" and legal.startswith("one of "):
        found |= {"kind": "choice", "choices": listed.split(", ")}
    return found


_ENDS = (
    (annotated_types.Ge, "low", False),
    (annotated_types.Gt, "low", True),
    (annotated_types.Le, "high", False),
    (annotated_types.Lt, "high", True),
)


def _kind(annotation: Any) -> dict[str, Any]:
    """Return what a form shows for an annotation."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        inner = [one for one in arguments if one is not type(None)]
        found = _kind(inner[0]) if len(inner) == 1 else {"kind": "text"}
        return {**found, "nullable": type(None) in arguments}
    if origin is Literal:
        return {"kind": "choice", "choices": list(arguments)}
    if origin in (list, tuple, set, frozenset):
        return {"kind": "list"}
    if origin is dict or annotation is dict:
        return {"kind": "mapping"}
    inner = arguments[0] if arguments and origin not in KINDS else annotation
    return {"kind": KINDS.get(inner, "text")}


# Checking


class Choice(Asked):
    """What somebody chose."""

    preset: str | None = Field(None, max_length=100, description="a preset to start from")
    settings: dict[str, Any] = Field(default_factory=dict, description="values by dotted key; texts are read as YAML")


@routes.post("/api/config/check", Choice)
def check(site: Site, question: Question[Choice]) -> Any:
    """Say what is wrong with some settings, in the words of the command line, and which command means the same."""
    asked = question.asked
    config, problems = chosen_config(site, asked.preset, asked.settings)
    found: dict[str, Any] = {"ok": config is not None, "problems": problems}
    found |= {
        "command": command_line("submit", asked.preset, asked.settings),
        "train_command": command_line("train", asked.preset, asked.settings),
    }
    effective: dict[str, Any] = {} if config is None else dotted(config.content())
    defaults = dotted(RunConfig().content())
    differing = [
        {"key": key, "value": value, "default": defaults.get(key)}
        for key, value in effective.items()
        if value != defaults.get(key)
    ]
    return {**found, "effective": effective, "differences": differing}


def chosen_config(
    site: Site, preset: str | None, settings: Mapping[str, Any]
) -> tuple[RunConfig | None, list[dict[str, str]]]:
    """Return the configuration that somebody means, or None and what is wrong with it, by key."""
    if preset is not None and preset not in preset_names():
        return None, [_problem("preset", f"preset {preset[:80]!r}: there are {', '.join(preset_names())}.")]
    if len(settings) > MOST_SETTINGS:
        raise Refusal(422, f"{len(settings)} settings; {MOST_SETTINGS} are legal.")
    problems, given = [], {}
    for key, value in settings.items():
        if not KEY.fullmatch(key):
            problems.append(_problem("", f"{key[:80]!r} is no key of a setting."))
        elif key in PLACES or key.rpartition(".")[2] == "store":
            problems.append(
                _problem(key, f"{key}: a training that is submitted goes where the queue is; leave it out.")
            )
        else:
            try:
                given[key] = parse_value(value, key) if isinstance(value, str) else value
            except ConfigError as error:
                problems.append(_problem(key, str(error)))
    if problems:
        return None, problems
    try:
        config = load_run_config(preset, given)
    except SettingsError as error:
        return None, [
            _problem(key if KEY.fullmatch(key) else _about(text, given), text) for key, text in error.problems.items()
        ]
    except ConfigError as error:
        return None, [_problem(_about(line, given), line) for line in str(error).splitlines()]
    if unknown := code.untrusted(config.code_names()):
        told = (
            f"{'; '.join(unknown)}: this names code that was not used here before, and a browser may not start it. "
            f"Train with it once in a terminal: {command_line('train', preset, settings)}"
        )
        return None, [_problem(unknown[0].partition(" = ")[0], told)]
    if wrong := _wrong_source(site, config):
        return None, [_problem("market.source", wrong)]
    return config, []


def _about(message: str, given: Mapping[str, Any]) -> str:
    """Return which of the settings a message is about; '' if it says none."""
    return next((key for key in given if f"{key!r}" in message or message.startswith(f"{key} ")), "")


def _wrong_source(site: Site, config: RunConfig) -> str | None:
    """Return why a browser may not name these prices: only what a run used, or what lies below the server's folder."""
    if config.market.is_synthetic:
        return None
    path = Path(config.market.source).expanduser().resolve()
    if path.is_relative_to(Path.cwd()) or path.is_relative_to(site.folder) or str(path) in known_sources(site):
        return None
    return (
        f"market.source = {config.market.source!r}: from a browser only prices that a run here used, or that lie below "
        f"{Path.cwd()}, can be named. Start the server in the folder of your prices, or submit in a terminal."
    )


def known_sources(site: Site) -> set[str]:
    """Return where the prices of runs lie."""
    snapshot = site.index.snapshot()

    def look() -> set[str]:
        found = set()
        newest = {line.data_hash: line for line in reversed(list(snapshot.lines.values())) if line.data_hash}
        for line in newest.values():
            record = site.store.find(line.id)
            source = ((record.config.get("market") or {}).get("source") if record else None) or ""
            found.add(str(Path(str(source)).expanduser().resolve()))
        return found

    return site.held("sources", len(snapshot.lines), look)


def _problem(key: str, message: str) -> dict[str, str]:
    return {"key": key, "message": message}


def command_line(verb: str, preset: str | None, settings: Mapping[str, Any]) -> str:
    """Return the command that means the same."""
    words = [f"{key}={value if isinstance(value, str) else value_text(value)}" for key, value in settings.items()]
    return shlex.join(["velodrome", verb, *([preset] if preset else []), *words])
