"""The store: one place with the rows of all runs. SQLite by default, any database that SQLAlchemy knows otherwise."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import polars as pl

from velodrome.errors import ConfigError, DamagedStoreError, MissingDependencyError, did_you_mean
from velodrome.outside.extras import install
from velodrome.runs.bucket.place import here
from velodrome.runs.store.fence import Fence
from velodrome.runs.store.outlines import OutlineWriter, extend, unfinished
from velodrome.runs.store.rows import (
    CheckpointRow,
    EvaluationRow,
    LineageRow,
    MetricRow,
    PolicyRow,
    RunRecord,
    check_status,
)
from velodrome.runs.store.schema import StoreError, is_prepared, prepare, tables

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine, Executable

FILE_NAME = "velodrome.db"
BUSY_SECONDS = 30.0  # how long a writer waits for the others before it gives up
CONNECT_SECONDS = 10  # how long a server may take to answer
CHUNK = 5_000  # rows in a statement
# PostgreSQL: the server ends the transaction of a client that was frozen in its middle, and nobody waits for a lock for
# ever; in milliseconds.
FROZEN = "-c idle_in_transaction_session_timeout=30000 -c lock_timeout=30000"

METRICS: dict[str, Any] = {"step": pl.Int64, "name": pl.String, "value": pl.Float64, "time": pl.Float64}

# What to do about a file that SQLite refuses, by its name for the reason.
OTHERWISE = "name another store (--store, logging.store); the runs' own folders hold the same metrics as metrics.jsonl"
REBUILD = "velodrome runs rebuild moves it away and makes a new one from the runs' folders"
DAMAGED = {
    "SQLITE_NOTADB": "this file is not a store, nor any other SQLite database",
    "SQLITE_CORRUPT": "the file is damaged",
}
ADVICE = {
    "SQLITE_CANTOPEN": f"cannot be opened as a file. Is there such a folder, may it be written? Else {OTHERWISE}.",
    "SQLITE_READONLY": f"may not be written. Change its permissions, or {OTHERWISE}.",
    "SQLITE_FULL": "the disk is full. Make room.",
    "SQLITE_IOERR": "the disk does not take or give what is asked of it. Is it full, or gone? Make room, or try again.",
}

Result = TypeVar("Result")


def store_file(root: Path | str) -> Path:
    """Return the file of the store in a folder of runs."""
    return here(root).resolve() / FILE_NAME


def identity_of(file: Path) -> tuple[int, int] | None:
    """Return what tells a file from another of the same name; None if there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def open_store(
    root: Path | str,
    url: str | None = None,
    create: bool = True,
    busy_seconds: float = BUSY_SECONDS,
    fence: Fence | None = None,
) -> SqlStore:
    """Open the store at a URL, or the SQLite file in a folder of runs, which is made unless `create` is false.

    fence: the attempt that writes; that of this process if not given.
    """
    from sqlalchemy.engine import URL

    if url is not None:
        return SqlStore(url, busy_seconds, fence)
    file = store_file(root)
    if not file.exists() and not create:
        raise StoreError(
            f"{file}: there is no store, so no runs. Train one first (velodrome train), or name its folder."
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{file.parent}: the folder of the runs cannot be made: {error.strerror}.") from error
    return SqlStore(URL.create("sqlite", database=str(file)), busy_seconds, fence)


def whole_address(url: str) -> str:
    """Return the URL of a store with the whole path of an SQLite file: who reads it later may be in another folder."""
    kind, _, file = url.partition(":///")
    path, mark, query = file.partition("?")
    is_path = kind.startswith("sqlite") and path and not path.startswith((":", "file:"))
    return f"{kind}:///{os.path.abspath(path)}{mark}{query}" if is_path else url


def check_address(url: str) -> str:
    """Return the URL of a store as it may be shown, without its password; nobody is asked to connect.

    One that no database can have, or whose driver is missing, is refused.
    """
    engine = _engine(url, BUSY_SECONDS)[0]
    engine.dispose()
    return engine.url.render_as_string(hide_password=True)


class SqlStore:
    """A store in a database; `tests/contracts/store.py` is its contract. A call is one transaction, but see `at_once`.

    A run has one number for a name and a step: writing it again replaces it. Threads may share a store; a process that
    was forked opens its own.
    """

    def __init__(self, url: str | URL, busy_seconds: float = BUSY_SECONDS, fence: Fence | None = None):
        self._busy_seconds = busy_seconds
        self._transaction = threading.local()  # its connection, while `at_once` works
        self._engine, self.place = _engine(url, busy_seconds)
        self._tables = tables()
        self._fence = fence or Fence.of_process()
        self._outlines = OutlineWriter()
        file = self._engine.url.database if self._engine.url.get_backend_name() == "sqlite" else None
        self._file = None if file is None else Path(file).resolve()
        self._home = None if self._file is None else self._file.parent  # what folders are relative to
        try:
            if not self._transact(is_prepared, writing=False):
                self.write(lambda connection: prepare(connection, self.place))
            self._identity = self._file and identity_of(self._file)
        except StoreError:
            self.close()
            raise

    @property
    def is_replaced(self) -> bool:
        """Whether SQLite's file was removed or replaced since it was opened: what is written now, nobody will find."""
        return self._file is not None and identity_of(self._file) != self._identity

    def create_run(self, run: RunRecord) -> None:
        """Add a run; its id must be new."""
        runs = self._tables.runs

        def add(connection: Connection) -> None:
            if connection.execute(runs.select().where(runs.c.id == run.id)).first():
                raise StoreError(f"{self.place}: already has a run {run.id!r}; every run has an id of its own.")
            connection.execute(runs.insert(), {**asdict(run), "folder": self._from_home(run.folder)})

        self.write(add)

    def put_run(self, run: RunRecord) -> None:
        """Write a run's whole row, in place of the one that is there."""
        runs = self._tables.runs
        values = {**asdict(run), "folder": self._from_home(run.folder)}

        def put(connection: Connection) -> None:
            if connection.execute(runs.update().where(runs.c.id == run.id).values(values)).rowcount == 0:
                connection.execute(runs.insert(), values)

        self.write(put)

    def add_member(self, group: str, run: str) -> None:
        """Say that a run is one of the training seeds of a group."""
        members = self._tables.members

        def add(connection: Connection) -> None:
            connection.execute(members.delete().where(members.c.run == run))
            connection.execute(members.insert(), {"run": run, "of": group})

        self.write(add)

    def groups(self) -> dict[str, str]:
        """Return the group of every run that is a member of one."""
        return {row.run: row.of for row in self._rows(self._tables.members.select())}

    def members(self, group: str) -> list[RunRecord]:
        """Return the runs of a group by their seed; none for a run that is no group."""
        members, runs = self._tables.members, self._tables.runs
        query = runs.select().join(members, members.c.run == runs.c.id).where(members.c.of == group)
        return self._records(query.order_by(runs.c.seed))

    def update_run(self, run: str, **changes: Any) -> None:
        """Change fields of a run's row; `updated` becomes now."""
        legal = [entry.name for entry in fields(RunRecord) if entry.name != "id"]
        for name in changes:
            if name not in legal:
                raise ConfigError(f"a run has no field {name!r} to change.{did_you_mean(name, legal)}")
        check_status(changes.get("status", "running"))
        runs = self._tables.runs
        values = {"updated": time.time(), **changes}
        if "folder" in values:
            values["folder"] = self._from_home(values["folder"])
        self.write(lambda connection: self._change(connection, run, runs.update().values(values)))

    def find(self, run: str) -> RunRecord | None:
        """Return the row of the run with this id; None if there is none, as for one that was killed too early."""
        return next(iter(self.runs(id=run)), None)

    def run(self, run: str) -> RunRecord:
        """Return the row of the run with this id; one that is not there is an error."""
        found = self.find(run)
        if found is None:
            raise self._unknown(run)
        return found

    def runs(self, *, limit: int | None = None, **fields: str | None) -> list[RunRecord]:
        """Return the runs whose row has these fields (status, env, algorithm, name, ...), newest first."""
        runs = self._tables.runs
        query = runs.select().order_by(runs.c.created.desc(), runs.c.id).limit(limit)
        for name, wanted in fields.items():
            query = query if wanted is None else query.where(runs.c[name] == wanted)
        return self._records(query)

    def _records(self, query: Executable) -> list[RunRecord]:
        found = self._rows(query)
        try:
            return [RunRecord(**{**row._mapping, "folder": self.place_of(row.folder)}) for row in found]
        except (ConfigError, TypeError) as error:  # a status that no run has: the file was damaged
            raise self._damaged() from error

    def _from_home(self, folder: str) -> str:
        """Return a run's folder as it is kept: below the store's own folder from there, so that both may move."""
        path, home = Path(folder), self._home
        return str(path.relative_to(home)) if home is not None and path.is_relative_to(home) else folder

    def place_of(self, folder: str) -> str:
        """Return where the folder of a row is now: below the store's folder, or beside the store if it moved."""
        if self._home is None:
            return folder
        # Older stores say where it was, which a copy must not be taken for.
        places = [self._home / Path(folder).name, self._home / folder]
        return next((str(path) for path in places if path.is_dir()), folder)

    def add_metrics(self, run: str, rows: Iterable[MetricRow]) -> None:
        """Add numbers; the run's steps, and when it was updated, become the largest of theirs, if that is more."""
        typed = [MetricRow(int(step), name, float(value), moment) for step, name, value, moment in rows]
        if typed:
            largest = (max(row.step for row in typed), max(row.time for row in typed))
            self._add(run, self._tables.metrics, typed, *largest, lambda here: self._outlines.follow(here, run, typed))

    def outline(self, run: str, blocks: int = 8) -> bool:
        """Outline some blocks of rows that lack it, as rows of older versions do; return whether there are more."""
        runs = self._tables.runs
        own = runs.select().with_only_columns(runs.c.id).where(runs.c.id == run).with_for_update()

        def work(connection: Connection, name: str) -> None:
            connection.execute(own)  # who adds rows changes this one first, and so waits where several may write
            extend(connection, run, name, blocks)

        names = self.read(lambda connection: unfinished(connection, run))
        for name in names:
            self.write(functools.partial(work, name=name))
        return bool(names)

    def metrics_extent(self, run: str) -> tuple[int, int]:
        """Return the largest step of a run's numbers (-1: there are none), and how many are of smaller steps."""
        from sqlalchemy import func, select

        table = self._tables.metrics
        (last,) = self._rows(select(func.max(table.c.step)).where(table.c.run == run))[0]
        if last is None:
            return -1, 0
        (count,) = self._rows(select(func.count()).where(table.c.run == run, table.c.step < last))[0]
        return last, count

    def metrics(self, run: str, names: Sequence[str] | None = None, since: int = 0) -> pl.DataFrame:
        """Return the numbers from step `since` on as columns step, name, value, time, ordered by step and name.

        Those of a group are those of its members, one after the other, with a column seed.
        """
        if members := self.members(run):
            each = ((member.seed, self.metrics(member.id, names, since)) for member in members)
            return pl.concat(found.with_columns(seed=pl.lit(seed, pl.Int64)) for seed, found in each)
        table = self._tables.metrics
        wanted = [table.c.step, table.c.name, table.c.value, table.c.time]
        query = table.select().with_only_columns(*wanted).where(table.c.run == run, table.c.step >= since)
        query = query if names is None else query.where(table.c.name.in_(list(names)))
        return self._frame(query.order_by(table.c.step, table.c.name), METRICS)

    def last_metrics(self, run: str, names: Sequence[str] | None = None) -> dict[str, float]:
        """Return the number of the largest step for each name; of a group, the mean over its members."""
        from sqlalchemy import func, select

        if members := self.members(run):
            each = [self.last_metrics(member.id, names) for member in members]
            known = {name: [own[name] for own in each if name in own] for name in sorted(set().union(*each))}
            return {name: sum(values) / len(values) for name, values in known.items()}
        table = self._tables.metrics
        own = table.c.run == run
        # From one name to the next by the key: whatever lies between them is not looked at.
        first = select(func.min(table.c.name).label("name")).where(own).cte("names", recursive=True)
        following = select(func.min(table.c.name)).where(own, table.c.name > first.c.name).scalar_subquery()
        every = first.union_all(select(following).where(first.c.name.is_not(None)))
        newest = select(table.c.value).where(own, table.c.name == every.c.name).order_by(table.c.step.desc()).limit(1)
        query = select(every.c.name, newest.scalar_subquery().label("value")).where(every.c.name.is_not(None))
        query = query if names is None else query.where(every.c.name.in_(list(names)))
        query = query.order_by(every.c.name)
        return {row.name: row.value for row in self._rows(query)}

    def last_of_runs(self, name: str) -> dict[str, float]:
        """Return the number of the largest step of one name for every run that has one, in one look at each."""
        from sqlalchemy import func, select

        runs, table = self._tables.runs, self._tables.metrics
        own = (table.c.run == runs.c.id, table.c.name == name)
        largest = select(func.max(table.c.step)).where(*own).scalar_subquery()
        value = select(table.c.value).where(*own).order_by(table.c.step.desc()).limit(1).scalar_subquery()
        found = self._rows(select(runs.c.id, largest.label("step"), value.label("value")))
        return {row.id: row.value for row in found if row.step is not None}

    def evaluations_of_runs(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """Return the numbers of one name in the evaluations of every run, oldest step first, with their policies.

        Each says step, split, name, value, low and high, and of the policy label, checkpoint and policy, if known.
        """
        evaluations, policies = self._tables.evaluations, self._tables.policies
        query = evaluations.select().where(evaluations.c.name == name)
        # The same step chosen in both ways is the same policy; the best says more of it.
        best_last = sorted(self._rows(policies.select()), key=lambda row: row.checkpoint == "best")
        named = {(row.run, row.split, row.step): row for row in best_last}
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows(query.order_by(evaluations.c.step, evaluations.c.split)):
            policy = named.get((row.run, row.split, row.step))
            about = (row.split, None, None) if policy is None else (policy.label, policy.checkpoint, policy.policy)
            numbers = {key: value for key, value in row._mapping.items() if key != "run"}
            found.setdefault(row.run, []).append(
                {**numbers, **dict(zip(("label", "checkpoint", "policy"), about, strict=True))}
            )
        return found

    def add_evaluations(self, run: str, rows: Iterable[EvaluationRow], policy: PolicyRow | None = None) -> None:
        """Add the numbers of evaluations, and which policy they are about."""
        self._add(run, self._tables.evaluations, list(rows))
        if policy is not None:
            self._add(run, self._tables.policies, [policy])

    def policies(self, run: str) -> list[PolicyRow]:
        """Return which policies of a run were evaluated, ordered by step and split."""
        table = self._tables.policies
        wanted = [table.c[name] for name in PolicyRow._fields]
        query = table.select().with_only_columns(*wanted).where(table.c.run == run).order_by(*wanted[:3])
        return [PolicyRow(*row) for row in self._rows(query)]

    def evaluations(self, run: str) -> pl.DataFrame:
        """Return the numbers of a run's evaluations as columns step, split, name, value, low, high."""
        table = self._tables.evaluations
        numbers = dict.fromkeys(("value", "low", "high"), pl.Float64)
        schema = {"step": pl.Int64, "split": pl.String, "name": pl.String, **numbers}
        query = table.select().with_only_columns(*(table.c[name] for name in schema)).where(table.c.run == run)
        return self._frame(query.order_by(table.c.step, table.c.split, table.c.name), schema)

    def set_checkpoints(self, run: str, rows: Iterable[CheckpointRow]) -> None:
        """Say which checkpoints there are now, in place of those said before; the run's steps are theirs at least."""
        table = self._tables.checkpoints
        values = [{"run": run, **row._asdict()} for row in rows]

        def replace(connection: Connection) -> None:
            self._raise_to(
                connection,
                run,
                max((row["step"] for row in values), default=0),
                max((row["time"] for row in values), default=0.0),
            )
            connection.execute(table.delete().where(table.c.run == run))
            if values:
                connection.execute(table.insert(), values)

        self.write(replace)

    def checkpoints(self, run: str) -> list[CheckpointRow]:
        """Return the checkpoints of a run, oldest step first."""
        table = self._tables.checkpoints
        query = table.select().with_only_columns(table.c.step, table.c.path, table.c.pinned, table.c.time)
        query = query.where(table.c.run == run).order_by(table.c.step)
        return [CheckpointRow(*row) for row in self._rows(query)]

    def set_lineage(self, run: str, rows: Iterable[LineageRow]) -> None:
        """Say whose child a run is, and what was changed on the way."""
        if typed := list(rows):
            self._add(run, self._tables.lineage, typed)

    def lineage(self, run: str | None = None, parent: str | None = None) -> list[tuple[str, LineageRow]]:
        """Return runs and where they became others, in order; of one run, or the children of one."""
        table = self._tables.lineage
        query = table.select().order_by(table.c.run, table.c.number)
        for column, wanted in ((table.c.run, run), (table.c.parent, parent)):
            query = query if wanted is None else query.where(column == wanted)
        return [(row.run, LineageRow(row.number, row.step, row.parent, row.changes)) for row in self._rows(query)]

    def forget_after(self, run: str, steps: int) -> None:
        """Remove the rows of later steps, as a run does that continues from a checkpoint, so that none is doubled."""
        known = self._tables

        def forget(connection: Connection) -> None:
            self._change(connection, run, known.runs.update().values(steps=steps))
            for table in (known.metrics, known.evaluations, known.policies, known.checkpoints):
                connection.execute(table.delete().where(table.c.run == run, table.c.step > steps))
            old = known.outlines
            connection.execute(old.delete().where(old.c.run == run, old.c.last > steps))

        self.write(forget)

    def forget_metrics(self, run: str) -> None:
        """Remove all numbers of a run, to write them anew."""

        def forget(connection: Connection) -> None:
            for table in (self._tables.metrics, self._tables.outlines):
                connection.execute(table.delete().where(table.c.run == run))

        self.write(forget)

    def close(self) -> None:
        """Close the connections; a store that is used again opens them to the file that has its place then."""
        self._engine.dispose()
        self._identity = self._file and identity_of(self._file)

    def __enter__(self) -> SqlStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Transactions

    def at_once(self, work: Callable[[], Result]) -> Result:
        """Let all that this thread writes and reads in `work` be one transaction: all of it is kept, or nothing."""

        def within(connection: Connection) -> Result:
            self._transaction.connection = connection
            try:
                return work()
            finally:
                del self._transaction.connection

        return self._transact(within, writing=True)

    def _change(self, connection: Connection, run: str, statement: Any) -> None:
        """Carry out a statement on one run's row; a run that is not there is an error."""
        if connection.execute(statement.where(self._tables.runs.c.id == run)).rowcount == 0:
            raise self._unknown(run)

    def _raise_to(self, connection: Connection, run: str, steps: int, moment: float) -> None:
        """Let a run's row say so many steps and that moment, unless it says more; one that is not there is an error."""
        from sqlalchemy import case

        runs = self._tables.runs
        at_least = {
            column.name: case((column < least, least), else_=column)
            for column, least in ((runs.c.steps, steps), (runs.c.updated, moment))
        }
        self._change(connection, run, runs.update().values(at_least))

    def _add(
        self,
        run: str,
        table: Any,
        rows: Sequence[NamedTuple],
        steps: int = 0,
        moment: float = 0.0,
        then: Callable[[Connection], None] | None = None,
    ) -> None:
        """Insert rows in place of those with the same key, in statements that every database knows; then do more."""
        from sqlalchemy import and_, bindparam

        keys = [column.name for column in table.primary_key]
        same = and_(*(table.c[name] == bindparam(f"key_{name}") for name in keys))
        complete = [{"run": run, **row._asdict()} for row in rows]
        new = list({tuple(row[name] for name in keys): row for row in complete}.values())

        def add(connection: Connection) -> None:
            self._raise_to(connection, run, steps, moment)
            for start in range(0, len(new), CHUNK):
                chunk = new[start : start + CHUNK]
                old = [{f"key_{name}": row[name] for name in keys} for row in chunk]
                connection.execute(table.delete().where(same), old)
                connection.execute(table.insert(), chunk)
            if then is not None:
                then(connection)

        self.write(add)

    def _frame(self, query: Executable, schema: dict[str, Any]) -> pl.DataFrame:
        return pl.DataFrame([tuple(row) for row in self._rows(query)], schema=schema, orient="row")

    def _rows(self, query: Executable) -> Sequence[Any]:
        return self._transact(lambda connection: connection.execute(query).all(), writing=False)

    def read(self, work: Callable[[Connection], Result]) -> Result:
        """Do work that only reads, in one transaction."""
        return self._transact(work, writing=False)

    def write(self, work: Callable[[Connection], Result]) -> Result:
        """Do work in one transaction, which of SQLite's is the only one that writes."""
        return self._transact(work, writing=True)

    def _transact(self, work: Callable[[Connection], Result], writing: bool) -> Result:
        """Do work in a transaction; while SQLite answers that others are busy, again from the start."""
        from sqlalchemy.exc import SQLAlchemyError

        if (present := getattr(self._transaction, "connection", None)) is not None:
            return work(present)
        deadline = time.monotonic() + self._busy_seconds
        while True:
            try:
                with self._engine.connect().execution_options(writing=writing) as connection, connection.begin():
                    if writing and self._fence is not None:
                        self._fence.check(connection)
                    return work(connection)
            except (JSONDecodeError, UnicodeDecodeError) as error:
                raise self._damaged() from error
            except SQLAlchemyError as error:
                cause = getattr(error, "orig", None) or error
                if not getattr(cause, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                    # What the database said, without the statement and its values. SQLITE_CORRUPT_INDEX is a kind of
                    # SQLITE_CORRUPT.
                    name = "_".join(getattr(cause, "sqlite_errorname", "").split("_")[:2])
                    if name in DAMAGED or "decode to UTF-8" in str(cause):
                        raise self._damaged(name) from error
                    said = ADVICE.get(name) or f"{type(cause).__name__}: {str(cause).strip()}"
                    raise StoreError(f"{self.place}: {said}") from error
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"{self.place}: locked by another process for more than {self._busy_seconds:g} seconds. "
                        "See which program has the file open; it must not hold a transaction open."
                    ) from error
            time.sleep(0.01)

    def _damaged(self, name: str = "SQLITE_CORRUPT") -> DamagedStoreError:
        """Return the error about a file that is damaged; one that a person named is theirs to move."""
        own = self._file is not None and self._file.name == FILE_NAME
        what = DAMAGED.get(name, DAMAGED["SQLITE_CORRUPT"])
        return DamagedStoreError(f"{self.place}: {what}. {REBUILD if own else 'Move it away'}; or {OTHERWISE}.")

    def _unknown(self, run: str) -> StoreError:
        ids = [record.id for record in self.runs(limit=1000)]
        return StoreError(f"{self.place}: has no run {run!r}.{did_you_mean(run, ids)} List them: velodrome runs list")


# Connecting


def _engine(address: str | URL, busy_seconds: float) -> tuple[Engine, str]:
    """Return an engine for a URL, and the URL as it may be shown, without its password."""
    from sqlalchemy import create_engine, event
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    legal = "write sqlite:///path/to/file.db or postgresql://user:password@host/database"
    try:
        url = make_url(address)
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        sqlite = url.get_backend_name() == "sqlite"
        place = str(url.database or url) if sqlite else url.render_as_string(hide_password=True)
        if sqlite and url.database in (None, "", ":memory:"):
            raise ConfigError(f"store {place!r}: a store in memory would end with the process; {legal}.")
        options: dict[str, Any] = {}
        if sqlite:
            options = {"timeout": busy_seconds}
        elif url.get_backend_name() == "postgresql":
            options = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_SECONDS}
            if "options" not in url.query:
                options["options"] = FROZEN
        engine = create_engine(url, connect_args=options, pool_pre_ping=not sqlite)
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(f"store: not the address of a database; {legal}.") from error
    except ModuleNotFoundError as error:
        driver = error.name or "driver"
        command = install("postgres") if driver == "psycopg" else f"pip install {driver}"
        raise MissingDependencyError(f"store {place!r}: needs {driver}: {command}") from error
    if sqlite:
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine, place


def _prepare_sqlite(connection: Any, record: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by Python's driver
    for setting in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {setting}").close()


def _begin_sqlite(connection: Connection) -> None:
    """Begin a transaction; one that will write says so at once, so that it waits its turn instead of failing later."""
    writing = connection.get_execution_options().get("writing", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
