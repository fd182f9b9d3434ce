"""`load_run_config`: a preset, a file or a mapping, then overrides, become a `RunConfig`.

YAML is read by the rules of its version 1.2, as most people expect it: `1e-3` is a number, `on` and `no` are texts.
"""

from __future__ import annotations

import copy
import functools
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from velodrome.errors import ConfigError, did_you_mean
from velodrome.outside.files import DEEPEST, TOO_DEEP, check_depth, read_text
from velodrome.runs.config.messages import all_fields, model_problems, problem_of, unknown_key
from velodrome.runs.config.parameters import preset_parameters, same_parameters
from velodrome.runs.config.run_config import Choices, RunConfig, dotted, respelled, section_model
from velodrome.runs.config.sections import SYNTHETIC
from velodrome.runs.folder import INFORMATION

SUFFIXES = (".yaml", ".yml", ".toml")
PRESETS = Path(__file__).parent / "presets"
DEFAULT_PRESET = "trading"
MOST_CHARACTERS = 200_000  # of a configuration; the longest preset has 2,000
MOST_PROBLEMS = 20  # that are told at once
LONG_KEY = re.compile(rf"(?:[^\s.=\[\]]+\s*\.\s*){{{DEEPEST}}}")
GIVEN = "given"  # the origin of what was typed just now


class SettingsError(ConfigError):
    """Settings that are not legal; `problems` has a message for each, by what it is about: mostly a dotted key."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("\n".join(problems.values()))
        self.problems = dict(problems)


class Layer(NamedTuple):
    """Settings from one place by dotted key; a later layer wins."""

    origin: str  # the beginning of a message: the file and a colon; '' for what was typed just now
    settings: dict[str, Any]


Source = str | Path | Mapping[str, Any] | RunConfig | None
Overrides = Sequence[str] | Mapping[str, Any]


def load_run_config(source: Source = None, overrides: Overrides = (), *, own_data: bool = False) -> RunConfig:
    """Return the configuration of a run.

    source: a YAML or TOML file, the name of a preset (`preset_names()` lists them), a mapping, a RunConfig to change,
        or None for the preset of the environment that the overrides name, "trading" if none, and for plain defaults if
        it has no preset. A file or mapping may name a preset to start from as `preset`.
    overrides: "key=value" texts, the value written as YAML, or a mapping. Keys are dotted (ppo.learning_rate); the last
        part alone will do where only one section in use has it.
    own_data: whether the market is the caller's own, as it is where market.source is a path. Presets for price data
        have another, their `demo`, for the built-in markets.
    """
    return load_with_origins(source, overrides, own_data=own_data)[0]


def load_with_origins(
    source: Source = None, overrides: Overrides = (), *, own_data: bool = False
) -> tuple[RunConfig, dict[str, str]]:
    """Return the configuration of a run, and by dotted key where each setting that is no default comes from."""
    given = read_overrides(overrides)
    settings = _settings(given)
    if source is None:
        env = str(settings.get("env", DEFAULT_PRESET))
        source = env if env in preset_names() else {}  # another preset's choices are for its own environment
    layers = _read_source(source, own_data or _names_files(settings))
    layers.append(Layer("", _with_full_keys(given, layers)))
    config = _checked(layers)
    used = dotted(config.content())
    origins = {key: layer.origin.removesuffix(": ") or GIVEN for layer in layers for key in layer.settings}
    return config, {key: origin for key, origin in origins.items() if key in used}


def _names_files(settings: Mapping[str, Any]) -> bool:
    """Return whether settings say that prices come from files."""
    source = settings.get("market.source", settings.get("source"))
    return source is not None and str(source) not in SYNTHETIC


def preset_names() -> tuple[str, ...]:
    """Return the presets of the package, the default first."""
    names = sorted(path.stem for path in PRESETS.glob("*.yaml"))
    return (DEFAULT_PRESET, *(name for name in names if name != DEFAULT_PRESET))


def preset_settings(name: str) -> dict[str, Any]:
    """Return what the file of a preset sets, by dotted key."""
    content = read_file(PRESETS / f"{name}.yaml")
    return _settings({key: value for key, value in content.items() if key not in ("demo", "preset")})


def describe_presets() -> dict[str, str]:
    """Return what each preset is for: the first line of its file."""
    return {
        name: (PRESETS / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
        for name in preset_names()
    }


# Text


@functools.cache
def _constructor() -> Any:
    from ruamel.yaml.constructor import SafeConstructor

    class Constructor(SafeConstructor):
        """Keeps dates as texts, and what begins with 0 too: some instruments have such names."""

        def construct_int(self, node: Any) -> Any:
            text = self.construct_scalar(node)
            return text if re.fullmatch(r"[-+]?0[0-9b_]+", text) else self.construct_yaml_int(node)

    Constructor.add_constructor("tag:yaml.org,2002:int", Constructor.construct_int)
    for tag in ("timestamp", "value"):
        Constructor.add_constructor(f"tag:yaml.org,2002:{tag}", SafeConstructor.construct_yaml_str)
    return Constructor


@functools.lru_cache(maxsize=64)
def _value_of(text: str) -> Any:
    """Return what is in a YAML text, not to be changed: a run reads its file and its preset several times."""
    from ruamel.yaml import YAML

    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _constructor()
    _check_size(reader.parse(text))
    return reader.load(text)


def parse_value(text: str, where: str) -> Any:
    """Return the value of a YAML text; `where` begins the message about one that is not legal."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return copy.deepcopy(_value_of(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        context = f" {error.context}" if error.context else ""
        raise ConfigError(f"{where}{place}: not legal YAML: {error.problem}{context}.") from error
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: not legal YAML: {error}.") from error


