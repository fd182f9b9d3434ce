"""Every field of a run's configuration, explained: as tables, as text, as commented YAML, as a page of the docs.

python -m velodrome.runs.config.explain docs/configuration.md      rewrites the page's tables
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from velodrome.errors import ConfigError, did_you_mean
from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.config.files import DEFAULT_PRESET, describe_presets, preset_settings
from velodrome.runs.config.messages import legal_values, section_fields
from velodrome.runs.config.parameters import resolved_parameters
from velodrome.runs.config.run_config import SECTIONS, RunConfig, dotted, section_model
from velodrome.writing import replace_text

RUN = "run"  # the name for the fields outside any section
WIDTH = 100  # columns of a comment in YAML, and of help
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
TABLES_BEGIN = "<!-- tables: python -m velodrome.runs.config.explain docs/configuration.md -->"
TABLES_END = "<!-- end of tables -->"
UNNAMED = (DEFAULT_PRESET, "demo")  # presets in use where none is named: with price files, and without
ALSO_LISTED = ("portfolio",)  # environments whose parameters the page of the docs has beside those of trading


class FieldLine(NamedTuple):
    """One field, ready to be shown."""

    key: str  # dotted, such as ppo.gamma
    legal: str
    default: str  # as YAML
    meaning: str

    @property
    def sentence(self) -> str:
        """What the field means and takes."""
        return f"{self.meaning}. Takes: {self.legal}"


def section_lines(env: str = "trading") -> dict[str, list[FieldLine]]:
    """Return every field by section, those of an environment's own parameters and of all algorithms among them."""
    fields = RunConfig.model_fields
    lines = {RUN: [_line(name, fields[name]) for name in fields if name not in {*SECTIONS, "params"}]}
    for name in dict.fromkeys([*fields, *ALGORITHMS.names()]):
        if name == "params" or section_model(name):
            lines[name] = list(_lines_of(name, section_fields(name, env)))
    lines["params"] = lines["params"] or [_line("params", fields["params"])]  # where they are not declared
    return lines


def _lines_of(section: str, fields: Mapping[str, FieldInfo]) -> Iterator[FieldLine]:
    """Yield the fields of a section; those that an algorithm does not read are left out, or say which one does not."""
    for name, field in fields.items():
        line = _line(f"{section}.{name}", field)
        if section == "network":
            without = [entry.name for entry in ALGORITHMS if not entry.reads(section, name)]
            yield line._replace(meaning=f"{line.meaning} (not read by {', '.join(without)})") if without else line
        elif section not in ALGORITHMS or ALGORITHMS.get(section).reads(section, name):
            yield line


def _line(key: str, field: FieldInfo) -> FieldLine:
    default = value_text(field.get_default(call_default_factory=True))
    return FieldLine(key, legal_values(field), default, field.description or "")


def section_meaning(section: str, env: str = "trading") -> str:
    """Return what a section is about."""
    if section == RUN:
        return "The run as a whole."
    if section == "params":
        return f"Parameters of the environment itself; these are those of {env}."
    return str(getattr(section_model(section), "__doc__", "")).strip().partition("\n")[0]


def chosen_lines(section: str | None, env: str = "trading") -> dict[str, list[FieldLine]]:
    """Return the fields of one section, one field by its dotted key, or all."""
    lines = section_lines(env)
    if section is None:
        return lines
    if section in lines:
        return {section: lines[section]}
    by_key = {line.key: {name: [line]} for name, found in lines.items() for line in found}
    if section in by_key:
        return by_key[section]
    raise ConfigError(
        f"there is no section or field {section!r}.{did_you_mean(section, [*lines, *by_key])} Sections: "
        f"{', '.join(lines)}; a field is written with its section, such as ppo.clip."
    )


def explain(section: str | None = None, env: str = "trading") -> Any:
    """Return a rich renderable: dotted key, legal values, default and meaning of every field.

    section: the name of a section, "run" for the fields outside any, a dotted key, or None for all.
    env: the environment whose parameters stand under params.
    """
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    tables = []
    for title, headings, rows in _tables(section, env):
        table = Table(title=escape(title), title_justify="left", expand=True)
        for heading, share in headings.items():
            table.add_column(heading, no_wrap=share == 0, ratio=share or None, overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        tables.append(table)
    return Group(*tables)


def _tables(section: str | None, env: str) -> Iterator[tuple[str, dict[str, int], Iterable[tuple[str, ...]]]]:
    """Yield title, headings with their shares of the width (0: what it needs) and rows, of the presets at the end."""
    for name, lines in chosen_lines(section, env).items():
        yield f"{name}: {section_meaning(name, env)}", {"key": 0, "takes": 3, "default": 2, "meaning": 5}, lines
    if section is None:
        yield "presets: given in place of a file", {"preset": 0, "what it is for": 1}, describe_presets().items()


def help_text(section: str | None = None, env: str = "trading", width: int = WIDTH) -> str:
    """Return the same as plain text, for --help: a line for each field with its default, then what it means.

    Values of the presets that are used where none is named stand beside the default. width: columns of a line, up to
    those of help.
    """
    width = min(width, WIDTH)
    unnamed = {name: {key: value_text(value) for key, value in preset_settings(name).items()} for name in UNNAMED}
    parts = []
    for title, _, rows in _tables(section, env):
        parts += ["", *_wrapped(title, "", width)]
        for row in rows:
            if isinstance(row, FieldLine):
                chosen = [f"{name} {content[row.key]}" for name, content in unnamed.items() if row.key in content]
                in_presets = f"  (preset {', '.join(chosen)})" if chosen else ""
                setting = _wrapped(f"{row.key}={row.default}{in_presets}", "  ", width, " " * 4)
                parts += [*setting, *_wrapped(row.sentence, "      ", width)]
            else:
                parts += _wrapped(f"{row[0]:14} {row[1]}", "  ", width, " " * 17)
    return "\n".join(parts[1:]) + "\n"


def _wrapped(text: str, indent: str, width: int = WIDTH, further: str | None = None) -> list[str]:
    """Return the lines of a text. further: indent of all lines but the first, where it is another."""
    rest = indent if further is None else further
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=rest, **WHOLE_WORDS)


