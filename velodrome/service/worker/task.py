"""What the processes of a training are told by the service that starts them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from velodrome.outside import code
from velodrome.runs.bucket.place import here
from velodrome.runs.folder import INFORMATION, RunFolder
from velodrome.runs.store.from_folder import members_of, steps_of
from velodrome.service.job import Job


@dataclass(frozen=True)
class Task:
    """An attempt at a job."""

    job: str
    attempt: int
    root: str  # folder of the runs, or its URL
    store: str | None  # URL of the store, if it is not in that folder
    machine: str
    took_over: bool = False  # from another machine, where a process may still write into the run's folder
    lease_seconds: float = 15.0  # without a sign of life, after which the work is given to another
    grace_seconds: float = 4.0  # to save, when somebody asks to pause or cancel; then it is killed
    drain_seconds: float = 25.0  # to save, when the machine is taken away
    most_memory: int = 0  # bytes that a retry may have
    trust: bool = False  # whether code may be imported that was not used here before
    cores: int = 1
    memory: int = 0  # bytes
    gpu_memory: int = 0  # bytes
    place: str = ""  # what its processes are known by begins with this, where they are on another machine
    gpus: str | None = None  # that it may use, as CUDA_VISIBLE_DEVICES has them; None: as its job says
    # Files that its job names, as "market.source = prices.csv" or "env = module:Class", and where they lie.
    sources: dict[str, str] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """Return it in plain values; `Task(**content)` reads them."""
        return asdict(self)

    def here(self) -> Task:
        """Return it with a folder of this machine."""
        return replace(self, root=str(here(self.root)))

    @property
    def output(self) -> Path:
        """The file of what its processes print."""
        return output_of(self.root, self.job)


def output_of(root: str | Path, job: str) -> Path:
    """Return the file of what the processes of a job print."""
    return Path(root) / "jobs" / f"{job}.log"


def shelf_of(root: str | Path, study: str) -> Path:
    """Return the folder where trainings of a study leave what they were taught for each other; it ends with it."""
    return Path(root) / "studies" / f".taught-{study}"


def folder_of(root: str | Path, job: Job) -> RunFolder | None:
    """Return the folder of a job's run; None if it was not made yet, or not wholly."""
    path = Path(root) / job.folder
    return RunFolder(path.resolve(), job.id) if (path / INFORMATION).is_file() else None


def saved_steps(root: str | Path, job: Job) -> int:
    """Return the environment steps of a job's last checkpoints, of all its agents."""
    from velodrome.runs.checkpoint import checkpoint_steps, latest_checkpoint

    folder = folder_of(root, job)
    if folder is None:
        return 0
    last = [latest_checkpoint(one.path) for one in (members_of(folder) if folder.is_group else [folder])]
    return sum(checkpoint_steps(path) for path in last if path is not None)


def done_steps(root: str | Path, job: Job) -> int:
    """Return the environment steps that a job has done."""
    folder = folder_of(root, job)
    if folder is None:
        return 0
    return sum(steps_of(one) for one in (members_of(folder) if folder.is_group else [folder]))


def signs_of_life(root: str | Path, job: Job) -> tuple[Any, ...]:
    """Return something that changes while a training advances: what its files look like."""
    path = Path(root) / job.folder
    files = [output_of(root, job.id)]
    for place in (path, *path.glob("*/run.json")):
        home = place.parent if place.name == INFORMATION else place
        files += [home / name for name in ("metrics.jsonl", "status.json", "log.txt", "checkpoints", "evaluation")]
    return tuple(_state(file) for file in files)


def _state(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


DATA = "market.source = "


def sources_of(job: Job) -> dict[str, str]:
    """Return the files and folders of this machine that a job names: its prices, and code that lies where it began.

    Code is among them if it is trusted here.
    """
    from velodrome.runs.config.files import load_run_config
    from velodrome.runs.config.parameters import price_data

    config, found = load_run_config(job.config), {}
    if price_data(config.env) is not None and not config.market.is_synthetic:
        path = Path(job.directory) / Path(config.market.source).expanduser()
        if path.exists():
            found[DATA + config.market.source] = str(path.resolve())
    for name in config.code_names():
        what, _, value = name.partition(" = ")
        package = value.rpartition(":")[0].partition(".")[0]
        if what not in code.IMPORTED or not package or code.untrusted([name]):
            continue
        places = [Path(job.directory) / package, Path(job.directory) / f"{package}.py"]
        if there := [place for place in places if place.exists()]:
            found[name] = str(there[0].resolve())
    return found
