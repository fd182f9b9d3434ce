"""The queue: its contract on SQLite and, where there is a server, on PostgreSQL."""

from __future__ import annotations

import pytest

from tests.contracts.queue import QueueContract
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
