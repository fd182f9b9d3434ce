"""Where compiled loops are kept: a folder for each, named by the hash of everything that the loop was made of.

Numba looks for its cache beside the file that a function comes from, so each rebuilt loop is said to come from a file
in such a folder. Changed code has another folder, so a stale hit is impossible.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from velodrome.vector.compile.assemble import USER_FUNCTIONS, check_that_it_compiles, fingerprint
from velodrome.vector.messages import tell
from velodrome.writing import replace_text

CACHE_VARIABLE = "VELODROME_CACHE"


def cache_folder() -> Path:
    """Return the folder of compiled kernels: $VELODROME_CACHE, the user's cache folder, or a temporary one."""
    named = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME")
    wanted = Path(named) if named else (Path(home) if home else Path.home() / ".cache") / "velodrome"
    return writable_folder(wanted)


@functools.cache
def writable_folder(wanted: Path) -> Path:
    """Return the folder of kernels within this one or, if it cannot be written, within a temporary one."""
    folder = wanted / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fallback = private_temporary_folder()
        folder = fallback / "kernels"
        folder.mkdir(exist_ok=True)
        tell(f"the cache folder {wanted} cannot be written ({error.strerror}); compiled kernels are kept in {fallback}")
    return folder


@functools.cache
def private_temporary_folder() -> Path:
    """Return a folder that only this user can write, because compiled code is loaded from it."""
    user = os.getuid() if hasattr(os, "getuid") else None
    folder = Path(tempfile.gettempdir()) / f"velodrome-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_mine = not folder.is_symlink() and (user is None or (status.st_uid == user and not status.st_mode & 0o022))
    except OSError:
        is_mine = False
    return folder if is_mine else Path(tempfile.mkdtemp(prefix="velodrome-"))


def kernel_folder(
    name: str, function: FunctionType, target: str, substitutions: Mapping[str, Any], how: str = ""
) -> Path:
    """Return the folder of a compiled function; if it is new, check the user's functions and say that we compile.

    how: whatever else the generated code depends on.
    """
    versions = package_versions()
    key = hashlib.sha256(f"{fingerprint(function, substitutions)}|{target}|{sys.version}|{versions}|{how}".encode())
    label = re.sub(r"[^A-Za-z0-9_]+", "-", f"{name}-{target}")
    folder = cache_folder() / f"{label}-{key.hexdigest()[:24]}"
    source = folder / f"{function.__name__}.py"
    if not source.exists():
        for user_function in substitutions.get(USER_FUNCTIONS, {}).items():
            check_that_it_compiles(*user_function)
        tell(f"compiling {name} ({target}); the next start is faster")
        folder.mkdir(exist_ok=True)
        # Numba only compares the size and time of this file; what it stands for is in the folder's name.
        replace_text(source, f'"""Stands for {function.__module__}.{function.__qualname__} of {name}."""\n')
    return folder


def package_versions() -> str:
    """Return the versions of the packages that make machine code."""
    return "|".join(f"{package}={version_of(package)}" for package in ("numba", "numba-cuda", "numpy", "llvmlite"))


@functools.cache
def version_of(distribution: str) -> str:
    """Return the version of an installed package, or "none"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"
