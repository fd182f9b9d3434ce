"""The tables of the store, the version that says who may open them, and what makes one of an older version new."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from velodrome.errors import StoreError
from velodrome.runs.store.work import ID_LENGTH, NAME_LENGTH, work_tables

if TYPE_CHECKING:
    from sqlalchemy import Connection, MetaData, Table

VERSION = 3
STATUSES = ("running", "finished", "interrupted", "failed")
KILLED = "killed"  # shown, never stored: it says that it runs, yet no process has its folder locked
ADVISORY_LOCK = 0x76656C6F  # PostgreSQL: held while the tables are made, so that two processes do not make them at once


@dataclass(frozen=True)
class Tables:
    """The store's tables."""

    metadata: MetaData
    schema: Table
    runs: Table
    metrics: Table
    outlines: Table
    members: Table
    evaluations: Table
    policies: Table
    checkpoints: Table
    lineage: Table
    jobs: Table
    services: Table
    studies: Table
    trials: Table
    outcomes: Table
    champions: Table
    looks: Table
    tested: Table
    events: Table


@cache
def tables() -> Tables:
    """Return the tables as SQLAlchemy knows them."""
    import sqlalchemy as sql

    class Number(sql.TypeDecorator[float]):
        """A float that may be NaN. SQLite keeps NaN as NULL, so NULL is read as NaN; every database does the same."""

        impl = sql.Double
        cache_ok = True

        def process_bind_param(self, value: float | None, dialect: Any) -> float | None:
            return None if value is None or math.isnan(value) else value

        def process_result_value(self, value: float | None, dialect: Any) -> float:
            return math.nan if value is None else value

    metadata = sql.MetaData()

    def of_a_run() -> sql.Column[str]:
        return sql.Column("run", sql.String(ID_LENGTH), sql.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)

    schema = sql.Table(
        "velodrome_schema", metadata, sql.Column("version", sql.Integer, primary_key=True, autoincrement=False)
    )
    runs = sql.Table(
        "runs",
        metadata,
        sql.Column("id", sql.String(ID_LENGTH), primary_key=True),
        sql.Column("name", sql.String(NAME_LENGTH), nullable=False),
        sql.Column("folder", sql.Text, nullable=False),
        sql.Column("created", sql.Double, nullable=False),  # seconds since 1970, as are all times here
        sql.Column("updated", sql.Double, nullable=False),
        sql.Column("status", sql.String(20), nullable=False),
        sql.Column("env", sql.String(NAME_LENGTH), nullable=False),
        sql.Column("algorithm", sql.String(NAME_LENGTH), nullable=False),
        sql.Column("config", sql.JSON, nullable=False),
        sql.Column("config_hash", sql.String(ID_LENGTH), nullable=False),
        sql.Column("data_hash", sql.String(ID_LENGTH), nullable=False),
        sql.Column("seed", sql.BigInteger, nullable=False),
        sql.Column("steps", sql.BigInteger, nullable=False),
        sql.Column("versions", sql.JSON, nullable=False),
        sql.Column("error", sql.Text, nullable=False),
        sql.Index("runs_by_time", "created"),
    )
    # Which runs differ only in their training seed, and the row that stands for all of them.
    members = sql.Table(
        "members",
        metadata,
        of_a_run(),
        sql.Column("of", sql.String(ID_LENGTH), sql.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    )
    # Read by run and name, so the key is in that order and, in SQLite, is the table itself.
    metrics = sql.Table(
        "metrics",
        metadata,
        of_a_run(),
        sql.Column("name", sql.String(NAME_LENGTH), primary_key=True),
        sql.Column("step", sql.BigInteger, primary_key=True, autoincrement=False),
        sql.Column("value", Number, nullable=True),
        sql.Column("time", sql.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    # Of every whole block of a metric's rows those that a picture of it needs, in columns: see `outlines`.
    outlines = sql.Table(
        "outlines",
        metadata,
        of_a_run(),
        sql.Column("name", sql.String(NAME_LENGTH), primary_key=True),
        sql.Column("last", sql.BigInteger, primary_key=True, autoincrement=False),  # steps of the block
        sql.Column("first", sql.BigInteger, nullable=False),
        sql.Column("rows", sql.Integer, nullable=False),  # that the block has
        sql.Column("steps", sql.LargeBinary, nullable=False),  # those kept: 8 bytes each, little-endian
        sql.Column("values", sql.LargeBinary, nullable=False),
    )
    evaluations = sql.Table(
        "evaluations",
        metadata,
        of_a_run(),
        sql.Column("split", sql.String(NAME_LENGTH), primary_key=True),
        sql.Column("name", sql.String(NAME_LENGTH), primary_key=True),
        sql.Column("step", sql.BigInteger, primary_key=True, autoincrement=False),
        sql.Column("value", Number, nullable=True),
        sql.Column("low", Number, nullable=True),  # of the confidence interval; NaN where there is none
        sql.Column("high", Number, nullable=True),
        sqlite_with_rowid=False,
    )
    # Which policy the evaluations of a split and step are about.
    policies = sql.Table(
        "evaluated_policies",
        metadata,
        of_a_run(),
        sql.Column("split", sql.String(NAME_LENGTH), primary_key=True),
        sql.Column("checkpoint", sql.String(20), primary_key=True),
        sql.Column("step", sql.BigInteger, primary_key=True, autoincrement=False),
        sql.Column("policy", sql.JSON, nullable=False),
        sql.Column("label", sql.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    checkpoints = sql.Table(
        "checkpoints",
        metadata,
        of_a_run(),
        sql.Column("step", sql.BigInteger, primary_key=True, autoincrement=False),
        sql.Column("path", sql.Text, nullable=False),
        sql.Column("pinned", sql.Boolean, nullable=False),
        sql.Column("time", sql.Double, nullable=False),
        sqlite_with_rowid=False,
    )
    lineage = sql.Table(
        "lineage",
        metadata,
        of_a_run(),
        sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),  # of the entry, from 0
        sql.Column("step", sql.BigInteger, nullable=False),
        sql.Column("parent", sql.String(ID_LENGTH), nullable=True),  # NULL: the run itself was told something else
        sql.Column("changes", sql.JSON, nullable=False),  # by dotted key: the value before and after
        sqlite_with_rowid=False,
    )
    of_runs = (runs, metrics, outlines, members, evaluations, policies, checkpoints, lineage)
    return Tables(metadata, schema, *of_runs, *work_tables(metadata, Number))


def is_prepared(connection: Connection) -> bool:
    """Return whether the database has all tables, of this version; to look at it waits for no writer."""
    from sqlalchemy import inspect

    known = tables()
    if not set(inspect(connection).get_table_names()) >= set(known.metadata.tables):
        return False
    return list(connection.execute(known.schema.select()).scalars()) == [VERSION]


def prepare(connection: Connection, place: str) -> None:
    """Make the tables if the database has none, or refuse those of another version."""
    from sqlalchemy import inspect, text

    known = tables()
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
    present = set(inspect(connection).get_table_names())
    if known.schema.name not in present:
        clash = sorted(present & set(known.metadata.tables))
        if clash:
            raise StoreError(
                f"{place}: has a table {clash[0]!r} that is not Velodrome's. Name a database (or file) of its own."
            )
        known.metadata.create_all(connection)
        connection.execute(known.schema.insert(), {"version": VERSION})
        return
    found = max(connection.execute(known.schema.select()).scalars(), default=0)
    if found > VERSION:
        raise StoreError(
            f"{place}: its tables are of version {found}, and this Velodrome knows up to {VERSION}; a newer one made "
            "them. Upgrade: pip install --upgrade velodrome, or name another store (logging.store)."
        )
    if found < OLDEST:
        raise StoreError(
            f"{place}: its tables are of version {found}, and this Velodrome needs {OLDEST} or later. Name another "
            "store (logging.store); the runs' own folders hold the same metrics as metrics.jsonl."
        )
    for version in range(found, VERSION):
        MIGRATIONS[version](connection)
    known.metadata.create_all(connection)  # tables that came since; who does not know them is not disturbed
    connection.execute(known.schema.update().values(version=VERSION))


def _add_the_queue(connection: Connection) -> None:
    """Version 2 has jobs, services, studies, trials, champions and events: new tables, which `prepare` makes."""


def _add_outlines(connection: Connection) -> None:
    """Version 3 has outlines of long curves: a new table; those of older rows are made when somebody has time."""


OLDEST = 1  # version that can still be made new
# By version: what changes the tables of one into those of the next, within the transaction that opens the store.
MIGRATIONS: dict[int, Callable[[Connection], None]] = {1: _add_the_queue, 2: _add_outlines}