# YAML

# Texts that stand without quotes: words, paths and timeframes, unless readers of YAML 1.1 see a truth value in them.
PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)(?:[a-z/]|\./)[\w./+-]*|[1-9]\d*[a-z]+", re.A | re.I)


def value_text(value: Any) -> str:
    """Return a value as YAML in one line that readers of versions 1.1 and 1.2 take for the same."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{value_text(key)}: {value_text(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, float):
        text = repr(value).replace("inf", ".inf").replace("nan", ".nan")
        return text if "." in text else text.replace("e", ".0e")
    if not isinstance(value, str):
        return json.dumps(value)
    if PLAIN.fullmatch(value):
        return value
    if value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    # JSON's escapes are legal in YAML; it leaves some that YAML must have.
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(character if character.isprintable() else f"\\U{ord(character):08x}" for character in quoted)


def to_yaml(config: RunConfig, comments: bool = True, origins: Mapping[str, str] | None = None) -> str:
    """Return the whole configuration as YAML that loads again to an equal one.

    With comments, the meaning of each field stands above it, and parameters of the environment that were not set stand
    as comments with the values that they have. origins: where settings come from, by dotted key; each says so.
    """
    lines = section_lines(config.env)
    known = {line.key: line for found in lines.values() for line in found}
    written: list[str] = []

    def write(prefix: str, name: str, setting: str) -> None:
        line = known.get(f"{prefix}{name}")
        indent = "  " if prefix else ""
        if comments and line is not None:
            written.extend(_wrapped(line.sentence, f"{indent}# "))
        origin = "" if origins is None else f"  # {origins.get(f'{prefix}{name}', 'default')}"
        written.append(f"{indent}{setting}{origin}")

    for section, content in config.content().items():
        if section not in lines:
            write("", section, f"{section}: {value_text(content)}")
            continue
        if comments:
            written += ["", *_wrapped(section_meaning(section, config.env), "# ")]
        unset: dict[str, Any] = {}
        if section == "params" and comments and "params" not in known:
            resolved = {"preset": None, **resolved_parameters(config.env, content)}
            unset = {name: resolved.get(name) for name in section_fields("params", config.env)}
        written.append(f"{section}:" if content or unset else f"{section}: {{}}")
        for name, value in {**unset, **content}.items():
            setting = f"{value_text(name)}: {value_text(value)}"
            write(f"{section}.", name, setting if name in content else f"#{setting}")
    return "\n".join(written) + "\n"


def settings_in_effect(config: RunConfig, origins: Mapping[str, str], width: int = WIDTH) -> str:
    """Return the settings that are no defaults, a paragraph for each place that they come from."""
    wrapper = textwrap.TextWrapper(min(width, WIDTH), subsequent_indent="  ", break_long_words=False)
    used, places = dotted(config.content()), dict.fromkeys(origins.values())
    lines = []
    for place in places:
        settings = [f"{key}={value_text(used[key])}" for key, origin in origins.items() if origin == place]
        lines += wrapper.wrap(f"{place}: {', '.join(settings)}")
    return "\n".join([*lines, "everything else: defaults; `velodrome config` with the same words lists them"])


# Markdown


def markdown_table(section: str | None = None, env: str = "trading") -> str:
    """Return the fields as Markdown tables, one for each section, and the presets if all are asked for."""
    parts = []
    for title, headings, rows in _tables(section, env):
        name, _, meaning = title.partition(": ")
        parts += [f"### {name}", "", f"{meaning[0].upper()}{meaning[1:].removesuffix('.')}.", ""]
        for row in (tuple(headings), ("---",) * len(headings), *rows):
            cells = [cell.replace("|", "\\|") for cell in row]
            if isinstance(row, FieldLine):
                cells = [f"`{cell}`" if place in (0, 2) else cell for place, cell in enumerate(cells)]
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
        if section is None and name == "params":
            for other in ALSO_LISTED:
                parts += [markdown_table(name, other).replace(f"### {name}", f"### {name} of {other}", 1)]
    return "\n".join(parts).rstrip() + "\n"


def with_tables(page: str) -> str:
    """Return a page of the docs with the tables between its two marks brought up to date."""
    before, begin, rest = page.partition(TABLES_BEGIN)
    _, end, after = rest.partition(TABLES_END)
    if not begin or not end:
        raise ConfigError(f"the page has no place for the tables; it is between {TABLES_BEGIN} and {TABLES_END}.")
    return f"{before}{begin}\n\n{markdown_table()}\n{end}{after}"


def main(arguments: list[str]) -> None:
    """Rewrite the tables of the pages named."""
    for name in arguments:
        page = Path(name)
        replace_text(page, with_tables(page.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main(sys.argv[1:])
