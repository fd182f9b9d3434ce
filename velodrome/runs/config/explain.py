"""Every field of a run's configuration, explained: as a table, as text, as commented YAML, as a page of the docs.

python -m velodrome.runs.config.explain docs/configuration.md      writes the page's tables anew
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from velodrome.errors import ConfigError, did_you_mean
from velodrome.runs.config.fields import FieldLine, field_lines
from velodrome.runs.config.files import describe_presets
from velodrome.runs.config.messages import SECTIONS
from velodrome.runs.config.parameters import parameter_model, parameter_presets, resolved_parameters
from velodrome.runs.config.run_config import RunConfig
from velodrome.runs.config.text import value_text

RUN = "run"  # what the fields outside any section are listed under
COMMENT_WIDTH = 100  # columns of a comment in YAML
TABLES_BEGIN = "<!-- tables: python -m velodrome.runs.config.explain docs/configuration.md -->"
TABLES_END = "<!-- end of tables -->"
ALSO_LISTED = ("portfolio",)  # environments whose parameters the page of the docs has beside those of trading


def section_lines(env: str = "trading") -> dict[str, list[FieldLine]]:
    """Return every field by section, those of an environment's own parameters among them."""
    lines = {RUN: [line for line in field_lines(RunConfig) if line.key != "params"]}
    for name in RunConfig.model_fields:
        if name in SECTIONS:
            lines[name] = field_lines(SECTIONS[name], f"{name}.")
        elif name == "params":
            lines[name] = parameter_lines(env)
    return lines


def parameter_lines(env: str) -> list[FieldLine]:
    """Return the parameters of an environment; the field `params` itself where they are not known."""
    model, presets = parameter_model(env), parameter_presets(env)
    if model is None:
        return [line for line in field_lines(RunConfig) if line.key == "params"]
    choice = FieldLine(
        "params.preset", f"one of {', '.join(presets)}, or null", None,
        f"set of parameters of {env} to start from; those named beside it win",
    )  # fmt: skip
    return [*([choice] if presets else []), *field_lines(model, "params.")]


def section_meaning(section: str, env: str = "trading") -> str:
    """Return what a section is about."""
    if section == RUN:
        return "The run as a whole."
    if section == "params":
        return f"Parameters of the environment itself; these are those of {env}."
    return (SECTIONS[section].__doc__ or "").strip().partition("\n")[0]


def chosen_lines(section: str | None, env: str = "trading") -> dict[str, list[FieldLine]]:
    """Return the fields of one section, one field by its dotted key, or all."""
    lines = section_lines(env)
    if section is None:
        return lines
    if section in lines:
        return {section: lines[section]}
    for name, found in lines.items():
        for line in found:
            if line.key == section:
                return {name: [line]}
    legal = [*lines, *(line.key for found in lines.values() for line in found)]
    raise ConfigError(
        f"there is no section or field {section!r}.{did_you_mean(section, legal)} Sections: {', '.join(lines)}; a "
        "field is written with its section, such as ppo.clip."
    )


def explain(section: str | None = None, env: str = "trading") -> Any:
    """Return a rich renderable: dotted key, legal values, default and meaning of every field.

    section: the name of a section, "run" for the fields outside any, a dotted key, or None for all.
    env: the environment whose parameters stand under params.
    """
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    tables: list[Any] = []
    for name, lines in chosen_lines(section, env).items():
        table = Table(title=f"{name}: {escape(section_meaning(name, env))}", title_justify="left", expand=True)
        table.add_column("key", no_wrap=True)
        table.add_column("takes", ratio=3, overflow="fold")
        table.add_column("default", ratio=2, overflow="fold")
        table.add_column("meaning", ratio=5, overflow="fold")
        for line in lines:
            table.add_row(line.key, escape(line.legal), escape(value_text(line.default)), escape(line.meaning))
        tables.append(table)
    if section is None:
        table = Table(title="presets", title_justify="left", expand=True)
        table.add_column("preset", no_wrap=True)
        table.add_column("what it is for", ratio=1)
        for preset, meaning in describe_presets().items():
            table.add_row(preset, escape(meaning))
        tables.append(table)
    return Group(*tables)


