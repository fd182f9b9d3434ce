"""`load_run_config`: a preset, a file or a mapping, then overrides, become a `RunConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from velodrome.errors import ConfigError, did_you_mean
from velodrome.runs.config.fields import unknown_key
from velodrome.runs.config.market import SYNTHETIC
from velodrome.runs.config.messages import (
    SECTIONS,
    Layer,
    all_keys,
    has_key,
    idle_part,
    made_choices,
    place,
    problems,
    refuse_booleans,
)
from velodrome.runs.config.run_config import RunConfig, idle_keys, no_effect, respelled
from velodrome.runs.config.text import SUFFIXES, parse_value, read_file

PRESETS = Path(__file__).parent / "presets"
DEFAULT_PRESET = "trading"
# These decide which other fields have an effect.
CHOOSERS = ("env", "algorithm", "market.source")


def load_run_config(
    source: str | Path | Mapping[str, Any] | RunConfig | None = None, overrides: Sequence[str] | Mapping[str, Any] = ()
) -> RunConfig:
    """Return the configuration of a run.

    source: a YAML or TOML file, the name of a preset (`preset_names()` lists them), a mapping, a RunConfig to change,
        or None for the preset "trading", or for plain defaults if the overrides name another environment. A file or
        mapping may name a preset to start from as `preset`.
    overrides: "key=value" texts, the value written as YAML, or a mapping. Keys are dotted (ppo.learning_rate); the last
        part alone will do where only one section in use has it.
    """
    if source is None and _names_another_environment(overrides):
        source = {}  # what the default preset chose is for its own environment
    layers = _read_source(source)
    layers.append(Layer("", _read_overrides(overrides, layers)))
    content = _settle(layers)
    refuse_booleans(content, layers)
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError("\n".join(problems(error, content, layers))) from error


def _names_another_environment(overrides: Sequence[str] | Mapping[str, Any]) -> bool:
    """Return whether overrides choose an environment that the default preset is not made for."""
    if isinstance(overrides, Mapping):
        named = [overrides[key] for key in ("env", "env.id") if key in overrides]
    else:
        texts = (overrides,) if isinstance(overrides, str) else overrides
        pairs = [text.partition("=") for text in texts]
        named = [value.strip() for key, _, value in pairs if key.strip() in ("env", "env.id")]
    return any(name != DEFAULT_PRESET for name in named)


def preset_names() -> tuple[str, ...]:
    """Return the presets of the package, the default first."""
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    return (DEFAULT_PRESET, *(name for name in names if name != DEFAULT_PRESET))


def describe_presets() -> dict[str, str]:
    """Return what each preset is for, which is the first line of its file."""
    return {
        name: (PRESETS / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
        for name in preset_names()
    }


# Reading


def _read_source(source: Any) -> list[Layer]:
    if source is None:
        source = DEFAULT_PRESET
    if isinstance(source, RunConfig):
        return [Layer("", source.content())]
    if isinstance(source, Mapping):
        return _with_preset(Layer("", dict(source)))
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"a configuration is {source!r}; give the path of a file, the name of a preset, a mapping or a RunConfig."
        )
    if str(source) in preset_names():
        return [Layer(f"preset {source}", _nested(read_file(PRESETS / f"{source}.yaml")))]
    path = Path(source).expanduser()
    if not _exists(path):
        raise ConfigError(_not_found(path))
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a configuration file ({', '.join(SUFFIXES)}) or a preset.")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a configuration file ends in {', '.join(SUFFIXES)}.")
    return _with_preset(Layer(str(path), read_file(path)))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not even a legal path, such as the text of a file in place of its name
        return False


def _not_found(path: Path) -> str:
    presets = preset_names()
    folder = path.parent if path.parent.is_dir() else Path()
    siblings = [str(file) for suffix in SUFFIXES for file in folder.glob(f"*{suffix}")]
    close = did_you_mean(str(path), siblings) or did_you_mean(path.stem, presets)
    return (
        f"there is no configuration file {str(path)!r} (looked for {path.absolute()}) and no such preset.{close} "
        f"Presets: {', '.join(presets)}."
    )


def _with_preset(layer: Layer) -> list[Layer]:
    """Put the preset that a layer names under it."""
    content = dict(layer.content)
    name = content.pop("preset", None)
    below: list[Layer] = []
    if name is not None:
        if name not in preset_names():
            legal = preset_names()
            raise ConfigError(
                f"preset = {name!r}: there is no such preset; there are {', '.join(legal)}."
                f"{did_you_mean(str(name), legal)}"
            )
        below = _read_source(str(name))
    return [*below, Layer(layer.origin, _nested(content))]


def _nested(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return settings as one mapping a section: dotted keys are taken apart and empty sections filled in."""
    nested: dict[str, Any] = {}
    _check_key_types(content)
    for key, value in respelled(content).items():
        section, dot, name = key.partition(".")
        if not dot and (section in SECTIONS or section == "params"):
            if value is None:  # a section in which every line is a comment
                value = {}
            if isinstance(value, BaseModel):
                value = value.model_dump(exclude_unset=True)
            if isinstance(value, Mapping):
                _check_key_types(value)
                nested.setdefault(section, {}).update(value)
                continue
        if dot and (section in SECTIONS or section == "params") and isinstance(nested.setdefault(section, {}), dict):
            nested[section][name] = value
        else:
            nested[key] = value
    return nested


