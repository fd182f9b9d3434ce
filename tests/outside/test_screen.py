"""What people read never commands their terminal: errors, tables, printed JSON and pages show control characters."""

from __future__ import annotations

import contextlib
import io
import json
import os

import pytest
from rich.table import Table
from rich.text import Text

from velodrome.errors import ConfigError, printable
from velodrome.outside.screen import ByWidth, Figures, FittedTable, Screen, lasting, wrapped

HOSTILE = "a\x1b[2J\x1b]0;title\x07\u202eb\u2066\x9b31m\x7f\r"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.splitlines())


def test_what_is_obeyed_is_escaped_and_what_is_read_stays():
    assert printable(HOSTILE) == r"a\x1b[2J\x1b]0;title\x07\u202eb\u2066\u009b31m\u007f\r"
    assert printable("Zürich – 10 % · µs\u00a0日本 🚀") == "Zürich – 10 % · µs\u00a0日本 🚀"
    assert printable("two\nlines\t") == "two\nlines\t"
    assert printable("two\nlines", kept="") == r"two\nlines"
    assert printable("\ud800\u2028\U000e0001") == r"\ud800\u2028\U000e0001"


def test_messages_of_errors_are_escaped():
    assert is_harmless(str(ConfigError(f"no symbol {HOSTILE}")))
    assert ConfigError(3).args == (3,)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_screen_shows_names_and_keeps_its_own_colours(terminal):
    file = io.StringIO()
    screen = Screen(file=file, force_terminal=terminal, width=200, color_system="standard" if terminal else None)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, style="red"))
    screen.print(table, HOSTILE, Text(HOSTILE))
    shown = file.getvalue()
    assert "\x1b[2J" not in shown
    assert not set("\x07\u202e\u2066\x9b\x7f") & set(shown)
    assert ("\x1b[31m" in shown) is terminal


def test_a_line_break_in_a_name_makes_no_row():
    file = io.StringIO()
    Screen(file=file, width=80).print(FittedTable("runs", [Figures("name", ["one\nfake"]), Figures("x", ["1"])]))
    assert r"one\nfake" in file.getvalue()


def test_printed_json_stays_json():
    text = json.dumps({HOSTILE: HOSTILE}, ensure_ascii=False)
    assert is_harmless(printable(text))
    assert json.loads(printable(text)) == {HOSTILE: HOSTILE}


def test_prose_ends_its_lines_between_words_in_a_terminal_and_stays_one_line_elsewhere():
    told = "Chosen by 5,600 training bars of 1h and what trading costs. Windows show the latest 1 of 32 rows. " * 2
    path = "/a/path/that/is/longer/than/the/line/and/stays/in/one/piece/to/be/copied"
    terminal = Screen(width=40, file=io.StringIO(), force_terminal=True, color_system=None)
    terminal.print(f"{told}{path}", soft_wrap=True)
    lines = terminal.file.getvalue().splitlines()
    assert lines[-1] == path
    assert all(len(line) <= 40 for line in lines[:-1])
    assert " ".join(" ".join(lines).split()) == " ".join(f"{told}{path}".split())
    pipe = Screen(width=40, file=io.StringIO())
    pipe.print(told, soft_wrap=True)
    assert pipe.file.getvalue() == f"{told}\n"


def test_lines_keep_their_indents():
    assert wrapped("  one two three four\nfive", 12) == "  one two\n  three four\nfive"


def test_what_is_wide_gives_way_where_it_is_narrow():
    for width, shown in ((79, "narrow\n"), (80, "wide\n")):
        screen = Screen(width=width, file=io.StringIO())
        screen.print(ByWidth("wide", "narrow", 80))
        assert screen.file.getvalue() == shown


def test_a_lasting_output_drops_what_cannot_be_written_and_says_so_once():
    begin, end = os.pipe()
    os.close(begin)
    with os.fdopen(end, "w") as file:
        screen, told = Screen(file=file), []
        with lasting(screen, told.append):
            for _ in range(3):
                screen.print("a line")
            assert screen.file.write("another\n") == 8
            assert not screen.file.isatty()
        assert [type(error) for error in told] == [BrokenPipeError]
        assert screen.file is file


def test_without_it_a_closed_pipe_is_an_error_and_not_the_end_of_the_program():
    begin, end = os.pipe()
    os.close(begin)
    file = os.fdopen(end, "w")
    with pytest.raises(BrokenPipeError):
        Screen(file=file).print("a line")
    with contextlib.suppress(BrokenPipeError):
        file.close()
