"""A store that fails costs a training nothing: no checkpoint, no number in the folder, no exit code, no time."""

from __future__ import annotations

import io
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import velodrome as vd
from tests.runs.small_runs import lines, one_thread, rows, small_run, tiny  # noqa: F401
from tests.runs.test_complete_folder import DAMAGES, content
from velodrome import cli
from velodrome.errors import ConfigError, StoreError
from velodrome.runs import checkpoint
from velodrome.runs.run import Run
from velodrome.runs.session import Session
from velodrome.runs.store import mirror
from velodrome.runs.store.mirror import StoreMirror
from velodrome.runs.store.store import FILE_NAME, SqlStore, open_store

SMALL = {"steps": 320, "evaluation.every_steps": None}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Wait for nothing as long as a real store deserves."""
    for name, seconds in {"BUSY_SECONDS": 0.05, "RETRY_SECONDS": 0.01, "INTERVAL": 0.01}.items():
        monkeypatch.setattr(mirror, name, seconds)


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, event: Callable[[], None], wait_for: str = "") -> None:
    """Let something happen after the iteration that ends at a step, and wait until the mirror says so.

    wait_for: a part of what the mirror tells; "done": until it has brought the store up to date.
    """
    iterate, news = Session._iterate, StoreMirror.news
    told: list[str] = []

    def listening(self: StoreMirror) -> str | None:
        found = news(self)
        told.extend([found] if found else [])
        return found

    def iterated(session: Session) -> None:
        iterate(session)
        if session.learner.steps == step:
            event()
            session.mirror.changed()
            until = time.monotonic() + 60.0
            while wait_for and not any(wait_for in text for text in told):
                assert time.monotonic() < until, f"not told: {wait_for}; told {told}"
                if found := listening(session.mirror):
                    session.view.note(found)
                session.mirror.changed()
                time.sleep(0.005)

    monkeypatch.setattr(StoreMirror, "news", listening)
    monkeypatch.setattr(Session, "_iterate", iterated)


def trained(folder: Path, **settings) -> tuple[Run, str]:
    """Train in plain mode; return the run and what was printed."""
    printed = io.StringIO()
    how = {"mode": "plain", "evaluate": False, "console": Console(file=printed, width=200)}
    run = vd.train("smoke", **how, **tiny(folder, **SMALL, **settings))
    return run, printed.getvalue()


def assert_whole(run: Run) -> None:
    """Check that nothing is missing in a run's folder."""
    assert run.status == "finished"
    assert checkpoint.checkpoint_steps(checkpoint.latest_checkpoint(run.path)) == 320
    assert [step for step, name, _ in lines(run) if name == "loss/policy"] == [64, 128, 192, 256, 320]


def lock(file: Path) -> sqlite3.Connection:
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


# In mid-run


def test_whatever_the_database_says_is_told_as_a_sentence_of_its_own(tmp_path, monkeypatch):
    def refuse(*_) -> None:
        raise StoreError("OperationalError: disk I/O error")

    at_step(monkeypatch, 64, lambda: monkeypatch.setattr(SqlStore, "write", refuse), "disk I/O error")
    _, printed = trained(tmp_path)
    assert "disk I/O error. The run's folder has all; enter it: " in printed


def test_a_store_that_is_locked_to_the_end_is_told_once_and_caught_up_by_a_command(tmp_path, monkeypatch, capsys):
    locks: list[sqlite3.Connection] = []
    at_step(monkeypatch, 64, lambda: locks.append(lock(tmp_path / FILE_NAME)), "locked by another process")
    run, printed = trained(tmp_path)
    assert_whole(run)
    assert printed.count("locked by another process") == 2  # when it failed, and at the end
    assert printed.count("Training goes on; the run's folder has all, and the store is caught up when it works") == 1
    assert f"the store lacks rows of {run.path.name}" in printed
    command = f"velodrome runs rebuild --folder {tmp_path}"
    assert command in printed
    locks[0].close()
    with open_store(tmp_path) as store:
        row = store.find(run.folder.id)
        assert row is None or row.status == "running"
    assert cli.run(command.split()[1:]) == 0
    assert repr(rows(run)) == repr(lines(run))
    with open_store(tmp_path) as store:
        assert store.run(run.folder.id).status == "finished"