def _check_size(events: Iterable[Any]) -> None:
    """Refuse a text that is nested too deeply, or grows too much once each alias stands for what it repeats."""
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    size = 0  # nodes and characters so far
    named: dict[str, tuple[int, int]] = {}  # size and height of what has an anchor
    opened: list[tuple[str | None, int]] = []  # anchor of each collection around this place, and the size before it
    heights = [0]  # of what was found in each of them
    for event in events:
        size, height = size + 1, 0
        if isinstance(event, CollectionStartEvent):
            opened.append((event.anchor, size))
            heights.append(0)
        elif isinstance(event, CollectionEndEvent):
            (anchor, before), height = opened.pop(), heights.pop() + 1
            if anchor:
                named[anchor] = (size - before, height)
        elif isinstance(event, ScalarEvent):
            size += len(event.value)
            if event.anchor:
                named[event.anchor] = (len(event.value), 0)
        elif isinstance(event, AliasEvent):
            if any(anchor == event.anchor for anchor, _ in opened):
                raise ValueError(f"*{event.anchor} is part of what it stands for")
            more, height = named.get(event.anchor, (0, 0))
            size += more
        heights[-1] = max(heights[-1], height)
        if len(opened) + height > DEEPEST:
            raise ValueError(TOO_DEEP)
        if size > MOST_CHARACTERS:
            raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters, with *aliases filled in")


def parse_yaml(text: str, where: str = "configuration") -> dict[str, Any]:
    """Return the mapping in a YAML text; an empty text has no keys."""
    content = parse_value(text, where)
    if content is not None and not isinstance(content, dict):
        raise ConfigError(
            f"{where} holds a {type(content).__name__} where keys and values are needed, such as 'steps: 1000000'."
        )
    return content or {}


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        if LONG_KEY.search(text):  # tomllib's time grows with the square of its length
            raise ValueError(TOO_DEEP)
        content = tomllib.loads(text)
        check_depth(content)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError(TOO_DEEP) from error
    except ValueError as error:  # also numbers of thousands of digits
        raise error if isinstance(error, tomllib.TOMLDecodeError) else tomllib.TOMLDecodeError(str(error)) from error
    return content


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a YAML or TOML file."""
    try:
        text = read_text(path, MOST_CHARACTERS)
        return _parse_toml(text) if path.suffix.lower() == ".toml" else parse_yaml(text, str(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not legal TOML: {error}.") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 text, {error}"
        raise ConfigError(f"{path} cannot be read: {reason}.") from error


def as_it_was_read(path: Path) -> dict[str, Any]:
    """Return settings of files that an older run's configuration does not have, as such files were read then."""
    market = read_file(path).get("market") or {}
    before = {"adjust": False, "max_gap": None}
    # `timezone` is written wherever prices come from files.
    return {f"market.{name}": value for name, value in before.items() if "timezone" in market and name not in market}


