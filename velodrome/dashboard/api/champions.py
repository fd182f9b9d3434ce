"""Champions: what is in use, why it was promoted, where it comes from, its history, and how it does on paper."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from velodrome.dashboard.answers import Asked, Question, Refusal, Routes, Stretch
from velodrome.dashboard.curves import curve
from velodrome.dashboard.site import Site, file_inside
from velodrome.errors import ChampionError, ConfigError, StoreError, did_you_mean
from velodrome.outside.files import MOST_LINE, open_regular
from velodrome.runs.store.store import open_store
from velodrome.tune.champions.registry import Record, enter

routes = Routes()
PAPER, LOG, LOCK = "paper", "log.jsonl", "lock"
LAST_LINES = 20
MOST_KEPT = 200  # drifts, takeovers and notes
HASH_SHOWN = 16
SECOND = 1e9  # nanoseconds


def record_of(site: Site, name: str) -> Record:
    """Return the record of a champion; one that is not there is refused."""
    try:
        found = site.registry.find(name)
    except ConfigError as error:
        raise Refusal(404, str(error)) from error
    if found is None:
        raise Refusal(404, f"there is no champion {name[:80]!r}.{did_you_mean(name, site.registry.names())}")
    return found


@routes.get("/api/champions")
def champions(site: Site, question: Question[Asked]) -> Any:
    """List the champions."""
    found = []
    for name in site.registry.names():
        try:
            record = site.registry.record(name)
        except ChampionError as error:
            found.append({"name": name, "problem": str(error)})
            continue
        now = record.now
        about = {"name": name, "number": now.number, "promotions": len(record.promotions), "problem": None}
        about |= {"run": now.run, "study": now.study, "trial": now.trial, "hash": now.hash}
        since = record.changes[-1].time if record.changes else now.created
        found.append({**about, "since": since, "paper": _paper_folder(site, name).is_dir()})
    return {"champions": found}


@routes.get("/api/champions/{name}", Stretch)
def show(site: Site, question: Question[Stretch]) -> Any:
    """Show a champion: why it was promoted, where it comes from, its history, and how it does on paper."""
    record = record_of(site, question.path["name"])
    now = record.now
    about, intact, problem = _files(site, record)
    lineage = about.get("lineage") or {}
    checks = now.evaluation.get("checks", [])
    return {
        "name": record.name,
        "current": record.current,
        "hash": now.hash,
        "intact": intact,
        "problem": problem,
        "trades": {"symbols": about.get("symbols"), "env": about.get("env"), "timeframe": about.get("traded")},
        "policy": _agents(len(about.get("members") or ())) if about else None,
        "lineage": [[name, str(value)] for name, value in _lineage(lineage)],
        "checks": checks,
        "promotions": [
            {
                **{
                    name: getattr(one, name)
                    for name in ("number", "run", "study", "trial", "created", "hash", "replaced")
                },
                "current": one.number == record.current,
                "checks": one.evaluation.get("checks", []),
            }
            for one in reversed(record.promotions)
        ],
        "history": [asdict(change) for change in reversed(record.changes)],
        "can_roll_back": now.replaced is not None,
        "paper": _paper(site, record.name, question.asked),
    }


def _files(site: Site, record: Record) -> tuple[dict[str, Any], bool, str | None]:
    """Return what the files of a champion say, and whether they are those that were promoted."""

    def look() -> tuple[dict[str, Any], bool, str | None]:
        try:
            return site.registry.open(record.now).about, True, None
        except ChampionError as error:
            return {}, False, str(error)

    return site.held(("champion", record.name), record.now.hash, look)


class Back(Asked):
    """To which promotion a name goes back."""

    to: int | None = Field(
        None, ge=1, le=1_000_000, description="its number; the one before the present one if not given"
    )


@routes.post("/api/champions/{name}/rollback", Back)
def rollback(site: Site, question: Question[Back]) -> Any:
    """Put the champion before the present one back, or an earlier one; loops that follow it take it over."""
    record = record_of(site, question.path["name"])
    changed = site.registry.roll_back(record.name, question.asked.to)
    warning = None
    try:
        with open_store(site.folder) as store:
            enter(store, changed)
    except StoreError as error:
        warning = f"{error} The champion is changed; the store will be told by the next promotion."
    return {
        "champion": {"name": changed.name, "current": changed.current, "hash": changed.now.hash},
        "warning": warning,
    }


# On paper


def _paper_folder(site: Site, name: str) -> Path:
    return site.folder / PAPER / name


class PaperLog:
    """The log of a loop, read as it grows: equity by account, and what else was said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._at, self._rest = 0, b""
        self.times: dict[str, list[float]] = {}
        self.equity: dict[str, list[float]] = {}
        self.last: dict[str, dict[str, Any]] = {}
        self.said: dict[str, list[dict[str, Any]]] = {"drift": [], "takeover": [], "note": [], "start": [], "stop": []}
        self.lines: list[str] = []

    def catch_up(self) -> None:
        """Read what is new; a log that became shorter is read anew."""
        with self._lock, open(open_regular(self.path), "rb") as file:
            if os.fstat(file.fileno()).st_size < self._at:
                self._begin()
            file.seek(self._at)
            while part := file.read(1 << 22):
                self._at += len(part)
                *whole, self._rest = (self._rest + part).split(b"\n")
                for line in whole:
                    self._take(line)
                if len(self._rest) > MOST_LINE:
                    self._rest = b""

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            kind = entry["kind"]
            if kind == "bar":
                account = str(entry["account"] or "portfolio")
                moment, equity = float(entry["nanoseconds"]) / SECOND, float(entry["equity"])
                self.times.setdefault(account, []).append(moment)
                self.equity.setdefault(account, []).append(equity)
                self.last[account] = entry
            elif kind in self.said:
                # What is said of all bars so far is of the moment of the last one.
                entry["at"] = max((own[-1] for own in self.times.values()), default=None)
                self.said[kind] = [*self.said[kind][1 - MOST_KEPT :], entry]
        except (ValueError, KeyError, TypeError, RecursionError):
            return


