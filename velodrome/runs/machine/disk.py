"""The disk of the runs: whether it has room for what begins, and whether an error says that it had none left."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from velodrome.errors import chain
from velodrome.runs.machine.use import bytes_text

ROOM = 256 * 1024**2  # bytes; the store, logs and first checkpoints of what runs already need some, too
ROOM_SHARE = 0.05  # of the file system, where that is less: a small one is not short of space by being small
NO_ROOM = "no room on the disk: "  # beginning of what is said of a training that waits for it
# What libraries say in errors without a number: the system's words, those of safetensors and Polars, SQLite's.
TOLD = ("No space left on device", "Disk quota exceeded", "(os error 28)", "(os error 122)", "database or disk is full")


def why_no_room(folder: Path) -> str | None:
    """Return in a sentence why nothing more should begin to write into a folder; None if there is room."""
    try:
        disk = shutil.disk_usage(folder)
    except OSError:  # a folder that is gone has no disk; what is begun there says so
        return None
    needed = min(ROOM, disk.total * ROOM_SHARE)
    if disk.free >= needed:
        return None
    # What is free is not told: the sentence is kept, and must not change with every look.
    return f"{NO_ROOM}{folder} has less than {bytes_text(needed)} left. Remove what is old; it begins by itself then."


def ran_out(error: BaseException) -> bool:
    """Return whether an error, or what led to it, is that a disk, or somebody's share of it, was full."""
    return any(
        (isinstance(one, OSError) and one.errno in (errno.ENOSPC, errno.EDQUOT))
        or any(words in str(one) for words in TOLD)
        for one in chain(error)
    )
