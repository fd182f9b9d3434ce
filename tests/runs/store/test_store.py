"""The SQL store: the contract on SQLite and, where there is a server, on PostgreSQL; several writers; refusals."""

from __future__ import annotations

import contextlib
import math
import re
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from tests.contracts.store import RUN, StoreContract
from velodrome.errors import ConfigError, DamagedStoreError, MissingDependencyError
from velodrome.outside.extras import install
from velodrome.runs.store.rows import MetricRow, RunRecord
from velodrome.runs.store.schema import MIGRATIONS, OLDEST, VERSION, StoreError, tables
from velodrome.runs.store.store import FILE_NAME, SqlStore, open_store

ARCHIVE = Path(__file__).parents[1] / "old_runs" / "runs.tar.gz"
OLD_TABLES = ("runs", "metrics", "evaluations", "checkpoints")

WRITER = """
import sys
from velodrome.runs.store.rows import MetricRow, RunRecord
from velodrome.runs.store.store import SqlStore
url, run, shared, batches = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
store = SqlStore(url)
store.create_run(RunRecord(run, run, "/nowhere"))
for batch in range(batches):
    store.add_metrics(run, [MetricRow(batch * 10 + index, "own", float(index), 1.0) for index in range(10)])
    store.add_metrics(shared, [MetricRow(batch, f"of {run}", float(batch), 1.0)])
"""


class TestSqlite(StoreContract):
    def open(self, tmp_path) -> SqlStore:
        return open_store(tmp_path)


class TestPostgres(StoreContract):
    folder: Path | None = None

    @pytest.fixture(autouse=True)
    def _database(self, postgres_url):
        type(self).url = postgres_url

    def open(self, tmp_path) -> SqlStore:
        if self.folder != tmp_path:  # a new test: begin with an empty database
            self.folder = tmp_path
            store = SqlStore(self.url)
            with store._engine.begin() as connection:
                tables().metadata.drop_all(connection)
            store.close()
        return SqlStore(self.url)

    def test_several_processes_write_at_once_and_lose_nothing(self, store):
        write_at_once(store, self.url)

    @pytest.mark.slow
    def test_eight_writers_of_ten_thousand_rows_lose_nothing(self, store):
        write_at_once(store, self.url, writers=8, batches=1_000)

    def test_a_store_of_version_1_is_taken_over(self, store, tmp_path):
        store.create_run(RUN)
        names = ("outcomes", "trials", "studies", "champions", "looks", "tested_bars", "events", "services", "jobs")
        work = [tables().metadata.tables[name] for name in names]
        with store._engine.begin() as connection:
            tables().metadata.drop_all(connection, tables=work)
            connection.execute(tables().schema.update().values(version=1))
        store.close()
        with self.open(tmp_path) as again:
            assert again.run(RUN.id) == RUN
            assert again.read(lambda connection: connection.execute(tables().jobs.select()).all()) == []
            assert again.read(lambda connection: connection.execute(tables().schema.select()).scalars().all()) == [
                VERSION
            ]


def write_at_once(store: SqlStore, url: str, writers: int = 4, batches: int = 25) -> None:
    store.create_run(RUN)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, f"writer{number}", RUN.id, str(batches)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(writers)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors
    for number in range(writers):
        own = store.metrics(f"writer{number}")
        assert own["step"].to_list() == list(range(batches * 10))
        assert own["value"].to_list() == [float(index % 10) for index in range(batches * 10)]
    assert store.metrics(RUN.id).height == writers * batches


def test_several_processes_write_at_once_and_lose_nothing(tmp_path):
    store = open_store(tmp_path)
    write_at_once(store, f"sqlite:///{tmp_path / FILE_NAME}")
    store.close()


@pytest.mark.slow
def test_eight_writers_of_ten_thousand_rows_lose_nothing(tmp_path):
    store = open_store(tmp_path)
    write_at_once(store, f"sqlite:///{tmp_path / FILE_NAME}", writers=8, batches=1_000)
    store.close()


