"""All runs at a glance, kept in memory: a store of thousands of runs is asked only for what changed since."""

from __future__ import annotations

import glob
import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ConfigError
from velodrome.evaluation.baselines import LABELS
from velodrome.outside.files import UNFIT, read_json
from velodrome.runs.config.sections import HELD_OUT
from velodrome.runs.folder import RunFolder
from velodrome.runs.report.speed import SPEED
from velodrome.runs.store.rows import shown_status, trainings
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore, store_file

if TYPE_CHECKING:
    from sqlalchemy import Connection

LOOK_SECONDS = 1.0  # between two looks at the store
SETTLED = 0.2  # seconds after which a file's time tells whether it was written again
RESULTS = ("return", "episode_return")  # figures that stand for an evaluation, the first that it has
CHUNK = 500  # ids in a statement


@dataclass(frozen=True)
class RunLine:
    """A run as lists show it."""

    id: str
    name: str
    folder: Path
    env: str
    algorithm: str
    seed: int
    status: str
    noted: str  # the status that the store has: 'running' of one that was killed
    steps: int
    total_steps: int | None
    created: float
    updated: float
    error: str
    data_hash: str
    final_split: str
    ensemble: int = 1
    group: str | None = None
    study: str | None = None
    members: tuple[str, ...] = ()
    steps_per_second: float | None = None
    result: dict[str, Any] | None = None
    held_out: dict[str, Any] | None = None  # of a fold: settings are chosen by it, so it is no result of a test

    @property
    def mark(self) -> tuple[Any, ...]:
        """What changes when more of it is known."""
        return self.updated, self.steps

    def content(self) -> dict[str, Any]:
        """Return it in plain values."""
        hidden = ("folder", "noted", "final_split", "members", "data_hash")
        found = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in hidden}
        return {**found, "seeds": max(1, len(self.members)), "score": self.score}

    @property
    def score(self) -> float | None:
        """The number that its last result comes to."""
        last = self.result or self.held_out
        return None if last is None else last["value"]


@dataclass(frozen=True)
class Snapshot:
    """All runs as they were at a moment; nobody changes it."""

    lines: Mapping[str, RunLine] = field(default_factory=dict)  # by id, newest first
    groups: Mapping[str, str] = field(default_factory=dict)  # group by member

    @property
    def own(self) -> list[RunLine]:
        """Runs that are no members of a group."""
        return [line for line in self.lines.values() if line.group is None]