def test_a_store_that_works_again_lacks_nothing(tmp_path, monkeypatch):
    locks: list[sqlite3.Connection] = []
    with monkeypatch.context() as patched:
        at_step(patched, 64, lambda: locks.append(lock(tmp_path / FILE_NAME)), "locked by another process")
        at_step(patched, 192, lambda: locks[0].close(), "works again, and lacks nothing")
        run, printed = trained(tmp_path)
    assert_whole(run)
    assert "lacks rows" not in printed
    assert repr(rows(run)) == repr(lines(run))
    before = content(tmp_path)
    assert cli.run(["runs", "rebuild", "--folder", str(tmp_path)]) == 0
    assert content(tmp_path) == before


@pytest.mark.parametrize("how", ["deleted", "no database", pytest.param("its head gone", marks=pytest.mark.slow)])
def test_a_store_that_is_deleted_or_damaged_in_mid_run_is_made_anew(tmp_path, monkeypatch, how):
    other = small_run(tmp_path, steps=64)

    def event() -> None:
        for ending in ("-wal", "-shm"):  # as after a crash that took the log with it
            (tmp_path / f"{FILE_NAME}{ending}").unlink(missing_ok=True)
        if how == "deleted":
            (tmp_path / FILE_NAME).unlink()
        else:
            damaged = tmp_path / "damaged"
            shutil.copy(tmp_path / FILE_NAME, damaged)
            DAMAGES[how](damaged)
            damaged.replace(tmp_path / FILE_NAME)

    at_step(monkeypatch, 128, event, "" if how == "deleted" else "was damaged, and is velodrome.db.corrupt-")
    run, printed = trained(tmp_path)
    assert_whole(run)
    assert "lacks rows" not in printed
    assert repr(rows(run)) == repr(lines(run))
    assert cli.run(["runs", "list", "--folder", str(tmp_path)]) == 0
    with open_store(tmp_path) as store:
        assert {row.id for row in store.runs()} == {run.folder.id, other.folder.id}


def test_a_full_disk_for_the_store_alone_is_a_warning(tmp_path, monkeypatch):
    def fill() -> None:
        def full(*arguments, **named):
            raise StoreError(f"{tmp_path / FILE_NAME}: the disk is full. Make room.")

        monkeypatch.setattr(SqlStore, "write", full)

    at_step(monkeypatch, 128, fill, "the disk is full")
    run, printed = trained(tmp_path)
    assert_whole(run)
    assert printed.count("the disk is full") == 2
    monkeypatch.undo()
    assert cli.run(["runs", "list", "--folder", str(tmp_path)]) == 0  # a look catches up, too
    assert repr(rows(run)) == repr(lines(run))


# From the beginning


def test_a_training_begins_without_its_store_and_enters_it_when_it_can(tmp_path, monkeypatch):
    small_run(tmp_path, steps=64)
    other = lock(tmp_path / FILE_NAME)
    at_step(monkeypatch, 64, lambda: None, "locked by another process")
    at_step(monkeypatch, 128, other.close, "works again")
    run, printed = trained(tmp_path)
    assert_whole(run)
    assert "warning: " in printed
    assert repr(rows(run)) == repr(lines(run))


def test_tables_of_another_program_are_told_and_left_alone(tmp_path):
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("CREATE TABLE runs (anything TEXT)")
    connection.close()
    run, printed = trained(tmp_path)
    assert_whole(run)
    assert "a table 'runs' that is not Velodrome's" in printed
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("runs",)]
    connection.close()


