"""A training that was submitted: what it is told, what it needs, how far it is, and in which ways it can end."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from velodrome.errors import ConfigError
from velodrome.runs.machine.disk import NO_ROOM

STATUSES = ("waiting", "running", "paused", "finished", "cancelled", "failed")
OVER = ("finished", "cancelled", "failed")
MEMORY = 1 << 30  # bytes that a training is taken to need until it was seen to need more
GPU_MEMORY = 2 << 30
STALL_SECONDS = 1800.0
MOST_PRIORITY = 1_000_000
FIRST_PAUSE = 2.0  # seconds before the first retry; each further one waits twice as long
LONGEST_PAUSE = 600.0
UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


class End(NamedTuple):
    """A way in which an attempt at a training can end."""

    told: str  # in words
    retries: int | None  # without coming further in between; None: as often as it happens
    pauses: bool = True  # whether a retry waits


# What is the machine's fault is tried again from the last checkpoint; what is the code's would fail again.
ENDS = {
    "finished": End("finished", 0),
    "cancelled": End("cancelled", 0),
    "error": End("error in the code or the settings", 0),
    "not_a_number": End("learning broke: not a number", 0),
    "out_of_memory": End("out of memory", 3),
    "no_room": End("no room on the disk", 20),  # two hours of pauses: a quota is not seen before it is used up
    "stalled": End("stalled", 2),
    "machine_lost": End("machine or process lost", 5),
    "preempted": End("preempted", None, pauses=False),
}


def pause_before(retry: int) -> float:
    """Return the seconds before the n-th retry in a row, from 1."""
    return min(FIRST_PAUSE * 2.0 ** (retry - 1), LONGEST_PAUSE)


@dataclass(frozen=True)
class Job:
    """A job's row. Its id is also that of its run."""

    id: str
    name: str
    owner: str
    config: dict[str, Any] = field(repr=False)
    directory: str
    folder: str  # name of its run's folder
    created: float  # seconds since 1970, as are all moments
    updated: float
    priority: int = 0  # higher ones begin first
    status: str = "waiting"
    wanted: str = ""
    evaluate: bool = True
    cores: int = 1
    envs: int = 1
    memory: int = MEMORY
    memory_is_limit: bool = False
    gpu_memory: int = 0
    stall_seconds: float = STALL_SECONDS
    study: str | None = None
    trial: int | None = None
    started: float = 0.0
    not_before: float = 0.0
    attempt: int = 0
    beat: int = 0
    service: str | None = None
    machine: str = ""
    process: str = ""
    gpu: str = ""
    steps: int = 0
    memory_used: int = 0
    ended: str = ""
    message: str = ""
    retries: dict[str, int] = field(default_factory=dict)
    retried_at: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.status in OVER

    @property
    def lacks_room(self) -> bool:
        """Whether it waits for room on the disk, as it was told or as its last attempt ended."""
        ended_so = self.ended == "no_room" and bool(self.message)
        return self.status == "waiting" and (ended_so or self.message.startswith(NO_ROOM))

    @property
    def total_steps(self) -> int:
        """The steps of all its agents."""
        each = int(self.config.get("steps", 0))
        return each * max(int(self.config.get("seeds", 1)), int(self.config.get("ensemble", 1)))


FIELDS = tuple(each.name for each in fields(Job))


def legal_priority(priority: int) -> int:
    """Return a priority that a store can keep."""
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise ConfigError(f"priority = {priority}: {-MOST_PRIORITY:,} … {MOST_PRIORITY:,} are legal.")
    return int(priority)


def read_bytes(given: int | str, what: str) -> int:
    """Return a size that a person wrote: a number of bytes, or one with a unit such as 2GB or 512MiB."""
    text = str(given).strip().upper().replace(" ", "").replace("_", "")
    number = text.rstrip("BGIKMT")
    try:
        size = float(number) * UNITS[text[len(number) :].removesuffix("B") + "B" if text != number else ""]
        if not 0 < size < 2**62:
            raise ValueError
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{what} {given}: a size is a number of bytes, or one with a unit: 2GB, 512MiB.") from error
    return int(size)
