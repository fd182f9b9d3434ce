"""Memory that several processes see: anonymous, so that nothing is left behind however they end.

A named segment survives the `kill -9` of the process that made it; a file descriptor does not. Workers receive
descriptors when they start, and later over their sockets.
"""

from __future__ import annotations

import mmap
import multiprocessing.reduction
import os
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from velodrome.vector.space_arrays import Leaf

CACHE_LINE = 64  # bytes


def _size(field: Leaf) -> int:
    return int(np.prod(field.shape, dtype=np.int64)) * field.dtype.itemsize


def _aligned(offset: int) -> int:
    return -(-offset // CACHE_LINE) * CACHE_LINE


class SharedBlock:
    """A zeroed piece of shared memory; the process that made it and those that receive it see the same bytes."""

    def __init__(self, size: int, descriptor: int | None = None) -> None:
        self.size = max(size, mmap.PAGESIZE)
        self.descriptor = _anonymous_file() if descriptor is None else descriptor
        # Before anything can fail: the descriptor goes with this object, whether or not somebody closes it.
        self._close = weakref.finalize(self, os.close, self.descriptor)
        if descriptor is None:
            os.ftruncate(self.descriptor, self.size)
        self.memory = mmap.mmap(self.descriptor, self.size)

    def __reduce__(self) -> Any:
        return _rebuild, (multiprocessing.reduction.DupFd(self.descriptor), self.size)

    def send(self, connection: Any, process: int) -> None:
        """Send it to a running process, over a connection whose other end calls `receive`."""
        connection.send(self.size)
        multiprocessing.reduction.send_handle(connection, self.descriptor, process)

    @classmethod
    def receive(cls, connection: Any) -> SharedBlock:
        """Return the block that was sent."""
        size = connection.recv()
        return cls(size, multiprocessing.reduction.recv_handle(connection))

    def arrays(self, fields: Sequence[Leaf]) -> dict[str, NDArray]:
        """Return the arrays of these fields, one after the other, each at the start of a cache line."""
        found, offset = {}, 0
        for field in fields:
            raw = np.frombuffer(self.memory, np.uint8, _size(field), offset)
            found[field.name] = raw.view(field.dtype).reshape(field.shape)
            offset = _aligned(offset + _size(field))
        return found

    def close(self) -> None:
        """Close the descriptor; the memory itself is freed with the last array that refers to it."""
        self._close()


def size_of(fields: Sequence[Leaf]) -> int:
    """Return the bytes that these fields take, one after the other."""
    return sum(_aligned(_size(field)) for field in fields)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("velodrome", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:  # has no name either
        return os.dup(file.fileno())


def _rebuild(descriptor: Any, size: int) -> SharedBlock:
    return SharedBlock(size, descriptor.detach())
