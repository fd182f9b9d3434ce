"""The commands about trainings in the queue: what they print, and what they say to what cannot be done."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.service.conftest import settings
from velodrome import cli
from velodrome.outside.extras import install
from velodrome.service.service import AgentTrainingService


def words(*given: str) -> list[str]:
    told = [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in settings().items()]
    return ["submit", "smoke", *told, *given]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """The folder in which commands look."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "runs"


@pytest.fixture
def submitted(runs, capsys) -> str:
    """The id of a job that waits."""
    assert cli.run(words("--owner", "alice", "--priority", "2", "--json")) == 0
    return json.loads(capsys.readouterr().out)["id"]


def refused(command: list[str], capsys) -> str:
    assert cli.run(command) == cli.REFUSED
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


def test_a_training_is_submitted_without_a_service_and_waits(runs, capsys):
    assert cli.run(words()) == 0
    told = capsys.readouterr().out
    assert "waits" in told
    assert "no service runs; start one: velodrome serve --no-dashboard" in told
    assert cli.run(["jobs", "list"]) == 0
    assert "waiting   0 of 640" in capsys.readouterr().out
    assert cli.run(["jobs", "list", "--json", "--status", "running"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_prices_that_are_not_here_are_warned_of(runs, capsys):
    assert cli.run(["submit", "smoke", "market.source=nosuch/"]) == 0
    assert "warning: market.source = nosuch/: there is no such file or folder here" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_job_is_shown_with_what_happened(submitted, capsys):
    assert cli.run(["jobs", "priority", submitted, "7"]) == 0
    assert cli.run(["jobs", "pause", submitted]) == 0
    assert cli.run(["jobs", "resume", submitted]) == 0
    assert cli.run(["jobs", "cancel", submitted[:4]]) == 0
    capsys.readouterr()
    assert cli.run(["jobs", "show", submitted]) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 80
    for part in ("cancelled", "alice", "pause asked", "resume asked", "cancel asked", "1 core, 8 environments"):
        assert part in told
    moments = re.findall(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d(.{0,4})", told)
    assert len(moments) == 6
    assert set(moments) == {" UTC"}  # wherever the reader is
    assert cli.run(["jobs", "show", submitted, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["status"], content["priority"], content["total_steps"]) == ("cancelled", 7, 640)
    assert [event["kind"] for event in content["events"]][:2] == ["submitted", "priority"]
    assert cli.run(["jobs", "watch", submitted]) == 0
    told = capsys.readouterr().out
    assert "cancelled" in told
    assert "no service runs" not in told  # and nothing waits for one


def test_a_list_that_is_cut_off_says_so(submitted, capsys):
    assert cli.run(words("--json")) == 0
    capsys.readouterr()
    told = "the newest 1 of 2; --limit 2 shows all"
    for given, is_cut in ((["--limit", "1"], True), (["--limit", "2"], False), (["--owner", "alice"], False)):
        assert cli.run(["jobs", "list", *given]) == 0
        assert (told in capsys.readouterr().out) is is_cut
    assert "--limit -1: 0 or more" in refused(["jobs", "list", "--limit", "-1"], capsys)


def test_who_watches_what_nobody_carries_out_is_told_so(submitted, capsys):
    assert cli.run(["jobs", "watch", "--seconds", "0"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "no service runs; start one: velodrome serve --no-dashboard"
    assert second.startswith(f"{submitted} ")


def test_the_dashboard_says_what_it_lacks_and_what_it_does_not_do_unasked(runs, capsys, monkeypatch):
    assert "--allow-remote" in refused(["serve", "--host", "0.0.0.0"], capsys)
    assert "without a slash at its end" in refused(["serve", "--prefix", "no path"], capsys)
    assert "there is no such folder" in refused(["serve", "--benchmarks", "nowhere"], capsys)
    monkeypatch.setenv("VELODROME_TOKEN", "t" * 40)
    assert cli.run(["serve", "--link", "--port", "8800", "--prefix", "/v/"]) == 0
    assert capsys.readouterr().out == f"http://127.0.0.1:8800/v/?token={'t' * 40}\n"
    monkeypatch.setitem(sys.modules, "starlette", None)
    told = refused(["serve"], capsys)
    assert f"the dashboard needs starlette: {install('dashboard')}" in told
    assert "velodrome serve --no-dashboard" in told


def test_without_a_queue_it_is_said_how_to_begin(runs, capsys):
    for command in (["list"], ["show", "latest"], ["drain"], ["watch"]):
        assert "nothing was submitted there. Submit a training (velodrome submit CONFIG)" in refused(
            ["jobs", *command], capsys
        )
    assert not runs.exists()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["jobs", "show", "nope"], "no job 'nope' among 1. List them: velodrome jobs list"),
        (["jobs", "pause"], "name a job to pause"),
        (["jobs", "list", "--status", "done"], "status 'done': a job is waiting, running,"),
        (["jobs", "priority", "latest", str(10**30)], "-1,000,000 … 1,000,000 are legal"),
        (["serve", "--no-dashboard", "--cores", "0"], "cores = 0: a budget is 1 or more"),
        (["serve", "--no-dashboard", "--memory", "much"], "memory much: a size is a number of bytes"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(submitted, command, said, capsys):
    assert said in refused(command, capsys)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--cores", "99"), "this training can never begin: it needs 99 cores, and the budget has"),
        (("--cores", "0"), "cores = 0: a training needs more than none"),
        (("--stall-seconds", "nan"), "stall_seconds = nan: a training needs more than none"),
        (("--priority", str(10**30)), "-1,000,000 … 1,000,000 are legal"),
        (("--memory", "9999TB"), "this training can never begin: it needs"),
        (("--owner", ""), "an owner is 1 to 100 characters"),
        (("stpes=3",), "stpes"),
        (("logging.folder=elsewhere",), "name that folder for the queue: --folder elsewhere"),
        (("logging.store=sqlite:///other.db",), "its rows lie beside it. Leave logging.store out"),
    ],
)
def test_what_cannot_be_submitted_is_refused_and_nothing_waits(runs, given, said, capsys):
    assert said in refused(words(*given), capsys)
    with AgentTrainingService(runs).store as store:
        from velodrome.service.queue import Queue

        assert Queue(store).jobs() == []


def test_a_job_is_cancelled_once(submitted, capsys):
    assert cli.run(["jobs", "cancel", submitted]) == 0
    capsys.readouterr()
    assert refused(["jobs", "cancel", submitted], capsys) == f"velodrome: job {submitted} was cancelled already.\n"


def test_a_store_of_a_newer_version_is_told(submitted, runs, capsys):
    import sqlite3

    with sqlite3.connect(runs / "velodrome.db") as connection:
        connection.execute("UPDATE velodrome_schema SET version = 99")
    connection.close()
    for command in (["jobs", "list"], words(), ["serve", "--no-dashboard"]):
        assert "its tables are of version 99, and this Velodrome knows up to" in refused(command, capsys)


def test_a_job_that_has_not_begun_has_printed_nothing(submitted, capsys):
    assert cli.run(["jobs", "logs", submitted]) == 0
    assert f"job {submitted} is waiting and has printed nothing yet" in capsys.readouterr().out
