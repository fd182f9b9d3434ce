"""Files that are written whole or not at all: beside their place first, and then in it by one rename.

Whoever replaces a file does it through `replacing`; `tests/test_writing.py` finds writes that go around it. A process
that is killed leaves the old file, and beside it a hidden one, which the next write into that folder removes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from velodrome.errors import WriteError

if TYPE_CHECKING:
    import polars as pl

BESIDE = ".velodrome-"  # start of the name of what is not finished
UNFINISHED = re.compile(rf"{re.escape(BESIDE)}[0-9a-f]{{8}}-.")
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield the path of a file to write; at the end of the block it takes the place of the one that is meant.

    An error in the block leaves the old file as it was, or none. `sync_path` of the folder makes the new name last.
    What is no file, such as /dev/stdout, is written as it is. An OSError becomes a WriteError, which names the file.
    """
    given = Path(path)
    with told_as_unwritten(given):
        if _is_a_device(given):
            yield given
            return
        target = given.resolve()  # a link stays one
        with _beside(target, lambda new: os.close(os.open(new, os.O_CREAT | os.O_EXCL, 0o666))) as new:
            yield new
            if target.exists():
                shutil.copymode(target, new)
            sync_path(new)
            new.replace(target)


def replace_text(path: Path | str, text: str) -> None:
    """Write a text so that the file is old or new, never half."""
    with replacing(path) as new:
        new.write_text(text, encoding="utf-8")


def write_frame(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame as CSV or Parquet, by the end of the path's name.

    It is made in memory: of a full disk Polars tells in words of its own, and of a Parquet file as if that were wrong.
    """
    content = io.BytesIO()
    if path.suffix == ".csv":
        frame.write_csv(content)
    else:
        frame.write_parquet(content)
    path.write_bytes(content.getbuffer())


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end of the block it gets its name, unless another process was quicker."""
    with told_as_unwritten(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _beside(path.resolve(), os.mkdir) as new:
            yield new
            for file in new.rglob("*"):
                sync_path(file)
            try:
                new.rename(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise


@contextlib.contextmanager
def _beside(target: Path, make: Callable[[Path], None]) -> Iterator[Path]:
    """Yield something new beside a place; it is locked, so that who tidies up knows that it is being written."""
    remove_unfinished(target.parent)
    while True:
        # The end of the name says to some writers of what kind the file is; the whole may be too long.
        new = target.with_name(f"{BESIDE}{secrets.token_hex(4)}-{target.name[-50:]}")
        make(new)
        descriptor = os.open(new, os.O_RDONLY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # of a file system without locks, where nothing is tidied up either
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if new.exists():  # it was not taken for a leftover before it was locked
            break
        os.close(descriptor)
    try:
        yield new
    finally:
        _remove(new)
        os.close(descriptor)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left in a folder; what is being written is locked, and stays."""
    for entry in os.scandir(folder):
        if not UNFINISHED.match(entry.name) or entry.is_symlink():
            continue
        with contextlib.suppress(OSError):  # locked, gone already, or not ours to remove
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(Path(entry.path))
            finally:
                os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_a_device(path: Path) -> bool:
    """Return whether a path stands for a device, a pipe or an open file, none of which may be replaced."""
    absolute = Path(os.path.abspath(path))
    opened = absolute.parts[1:2] in (("dev",), ("proc",)) and absolute.parts[2:3] != ("shm",)
    return os.path.exists(path) and not os.path.isdir(path) and (opened or not os.path.isfile(path))


@contextlib.contextmanager
def told_as_unwritten(path: Path) -> Iterator[None]:
    """Turn an OSError into a sentence about the file or folder that could not be written."""
    try:
        yield
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(f"{path}: cannot be written: {_reason(error, path)}", error) from error


def _reason(error: OSError, path: Path) -> str:
    said = error.strerror or str(error)
    if error.errno in NO_SPACE:
        return f"{said}. Make room; what was there before is as it was."
    if error.errno == errno.ENOENT:
        return f"{said}. Make the folder {path.parent} first."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{said}. Make {path.parent} writable, or copy it to a place that is, and use the copy."
    return f"{said}."


def write_text(path: Path, text: str) -> None:
    """Write a new file and wait until its content is on the disk; one that is there already is for `replace_text`."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_path(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
