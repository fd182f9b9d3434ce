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
import time
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

from velodrome.outside.folders import make_private_folder, why_not_own_files, why_not_private
from velodrome.outside.kernels import refused_cache
from velodrome.vector.compile.assemble import USER_FUNCTIONS, check_that_it_compiles, fingerprint
from velodrome.vector.messages import tell
from velodrome.writing import replace_text

CACHE_VARIABLE = "VELODROME_CACHE"
announced: list[float] = []  # when this process compiled what no earlier one had, by time.monotonic


def cache_folder() -> Path:
    """Return the folder of compiled kernels: $VELODROME_CACHE, the user's cache folder, or a temporary one."""
    named, home = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    if named:
        return private_folder(Path(named), f"{CACHE_VARIABLE}={named}")
    if home:
        return private_folder(Path(home) / "velodrome", f"XDG_CACHE_HOME={home}")
    return private_folder(Path.home() / ".cache" / "velodrome")


@functools.cache
def private_folder(wanted: Path, named: str = "") -> Path:
    """Return the folder of kernels within this one or, if it cannot be written, within a temporary one.

    Kernels are code. A folder that others can change is refused if a person named it, and is otherwise not used.
    """
    folder = wanted / "kernels"
    try:
        make_private_folder(folder)
        fault = why_not_private(folder, own=2)
        if fault is not None and named:
            raise refused_cache(named, fault)
        if fault is None:
            with tempfile.TemporaryFile(dir=folder):
                return folder
        why = f"is not used ({fault})"
    except OSError as error:
        why = f"cannot be written ({error.strerror})"
    fallback = temporary_folder()
    tell(f"the cache folder {wanted} {why}; compiled kernels are kept in {fallback}")
    return fallback / "kernels"


@functools.cache
def temporary_folder() -> Path:
    """Return a temporary folder with one for kernels that only this user can write."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    usual = Path(tempfile.gettempdir()) / f"velodrome-{user}"
    try:
        make_private_folder(usual / "kernels")
        is_mine = why_not_private(usual / "kernels", own=2) is None
    except OSError:
        is_mine = False
    if is_mine:
        return usual
    folder = Path(tempfile.mkdtemp(prefix="velodrome-"))
    make_private_folder(folder / "kernels")
    if fault := why_not_private(folder / "kernels", own=2):
        raise refused_cache(f"the temporary folder {folder}", fault)
    return folder


def kernel_folder(
    name: str, function: FunctionType, target: str, substitutions: Mapping[str, Any], how: str = "", aloud: bool = True
) -> Path:
    """Return the folder of a compiled function; if it is new, check the user's functions and say that we compile.

    how: whatever else the generated code depends on. aloud: whether to say it.
    """
    versions = package_versions()
    key = hashlib.sha256(f"{fingerprint(function, substitutions)}|{target}|{sys.version}|{versions}|{how}".encode())
    label = re.sub(r"[^A-Za-z0-9_]+", "-", f"{name}-{target}")
    folder = cache_folder() / f"{label}-{key.hexdigest()[:24]}"
    source = folder / f"{function.__name__}.py"
    if folder.exists() and (fault := why_not_private(folder) or why_not_own_files(folder)):
        raise refused_cache(str(folder), fault)
    if not source.exists():
        for user_function in substitutions.get(USER_FUNCTIONS, {}).items():
            check_that_it_compiles(*user_function)
        if aloud:
            announced.append(time.monotonic())
            tell(f"compiling {name} ({target}); the next start is faster")
        make_private_folder(folder / "__pycache__")  # which Numba would make as the umask says
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
