"""Names of champions: each points to the files of one, remembers all that it pointed to, and can go back.

champions/trading.json is the record, replaced as a whole by one rename, so that who reads it sees one champion or the
next. Rows and events in the store of the runs say the same to those who look there; what a crash kept from them is
entered by the next command.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velodrome.errors import ChampionError, ConfigError, did_you_mean
from velodrome.outside.files import UNFIT, read_json
from velodrome.runs.bucket.place import url_of
from velodrome.runs.store.schema import tables
from velodrome.runs.store.store import SqlStore
from velodrome.tune.champions.frozen import Champion
from velodrome.writing import replacing, sync_path, told_as_unwritten

if TYPE_CHECKING:
    from sqlalchemy import Connection

FOLDER, LOCK = "champions", ".lock"
LEGAL_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
PROMOTED, ROLLED_BACK, REFUSED, HOOK_FAILED = "promoted", "rolled back", "not promoted", "hook failed"
WAIT_SECONDS = 30.0  # for another promotion to end


@dataclass(frozen=True)
class Promotion:
    """One champion of a name, and when it became that."""

    number: int  # counts promotions, from 1
    hash: str
    folder: str  # name of its folder
    run: str
    created: float  # seconds since 1970
    replaced: int | None = None  # number of the champion before it
    study: str | None = None
    trial: int | None = None
    data_hash: str = ""
    evaluation: dict[str, Any] = field(default_factory=dict)  # why it was promoted


@dataclass(frozen=True)
class Change:
    """Something that happened to a name."""

    kind: str  # PROMOTED or ROLLED_BACK
    number: int  # of the champion since
    time: float  # seconds since 1970
    text: str


@dataclass(frozen=True)
class Record:
    """A name with all that it ever pointed to."""

    name: str
    current: int
    promotions: tuple[Promotion, ...]
    changes: tuple[Change, ...]

    def promotion(self, number: int) -> Promotion:
        """Return a promotion by its number."""
        found = {entry.number: entry for entry in self.promotions}
        if number not in found:
            raise ChampionError(
                f"champion {self.name!r} has no promotion {number}; there are {', '.join(map(str, found))}."
            )
        return found[number]

    @property
    def now(self) -> Promotion:
        """The promotion that is in use."""
        return self.promotion(self.current)


class Registry:
    """The champions beside the runs of a folder."""

    def __init__(self, root: Path | str) -> None:
        """root: folder of the runs."""
        if (url := url_of(root)) is not None:
            raise ConfigError(
                f"{url}: champions lie in a folder of a machine, not in a bucket. Name one: --folder runs."
            )
        self.root = Path(root)
        self.home = self.root / FOLDER

    def names(self) -> list[str]:
        """Return the names of all champions."""
        return sorted(path.stem for path in self.home.glob("*.json")) if self.home.is_dir() else []

    def find(self, name: str) -> Record | None:
        """Return the record of a name, None if there is none."""
        check_name(name)
        file = self.home / f"{name}.json"
        try:
            plain = read_json(file)
            promotions = tuple(Promotion(**entry) for entry in plain["promotions"])
            record = Record(name, int(plain["current"]), promotions, tuple(Change(**one) for one in plain["changes"]))
        except FileNotFoundError:
            return None
        except (OSError, *UNFIT) as error:
            raise ChampionError(f"{file}: cannot be read ({type(error).__name__}: {error}). Restore a copy.") from error
        record.promotion(record.current)  # one that points to nothing is refused here
        return record

    def record(self, name: str) -> Record:
        """Return the record of a name; one that is not there is an error."""
        found = self.find(name)
        if found is None:
            known = self.names()
            there = f"known are {', '.join(known)}" if known else "nothing was promoted yet (velodrome promote RUN)"
            raise ChampionError(f"no champion {name!r} in {self.home}: {there}.{did_you_mean(name, known)}")
        return found

    def champion(self, name: str, number: int | None = None) -> Champion:
        """Return the champion of a name, checked against its hash; an earlier one by its number."""
        record = self.record(name)
        return self.open(record.now if number is None else record.promotion(number))

    def open(self, promotion: Promotion) -> Champion:
        """Return the champion of a promotion."""
        if not re.fullmatch(LEGAL_NAME, promotion.folder):
            raise ChampionError(f"{self.home}: {promotion.folder!r} is no name of a champion's folder.")
        return Champion.open(self.home / "files" / promotion.folder, promotion.hash)

    # Changing

    def add(self, name: str, champion: Champion, instead: int | None, text: str, **about: Any) -> Record:
        """Let a name point to a champion. about: fields of the promotion.

        instead: number of the promotion that it was compared with and replaces, None if there was none.
        """
        with self._locked():
            before = self.find(name)
            if (before.current if before else None) != instead:
                raise ChampionError(
                    f"champion {name!r} has changed while the candidate was compared with the one before; promote it "
                    "again."
                )
            promotions = before.promotions if before else ()
            new = Promotion(
                number=max((entry.number for entry in promotions), default=0) + 1,
                hash=champion.hash,
                folder=champion.path.name,
                created=time.time(),
                replaced=before.current if before else None,
                **about,
            )
            changes = (*(before.changes if before else ()), Change(PROMOTED, new.number, new.created, text))
            return self._write(Record(name, new.number, (*promotions, new), changes))

    def roll_back(self, name: str, to: int | None = None) -> Record:
        """Let a name point to the champion before the present one, or to an earlier one by its number."""
        with self._locked():
            record = self.record(name)
            number = record.now.replaced if to is None else to
            if number is None:
                raise ChampionError(
                    f"champion {name!r}: promotion {record.current} was its first; there is none before."
                )
            if number == record.current:
                raise ChampionError(f"champion {name!r}: promotion {number} is in use already.")
            self.open(record.promotion(number))  # damaged files are refused before anything changes
            text = f"{name}: promotion {number} in place of {record.current}"
            changes = (*record.changes, Change(ROLLED_BACK, number, time.time(), text))
            return self._write(replace(record, current=number, changes=changes))

    def _write(self, record: Record) -> Record:
        content = {key: value for key, value in asdict(record).items() if key != "name"}
        with replacing(self.home / f"{record.name}.json") as new:
            new.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        sync_path(self.home)
        return record

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from changing champions meanwhile; the lock ends with the process."""
        with told_as_unwritten(self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            until = time.monotonic() + WAIT_SECONDS
            while not _taken(descriptor):
                if time.monotonic() > until:
                    raise ChampionError(
                        f"{self.home}: another process changes champions since more than {WAIT_SECONDS:g} seconds. See "
                        f"which one: fuser {self.home / LOCK}"
                    )
                time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)


