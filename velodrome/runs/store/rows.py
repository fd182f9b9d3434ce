"""A run's rows, as the store takes and gives them."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from velodrome.errors import ConfigError, did_you_mean
from velodrome.runs.checkpoint import checkpoint_steps, checkpoints, is_pinned
from velodrome.runs.folder import RunFolder
from velodrome.runs.store.schema import KILLED, STATUSES


@dataclass(frozen=True)
class RunRecord:
    """A run's row."""

    id: str
    name: str
    folder: str
    env: str = ""
    algorithm: str = ""
    status: str = "running"
    config: dict[str, Any] = field(default_factory=dict)
    config_hash: str = ""
    data_hash: str = ""
    seed: int = 0
    steps: int = 0  # environment steps done
    versions: dict[str, Any] = field(default_factory=dict)
    error: str = ""  # what ended a failed run
    created: float = field(default_factory=time.time)  # seconds since 1970
    updated: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        check_status(self.status)

    def shown_status(self, folder: Path | None = None) -> str:
        """Return the status; 'killed' if it says running and its folder, where it can be seen, is not locked."""
        path = folder or Path(self.folder)
        if self.status != "running" or not path.is_dir():
            return self.status
        return shown_status(self.status, RunFolder(path, self.id))


def shown_status(status: str, folder: RunFolder) -> str:
    """Return a status as it is shown: one that says running, though no process has the folder locked, is killed."""
    return KILLED if status == "running" and not folder.is_locked() else status


def trainings(config: Mapping[str, Any]) -> int:
    """Return how many agents a configuration trains; those of older versions do not say it."""
    return max(int(config.get("seeds", 1)), int(config.get("ensemble", 1)))


class MetricRow(NamedTuple):
    """One number of a run."""

    step: int
    name: str
    value: float
    time: float  # seconds since 1970


class EvaluationRow(NamedTuple):
    """One number of an evaluation, with its confidence interval (NaN: none)."""

    step: int
    split: str
    name: str
    value: float
    low: float = math.nan
    high: float = math.nan


class PolicyRow(NamedTuple):
    """Which policy the numbers of an evaluation are about: those of the same split and step."""

    step: int  # of the checkpoint
    split: str
    checkpoint: str  # how it was chosen: best or latest
    policy: dict[str, Any]  # see `NamedPolicy.to_dict`
    label: str  # the split as it is shown: in sample, used for selection


class CheckpointRow(NamedTuple):
    """One checkpoint that is on the disk."""

    step: int
    path: str  # from the run's folder
    pinned: bool
    time: float  # seconds since 1970


class LineageRow(NamedTuple):
    """Where a run became another: it began as a parent's child there, or was itself told something else."""

    number: int  # of the entry, from 0
    step: int
    parent: str | None
    changes: dict[str, Any]  # by dotted key: the value before and after


def lineage_rows(entries: Iterable[Mapping[str, Any]]) -> list[LineageRow]:
    """Return the rows of what a run's folder says of its lineage."""
    return [
        LineageRow(number, entry["step"], entry["parent"], entry["changes"]) for number, entry in enumerate(entries)
    ]


def checkpoint_rows(folder: Path) -> list[CheckpointRow]:
    """Return the rows of the checkpoints in a run's folder."""
    found = []
    for path in checkpoints(folder):
        with contextlib.suppress(FileNotFoundError):  # a training may have removed it meanwhile
            moment = path.stat().st_mtime
            found.append(CheckpointRow(checkpoint_steps(path), str(path.relative_to(folder)), is_pinned(path), moment))
    return found


def check_status(status: str) -> None:
    if status not in STATUSES:
        raise ConfigError(f"status={status!r}: a run is {', '.join(STATUSES)}.{did_you_mean(status, STATUSES)}")