def help_text(section: str | None = None, env: str = "trading", width: int = 100) -> str:
    """Return the same as plain text, for --help: a line for each field with its default, then what it means."""
    parts = []
    for name, lines in chosen_lines(section, env).items():
        parts.append(f"{name}: {section_meaning(name, env)}")
        for line in lines:
            parts.append(f"  {line.key}={value_text(line.default)}")
            parts.append(textwrap.fill(
                _sentence(line), width, initial_indent="      ", subsequent_indent="      ",
                break_long_words=False, break_on_hyphens=False,
            ))  # fmt: skip
        parts.append("")
    if section is None:
        parts.append("presets: given in place of a configuration file")
        parts.extend(f"  {preset:12} {meaning}" for preset, meaning in describe_presets().items())
    return "\n".join(parts).rstrip() + "\n"


# YAML


def to_yaml(config: RunConfig, comments: bool = True) -> str:
    """Return the whole configuration as YAML that loads again to an equal one.

    With comments, what each field means stands above it, and parameters of the environment that were not set stand as
    comments with the values that they have.
    """
    content = config.content()
    lines = section_lines(config.env)
    written: list[str] = []
    for key, value in content.items():
        if key not in lines:
            written += _field_text(_line_of(key, lines[RUN]), value, "", comments)
            continue
        if comments:
            written += ["", *_comment(section_meaning(key, config.env), "")]
        if key == "params":
            written += _parameter_text(config, lines[key], comments)
        else:
            written.append(f"{key}:")
            for name, inner in value.items():
                written += _field_text(_line_of(f"{key}.{name}", lines[key]), inner, "  ", comments)
    return "\n".join(written) + "\n"


def _parameter_text(config: RunConfig, lines: Iterable[FieldLine], comments: bool) -> list[str]:
    known = {line.key.removeprefix("params."): line for line in lines}
    if not comments or "params" in known:
        inner = [f"  {value_text(name)}: {value_text(value)}" for name, value in config.params.items()]
        return ["params:", *inner] if inner else ["params: {}"]
    resolved = {"preset": None, **resolved_parameters(config.env, config.params)}
    written = ["params:"]
    for name, line in known.items():
        if name in config.params:
            written += _field_text(line, config.params[name], "  ", comments)
        else:
            written += [*_comment(_sentence(line), "  "), f"  #{name}: {value_text(resolved[name])}"]
    return written


def _line_of(key: str, lines: Iterable[FieldLine]) -> FieldLine:
    return next(line for line in lines if line.key == key)


def _field_text(line: FieldLine, value: Any, indent: str, comments: bool) -> list[str]:
    setting = f"{indent}{line.key.rpartition('.')[2]}: {value_text(value)}"
    return [*_comment(_sentence(line), indent), setting] if comments else [setting]


def _sentence(line: FieldLine) -> str:
    return f"{line.meaning}. Takes: {line.legal}"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, COMMENT_WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


# Markdown


def markdown_table(section: str | None = None, env: str = "trading") -> str:
    """Return the fields as Markdown tables, one for each section, and the presets if all are asked for."""
    parts = []
    if section is None:
        parts += ["### Presets", "", *_markdown_rows(("preset", "what it is for"), describe_presets().items()), ""]
    for name, lines in chosen_lines(section, env).items():
        rows = [(f"`{line.key}`", line.legal, f"`{value_text(line.default)}`", line.meaning) for line in lines]
        parts += [f"### {name}", "", section_meaning(name, env), ""]
        parts += [*_markdown_rows(("key", "takes", "default", "meaning"), rows), ""]
        if section is None and name == "params":
            for other in ALSO_LISTED:
                parts += [markdown_table(name, other).replace(f"### {name}", f"### {name} of {other}", 1)]
    return "\n".join(parts).rstrip() + "\n"


def _markdown_rows(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (headings, ["---"] * len(headings), *escaped)]


def with_tables(page: str) -> str:
    """Return a page of the docs with the tables between its two marks written anew."""
    before, begin, rest = page.partition(TABLES_BEGIN)
    _, end, after = rest.partition(TABLES_END)
    if not begin or not end:
        raise ConfigError(f"the page has no place for the tables; it is between {TABLES_BEGIN} and {TABLES_END}.")
    return f"{before}{begin}\n\n{markdown_table()}\n{end}{after}"


def main(arguments: list[str]) -> None:
    """Write the tables of the pages named anew."""
    for name in arguments:
        page = Path(name)
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