def _agents(count: int) -> str:
    return "one agent" if count == 1 else f"{count} agents that decide together"


def _lineage(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield where a champion came from, in words; hashes as long as people compare them."""
    for name, value in found.items():
        if value is not None and not (name == "policy_of" and value == found.get("run")):
            short = str(value)[:HASH_SHOWN] if name.endswith("hash") else value
            yield name.replace("_", " ").capitalize(), short


def _paper(site: Site, name: str, asked: Stretch) -> dict[str, Any] | None:
    folder = _paper_folder(site, name)
    if not (folder / LOG).is_file():
        return None
    path = file_inside(site.folder, PAPER, name, LOG)
    log = site.held(("paper", name), str(path), lambda: PaperLog(path))
    log.catch_up()
    from velodrome.tune.paper.view import positions, told

    curves = [
        curve(np.array(log.times[account]), np.array(log.equity[account]), asked, name=account, label=account)
        for account in log.equity
    ]
    times = [moment for own in log.times.values() for moment in (own[0], own[-1])]
    drifts = [*log.said["drift"], *(one for one in log.said["stop"] if "equity" in one)]
    return {
        "running": _is_locked(folder / LOCK),
        "bars": sum(map(len, log.times.values())),
        "started": min(times, default=None),
        "updated": path.stat().st_mtime,
        "last_bar": max(times, default=None),
        "equity": curves,
        "positions": [
            {"account": account, "equity": entry.get("equity"), "text": positions(entry.get("units") or {})}
            for account, entry in log.last.items()
        ],
        "drift": [
            {"time": one["at"], **{key: one.get(key) for key in ("bars", "actions", "missing", "equity")}}
            for one in drifts
        ],
        "takeovers": [{**one, "text": told(one)} for one in log.said["takeover"]],
        "last": [told(one) for one in log.said["note"][-LAST_LINES:]],
    }


def _is_locked(path: Path) -> bool:
    """Return whether a loop runs: it holds its lock."""
    try:
        descriptor = open_regular(path)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
