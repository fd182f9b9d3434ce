"""Folders of runs by URL (s3://, gs://, whatever fsspec knows), each with a folder on this machine that stands for it.

A run works in its folder here as in any other. Files that changed are sent on, in an order in which each moment of the
upload is a run that can be continued: those of a checkpoint before the one that says that it is whole, and what the run
says of itself last. Who continues it on another machine fetches it first, and is its writer from then on.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from velodrome.errors import BucketError, ConfigError, MissingDependencyError, RunLockedError, VelodromeError, sentence
from velodrome.outside.files import read_json
from velodrome.writing import replace_text

SCRATCH = "VELODROME_SCRATCH"  # of the environment: where the folders on this machine lie
NOTE = ".bucket.json"  # in a folder here: which URL it stands for, and a token that no other folder has
SENT, FETCHED = ".sent.json", ".fetched.json"  # in a run's folder here: what the bucket has, and what came from there
WRITER = ".writer.json"  # in a run's folder there: from which folder it was last written
TENSORS = "tensors.safetensors"  # what takes room, and is not needed to look at a run
# Names of files that say that others are whole: sent after them, and removed before them.
LAST = {"state.json": 1, "config.yaml": 2, "run.json": 3, "status.json": 4}
ATTEMPTS = 5  # at files that are removed while they are sent

Marks = dict[str, list[Any]]  # by a file's place in its folder: what changes when its content does


def url_of(place: str | Path) -> str | None:
    """Return the URL that is meant; None for a path. pathlib makes one slash of two, which is mended."""
    found = re.fullmatch(r"([a-z][a-z0-9+.-]+):/+(.*)", str(place))
    if found is None:
        return None
    scheme, rest = found[1], found[2].rstrip("/")
    return f"{scheme}:///{rest}" if scheme in ("file", "local") else f"{scheme}://{rest}"


def here(place: str | Path) -> Path:
    """Return the folder on this machine that stands for a URL; a path is its own."""
    url = url_of(place)
    if url is None:
        return Path(place)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", url)[-60:].strip("-")
    home = scratch() / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:12]}"
    if not (home / NOTE).is_file():
        with _told(url):
            home.mkdir(parents=True, exist_ok=True)
            replace_text(home / NOTE, json.dumps({"url": url, "token": secrets.token_hex(8)}) + "\n")
    return home


def scratch() -> Path:
    """Return where the folders on this machine lie that stand for URLs."""
    told, cache = os.environ.get(SCRATCH), os.environ.get("XDG_CACHE_HOME")
    return Path(told) if told else (Path(cache) if cache else Path.home() / ".cache") / "velodrome" / "buckets"


def bring(folder: Path, whole: bool = False) -> None:
    """Fetch what a bucket has of a run's folder; one that stands for none is as it is.

    whole: also the tensors of its checkpoints, as is needed to go on.
    """
    bucket = Bucket.behind(folder)
    if bucket is not None and folder.absolute() != bucket.home:
        bucket.fetch(bucket.top(folder), whole)


def publish(folder: Path) -> None:
    """Send what is new in a run's folder that stands for a URL, without being its writer."""
    bucket = Bucket.behind(folder)
    if bucket is not None:
        bucket.send(bucket.top(folder), check=False)


def address_of(folder: Path) -> str:
    """Return where people find a folder: its URL if it stands for one, else its path."""
    bucket = Bucket.behind(folder)
    return str(folder) if bucket is None else bucket.url_of(folder)


