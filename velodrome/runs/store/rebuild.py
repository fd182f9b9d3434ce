"""The store of a folder of runs, made from the folders: what it lacks, or all of it; and one for a look.

A file that is damaged is set aside under another name, never removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from velodrome.errors import DamagedStoreError, StoreError, VelodromeError
from velodrome.runs.folder import RunFolder, run_folders
from velodrome.runs.store.from_folder import enter_run, members_of
from velodrome.runs.store.store import SqlStore, identity_of, open_store, store_file

log = logging.getLogger("velodrome.runs")

LOOK_SECONDS = 5.0  # how long a look waits for who writes
Result = TypeVar("Result")
Progress = Callable[[int, int], None]  # runs that are entered, and how many there are


@dataclass
class Rebuilt:
    """What came of entering runs into a store."""

    place: str
    set_aside: Path | None = None  # where the damaged file is now
    entered: list[RunFolder] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # folders that could not be read, and why
    only_in_store: int = 0  # runs whose folder is not there

    @property
    def lines(self) -> list[str]:
        """What to tell a person."""
        told = [] if self.set_aside is None else [f"the store was damaged, and is {self.set_aside.name} now"]
        told.append(f"{self.place}: {counted(len(self.entered))} entered, as the folders say")
        if self.only_in_store:
            told.append(f"{counted(self.only_in_store)} without a folder here: left as the store has them")
        return told + [f"not complete: {problem}" for problem in self.problems]


def all_folders(root: Path | str) -> list[RunFolder]:
    """Return the runs of a folder that were begun, groups before their members; of one id, one folder."""
    found: dict[str, RunFolder] = {}
    for folder in run_folders(root):
        for one in (folder, *members_of(folder)):
            if not one.has_begun:
                continue
            # A copy in the same place has the same id; the folder that is named for it is the run's.
            first = found.setdefault(one.id, one)
            if first is not one:
                kept, other = (one, first) if one.path.name.endswith(one.id) else (first, one)
                found[one.id] = kept
                log.warning("%s: has the id of %s, and is taken for a copy of it", other.path, kept.path.name)
    return list(found.values())


def enter_all(store: SqlStore, folders: Iterable[RunFolder], everything: bool, progress: Progress | None) -> Rebuilt:
    """Enter runs into a store; one that cannot be read is noted, and the rest goes on."""
    result, folders = Rebuilt(store.place), list(folders)
    for number, folder in enumerate(folders):
        if progress is not None:
            progress(number, len(folders))
        try:
            enter_run(store, folder, everything)
            result.entered.append(folder)
        except StoreError:
            raise
        except Exception as error:  # a folder may come from anywhere, and must not hide the others
            told = str(error) if isinstance(error, VelodromeError) else f"{type(error).__name__}: {error}"
            result.problems.append(f"{folder.path.name}: {told}")
    if progress is not None:
        progress(len(folders), len(folders))
    return result


def rebuild(root: Path | str, url: str | None = None, progress: Progress | None = None) -> Rebuilt:
    """Write the rows of all runs in a folder anew; a damaged store is set aside first.

    Each run is entered for itself, so that a kill leaves a store that the next rebuild completes. Runs whose folder is
    gone stay as the store has them.
    """
    file = store_file(root)
    identity = identity_of(file)
    aside = set_aside(root, identity) if url is None and _is_damaged(file) else None
    folders = all_folders(root)
    with open_store(root, url) as store:
        result = enter_all(store, folders, True, progress)
        known = {folder.id for folder in folders}
        result.only_in_store = sum(run.id not in known for run in store.runs())
    result.set_aside = aside
    return result


def catch_up(store: SqlStore, folders: Iterable[RunFolder]) -> Rebuilt:
    """Enter the runs that the store does not know, or of which it has not heard the last."""
    known = {run.id: run for run in store.runs()}

    def lacks(folder: RunFolder) -> bool:
        row, state = known.get(folder.id), folder.state
        if row is None or not Path(row.folder).is_dir():
            return True
        return state is not None and (state.updated > row.updated or state.status != row.status)

    return enter_all(store, filter(lacks, folders), False, None)


def look(
    root: Path | str,
    url: str | None,
    work: Callable[[SqlStore], Result],
    tell: Callable[[str], None],
    outside: Sequence[RunFolder] = (),
) -> Result:
    """Do work on the store of a folder of runs, with all runs in it whatever became of its file; `tell` says what was.

    If it is damaged it is set aside and made anew. If it cannot be written, or runs from outside the folder are asked
    for, one for this look is made in a temporary place. A store that was named by its URL is taken as it is.
    """
    if url is not None:
        with open_store(root, url) as store:
            return work(store)
    file = store_file(root)
    identity = identity_of(file)
    try:
        with _complete_store(root, tell, outside) as store:
            return work(store)
    except DamagedStoreError:
        if (aside := set_aside(root, identity)) is not None:
            tell(f"{file}: was damaged, and is {aside.name} now.")
    with _complete_store(root, tell, outside) as store:
        return work(store)


@contextlib.contextmanager
def _complete_store(root: Path | str, tell: Callable[[str], None], outside: Sequence[RunFolder]) -> Iterator[SqlStore]:
    """Open the store of a folder, or make one for a look, with all runs in it."""
    file, folders = store_file(root), all_folders(root)
    if not (file.exists() or folders or outside):
        raise StoreError(
            f"{file}: there is no store, so no runs. Train one first (velodrome train), or name its folder."
        )
    with contextlib.ExitStack() as stack:
        store = None
        if not outside:
            try:
                store = stack.enter_context(open_store(root, busy_seconds=LOOK_SECONDS))
                new = not store.runs(limit=1)
                found = catch_up(store, folders)
            except DamagedStoreError:
                raise
            except StoreError as error:
                if not folders:
                    raise
                tell(f"{error} What follows comes from the runs' folders.")
                store = None
            else:
                if new and found.entered:
                    tell(f"{file}: made from the folders of {counted(len(found.entered))}.")
        if store is None:
            store = stack.enter_context(open_store(stack.enter_context(tempfile.TemporaryDirectory())))
            found = enter_all(store, [*folders, *outside], False, None)
        for problem in found.problems:
            tell(problem)
        yield store


# Damaged files


def set_aside(root: Path | str, identity: tuple[int, int] | None) -> Path | None:
    """Give the damaged store of a folder another name and return it; None if it is another file by now, or none."""
    file = store_file(root)
    try:
        descriptor = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # of two that come at once, the second finds another file
        if identity is None or identity_of(file) != identity:
            return None
        new = file.with_name(f"{file.name}.corrupt-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
        for ending in ("-wal", "-shm", ""):  # SQLite's log would be taken for that of the next file
            with contextlib.suppress(FileNotFoundError):
                file.with_name(file.name + ending).rename(new.with_name(new.name + ending))
        return new
    except OSError as error:
        raise StoreError(f"{file}: is damaged, and cannot be set aside: {error.strerror}.") from error
    finally:
        os.close(descriptor)


def _is_damaged(file: Path) -> bool:
    """Return whether a store's file is no database, or one whose parts do not fit together."""
    if not file.is_file():
        return False
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=LOOK_SECONDS)) as connection:
            if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                return True
        with open_store(file.parent, create=False, busy_seconds=LOOK_SECONDS) as store:
            store.runs()
    except DamagedStoreError:
        return True
    except sqlite3.DatabaseError as error:
        return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
    return False


def counted(runs: int) -> str:
    """Return a number of runs for people."""
    return "1 run" if runs == 1 else f"{runs:,} runs"
