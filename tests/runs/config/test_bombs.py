"""Configurations that are small as files and endless as content are refused with a sentence, at once."""

from __future__ import annotations

import os
from itertools import pairwise

import pytest

from velodrome import cli
from velodrome.errors import ConfigError
from velodrome.runs.config.files import load_run_config, parse_yaml

LETTERS = "abcdefghi"


def laughs(line: str) -> str:
    """Nine lists, each of nine times the one before: 350 million entries in 400 characters."""
    lines = [line.format(name=after, inner=",".join([f"*{before}"] * 9)) for before, after in pairwise(LETTERS)]
    return f"a: &a {{x: 1, y: 2}}\n{''.join(lines)}"


BOMBS = {
    "aliases": (".yaml", laughs("{name}: &{name} [{inner}]\n"), "with \\*aliases filled in"),
    "merged aliases": (".yaml", laughs("{name}: &{name} {{<<: [{inner}]}}\n"), "with \\*aliases filled in"),
    "a long text again and again": (".yaml", f"a: &a {'x' * 1000}\nb: [{','.join(['*a'] * 1000)}]", "filled in"),
    "an alias in itself": (".yaml", "steps: &a [*a, *a]", "\\*a is part of what it stands for"),
    "a chain of aliases": (
        ".yaml",
        "a0: &a0 []\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(500)),
        "nested more than 64 deep",
    ),
    "20,000 nested lists": (".yaml", "steps: " + "[" * 20_000 + "]" * 20_000, "nested more than 64 deep"),
    "20,000 nested mappings": (".yaml", "steps: " + "{a: " * 20_000, "nested more than 64 deep"),
    "20,000 nested dashes": (".yaml", "- " * 20_000, "nested more than 64 deep"),
    "20,000 nested lists, TOML": (".toml", "steps = " + "[" * 20_000 + "]" * 20_000, "nested more than 64 deep"),
    "20,000 nested tables": (".toml", ".".join("a" * 20_000) + " = 1", "nested more than 64 deep"),
    "20,000 nested inline tables": (".toml", "a = " + "{a = " * 20_000, "nested more than 64 deep"),
    "a number without end": (".yaml", "steps: " + "1" * 10_000, "digits"),
    "a file without end": (".yaml", "# " + "x" * 300_000, "more than 200,000 bytes"),
    "an object": (".yaml", "steps: !!python/object/apply:os.system ['touch mark']", "not legal YAML"),
}


@pytest.mark.parametrize(("suffix", "text", "told"), BOMBS.values(), ids=BOMBS)
def test_a_bomb_is_refused_with_a_sentence(tmp_path, suffix, text, told):
    file = tmp_path / f"bomb{suffix}"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        load_run_config(file)


def test_a_bomb_on_the_command_line_is_refused_too(capsys):
    assert cli.run(["train", "steps=" + "[" * 200]) == 2
    assert "nested more than 64 deep" in capsys.readouterr().err


def test_a_pipe_is_no_configuration(tmp_path):
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(ConfigError, match="no regular file"):
        load_run_config(tmp_path / "config.yaml")


def test_anchors_are_of_use_as_before():
    found = parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\nd: [&e 5, *e]")
    assert found == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}, "d": [5, 5]}


def test_of_twenty_thousand_unknown_keys_the_first_are_told():
    """Each is compared with all that are known, which would take a minute."""
    with pytest.raises(ConfigError) as refused:
        load_run_config({f"key_{number}": 1 for number in range(20_000)})
    assert len(str(refused.value).splitlines()) == 20


def test_names_in_a_configuration_cannot_write_on_the_terminal(tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text('"\\e[31mkey\\u202e": 1\nsteps: "\\e]0;title\\a\\nvelodrome: all is well"\n')
    assert cli.run(["train", str(tmp_path / "bad.yaml")]) == 2
    said = capsys.readouterr().err
    assert said.isprintable() or all(line.isprintable() for line in said.splitlines())
    assert r"\x1b[31mkey\u202e" in said
    assert not any(line.startswith("velodrome: all is well") for line in said.splitlines())