def load_config_of_run(path: Path) -> RunConfig:
    """Return the configuration in a run's folder."""
    return load_run_config(path, as_it_was_read(path))


# Layers


def _read_source(source: Any, files: bool) -> list[Layer]:
    """Return the layers of a source; files: whether prices come from files, as far as later layers say."""
    if isinstance(source, RunConfig):
        return [Layer("", _settings(source.content()))]
    if isinstance(source, Mapping):
        return _with_preset("", source, files)
    if str(source) in preset_names():
        content = read_file(PRESETS / f"{source}.yaml")
        demo = content.pop("demo", None)
        return _with_preset(f"preset {source}: ", content, files) if files or not demo else _read_source(demo, files)
    if not isinstance(source, str | Path):
        raise ConfigError(
            f"a configuration is {source!r}; give the path of a file, the name of a preset, a mapping or a RunConfig."
        )
    path = Path(source).expanduser()
    if not os.path.exists(path):  # Path.exists raises for the text of a file in place of its name
        raise ConfigError(_not_found(path))
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; give a configuration file ({', '.join(SUFFIXES)}) or a preset.")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: a configuration file ends in {', '.join(SUFFIXES)}.")
    layers = _with_preset(f"{path}: ", read_file(path), files)
    return [_without_idle(layer) for layer in layers] if path.with_name(INFORMATION).is_file() else layers


def _without_idle(layer: Layer) -> Layer:
    """Return the settings of a run's own file that have an effect: older versions took others without a word."""
    choices = Choices.among(layer.settings)
    return layer._replace(settings={key: value for key, value in layer.settings.items() if choices.idle(key) is None})


def _not_found(path: Path) -> str:
    presets = preset_names()
    folder = path.parent if path.parent.is_dir() else Path()
    siblings = [str(file) for suffix in SUFFIXES for file in folder.glob(f"*{suffix}")]
    close = did_you_mean(str(path), siblings) or did_you_mean(path.stem, presets)
    return (
        f"there is no configuration file {str(path)!r} (looked for {path.absolute()}) and no such preset.{close} "
        f"Presets: {', '.join(presets)}."
    )


def _with_preset(origin: str, content: Mapping[Any, Any], files: bool) -> list[Layer]:
    """Return the settings of a file or mapping above those of the preset that it names."""
    own = _settings({key: value for key, value in content.items() if key != "preset"})
    name, legal = content.get("preset"), preset_names()
    if name is not None and name not in legal:
        raise ConfigError(
            f"preset = {name!r}: there is no such preset; there are {', '.join(legal)}.{did_you_mean(str(name), legal)}"
        )
    return [*(_read_source(name, files or _names_files(own)) if name is not None else []), Layer(origin, own)]


def _settings(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return settings by dotted key; an empty section, such as one in which every line is a comment, has none."""
    return {key: value for key, value in respelled(dotted(content)).items() if "." in key or value != {}}


# Overrides


def read_overrides(overrides: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides by key as they were written."""
    if isinstance(overrides, Mapping):
        given = dict(overrides)
    else:
        given = {}
        for text in (overrides,) if isinstance(overrides, str) else overrides:
            key, equals, value = text.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"{text!r} is not a setting; write key=value, such as ppo.learning_rate=1e-3.")
            given[key.strip()] = parse_value(value, f"the value of {text!r}")
    if "preset" in given:
        raise ConfigError(
            f"preset = {given['preset']!r}: a preset is named in place of a configuration file; params.preset sets "
            "that of the environment's parameters."
        )
    return given


