"""The tables of work that people ask for: jobs, who carries them out, studies, trials and what they came to, champions,
looks at test splits, and what happened.

A job is a training that somebody submitted; its id is that of its run. `service/` writes these rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table

ID_LENGTH, NAME_LENGTH = 64, 200  # characters


def work_tables(metadata: MetaData, number: Any) -> tuple[Table, ...]:
    """Return the tables jobs, services, studies, trials, outcomes, champions, looks, tested_bars and events.

    number: a float that may be NaN.
    """
    import sqlalchemy as sql

    def identity(name: str, **about: Any) -> sql.Column[str]:
        return sql.Column(name, sql.String(ID_LENGTH), **about)

    def named(name: str) -> sql.Column[str]:
        return sql.Column(name, sql.String(NAME_LENGTH), nullable=False)

    def moment(name: str) -> sql.Column[float]:
        return sql.Column(name, sql.Double, nullable=False)  # seconds since 1970

    def count(name: str, kind: Any = sql.Integer) -> sql.Column[int]:
        return sql.Column(name, kind, nullable=False)

    def text(name: str) -> sql.Column[str]:
        return sql.Column(name, sql.Text, nullable=False)

    jobs = sql.Table(
        "jobs",
        metadata,
        identity("id", primary_key=True),
        named("name"),
        named("owner"),
        count("priority"),
        named("status"),
        named("wanted"),  # what somebody asks of a running one: pause, cancel or drain; '' for nothing
        sql.Column("config", sql.JSON, nullable=False),
        sql.Column("evaluate", sql.Boolean, nullable=False),
        text("directory"),  # in which it was submitted: relative paths, and modules, are found from there
        text("folder"),  # name of its run's folder
        # What it needs of a machine, and whether a person said how much memory it may have at most.
        count("cores"),
        count("envs"),
        count("memory", sql.BigInteger),  # bytes
        sql.Column("memory_is_limit", sql.Boolean, nullable=False),
        count("gpu_memory", sql.BigInteger),  # bytes; 0: it uses no GPU
        moment("stall_seconds"),
        identity("study", nullable=True),
        sql.Column("trial", sql.Integer, nullable=True),
        moment("created"),
        moment("updated"),
        moment("started"),  # of the last attempt; 0: none yet
        moment("not_before"),  # when it may be tried again
        # The lease: whose turn it is, and the sign of life that its holder counts up.
        count("attempt"),
        count("beat", sql.BigInteger),
        identity("service", nullable=True),
        text("machine"),
        text("process"),
        text("gpu"),  # which one it was given
        # How far it came, and how the last attempt ended.
        count("steps", sql.BigInteger),
        count("memory_used", sql.BigInteger),  # bytes, the most that was seen
        named("ended"),
        text("message"),
        sql.Column("retries", sql.JSON, nullable=False),  # by kind of end, since it last came further
        count("retried_at", sql.BigInteger),  # steps at the last end that was retried
        sql.Index("jobs_by_status", "status"),
        sql.Index("jobs_by_study", "study", "status"),
    )
    services = sql.Table(
        "services",
        metadata,
        identity("id", primary_key=True),
        text("machine"),
        text("process"),
        moment("started"),
        moment("updated"),
        sql.Column("budget", sql.JSON, nullable=False),
    )
    studies = sql.Table(
        "studies",
        metadata,
        identity("id", primary_key=True),
        sql.Column("name", sql.String(NAME_LENGTH), nullable=False, unique=True),
        named("owner"),
        named("status"),
        sql.Column("config", sql.JSON, nullable=False),
        sql.Column("space", sql.JSON, nullable=False),  # by dotted key: what is searched
        sql.Column("settings", sql.JSON, nullable=False),  # of the search itself
        identity("data_hash", nullable=False),
        count("trials"),  # that are wanted
        moment("created"),
        moment("updated"),
    )
    trials = sql.Table(
        "trials",
        metadata,
        sql.Column("study", sql.String(ID_LENGTH), sql.ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),
        named("status"),
        sql.Column("params", sql.JSON, nullable=False),  # by dotted key
        sql.Column("value", number, nullable=True),
        text("reason"),  # why it was pruned, or failed
        moment("created"),
        moment("updated"),
        sqlite_with_rowid=False,
    )
    # What each training of a trial came to.
    outcomes = sql.Table(
        "outcomes",
        metadata,
        sql.Column("study", sql.String(ID_LENGTH), sql.ForeignKey("studies.id", ondelete="CASCADE"), primary_key=True),
        sql.Column("trial", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("step", sql.Integer, primary_key=True, autoincrement=False),
        identity("run", nullable=False),
        sql.Column("value", number, nullable=True),
        named("kind"),  # how the training ended
        text("reason"),  # why there is no value
        sql.Column("figures", sql.JSON, nullable=False),
        sqlite_with_rowid=False,
    )
    champions = sql.Table(
        "champions",
        metadata,
        sql.Column("name", sql.String(NAME_LENGTH), primary_key=True),
        sql.Column("number", sql.Integer, primary_key=True, autoincrement=False),  # counts promotions, from 1
        identity("run", nullable=False),
        identity("study", nullable=True),
        sql.Column("trial", sql.Integer, nullable=True),
        identity("policy_hash", nullable=False),
        identity("data_hash", nullable=False),
        sql.Column("evaluation", sql.JSON, nullable=False),  # why it was promoted
        sql.Column("current", sql.Boolean, nullable=False),
        moment("created"),
        sqlite_with_rowid=False,
    )
    # Which policies were played on which test data: rows stay when their runs are removed.
    looks = sql.Table(
        "looks",
        metadata,
        identity("data_hash", primary_key=True),  # of the bars of the split
        identity("run", primary_key=True),
        sql.Column("step", sql.BigInteger, primary_key=True, autoincrement=False),  # of the checkpoint
        named("split"),
        moment("time"),
        sqlite_with_rowid=False,
    )
    # Which bars some test data has: looks at data that differs by a few bars are looks at the same market.
    tested = sql.Table(
        "tested_bars",
        metadata,
        identity("data_hash", primary_key=True),
        sql.Column("symbol", sql.String(NAME_LENGTH), primary_key=True),
        sql.Column("first", sql.BigInteger, primary_key=True, autoincrement=False),  # open times, nanoseconds UTC
        sql.Column("last", sql.BigInteger, nullable=False),
        sqlite_with_rowid=False,
    )
    # Numbered in the order in which they happened, so that who follows asks for those after the last one it saw.
    events = sql.Table(
        "events",
        metadata,
        sql.Column("id", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True, autoincrement=True),
        moment("time"),
        named("kind"),
        identity("job", nullable=True),
        identity("study", nullable=True),
        identity("run", nullable=True),
        text("text"),
        sql.Column("data", sql.JSON, nullable=False),
        sql.Index("events_by_job", "job", "id"),
        sqlite_autoincrement=True,
    )
    return jobs, services, studies, trials, outcomes, champions, looks, tested, events