def test_an_address_that_no_database_can_have_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(ConfigError, match="not the address of a database"):
        small_run(tmp_path, **{"logging.store": "nonsense"})


@pytest.mark.parametrize("mode", ["quiet", "json"])
def test_what_is_missing_at_the_end_is_told_in_every_mode_and_not_among_json(tmp_path, mode, capsys):
    (tmp_path / FILE_NAME).mkdir()
    assert vd.train("smoke", mode=mode, evaluate=False, **tiny(tmp_path, steps=64)).status == "finished"
    out, err = capsys.readouterr()
    assert f"enter it: velodrome runs rebuild --folder {tmp_path}" in err
    assert "lacks rows" not in out


def test_a_group_and_its_evaluation_need_no_store(tmp_path, caplog):
    (tmp_path / FILE_NAME).mkdir()
    group = small_run(tmp_path, seeds=2, steps=64)
    assert group.status == "finished"
    evaluation = vd.evaluate(group, report=False)
    assert len(evaluation.seeds) == 2
    assert "The run's folder has all" in caplog.text
    (tmp_path / FILE_NAME).rmdir()
    assert cli.run(["runs", "rebuild", "--folder", str(tmp_path)]) == 0
    with open_store(tmp_path) as store:
        assert len(store.members(group.folder.id)) == 2
        assert store.policies(group.folder.id)


# The end of the process


def test_a_store_that_hangs_does_not_keep_the_process_from_its_end(tmp_path, monkeypatch):
    stuck = threading.Event()
    monkeypatch.setattr(mirror, "END_SECONDS", 0.3)
    monkeypatch.setattr(mirror, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(StoreMirror.close, "__defaults__", (0.3,))
    hang = lambda: monkeypatch.setattr(SqlStore, "write", lambda *_: stuck.wait())  # noqa: E731
    at_step(monkeypatch, 64, hang, "has not answered")
    begin = time.monotonic()
    run, printed = trained(tmp_path)
    assert time.monotonic() - begin < 60.0
    assert_whole(run)
    assert "has not answered for" in printed
    stuck.set()


@pytest.mark.slow
def test_a_server_that_goes_away_and_comes_back_lacks_nothing(tmp_path, monkeypatch, postgres_url):
    """Its connections are cut, and new ones refused, while the run goes on."""
    from sqlalchemy import create_engine, text

    url = postgres_url.replace("postgresql://", "postgresql+psycopg://")
    admin = create_engine(url.rsplit("/", 1)[0] + "/template1", isolation_level="AUTOCOMMIT")

    def tell(statement: str) -> None:
        with admin.connect() as connection:
            connection.execute(text(statement))

    def cut() -> None:
        tell("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
        tell("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'")

    at_step(monkeypatch, 64, cut, "postgresql")
    at_step(monkeypatch, 192, lambda: tell("ALTER DATABASE postgres ALLOW_CONNECTIONS true"), "works again")
    run, printed = trained(tmp_path, **{"logging.store": postgres_url})
    assert_whole(run)
    assert "lacks rows" not in printed
    assert repr(rows(run)) == repr(lines(run))
    assert not (tmp_path / FILE_NAME).exists()


PROGRAM = """
import sys
from tests.runs.small_runs import tiny
from velodrome import cli
words = [f"{key}={list(value) if isinstance(value, tuple) else value}" for key, value in tiny(sys.argv[1]).items()]
sys.exit(cli.run(["train", "smoke", *words, f"logging.store={sys.argv[2]}"]))
"""


@pytest.mark.slow
def test_a_server_that_hangs_does_not_keep_a_command_from_its_end(tmp_path, postgres_url):
    """The server is stopped as by SIGSTOP: it takes connections and never answers."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/postgres"
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path), url],
            capture_output=True, text=True, timeout=240, cwd=Path(__file__).parents[2],
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "the store lacks rows of" in ended.stdout
    assert Run.open("latest", tmp_path).status == "finished"