def _check_key_types(content: Mapping[Any, Any]) -> None:
    for key in content:
        if not isinstance(key, str):
            raise ConfigError(f"the key {key!r} is of type {type(key).__name__}; keys are texts, such as steps.")


# Overrides


def _read_overrides(overrides: Sequence[str] | Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, Any]:
    if isinstance(overrides, Mapping):
        given = dict(overrides)
    else:
        given = {}
        for text in (overrides,) if isinstance(overrides, str) else overrides:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"{text!r} is no setting; write key=value, such as ppo.learning_rate=1e-3.")
            given[key.strip()] = parse_value(value, f"the value of {text!r}")
    if "preset" in given:
        raise ConfigError(
            f"preset = {given['preset']!r}: a preset is named in place of a configuration file; params.preset sets "
            "that of the environment's parameters."
        )
    short = [key for key in given if isinstance(key, str) and "." not in key and key not in RunConfig.model_fields]
    # First what decides which sections are in use.
    short.sort(key=lambda key: all(key != chooser.rpartition(".")[2] for chooser in CHOOSERS))
    settings = respelled({key: value for key, value in given.items() if key not in short})
    for key in short:
        choices = made_choices(_merged([*layers, Layer("", _nested(settings))]))
        full = _full_key(key, choices)
        if full in settings:
            raise ConfigError(f"{key} and {full} are one setting; give it once.")
        settings[full] = given[key]
    return _nested(settings)


def _full_key(key: str, choices: tuple[str, str, str]) -> str:
    """Return the dotted key that a short one stands for, given env, algorithm and market.source."""
    idle = idle_keys(*choices)
    every = [full for full in all_keys(choices[0]) if full.rpartition(".")[2] == key]
    in_use = [full for full in every if idle_part(full, idle) is None]
    # One that has no effect is told so, which says more than that it is unknown.
    found = in_use or every
    if len(found) > 1:
        raise ConfigError(f"{key!r} may mean {' or '.join(found)}; write which.")
    if not found:
        raise ConfigError(unknown_key(key, RunConfig.model_fields, all_keys(choices[0])))
    return found[0]


# Putting together


def _merged(layers: Sequence[Layer]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.content.items():
            if isinstance(value, dict) and isinstance(content.get(key), dict) and (key in SECTIONS or key == "params"):
                content[key] = {**content[key], **value}
            else:
                content[key] = value
    return content


def _settle(layers: Sequence[Layer]) -> dict[str, Any]:
    """Merge the layers; a setting without effect is refused, unless a later layer made it so by choosing otherwise."""
    content = _merged(layers)
    choices = made_choices(content)
    if choices[1] not in ("ppo", "dqn"):
        return content
    kept = _own_bars(_own_parameters(layers))
    for key, idle in idle_keys(*choices).items():
        chosen_in = max(
            (index for index, layer in enumerate(layers) if has_key(layer.content, idle.chooser)), default=-1
        )
        for index, layer in enumerate(kept):
            if not has_key(layer.content, key):
                continue
            if index >= chosen_in:
                raise ConfigError(f"{place(layer)}{no_effect(_first_leaf(layer.content, key), idle)}")
            kept[index] = Layer(layer.origin, _without(layer.content, key))
    return _merged(kept)


def _own_parameters(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers without parameters of an environment that a later one has replaced by another."""
    chosen = [layer.content.get("env") for layer in layers]
    kept = []
    for index, layer in enumerate(layers):
        later = [env for env in chosen[index + 1 :] if env is not None]
        before = [env for env in chosen[: index + 1] if env is not None]
        own = before[-1] if before else RunConfig.model_construct().env
        replaced = bool(later) and later[-1] != own and "params" in layer.content
        kept.append(Layer(layer.origin, _without(layer.content, "params")) if replaced else layer)
    return kept


def _own_bars(layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers without number and bar size of instruments of a process that a later one replaced by files."""
    chosen = [layer.content["market"].get("source") if isinstance(layer.content.get("market"), dict) else None
              for layer in layers]  # fmt: skip
    kept = []
    for index, layer in enumerate(layers):
        later = [source for source in chosen[index + 1 :] if source is not None]
        if later and str(chosen[index]) in SYNTHETIC and str(later[-1]) not in SYNTHETIC:
            content = _without(layer.content, "market.timeframe")
            if isinstance(content["market"].get("symbols"), int):
                content = _without(content, "market.symbols")
            layer = Layer(layer.origin, content)
        kept.append(layer)
    return kept


def _first_leaf(content: Mapping[str, Any], key: str) -> str:
    """Return the first setting below a key, which is what a person wrote."""
    inner = content.get(key)
    return f"{key}.{next(iter(inner))}" if isinstance(inner, dict) and inner else key


def _without(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    section, dot, name = key.partition(".")
    if not dot:
        return {other: value for other, value in content.items() if other != section}
    inner = {other: value for other, value in content[section].items() if other != name}
    return {**content, section: inner}
