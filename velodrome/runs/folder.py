"""The folder of a run: its configuration, what it was made with, its log and its checkpoints.

runs/<name>-<yyyymmdd-hhmmss>-<id>/
    config.yaml   run.json   status.json   log.txt   metrics.jsonl   checkpoints/   evaluation/   report.html   lock

A group of training seeds, and an ensemble, is such a folder without checkpoints and metrics; the folders of its
members lie in it.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import logging
import os
import re
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from velodrome.errors import ConfigError, RunError, RunLockedError
from velodrome.outside.files import open_regular, read_json
from velodrome.runs.bucket.place import Bucket, bring, here, url_of
from velodrome.runs.versions import git_commit, machine, versions
from velodrome.writing import replace_text, sync_path

LATEST = "latest"
FOLD = re.compile(r"fold-\d+-of-\d+-")  # the start of a walk-forward's runs, which nobody means by the latest
ID_LENGTH = 8  # hexadecimal digits
PROBE_SECONDS = 0.5  # longer than a look at whether a run is locked takes, which holds the lock itself
LEASED_SECONDS = 30.0
LEASE = "VELODROME_LEASE"  # of the environment: which attempt at which job a process trains for, under a service
INFORMATION = "run.json"
IDENTITY = r"[0-9a-f]{1,64}"
LAST_MOMENT = 1e11  # seconds since 1970: the year 5138
# Entries of it: their kinds, and whether every version wrote them.
KINDS: dict[str, tuple[type, bool]] = {
    **dict.fromkeys(("id", "name", "created"), (str, True)),
    **dict.fromkeys(("command", "folder_of_command", "data_hash", "group", "data"), (str, False)),
    **dict.fromkeys(("seeds", "versions"), (dict, True)),
    **dict.fromkeys(("lineage", "actions"), (list, False)),
}

log = logging.getLogger("velodrome.runs")


@dataclass(frozen=True)
class Candidate:
    """A run by the names that a person may use for it."""

    id: str
    title: str  # name of its folder
    created: float  # seconds since 1970

    @property
    def name(self) -> str:
        """The part of the title that a person chose."""
        return self.title.rsplit("-", 3)[0]


@dataclass(frozen=True)
class RunState:
    """How far a run has come, as `status.json` says it; only the process that trains the run writes that."""

    status: str  # running, finished, interrupted or failed
    updated: float  # seconds since 1970
    error: str = ""  # what ended a failed run
    config_hash: str = ""


def _inside(name: str) -> property:
    return property(lambda folder: folder.path / name)


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; make one with `create`, find one with `open`."""

    path: Path
    id: str

    @classmethod
    def create(
        cls,
        root: Path | str,
        name: str = "run",
        *,
        config: str = "",
        seeds: Mapping[str, int] | None = None,
        data_hash: str | None = None,
        command: Sequence[str] | None = None,
        group: str | None = None,
        lineage: Sequence[Mapping[str, Any]] = (),
        identity: str | None = None,
        moment: float | None = None,
    ) -> RunFolder:
        """Make the folder of a new run in a folder of runs, which is made if it is not there.

        name: start of the folder's name: letters, digits, '.', '_' and '-'.
        config: the whole configuration as YAML. seeds: by what they are for.
        data_hash: of the content of the data that the run sees.
        command: words of the command; those of this process if not given.
        group: id of the group of training seeds that the run is a member of; `root` is then the group's folder.
        lineage: whose child it is, as `lineage_entry` says it.
        identity, moment: its id, and the moment in the folder's name, in seconds since 1970, if somebody has noted them
            before: a training that waits for its turn has both long before it begins.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise ConfigError(
                f"name={name!r}: a run's name is 1 to 100 letters, digits, '.', '_' or '-' and begins with a letter or "
                "a digit, because it becomes a folder's."
            )
        root = here(root)
        now = datetime.now(UTC)
        identity = new_identity() if identity is None else identity
        path = root / folder_name(name, now.timestamp() if moment is None else moment, identity)
        try:
            (path / "evaluation").mkdir(parents=True)
            if (seeds or {}).get("count", 1) == 1:  # those of a group are its members'
                (path / "checkpoints").mkdir()
            replace_text(path / "config.yaml", config)
            own_command = [Path(sys.orig_argv[0]).name, *sys.orig_argv[1:]] if sys.orig_argv else []
            information = {
                "id": identity,
                "name": name,
                "created": now.isoformat(),
                "command": shlex.join(own_command if command is None else command),
                "folder_of_command": str(Path.cwd()),
                "seeds": dict(seeds or {}),
                "data_hash": data_hash,
                "group": group,
                "data": None,  # where it lies, from here: `note_data`
                "lineage": list(lineage),
                "versions": versions(),
                "machine": machine(),
                "git_commit": git_commit(Path.cwd()),
            }
            replace_text(path / INFORMATION, json.dumps(information, indent=2, ensure_ascii=False) + "\n")
            sync_path(path)
            sync_path(root)
        except OSError as error:
            raise RunError(
                f"{path}: the run's folder could not be made: {error.strerror}. Name a folder that can be written."
            ) from error
        return cls(path.resolve(), identity)

    @classmethod
    def open(cls, run: Path | str, root: Path | str = "runs") -> RunFolder:
        """Find a run by its path, its id, its folder's name, its own, the unique start of those, or 'latest'."""
        given = _given(run)
        if (given / INFORMATION).is_file():
            return cls._read(given)
        if given.is_dir():
            raise RunError(f"{given}: this folder holds no run: it has no {INFORMATION}.")
        if url_of(run):
            raise RunError(f"{url_of(run)}: there is no run: it has no {INFORMATION}.")
        found = run_folders(root)
        if str(run) != LATEST:  # the latest is a run of its own, not a member of a group
            found += [member for folder in found for member in run_folders(folder.path)]
        chosen = choose_run(str(run), [folder.candidate for folder in found], f"in {root}")
        folder = next(folder for folder in found if folder.id == chosen.id)
        bring(folder.path, whole=True)
        return folder

    @classmethod
    def _read(cls, path: Path) -> RunFolder:
        file = path / INFORMATION
        try:
            return cls(path.resolve(), _legal(read_json(file))["id"])
        except (OSError, ValueError, KeyError) as error:
            raise RunError(
                f"{file}: cannot be read ({type(error).__name__}: {error}). Restore it from a copy."
            ) from error

    config_path = _inside("config.yaml")
    status_path = _inside("status.json")
    log_path = _inside("log.txt")
    metrics_path = _inside("metrics.jsonl")
    monitor_path = _inside("monitor.csv")  # episodes, as Stable-Baselines3's plotter reads them; not of rules
    evaluation_path = _inside("evaluation")
    report_path = _inside("report.html")

    def check_links(self) -> None:
        """Refuse a folder in which a link leads elsewhere: what is written there would replace somebody's file."""
        for folder, folders, files in os.walk(self.path):
            for path in (Path(folder, name) for name in (*folders, *files)):
                if path.is_symlink() and not path.resolve().is_relative_to(self.path):
                    raise RunError(
                        f"{path}: this link leads out of the run's folder, to {path.resolve()}; a run writes into its "
                        "own folder only. Put the file itself there, or remove the link."
                    )

    def check_writable(self, why: str) -> None:
        """Refuse a folder into which nothing can be written. why: what would be, as the end of a sentence."""
        for folder in filter(Path.is_dir, (self.path, self.evaluation_path)):
            try:
                with tempfile.TemporaryFile(dir=folder):
                    continue
            except OSError as error:
                raise RunError(
                    f"{folder}: cannot be written ({error.strerror}), and {why}. Change its permissions, or copy the "
                    "run to a folder that can be written."
                ) from error

    @property
    def information(self) -> dict[str, Any]:
        """What `run.json` says now."""
        return _legal(read_json(self.path / INFORMATION))

    def _change(self, **entries: Any) -> None:
        """Write entries of `run.json` anew."""
        information = {**self.information, **entries}
        replace_text(self.path / INFORMATION, json.dumps(information, indent=2, ensure_ascii=False) + "\n")
        sync_path(self.path)

    def note_data(self, source: Path) -> None:
        """Note where the run's data lies, as seen from its folder, so that both may move together."""
        relative = os.path.relpath(source.resolve(), self.path)
        if self.information.get("data") != relative:
            self._change(data=relative)

    def note_actions(self, names: Sequence[str]) -> None:
        """Note what discrete actions are called, for those who look at how often each is taken."""
        if names and self.information.get("actions") != list(names):
            self._change(actions=list(names))

    @property
    def data_place(self) -> Path | None:
        """Where the run's data lies if both moved together, or neither; None if that is not known."""
        noted = self.information.get("data")
        return None if noted is None else (self.path / noted).resolve()

    @property
    def lineage(self) -> list[dict[str, Any]]:
        """Whose child the run is, and what was changed on the way, oldest first; `lineage_entry` makes an entry."""
        return self.information.get("lineage", [])

    def add_to_lineage(self, entry: Mapping[str, Any]) -> None:
        """Note that something was changed in mid-run."""
        self._change(lineage=[*self.lineage, dict(entry)])

    @property
    def state(self) -> RunState | None:
        """What `status.json` says now; None for a run that has not begun, or that an older version trained."""
        try:
            found = RunState(**read_json(self.status_path))
            wrong = [each.name for each in fields(found) if type(getattr(found, each.name)).__name__ != each.type]
            if wrong or not 0.0 <= found.updated < LAST_MOMENT:
                raise ValueError(f"{wrong[0] if wrong else 'updated'} is none")
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s: cannot be read (%s); its checkpoints say how far it came", self.status_path, error)
            return None

    def note_state(self, state: RunState) -> None:
        """Write down how far the run has come."""
        replace_text(self.status_path, json.dumps(asdict(state), indent=2, ensure_ascii=False) + "\n")
        sync_path(self.path)

    @property
    def is_group(self) -> bool:
        """Whether it is a group of training seeds, or an ensemble."""
        seeds = self.information.get("seeds")
        return isinstance(seeds, dict) and seeds.get("count", 1) > 1

    @property
    def is_ensemble(self) -> bool:
        """Whether it is a group whose members act as one."""
        return self.is_group and bool(self.information["seeds"].get("ensemble"))

    @property
    def has_begun(self) -> bool:
        """Whether a process has begun to train it."""
        return self.status_path.is_file() or self.metrics_path.is_file()

    @property
    def candidate(self) -> Candidate:
        """The names by which the run can be called."""
        created = datetime.fromisoformat(self.information["created"]).timestamp()
        return Candidate(self.id, self.path.name, created)

    @contextlib.contextmanager
    def write_log(self) -> Iterator[None]:
        """Write what Velodrome logs to `log.txt` too, times in UTC; a resumed run continues the same file."""
        handler = logging.FileHandler(self.log_path, encoding="utf-8")
        form = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
        form.converter = time.gmtime
        handler.setFormatter(form)
        handler.setLevel(logging.INFO)
        logger = logging.getLogger("velodrome")
        before = logger.level
        logger.addHandler(handler)
        logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
            handler.close()

    @contextlib.contextmanager
    def lock(self, what: str = "run") -> Iterator[None]:
        """Keep other processes from training this run; the system holds the lock, so it ends with the process."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path / "lock", flags, 0o644)
        except OSError as error:
            raise RunError(
                f"{self.path / 'lock'}: cannot be written ({error.strerror}). Remove it if nobody trains the {what}."
            ) from error
        try:
            self._take(descriptor, what)
            holder = {"pid": os.getpid(), "host": machine()["host"], "since": datetime.now(UTC).isoformat()}
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int, what: str) -> None:
        # Under a service, a process whose work was given away may take a while to notice.
        deadline = time.monotonic() + (LEASED_SECONDS if LEASE in os.environ else PROBE_SECONDS)
        while not _locked_now(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise RunLockedError(f"{self.path.name}: {self._told_holder(what)}")
            time.sleep(0.02)

    def _told_holder(self, what: str) -> str:
        import psutil

        try:
            holder = read_json(self.path / "lock")
            pid, host, since = int(holder["pid"]), str(holder["host"]), str(holder["since"])[:19]
        except (OSError, ValueError, TypeError, KeyError):
            return f"another process is training this {what}. Wait for it, or stop it."
        told = f"process {pid} on {host} has been training this {what} since {since} UTC"
        if host == machine()["host"] and not psutil.pid_exists(pid):
            return (
                f"{told} and is gone, but a process that it started still holds the lock. "
                f"See which one: fuser {shlex.quote(str(self.path / 'lock'))}"
            )
        return f"{told}. Wait for it, or stop it: kill {pid}"

    def is_locked(self) -> bool:
        """Return whether a process is training this run now."""
        try:
            descriptor = open_regular(self.path / "lock")
        except OSError:  # there is none, or it is none
            return False
        try:
            return not _locked_now(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)


def _given(run: Path | str) -> Path:
    """Return the path that a person may mean by a run, fetched if it lies in a bucket."""
    url = url_of(run)
    path = Path(run) if url is None else here(url.rpartition("/")[0]) / url.rpartition("/")[2]
    if url is not None or (path / INFORMATION).is_file():
        bring(path, whole=True)
    return path


def _legal(information: dict[str, Any]) -> dict[str, Any]:
    """Return what a `run.json` says if its entries are of the kinds that Velodrome writes."""
    for name, (kind, needed) in KINDS.items():
        value = information.get(name)
        if not isinstance(value, kind) and (needed or value is not None):
            raise ValueError(f"{name} is {str(value)[:40]!r}")
    if not re.fullmatch(IDENTITY, information["id"]):
        raise ValueError(f"id is {information['id'][:40]!r}, not a number in hexadecimal digits")
    datetime.fromisoformat(information["created"])
    information.setdefault("data_hash", None)
    for entry in information.get("lineage") or ():
        known = isinstance(entry, dict) and isinstance(entry.get("changes"), dict) and type(entry.get("step")) is int
        pairs = known and all(isinstance(both, list) and len(both) == 2 for both in entry["changes"].values())
        if not pairs or not re.fullmatch(IDENTITY, str(entry.get("parent") or "0")):
            raise ValueError(f"lineage has {str(entry)[:40]!r}")
    return information


def lineage_entry(step: int, changes: Mapping[str, Any], parent: RunFolder | None = None) -> dict[str, Any]:
    """Return what a run's lineage says of a change: where, what (before and after by key), and of which parent."""
    about = {"step": step, "parent": None if parent is None else parent.id, "changes": dict(changes)}
    return {**about, "time": datetime.now(UTC).isoformat()}