def test_processes_that_open_a_new_store_at_once_all_find_it_made(tmp_path):
    code = "import sys; from velodrome.runs.store.store import SqlStore; SqlStore(sys.argv[1]).runs()"
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path / 'new.db'}"]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in processes] == [("", 0)] * 4


def test_threads_share_a_store(tmp_path):
    store = open_store(tmp_path)
    store.create_run(RUN)

    def write(name: str) -> None:
        for step in range(20):
            store.add_metrics(RUN.id, [MetricRow(step, name, float(step), 1.0)])
            store.metrics(RUN.id, [name])

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.metrics(RUN.id).height == 80
    store.close()


def test_sqlite_writes_ahead_and_reads_do_not_wait_for_a_writer(tmp_path):
    store = open_store(tmp_path)
    store.create_run(RUN)
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.execute("BEGIN IMMEDIATE")
    begin = time.monotonic()
    assert [run.id for run in store.runs()] == [RUN.id]
    assert time.monotonic() - begin < 1.0
    other.close()
    store.close()


def test_a_database_locked_for_long_is_told(tmp_path):
    store = open_store(tmp_path)
    store.create_run(RUN)
    store.close()
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with SqlStore(f"sqlite:///{tmp_path / FILE_NAME}", busy_seconds=0.2) as store:
        assert store.run(RUN.id) == RUN  # who only looks does not wait
        with pytest.raises(StoreError, match=r"locked by another process for more than 0\.2 seconds"):
            store.update_run(RUN.id, steps=1)
    other.close()


def test_a_writer_waits_for_another_that_is_short(tmp_path):
    store = open_store(tmp_path)
    store.create_run(RUN)
    other = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, lambda: other.execute("COMMIT")).start()
    store.add_metrics(RUN.id, [MetricRow(1, "a", 1.0, 1.0)])
    assert store.metrics(RUN.id).height == 1
    other.close()
    store.close()


