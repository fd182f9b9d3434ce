"""Data and code that only the machine of the service has, on their way to the nodes of a Ray cluster.

A file or folder is named for its content and goes through Ray's object store, which brings it to each node once. There
it is unpacked once, into a folder named for its content, and every task that needs it finds it there.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from velodrome.runs.bucket.place import scratch
from velodrome.writing import new_folder

CHUNK = 64 << 20  # bytes of an object in the store
UNWANTED = ("__pycache__", ".git", ".venv")


@dataclass(frozen=True)
class Parcel:
    """A file or folder. mark: what its files look like where it comes from; parts: its content in the object store."""

    path: str
    mark: str
    digest: str
    parts: tuple[Any, ...]

    def unpacked(self, get: Callable[[Any], Any]) -> Path:
        """Return where it lies on this machine: where it was, if machines share that folder, else unpacked."""
        there = Path(self.path)
        if there.exists() and _mark(there) == self.mark:
            return there
        home = scratch().parent / "parcels" / self.digest
        with _alone(home):
            if not home.exists():
                with (
                    new_folder(home) as new,
                    tarfile.open(fileobj=_Joined(self.parts, get), mode="r|") as packed,  # type: ignore[call-overload]
                ):
                    packed.extractall(new, filter="data")
        return home / there.name


class Packer:
    """Puts files and folders into the object store, each content once. put: of Ray."""

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put = put
        self._known: dict[tuple[str, str], Parcel] = {}  # by path and mark

    def packed(self, path: Path) -> Parcel:
        """Return a file or folder as it is now."""
        key = (str(path), _mark(path))
        if key not in self._known:
            chunks = _Chunks(self._put)
            with tarfile.open(fileobj=chunks, mode="w|", format=tarfile.PAX_FORMAT) as packed:  # type: ignore[call-overload]
                for file in _files(path):
                    about = packed.gettarinfo(file, arcname=str(file.relative_to(path.parent)))
                    about.mtime, about.uid, about.gid, about.uname, about.gname, about.mode = 0, 0, 0, "", "", 0o644
                    with file.open("rb") as content:
                        packed.addfile(about, content)
            self._known[key] = Parcel(*key, *chunks.ended())
        return self._known[key]


def _files(path: Path) -> Sequence[Path]:
    if path.is_file():
        return [path]
    found = (file for file in path.rglob("*") if file.is_file() and not set(UNWANTED) & set(file.parts))
    return sorted(found)


def _mark(path: Path) -> str:
    """Return what the files of a folder look like, without reading them."""
    about = [(str(file.relative_to(path.parent)), file.stat()) for file in _files(path)]
    text = repr([(name, found.st_size, found.st_mtime_ns) for name, found in about])
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Keep other processes of this machine from unpacking the same meanwhile."""
    home.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(home.parent / f".{home.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class _Chunks:
    """A file to write, whose content goes to the object store in chunks."""

    def __init__(self, put: Callable[[Any], Any]) -> None:
        self._put, self._hash, self._buffer = put, hashlib.sha256(), io.BytesIO()
        self._parts: list[Any] = []

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        self._buffer.write(content)
        if self._buffer.tell() >= CHUNK:
            self._flush()
        return len(content)

    def _flush(self) -> None:
        self._parts.append(self._put(np.frombuffer(self._buffer.getvalue(), np.uint8)))
        self._buffer = io.BytesIO()

    def ended(self) -> tuple[str, tuple[Any, ...]]:
        """Return the hash of all, and the parts."""
        if self._buffer.tell():
            self._flush()
        return self._hash.hexdigest(), tuple(self._parts)


class _Joined:
    """A file to read, whose content comes from the object store chunk by chunk."""

    def __init__(self, parts: Sequence[Any], get: Callable[[Any], Any]) -> None:
        self._rest, self._get, self._now = list(parts), get, memoryview(b"")

    def read(self, size: int) -> bytes:
        if not self._now and self._rest:
            self._now = memoryview(self._get(self._rest.pop(0)))
        found, self._now = bytes(self._now[:size]), self._now[size:]
        return found if len(found) == size or not self._rest else found + self.read(size - len(found))
