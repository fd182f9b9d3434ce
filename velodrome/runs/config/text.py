"""Text of configurations: YAML and TOML in, YAML values out.

YAML is read by the rules of its version 1.2, as most people expect it: `1e-3` is a number, and `on`, `no` and
`2020-01-31` are texts (in version 1.1, PyYAML's own, a number needs a point, and the ticker ON would be true).
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from velodrome.errors import ConfigError

SUFFIXES = (".yaml", ".yml", ".toml")

# Tag, pattern and the characters that a plain scalar of it begins with; underscores may group the digits of a number.
SCALARS = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"null|Null|NULL|~|", ("n", "N", "~", "")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*|[0-9][0-9_]*(?=[eE]))(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("merge", r"<<", "<"),
)


class Loader(yaml.SafeLoader):
    """Reads configurations; a key that is written twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key_node.value!r} is written twice", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """Writes values so that both this loader and readers of YAML 1.1 take them for what they are."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, text: str) -> yaml.ScalarNode:
        # Only double quotes keep the breaks of a text in one line.
        has_breaks = text.splitlines() not in ([text], [])
        return self.represent_scalar("tag:yaml.org,2002:str", text, style='"' if has_breaks else None)


Dumper.add_representer(str, Dumper.represent_str)
Loader.yaml_implicit_resolvers = {}  # those of YAML 1.1 are not wanted; classes that add some get lists of their own
for _tag, _pattern, _first in SCALARS:
    for _class in (Loader, Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def read_file(path: Path) -> dict[str, Any]:
    """Return the content of a YAML or TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is no UTF-8 text, {error}"
        raise ConfigError(f"{path} cannot be read: {reason}.") from error
    return parse_toml(text, str(path)) if path.suffix.lower() == ".toml" else parse_yaml(text, str(path))


def parse_yaml(text: str, where: str = "configuration") -> dict[str, Any]:
    """Return the mapping that a YAML text holds; an empty one holds none of its keys."""
    content = _load(text, where)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"{where} holds a {type(content).__name__} where keys and values are needed, such as 'steps: 1000000'."
        )
    return content


def parse_toml(text: str, where: str = "configuration") -> dict[str, Any]:
    """Return the mapping that a TOML text holds."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is no legal TOML: {error}.") from error


def parse_value(text: str, where: str) -> Any:
    """Return the value that is written on a command line, as YAML."""
    return _load(text, where)


def _load(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        context = f" {error.context}" if error.context else ""
        raise ConfigError(f"{where}{place}: no legal YAML: {error.problem}{context}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: no legal YAML: {error}.") from error


def value_text(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.dump(
        value, Dumper=Dumper, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("...\n").removesuffix("\n")
