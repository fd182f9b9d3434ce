"""Files and folders that belong to somebody else. Only root can make them; the tests that need one say so."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

STRANGER = 54_321  # a uid that nobody has

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


def give_away(*paths: Path) -> None:
    """Make paths belong to somebody else."""
    for path in paths:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


class _Head(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


OVERRIDES = 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER: for whoever has these, modes mean nothing


@contextlib.contextmanager
def bound_by_modes() -> Iterator[None]:
    """Let the modes of files hold for this thread, as they do for everybody but root."""
    libc, head, sets = ctypes.CDLL(None, use_errno=True), _Head(0x20080522, 0), (_Sets * 2)()
    assert libc.capget(ctypes.byref(head), sets) == 0
    before = sets[0].effective
    sets[0].effective &= ~OVERRIDES
    assert libc.capset(ctypes.byref(head), sets) == 0
    try:
        yield
    finally:
        sets[0].effective = before
        assert libc.capset(ctypes.byref(head), sets) == 0