def test_a_killed_writer_leaves_whole_batches(tmp_path):
    code = (
        "import os, sys\nfrom velodrome.runs.store.rows import MetricRow, RunRecord\n"
        "from velodrome.runs.store.store import SqlStore\n"
        "store = SqlStore(sys.argv[1])\nstore.create_run(RunRecord('r', 'r', '/nowhere'))\n"
        "for step in range(100000):\n"
        "    store.add_metrics('r', [MetricRow(step, name, 1.0, 1.0) for name in 'abcd'])\n"
        "    print(step, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"sqlite:///{tmp_path / FILE_NAME}"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(5):
        told = int(process.stdout.readline())
    process.kill()
    process.wait()
    process.stdout.close()
    store = open_store(tmp_path)
    found = store.metrics("r")
    assert found["step"].max() >= told
    assert found.height == 4 * (found["step"].max() + 1)
    store.close()


def change_version(tmp_path: Path, version: int) -> None:
    open_store(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("UPDATE velodrome_schema SET version = ?", (version,))
    connection.close()


def test_tables_of_a_newer_velodrome_are_refused(tmp_path):
    change_version(tmp_path, VERSION + 1)
    with pytest.raises(
        StoreError, match=rf"of version {VERSION + 1}, and this Velodrome knows up to {VERSION}.*Upgrade"
    ):
        open_store(tmp_path)


def test_tables_that_are_too_old_are_refused(tmp_path):
    change_version(tmp_path, OLDEST - 1)
    with pytest.raises(StoreError, match=rf"of version {OLDEST - 1}, and this Velodrome needs {OLDEST} or later"):
        open_store(tmp_path)


def test_a_store_of_version_1_is_taken_over_with_all_its_rows(tmp_path):
    """The file is one that commit 1018c33 wrote."""
    with tarfile.open(ARCHIVE) as archive:
        content = archive.extractfile("runs/velodrome.db")
        assert content is not None
        (tmp_path / FILE_NAME).write_bytes(content.read())
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        before = [connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall() for name in OLD_TABLES]
        assert connection.execute("SELECT version FROM velodrome_schema").fetchall() == [(1,)]
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'jobs'").fetchall() == []
    with open_store(tmp_path) as store:
        assert store.runs()
        assert store.read(lambda connection: connection.execute(tables().jobs.select()).all()) == []
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        after = [connection.execute(f"SELECT * FROM {name} ORDER BY 1, 2, 3").fetchall() for name in OLD_TABLES]
        assert connection.execute("SELECT version FROM velodrome_schema").fetchall() == [(VERSION,)]
    assert after == before
    assert before[0]
    assert before[1]


def test_a_takeover_that_fails_leaves_the_store_as_it_was(tmp_path, monkeypatch):
    change_version(tmp_path, 1)

    def broken(connection):
        connection.exec_driver_sql("CREATE TABLE half (anything TEXT)")
        raise StoreError("broken")

    monkeypatch.setitem(MIGRATIONS, 1, broken)
    with pytest.raises(StoreError, match="broken"):
        open_store(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("SELECT version FROM velodrome_schema").fetchall() == [(1,)]
        assert connection.execute("SELECT name FROM sqlite_master WHERE name = 'half'").fetchall() == []


def test_a_database_of_another_program_is_refused(tmp_path):
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute("CREATE TABLE runs (anything TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="a table 'runs' that is not Velodrome's"):
        open_store(tmp_path)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / FILE_NAME).write_text("prices, prices, prices\n" * 100)
    with pytest.raises(StoreError, match=r"velodrome\.db: this file is not a store.*runs rebuild .*; or name another"):
        open_store(tmp_path)


def test_a_damaged_store_is_told_with_what_to_do(tmp_path):
    with open_store(tmp_path) as store:
        store.create_run(RUN)
    file = tmp_path / FILE_NAME
    content = bytearray(file.read_bytes())
    content[4096:8192] = bytes(4096)  # a page of a table
    file.write_bytes(content)
    with pytest.raises(DamagedStoreError, match=r"the file is damaged\. velodrome runs rebuild moves it"):  # noqa: SIM117
        with open_store(tmp_path) as store:
            store.runs()


def test_looking_does_not_make_a_store(tmp_path):
    with pytest.raises(StoreError, match="no store, so no runs"):
        open_store(tmp_path / "runs", create=False)
    assert not (tmp_path / "runs").exists()


def test_a_folder_with_odd_characters_holds_a_store(tmp_path):
    folder = tmp_path / "50% of #1? é"
    store = open_store(folder)
    store.create_run(RUN)
    store.close()
    assert (folder / FILE_NAME).is_file()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite://", "in memory"),
        ("runs.db", "not the address of a database"),
        ("nothing://host/database", "not the address of a database"),
    ],
)
def test_an_address_that_is_none_is_refused(url, told):
    with pytest.raises(ConfigError, match=told):
        SqlStore(url)


def test_a_missing_driver_names_the_extra_and_hides_the_password(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependencyError, match=re.escape(install("postgres"))) as caught:
        SqlStore("postgresql://me:secret@localhost/runs")
    assert "secret" not in str(caught.value)


def test_a_folder_that_does_not_exist_is_told(tmp_path):
    with pytest.raises(StoreError, match=r"cannot be opened as a file\. Is there such a folder"):
        SqlStore(f"sqlite:///{tmp_path}/missing/{FILE_NAME}")


def test_a_status_is_one_of_four():
    with pytest.raises(ConfigError, match="Did you mean 'running'"):
        RunRecord("a", "a", "/a", status="runing")


def test_a_value_of_numpy_is_kept_as_a_number(tmp_path):
    import numpy as np

    store = open_store(tmp_path)
    store.create_run(RUN)
    store.add_metrics(
        RUN.id, [MetricRow(np.int64(3), "a", np.float32(0.5), 1.0), MetricRow(4, "a", np.float64("nan"), 1.0)]
    )
    found = store.metrics(RUN.id)
    assert found["step"].to_list() == [3, 4]
    assert found["value"][0] == 0.5
    assert math.isnan(found["value"][1])
    store.close()
