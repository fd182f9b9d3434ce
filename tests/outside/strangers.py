"""Files and folders that belong to somebody else. Only root can make them; the tests that need one say so."""

from __future__ import annotations

import contextlib
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


@contextlib.contextmanager
def as_somebody_else() -> Iterator[None]:
    """Let the rules about permissions hold, as they do not for root."""
    if os.getuid() != 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(STRANGER)
    os.seteuid(STRANGER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
