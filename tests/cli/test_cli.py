"""The command `velodrome`: every verb, its help, its exit codes, and what it says when something is wrong."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import velodrome as vd
from velodrome import cli
from velodrome.errors import DataError
from velodrome.outside.screen import Screen
from velodrome.vector.cores import SPIN_COUNT, bound_spinning

HEADER = "time,open,high,low,close,volume\n"
GOOD = HEADER + "".join(f"2024-01-01 {hour:02d}:00,10,12,9,11,5\n" for hour in range(24))
BAD = GOOD + "2024-01-02 00:00,10,8,9,11,5\n"  # the high lies below the low

VERBS = (
    ("data", "check"), ("data", "features"), ("doctor",), ("bench", "step"), ("bench", "train"), ("train",), ("eval",),
    ("config",), ("profile",), ("runs", "list"), ("runs", "show"), ("runs", "compare"), ("runs", "export"),
    ("submit",), ("serve",), ("top",), ("jobs", "list"), ("jobs", "show"), ("jobs", "watch"), ("jobs", "logs"),
    ("jobs", "pause"), ("jobs", "resume"), ("jobs", "cancel"), ("jobs", "priority"), ("jobs", "drain"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def plain_output(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.delenv(cli.DEBUG_VARIABLE, raising=False)


@pytest.fixture
def good(tmp_path) -> Path:
    path = tmp_path / "GOOD.csv"
    path.write_text(GOOD)
    return path


@pytest.fixture
def bad(tmp_path) -> Path:
    path = tmp_path / "BAD.csv"
    path.write_text(BAD)
    return path


def test_version(capsys):
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == vd.__version__


def test_help_lists_the_commands_that_exist_and_no_others(capsys):
    assert cli.run(["--help"]) == 0
    told = capsys.readouterr().out
    words = ("data", "doctor", "bench", "train", "eval", "runs", "config", "profile", "submit", "jobs", "serve")
    words += ("top", "tune", "studies", "promote", "champions", "paper")
    assert all(f" {word} " in told for word in words)
    assert "--debug" in told
    assert not any(f" {word} " in told for word in ("scale", "dashboard"))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_help_of_every_verb_explains_it_and_each_of_its_options(verb, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # no explanation on a line of its own
    assert cli.run([*verb, "--help"]) == 0
    told = capsys.readouterr().out
    assert f"velodrome {' '.join(verb)}" in told
    for line in told.splitlines():
        words = line.strip("│ ").split()
        if line.startswith("│") and words and words[0].startswith("--"):
            assert any(word[0].isalpha() for word in words[2:]), f"no explanation: {line}"


@pytest.mark.parametrize("group", [[], ["data"], ["bench"]], ids=str)
def test_a_group_without_a_verb_shows_its_help(group, capsys):
    assert cli.run(group) == 0
    assert "Commands" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["chek"], "chek"),
        (["data", "chek"], 'Did you mean "check"'),
        (["data", "check"], "path"),
        (["data", "check", "x.csv", "--nope", "1"], "--nope"),
        (["data", "check", "x.csv", "--day-first=maybe"], "--day-first"),
        (["doctor", "extra"], "extra"),
        (["bench", "step", "--repeats", "many"], "--repeats"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_exit_with_2_and_say_which(arguments, told, capsys):
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""


# data check


def test_data_check_of_a_good_file(good, capsys):
    assert cli.run(["data", "check", str(good)]) == 0
    told = capsys.readouterr().out
    assert "GOOD" in told
    assert "These bars can be read." in told


def test_data_check_of_a_bad_file_exits_with_1_as_reading_it_raises(bad, capsys):
    assert cli.run(["data", "check", str(bad)]) == 1
    told = capsys.readouterr().out
    assert "refused" in told
    assert "BAD.csv" in told
    with pytest.raises(DataError):
        vd.read_bars(bad)


def test_data_check_of_a_folder_and_of_chosen_symbols(good, bad, capsys):
    assert cli.run(["data", "check", str(good.parent)]) == 1
    assert cli.run(["data", "check", str(good.parent), "--symbols", "GOOD"]) == 0
    told = capsys.readouterr().out
    assert "BAD" in told


def test_data_check_of_a_path_without_data(tmp_path, capsys):
    assert cli.run(["data", "check", str(tmp_path / "nowhere.csv")]) == 1
    assert "nowhere.csv" in capsys.readouterr().out.replace("\n", "")


def test_data_check_passes_its_options_on(tmp_path, capsys):
    path = tmp_path / "DAYS.csv"
    path.write_text(HEADER + "".join(f"{day:02d}/01/2024,10,12,9,11,5\n" for day in range(2, 12)))
    assert cli.run(["data", "check", str(path), "--day-first", "--timezone", "Europe/Berlin"]) == 0
    assert "2024-01-01 23:00:00" in capsys.readouterr().out  # midnight of 2 January in Berlin, as UTC
    assert cli.run(["data", "check", str(path), "--no-day-first"]) == 0
    assert "2024-02-01 00:00:00" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--timeframe", "soon"], ["--timezone", "Mars/Olympus"], ["--symbols", "GODO"]])
def test_an_error_is_one_message_on_stderr(option, good, capsys):
    assert cli.run(["data", "check", str(good), *option]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("velodrome: ")
    assert option[1] in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 1, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/there"), 2, "Permission denied: /there"),
    ],
)
def test_what_the_system_refuses_is_one_line_at_most(error, code, told, monkeypatch, capsys):
    def refuse(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(Screen, "print", refuse)
    assert cli.run(["data", "features"]) == code
    shown = capsys.readouterr().err
    assert (told in shown) if told else not shown
    assert len(shown.splitlines()) <= 1


def test_debug_shows_the_traceback(good, monkeypatch):
    wrong = ["data", "check", str(good), "--timeframe", "soon"]
    with pytest.raises(ValueError, match="soon"):
        cli.run([*wrong, "--debug"])
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "1")
    with pytest.raises(ValueError, match="soon"):
        cli.run(wrong)
    monkeypatch.setenv(cli.DEBUG_VARIABLE, "0")
    assert cli.run(wrong) == 2


# data features


def test_data_features_lists_every_feature(capsys):
    assert cli.run(["data", "features"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in vd.describe_features())
    assert all(name in told for name in ("rank:FEATURE", "zscore:FEATURE", "mean:FEATURE", "market_return"))


# bench step


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--against", "numpi"], "Did you mean 'numpy'? It is: peers to measure"),
        (["--sizes", "64,many"], "--sizes 64 many"),
        (["--sizes", "0"], "--sizes 0"),
        (["--seconds", "-1"], "--seconds -1"),
        (["--episode-length", "0"], "--episode-length 0"),
    ],
)
def test_bench_step_refuses_what_it_cannot_measure(arguments, told, capsys):
    assert cli.run(["bench", "step", *arguments]) == 2
    assert told in capsys.readouterr().err


def test_bench_step_passes_its_options_on(monkeypatch, tmp_path):
    received = []
    monkeypatch.setattr("velodrome.bench.run.run_benchmark", lambda benchmark, console: received.append(benchmark))
    arguments = [
        "--sizes",
        "64",
        "1024",
        "--against",
        "numpy,sync",
        "--threads",
        "1",
        "--json",
        str(tmp_path / "a.json"),
    ]
    assert cli.run(["bench", "step", "--quick", *arguments]) == 0
    (benchmark,) = received
    options = benchmark.options
    assert options.sizes == (64, 1024)
    assert options.against == ("numpy", "sync")
    assert options.json_path == tmp_path / "a.json"
    assert options.quick
    assert options.seconds < 1.0  # chosen by the quick run, as none was given


def test_bench_step_measures_and_writes(tmp_path, capsys):
    path = tmp_path / "steps.json"
    small = ["--sizes", "64", "--seconds", "0.05", "--repeats", "1", "--bars", "2500", "--against", "none"]
    assert cli.run(["bench", "step", "--quick", *small, "--json", str(path)]) == 0
    assert "64" in capsys.readouterr().out
    assert json.loads(path.read_text())


# The process


@pytest.mark.parametrize("command", [[sys.executable, "-m", "velodrome"], ["velodrome"]], ids=["module", "script"])
def test_it_runs_as_a_process(command, bad):
    if command == ["velodrome"]:
        script = Path(sys.executable).with_name("velodrome")
        if not script.exists():
            pytest.skip("velodrome is not installed here, only on the path")
        command = [str(script)]
    answer = subprocess.run([*command, "data", "check", str(bad)], capture_output=True, text=True, timeout=120)
    assert answer.returncode == 1
    assert "refused" in answer.stdout
    answer = subprocess.run([*command, "data", "check", str(bad), "--timezone", "X"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert answer.stderr.startswith("velodrome: ")


def test_waiting_threads_sleep_soon_unless_the_user_chose():
    told = {}
    assert bound_spinning(told)
    assert told == {"GOMP_SPINCOUNT": SPIN_COUNT}
    for chosen in ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "7"}):
        kept = dict(chosen)
        assert not bound_spinning(kept)
        assert kept == chosen


def test_a_command_line_bounds_waiting_before_torch_is_imported():
    # OpenMP reads the variable once, when torch loads it: afterwards it would change nothing.
    code = """
import os, sys
from velodrome import cli
sys.argv = ["velodrome", "--version"]
cli.run = lambda _: print(os.environ["GOMP_SPINCOUNT"], "torch" in sys.modules) or 0
cli.main()
"""
    environment = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [SPIN_COUNT, "False"]