@dataclass(frozen=True)
class Bucket:
    """What a URL stands for. home: the folder here. token: of that folder."""

    url: str
    home: Path
    token: str

    @classmethod
    def behind(cls, folder: Path | str) -> Bucket | None:
        """Return the bucket that a folder, or one that it lies in, stands for; None: it is an ordinary one.

        A note elsewhere than in the folders that this user's processes made could be a stranger's, who would have files
        sent and fetched as he likes.
        """
        place, own = Path(os.path.abspath(here(folder))), os.path.realpath(scratch())
        for home in (place, *place.parents[:3]):
            if os.path.realpath(home.parent) == own and (home / NOTE).is_file():
                noted = read_json(home / NOTE)
                return cls(str(noted["url"]), home, str(noted["token"]))
        return None

    def top(self, folder: Path) -> Path:
        """Return the folder of a run, of which a member of a group is a part."""
        return self.home / Path(os.path.abspath(folder)).relative_to(self.home).parts[0]

    def url_of(self, folder: Path) -> str:
        """Return the URL of a folder in it."""
        return f"{self.url}/{Path(os.path.abspath(folder)).relative_to(self.home).as_posix()}"

    # There and back

    def take(self, folder: Path) -> None:
        """Be the writer of a run from now on; whoever was it before stops when it next sends something."""
        with _told(self.url):
            system, there = self._there(folder)
            content = {"token": self.token, "host": socket.gethostname(), "since": datetime.now(UTC).isoformat()}
            system.pipe_file(f"{there}/{WRITER}", json.dumps(content).encode())
        data = _data_of(folder)
        if data is not None and data.is_relative_to(self.home):
            self.send(data, check=False)

    def send(self, folder: Path, check: bool = True) -> None:
        """Send the files of a folder that changed since they were last sent, or fetched.

        check: whether this is its writer, who alone removes what is no longer here; else only add.
        """
        with _told(self.url):
            system, there = self._there(folder)
            if check:
                self._check_writer(system, there)
            _again(lambda: self._send(system, folder, there, check))

    def _send(self, system: Any, folder: Path, there: str, removes: bool) -> None:
        known, found = _read_marks(folder / SENT), _marks_here(folder)
        changed = [name for name, mark in found.items() if known.get(name) != mark]
        for names in _in_order(changed):
            system.put([str(folder / name) for name in names], [f"{there}/{name}" for name in names])
            known |= {name: found[name] for name in names}
            replace_text(folder / SENT, json.dumps(known))
        gone = [name for name in known if name not in found] if removes else []
        for names in reversed(list(_in_order(gone))):
            present = [path for path in (f"{there}/{name}" for name in names) if system.exists(path)]
            if present:
                system.rm(present)
        if gone:
            replace_text(folder / SENT, json.dumps(found))

    def send_file(self, file: Path) -> None:
        """Send one file."""
        with _told(self.url):
            system, home = self._there(self.home)
            system.put_file(str(file), f"{home}/{file.relative_to(self.home).as_posix()}")

    def bring_file(self, file: Path) -> None:
        """Fetch one file, if there is one."""
        with _told(self.url):
            system, home = self._there(self.home)
            there = f"{home}/{file.relative_to(self.home).as_posix()}"
            system.invalidate_cache()
            if system.exists(there):
                self._get(system, {there: file})

    def fetch(self, folder: Path, whole: bool) -> None:
        """Bring a folder here to what it is there, unless it was last written from here and is further here."""
        with _told(self.url):
            system, there = self._there(folder)
            _again(lambda: self._fetch(system, folder, self._listed(system, there), there, whole))
        data = _data_of(folder)
        if whole and data is not None and data.is_relative_to(self.home):
            self.fetch(data, whole)

    def fetch_all(self) -> None:
        """Bring all runs here to what they are there, without tensors."""
        with _told(self.url):
            system, home = self._there(self.home)
            runs: dict[str, Marks] = {}
            for name, mark in self._listed(system, home).items():
                run, _, rest = name.partition("/")
                runs.setdefault(run, {})[rest] = mark
            for run, marks in runs.items():
                if "run.json" not in marks or run.startswith("."):
                    continue
                try:
                    self._fetch(system, self.home / run, marks, f"{home}/{run}", False)
                except FileNotFoundError:  # it is being trained, and an old checkpoint was removed meanwhile
                    self.fetch(self.home / run, whole=False)

    def set_aside(self, kept: str, ending: str, beginning: str) -> None:
        """Give other folders than the one that is kept, whose names have an ending, names with a beginning."""
        with _told(self.url):
            system, home = self._there(self.home)
            names = {name.partition("/")[0] for name in self._listed(system, home) if name.endswith("/run.json")}
            for name in names:
                if name.endswith(ending) and name != kept and not name.startswith("."):
                    system.mv(f"{home}/{name}", f"{home}/{beginning}{name}", recursive=True)

    def _fetch(self, system: Any, folder: Path, marks: Marks, there: str, whole: bool) -> None:
        before, now = _read_marks(folder / FETCHED), _whole_checkpoints(marks)
        if WRITER in now and now[WRITER] != before.get(WRITER):
            folder.mkdir(parents=True, exist_ok=True)
            self._get(system, {f"{there}/{WRITER}": folder / WRITER})
            replace_text(folder / FETCHED, json.dumps({**before, WRITER: now[WRITER]}))
        own, sent = _marks_here(folder), _read_marks(folder / SENT)
        is_writer = WRITER in now and read_json(folder / WRITER).get("token") == self.token
        if not now or (is_writer and "run.json" in own):
            return
        wanted = {name: mark for name, mark in now.items() if whole or PurePosixPath(name).name != TENSORS}
        changed = [
            name
            for name, mark in wanted.items()
            if before.get(name) != mark or name not in own or own[name] != sent.get(name)
        ]
        for names in _in_order(name for name in changed if name != WRITER):
            self._get(system, {f"{there}/{name}": folder / name for name in names})
        for name in own.keys() - now.keys():
            (folder / name).unlink()
            with contextlib.suppress(OSError):  # others lie there
                (folder / name).parent.rmdir()
        if "run.json" in now:
            (folder / "evaluation").mkdir(exist_ok=True)  # a bucket has no empty folders
        replace_text(folder / FETCHED, json.dumps({**{name: before[name] for name in before if name in now}, **wanted}))
        replace_text(folder / SENT, json.dumps(_marks_here(folder)))

    def _get(self, system: Any, files: Mapping[str, Path]) -> None:
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=self.home) as beside:
            new = [Path(beside, str(number)) for number in range(len(files))]
            system.get(list(files), list(map(str, new)))
            for path, file in zip(new, files.values(), strict=True):
                file.parent.mkdir(parents=True, exist_ok=True)
                path.replace(file)

    def _check_writer(self, system: Any, there: str) -> None:
        writer = json.loads(system.cat_file(f"{there}/{WRITER}"))
        if writer["token"] != self.token:
            raise RunLockedError(
                f"{self.url}: {PurePosixPath(there).name} has been continued on {writer['host']} since "
                f"{writer['since'][:19]} UTC. This process stops; what it did since then is not kept."
            )

    def _there(self, folder: Path) -> tuple[Any, str]:
        system, root = _system_of(self.url, os.getpid())
        name = Path(os.path.abspath(folder)).relative_to(self.home).as_posix()
        return system, root if name == "." else f"{root}/{name}"

    def _listed(self, system: Any, there: str) -> Marks:
        """Return the files of a folder there as they are now, and not as somebody here remembers them."""
        system.invalidate_cache()
        return _marks_there(system, there)