def check_name(name: str) -> None:
    """Refuse what is no name of a champion."""
    if not re.fullmatch(LEGAL_NAME, name):
        raise ConfigError(
            f"champion = {name!r}: a name is made of letters, digits, '.', '_' and '-', begins with a letter or digit "
            "and has 100 characters at most."
        )


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# The store


def enter(store: SqlStore, record: Record) -> None:
    """Let the store say of a name what its record says; what it says already stays, and each change is one event."""
    known = tables()
    champions, events = known.champions, known.events

    def work(connection: Connection) -> None:
        there = connection.execute(champions.select().where(champions.c.name == record.name)).all()
        numbers = {row.number for row in there}
        for entry in record.promotions:
            if entry.number not in numbers:
                row = {key: value for key, value in asdict(entry).items() if key in champions.c}
                row |= {"name": record.name, "policy_hash": entry.hash, "current": False}
                connection.execute(champions.insert(), row)
        of_name = champions.c.name == record.name
        connection.execute(champions.update().where(of_name).values(current=champions.c.number == record.current))
        kinds = events.c.kind.in_([PROMOTED, ROLLED_BACK])
        told = connection.execute(events.select().where(kinds).order_by(events.c.id)).all()
        count = sum(row.data.get("name") == record.name for row in told)
        for change in record.changes[count:]:
            entry = record.promotion(change.number)
            data = {"name": record.name, "number": change.number, "hash": entry.hash}
            connection.execute(
                events.insert(),
                {
                    "time": change.time,
                    "kind": change.kind,
                    "job": None,
                    "study": entry.study,
                    "run": entry.run,
                    "text": change.text,
                    "data": data,
                },
            )

    store.write(work)


def note(store: SqlStore, kind: str, text: str, run: str | None = None, study: str | None = None, **data: Any) -> None:
    """Add an event about champions that changes none: a promotion that was refused, a hook that failed."""
    row = {"time": time.time(), "kind": kind, "job": None, "study": study, "run": run, "text": text, "data": data}
    store.write(lambda connection: connection.execute(tables().events.insert(), row))