def _locked_now(descriptor: int, kind: int) -> bool:
    """Take a lock unless another process has it, and return whether it was taken."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def new_identity() -> str:
    """Return an id that no run has."""
    return secrets.token_hex(ID_LENGTH // 2)


def folder_name(name: str, moment: float, identity: str) -> str:
    """Return the name of a run's folder. moment: in seconds since 1970."""
    return f"{name}-{datetime.fromtimestamp(moment, UTC):%Y%m%d-%H%M%S}-{identity}"


def run_folders(root: Path | str, name: str = "") -> list[RunFolder]:
    """Return the runs of a folder by name; one whose `run.json` cannot be read is left out with a warning.

    name: the start of their folders' names; others are not looked into.
    """
    root = here(root)
    if (bucket := Bucket.behind(root)) is not None and bucket.home == root.absolute():
        bucket.fetch_all()
    found = []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.name.startswith(name) and (path / INFORMATION).is_file():
            try:
                found.append(RunFolder._read(path))
            except RunError as error:
                log.warning("%s", error)
    return found


def choose_run(text: str, candidates: Sequence[Candidate], place: str) -> Candidate:
    """Return the run that a person means by its id, its title, its name, the unique start of those, or 'latest'.

    A whole name goes before starts of others: that of a group of seeds is the start of its members'.
    """
    if not candidates:
        raise RunError(f"no run {text!r}: there are no runs {place}. Train one first: velodrome train")
    newest_first = sorted(candidates, key=lambda run: (run.created, run.title), reverse=True)
    if text == LATEST:
        return next((run for run in newest_first if not FOLD.match(run.title)), newest_first[0])
    exact = [run for run in candidates if text in (run.id, run.title)]
    if len(exact) == 1:
        return exact[0]
    started = [run for run in newest_first if text and (run.id.startswith(text) or run.title.startswith(text))]
    # The names of a group's members begin with that of the group.
    started = [run for run in started if run.name == text] or started
    if len(started) == 1:
        return started[0]
    if started:
        raise RunError(
            f"{text!r} is the start of {len(started)} runs {place}: {_listed(started)}. "
            f"Write more of the name, or the id at its end, or {LATEST!r}."
        )
    # Of several runs with one name, the newest stands for it.
    called = {name: run.title for run in reversed(newest_first) for name in (run.title, run.name, run.id)}
    close = dict.fromkeys(called[name] for name in difflib.get_close_matches(text, called, n=3, cutoff=0.5))
    near = f"Near to that: {', '.join(close)}" if close else f"The newest: {_listed(newest_first)}"
    raise RunError(f"no run {text!r} {place}, which has {len(candidates)}. {near}. {LATEST!r} is the newest.")


def _listed(runs: Sequence[Candidate]) -> str:
    shown = ", ".join(run.title for run in runs[:5])
    return f"{shown} and {len(runs) - 5} more" if len(runs) > 5 else shown