def _with_full_keys(given: Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, Any]:
    """Return overrides by dotted key; the last part of one will do where only one section in use has it."""
    settings = _settings(given)
    short = [key for key in settings if "." not in key and key not in RunConfig.model_fields and not section_model(key)]
    values = {key: settings.pop(key) for key in short}
    for key in sorted(short, key=lambda key: key != "source"):  # the source decides which fields are in use
        choices = Choices.among(_merged([*layers, Layer("", settings)]))
        full = _full_key(key, choices)
        if full in settings:
            raise ConfigError(f"{key} and {full} are one setting; give it once.")
        settings[full] = values[key]
    return settings


def _full_key(key: str, choices: Choices) -> str:
    every = [full for full in all_fields(choices.env) if full.partition(".")[2] == key]
    # Where none is in use, the message that it has no effect says more than that it is unknown.
    found = [full for full in every if choices.idle(full) is None] or every
    if not found and not choices.env:  # that the environment is not known is all there is to say
        return f"params.{key}"
    if not found:
        raise ConfigError(unknown_key(key, choices))
    if len(found) > 1 and choices.algorithm:
        raise ConfigError(f"{key!r} may mean {' or '.join(found)}; write which.")
    return found[0]


# Putting together


def _merged(layers: Sequence[Layer]) -> dict[str, Any]:
    return {key: value for layer in layers for key, value in layer.settings.items()}


def _checked(layers: Sequence[Layer]) -> RunConfig:
    """Return what the layers say together, or refuse it with a message for every key that is wrong."""
    choices = Choices.among(_merged(layers))
    settings: dict[str, Any] = {}
    told: dict[str, str] = {}  # messages by what they are about
    for index, layer in enumerate(layers):
        later = _merged(layers[index + 1 :])
        env = _merged(layers[: index + 1]).get("env", RunConfig.model_construct().env)
        for key, value in layer.settings.items():
            idle = choices.idle(key)
            chosen_otherwise = idle is not None and idle.chooser in later
            if len(told) >= MOST_PROBLEMS:
                break
            if key in later or chosen_otherwise or _left_behind(key, layer.settings, env, later):
                continue
            problem = idle.told(key) if idle else problem_of(key, value, choices)
            if problem is None:
                settings[key] = value
            else:  # of a whole section without effect, one key is told
                told.setdefault(idle.reason if idle else key, f"{layer.origin}{problem}")
    try:
        config = RunConfig.model_validate(settings)
    except ValidationError as error:
        for key, problem in model_problems(error, settings):
            if key or not told:  # whether fields agree matters once each of them is legal
                told.setdefault(key, f"{_origin(key, layers)}{problem}")
        raise SettingsError(told) from error
    if told:
        raise SettingsError(told)
    return config


def _left_behind(key: str, own: Mapping[str, Any], env: Any, later: Mapping[str, Any]) -> bool:
    """Return whether a setting was for an environment, parameters or a process that later settings replace."""
    section, _, name = key.partition(".")
    if key == "steps":
        return later.get("episodes") is not None
    if section == "params":
        if later.get("env", env) != env:
            return True
        replaced = {other.removeprefix("params.") for other in later if other.startswith("params.")}
        replaced |= set(preset_parameters(env, later.get("params.preset")))
        return not replaced.isdisjoint(same_parameters(env, name))
    if key == "market.timeframe" or (key == "market.symbols" and isinstance(own[key], int)):
        # Files bring their own instruments and bars.
        source = own.get("market.source")
        return str(source) in SYNTHETIC and str(later.get("market.source", source)) not in SYNTHETIC
    return False


def _origin(key: str, layers: Sequence[Layer]) -> str:
    """Return the origin of the last layer that set a field, or something in a section; '' if none did."""
    found = [layer for layer in layers if any(f"{name}.".startswith(f"{key}.") for name in layer.settings)]
    return found[-1].origin if found else ""