class RunIndex:
    """The runs of a store. Threads may share it; one of them looks, the others take what is known."""

    def __init__(self, store: SqlStore, folder: Path, is_file: bool) -> None:
        self._store, self._folder, self._is_file = store, folder, is_file
        self._lock = threading.Lock()
        self._snapshot = Snapshot()
        self._looked = -math.inf
        self._mark: tuple[Any, ...] | None = None
        self._rows: dict[str, tuple[Any, ...]] = {}  # what a row said when its line was made
        self._evaluated: tuple[Any, ...] = ()
        self._results: dict[str, list[dict[str, Any]]] = {}
        self._baselines: dict[tuple[str, str, int], dict[str, Any] | None] = {}

    def snapshot(self) -> Snapshot:
        """Return the runs as they are now, or were a second ago."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return self._snapshot
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()
                self._looked = time.monotonic()
        return self._snapshot

    @property
    def mark(self) -> tuple[Any, ...] | None:
        """What changes when the store is written; None: that is not known."""
        return self._mark

    def line(self, identity: str) -> RunLine | None:
        """Return a run by its id."""
        return self.snapshot().lines.get(identity)

    def with_baseline(self, line: RunLine) -> dict[str, Any]:
        """Return a line in plain values, its result beside the baseline that its evaluation measures it against."""
        content = line.content()
        if line.result is None or line.result.get("step") is None:
            return content
        key = (line.id, line.result["split"], line.result["step"])
        if key not in self._baselines:
            self._baselines[key] = _baseline(line)
        return {**content, "result": {**line.result, "baseline": self._baselines[key]}}

    # Looking

    def _look(self) -> None:
        if self._store.is_replaced and Path(self._store.place).is_file():
            self._store.close()  # it is opened again, at the file that has its place now
        mark = file_mark(store_file(self._folder)) if self._is_file else None
        if mark is None or mark != self._mark:
            self._snapshot = self._store.read(self._read)
            self._mark = mark
        self._snapshot = self._alive(self._snapshot)

    def _alive(self, known: Snapshot) -> Snapshot:
        """Return runs among which one that says it runs, though no process has its folder, is killed."""
        changed = {}
        for line in (one for one in known.lines.values() if one.noted == "running"):
            there = line.folder.is_dir()
            status = shown_status(line.noted, RunFolder(line.folder, line.id)) if there else line.noted
            if status != line.status:
                changed[line.id] = replace(line, status=status)
        return replace(known, lines={**known.lines, **changed}) if changed else known

    def _read(self, connection: Connection) -> Snapshot:
        known = tables()
        runs, jobs = known.runs, known.jobs
        short = (runs.c.id, runs.c.status, runs.c.steps, runs.c.updated)
        now = {row.id: tuple(row) for row in connection.execute(runs.select().with_only_columns(*short))}
        groups = {row.run: row.of for row in connection.execute(known.members.select())}
        changed = [identity for identity, row in now.items() if self._rows.get(identity) != row]
        evaluated = self._read_results(connection)
        same = not changed and now.keys() == self._rows.keys() and groups == self._snapshot.groups
        if same and not evaluated:  # who looks for changes finds the same object
            return self._snapshot
        lines = {identity: line for identity, line in self._snapshot.lines.items() if identity in now}
        self._rows = now
        for part in _parts(changed):
            studies = {row.id: row.study for row in connection.execute(_least(jobs, part, "id", "study"))}
            for row in connection.execute(runs.select().where(runs.c.id.in_(part))):
                lines[row.id] = replace(self._line(row), study=studies.get(row.id))
        speeds = _last_of(connection, SPEED, changed)
        own: dict[str, list[str]] = {}
        for member, group in groups.items():
            own.setdefault(group, []).append(member)
        for identity, line in lines.items():
            seeds = sorted((lines[one].seed, one) for one in own.get(identity, ()) if one in lines)
            members = tuple(one for _, one in seeds)
            rates = [speeds.get(one, lines[one].steps_per_second) for one in members or (identity,)]
            told = [rate for rate in rates if rate is not None]
            final = self._result(line)
            kind = "held_out" if final is not None and final["split"] == HELD_OUT else "result"
            new: dict[str, Any] = {"result": None, "held_out": None, kind: final}
            new |= {"group": groups.get(identity), "members": members}
            new["steps_per_second"] = sum(told) / len(told) if told else None
            if any(getattr(line, name) != value for name, value in new.items()):
                lines[identity] = replace(line, **new)
        newest = sorted(lines.values(), key=lambda line: (-line.created, line.id))
        return Snapshot({line.id: line for line in newest}, groups)

    def _line(self, row: Any) -> RunLine:
        config = row.config if isinstance(row.config, dict) else {}
        told = config.get("evaluation") or {}
        steps = config.get("steps")
        folder = Path(self._store.place_of(row.folder))
        return RunLine(
            id=row.id,
            name=row.name,
            folder=folder,
            env=row.env,
            algorithm=row.algorithm,
            seed=row.seed,
            status=row.status,
            noted=row.status,
            steps=row.steps,
            total_steps=steps * trainings(config) if steps else None,
            created=row.created,
            updated=row.updated,
            error=row.error,
            data_hash=row.data_hash,
            final_split=told.get("final_split") or "test",
            ensemble=int(config.get("ensemble", 1)),
        )

    def _read_results(self, connection: Connection) -> bool:
        """Read what evaluations came to, if any was written since; return whether there was."""
        from sqlalchemy import func, select

        evaluations, policies = tables().evaluations, tables().policies
        total = select(func.count(), func.sum(evaluations.c.value), func.sum(evaluations.c.step))
        mark = tuple(connection.execute(total.where(evaluations.c.name.in_(RESULTS))).one())
        if mark == self._evaluated:
            return False
        short = ("run", "split", "step", "checkpoint", "label")
        chosen = policies.select().with_only_columns(*(policies.c[name] for name in short))
        named = {(row.run, row.split, row.step): row for row in sorted(connection.execute(chosen), key=_best_last)}
        found: dict[str, list[dict[str, Any]]] = {}
        query = evaluations.select().where(evaluations.c.name.in_(RESULTS)).order_by(evaluations.c.step)
        for row in connection.execute(query):
            policy = named.get((row.run, row.split, row.step))
            about = {"label": row.split if policy is None else policy.label}
            about["checkpoint"] = None if policy is None else policy.checkpoint
            numbers = {name: _finite(getattr(row, name)) for name in ("value", "low", "high")}
            found.setdefault(row.run, []).append(
                {"split": row.split, "metric": row.name, "step": row.step, **about, **numbers, "baseline": None}
            )
        self._evaluated, self._baselines = mark, {}
        self._results = found
        return True

    def _result(self, line: RunLine) -> dict[str, Any] | None:
        """Return the last result on the final split: the best checkpoint's, which goes before the latest's."""
        rows = self._results.get(line.id, ())
        final = [row for row in rows if row["split"] in (line.final_split, "episodes")]
        final = [row for row in final if row["metric"] == min((one["metric"] for one in final), key=RESULTS.index)]
        if not final:
            return None
        return max(enumerate(final), key=lambda place: (place[1]["checkpoint"] != "latest", place[0]))[1]


def _best_last(row: Any) -> bool:
    """Sort key: the same step chosen in both ways is the same policy; the best says more of it."""
    return row.checkpoint == "best"


def _baseline(line: RunLine) -> dict[str, Any] | None:
    """Return what the evaluation's file says of the baseline that the agent is measured against."""
    assert line.result is not None
    split, checkpoint, home = line.result["split"], line.result["checkpoint"] or "best", line.folder / "evaluation"
    file = home / f"{split}-{checkpoint}-{line.result['step']}.json"
    try:
        if not file.is_file():  # of several agents the name says how many, too; older versions had a short one
            several = home.glob(f"{glob.escape(f'{split}-{checkpoint}')}-*-{line.result['step']}.json")
            file = max(several, key=lambda path: path.stat().st_mtime, default=home / f"{split}.json")
        found = read_json(file)
        row = next(row for row in found["rows"] if row["name"] == line.result["metric"])
        baselines = row["baselines"]
        which = (found.get("breakdown") or {}).get("benchmark") or next(iter(baselines))
        value = baselines[which]
        return {"name": which, "label": LABELS.get(which, which), "value": _finite(value)}
    except (OSError, ConfigError, StopIteration, *UNFIT):
        return None


