"""The queue: its contract on SQLite and, where there is a server, on PostgreSQL."""

from __future__ import annotations

import pytest

from tests.contracts.queue import QueueContract
from velodrome.errors import StoreError
from velodrome.runs.folder import LEASE
from velodrome.runs.store.rows import RunRecord
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore, open_store


class TestSqlite(QueueContract):
    def open(self, tmp_path) -> SqlStore:
        return open_store(tmp_path)


class TestPostgres(QueueContract):
    @pytest.fixture(autouse=True)
    def _empty(self, postgres_url):
        type(self).url = postgres_url
        with SqlStore(postgres_url) as store, store._engine.begin() as connection:
            for table in reversed(tables().metadata.sorted_tables):
                if table is not tables().schema:
                    connection.execute(table.delete())

    def open(self, tmp_path) -> SqlStore:
        return SqlStore(self.url)

    def test_who_is_frozen_in_a_transaction_loses_it_and_holds_nobody_up(self, queue, begun, tmp_path, monkeypatch):
        queue.store.create_run(RunRecord(begun.id, "first", "/nowhere"))
        monkeypatch.setattr("velodrome.runs.store.store.FROZEN", "-c idle_in_transaction_session_timeout=200")
        monkeypatch.setenv(LEASE, f"{begun.id}:1")
        frozen = self.open(tmp_path)

        def sleep_in_the_middle(connection) -> None:
            connection.execute(tables().runs.update().values(name="late"))
            assert queue.end(begun.id, 1, "machine_lost", "silent", 0).status == "waiting"  # waits for the server
            connection.execute(tables().runs.update().values(name="later"))

        with pytest.raises(StoreError, match="terminat"):
            frozen.write(sleep_in_the_middle)
        frozen.close()
        assert queue.store.run(begun.id).name == "first"