@functools.lru_cache(maxsize=8)
def _system_of(url: str, process: int) -> tuple[Any, str]:
    """Return fsspec's file system of a URL and the path in it. process: whose it is; a fork needs one of its own."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependencyError(f"{url}: folders by URL need fsspec: pip install fsspec.") from error
    system, path = url_to_fs(url)
    return system, path.rstrip("/")


def _again(work: Callable[[], None]) -> None:
    """Do work again while files are removed under its hands: old checkpoints, of somebody who trains."""
    for attempt in range(ATTEMPTS):
        try:
            work()
            break
        except FileNotFoundError:
            if attempt == ATTEMPTS - 1:
                raise


def _in_order(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield names in groups: those of a group may be sent at once, and a group only when those before it are there."""
    groups: dict[int, list[str]] = {}
    for name in names:
        groups.setdefault(LAST.get(PurePosixPath(name).name, 0), []).append(name)
    yield from (groups[number] for number in sorted(groups))


def _marks_here(folder: Path) -> Marks:
    """Return the files of a folder; what is not finished, a lock and notes about the bucket are not among them."""
    found: Marks = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.startswith(".") or name == "lock":
                continue
            file = Path(place, name)
            with contextlib.suppress(FileNotFoundError):
                status = file.stat()
                found[file.relative_to(folder).as_posix()] = [status.st_size, status.st_mtime_ns]
    return found


def _marks_there(system: Any, there: str) -> Marks:
    found: Marks = {}
    for path, about in system.find(there, detail=True).items():
        stamps = (about.get(name) for name in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created"))
        stamp = next((str(one) for one in stamps if one is not None), "")
        name = str(path)[len(there) :].lstrip("/")
        if ".." in PurePosixPath(name).parts:  # anybody may have written it
            raise ValueError(f"the name {name!r} leads out of the folder")
        found[name] = [about.get("size"), stamp]
    return found


def _whole_checkpoints(marks: Marks) -> Marks:
    """Return the files without those of checkpoints that were not sent to their end."""

    def is_whole(name: str) -> bool:
        parts = PurePosixPath(name)
        in_checkpoint = len(parts.parts) > 2 and parts.parts[-3] == "checkpoints"
        return not in_checkpoint or str(parts.with_name("state.json")) in marks

    return {name: mark for name, mark in marks.items() if is_whole(name)}


def _read_marks(file: Path) -> Marks:
    try:
        return dict(read_json(file))
    except (OSError, ValueError):  # a kill while it was written leaves none: files are sent, or fetched, again
        return {}


def _data_of(folder: Path) -> Path | None:
    """Return where the data of a run lies that was given to it by a program."""
    try:
        noted = read_json(folder / "run.json").get("data")
    except (OSError, ValueError):
        return None
    return None if noted is None else Path(os.path.abspath(folder / noted))


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Say in a sentence what is wrong with a bucket, whichever library says it."""
    try:
        yield
    except VelodromeError:
        raise
    except ImportError as error:
        raise MissingDependencyError(
            f"{url}: {sentence(str(error))} For s3:// pip install s3fs, for gs:// gcsfs."
        ) from error
    except Exception as error:  # drivers have errors of their own, of many kinds
        said = sentence(" ".join(str(error).split())[:200] or "no reason is given")
        if isinstance(error, ValueError) and "rotocol" in said:
            raise ConfigError(f"{url}: {said} Name a folder, or a URL such as s3://bucket/runs.") from error
        raise BucketError(
            f"{url}: cannot be read or written ({type(error).__name__}: {said.rstrip('.')}). Is there such a bucket, "
            "may you write there, and are your keys in the environment?"
        ) from error