def file_mark(file: Path) -> tuple[Any, ...] | None:
    """Return what changes when SQLite's file is written; None if that cannot be said yet, because it just was."""
    found: list[Any] = []
    newest = 0.0
    for path in (file, file.with_name(f"{file.name}-wal")):
        try:
            about = path.stat()
        except OSError:
            found.append(None)
            continue
        newest = max(newest, about.st_mtime)
        found.append((about.st_ino, about.st_size, about.st_mtime_ns))
    return None if abs(time.time() - newest) < SETTLED else tuple(found)


def _parts(identities: list[str]) -> Iterable[list[str]]:
    return (identities[begin : begin + CHUNK] for begin in range(0, len(identities), CHUNK))


def _least(table: Any, identities: list[str], *names: str) -> Any:
    return table.select().with_only_columns(*(table.c[name] for name in names)).where(table.c.id.in_(identities))


def _last_of(connection: Connection, name: str, identities: list[str]) -> dict[str, float | None]:
    """Return the number of the largest step of one name for some runs, in one look at each."""
    from sqlalchemy import select

    runs, metrics = tables().runs, tables().metrics
    own = (metrics.c.run == runs.c.id, metrics.c.name == name)
    value = select(metrics.c.value).where(*own).order_by(metrics.c.step.desc()).limit(1).scalar_subquery()
    found: dict[str, float | None] = {}
    for part in _parts(identities):
        for row in connection.execute(select(runs.c.id, value.label("value")).where(runs.c.id.in_(part))):
            found[row.id] = _finite(row.value)
    return found


def _finite(value: Any) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None
