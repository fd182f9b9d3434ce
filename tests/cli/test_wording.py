"""Options in messages as they are typed on a command line, and lines that end between words."""

from __future__ import annotations

import shlex

import pytest

from velodrome import cli
from velodrome.cli.wording import as_flags, as_settings, told_error
from velodrome.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("program", "setting", "flag"),
    [
        ("columns={'close': 'NAME'},", "'market.columns={close: NAME}',", "--columns close=NAME,"),
        (
            "day_first=True or day_first=False.",
            "market.day_first=true or market.day_first=false.",
            "--day-first or --no-day-first.",
        ),
        ("max_gap='120d'.", "market.max_gap=120d.", "--max-gap 120d."),
        ("max_gap=None", "market.max_gap=null", "--max-gap none"),
        ("adjust=False (market.adjust=false) keeps", "market.adjust=false keeps", "--no-adjust keeps"),
        ("timeframe='4h' is finer", "market.timeframe=4h is finer", "--timeframe 4h is finer"),
        ("market.adjust=false", "market.adjust=false", "market.adjust=false"),
        ("columns={'open': …}", "columns={'open': …}", "columns={'open': …}"),
    ],
)
def test_options_as_they_are_typed(program, setting, flag):
    assert as_settings(program) == setting
    assert as_flags(program) == flag


def test_a_name_with_a_space_is_quoted_for_the_shell():
    assert as_flags("columns={'time': 'Trade day'}") == "--columns 'time=Trade day'"
    (word,) = shlex.split(as_settings("columns={'time': 'Trade day'}"))
    assert word == "market.columns={time: 'Trade day'}"


def test_the_command_line_advises_in_its_own_words(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    path = tmp_path / "A.csv"
    path.write_text("when,open,high,low,close\n2020-01-01,1,2,0.5,1\n2020-01-02,1,2,0.5,1\n")
    assert cli.run(["data", "check", str(path)]) == 1
    assert "--columns time=NAME" in " ".join(capsys.readouterr().out.split())
    assert cli.run(["data", "check", str(path), "--columns", "time=when"]) == 0
    capsys.readouterr()
    assert cli.run(["train", "smoke", f"market.source={path}", f"logging.folder={tmp_path / 'runs'}"]) == 2
    assert "'market.columns={time: NAME}'" in capsys.readouterr().err


def test_a_terminal_gets_lines_of_whole_words_and_a_pipe_one_line(monkeypatch):
    error = DataError("a sentence that is longer than the line. " * 5 + "max_gap='100d'")
    assert "\n" not in told_error(error)
    assert told_error(error).endswith("market.max_gap=100d")
    assert told_error(ConfigError("max_gap='x'")) == "velodrome: max_gap='x'"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    lines = told_error(error).splitlines()
    assert len(lines) > 4
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(lines).split() == f"velodrome: {as_settings(str(error))}".split()


@pytest.mark.parametrize(("columns", "most"), [("80", 80), ("200", 100)])
def test_settings_in_help_fit_the_terminal_up_to_a_width_that_reads_well(columns, most, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.run(["train", "--help"]) == 0
    settings = capsys.readouterr().out.partition("Settings, each with its default")[2].splitlines()
    longest = max(settings, key=len)
    assert most - 15 < len(longest) <= most, longest


def test_tables_of_features_fit_a_narrow_terminal(capsys, monkeypatch):
    import velodrome as vd

    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run(["data", "features"]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    assert all(f" {name} " in told for name in vd.describe_features())
    assert "in price units" in told


def test_words_that_a_command_does_not_take_are_told_with_what_to_do(capsys):
    assert cli.run(["eval", "latest", "params.fee=0.002"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told.startswith("velodrome: `velodrome eval` does not take 'params.fee=0.002'. A run is evaluated with the")
    assert told.endswith("What it takes: velodrome eval --help")
    assert cli.run(["runs", "list", "symbols=[btc]", "[/x]", "--folder", "x"]) == 2
    assert "`velodrome runs list` does not take 'symbols=[btc]', '[/x]'." in " ".join(capsys.readouterr().err.split())


def test_what_an_export_writes_is_told_of_policies_too(capsys):
    assert cli.run(["runs", "export", "latest", "policy.onx"]) == 2
    assert ".onnx or .pt the policy. Did you mean '.onnx'?" in capsys.readouterr().err
