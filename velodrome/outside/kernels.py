"""Compiled functions that are kept on the disk. They are code: kept and loaded only where nobody else can write."""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Any

import numba

from velodrome.errors import ConfigError
from velodrome.outside.folders import why_not_own_files, why_not_private

NAMED = ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")  # what a person may set to say where Numba keeps compiled functions
log = logging.getLogger("velodrome.kernels")


def cached_njit(function: Any = None, **options: Any) -> Any:
    """Compile a function as `numba.njit` does and keep it; use it with or without options, as a decorator too."""
    if function is None:
        return functools.partial(cached_njit, **options)
    try:
        return kept_privately(numba.njit(cache=True, **options)(function))
    except RuntimeError as error:  # Numba finds no folder that can be written
        log.warning("compiled functions are not kept: %s", error)
        return numba.njit(**options)(function)


def kept_privately(dispatcher: Any) -> Any:
    """Return a compiled function, having looked at where Numba keeps it.

    A folder that a person named and others can write is refused; in Numba's own, the function is not kept.
    """
    folder = Path(dispatcher._cache.cache_path)
    # What lies beside the source needs no look: who can write there can write the source.
    if folder.parent != Path(dispatcher.py_func.__code__.co_filename).parent:
        fault = _fault(folder)
        if fault is not None:
            log.warning("compiled functions are not kept: %s", fault)
            dispatcher._cache.disable()
    return dispatcher


@functools.cache
def _fault(folder: Path) -> str | None:
    chosen = numba.config.CACHE_DIR
    if chosen and "NUMBA_CACHE_DIR" not in os.environ:
        raise ConfigError(
            f"Numba is told to load compiled code from {chosen}, and not by you: NUMBA_CACHE_DIR is not set. A file "
            ".numba_config.yaml in the present folder can say that, or this program. Remove it, or set NUMBA_CACHE_DIR."
        )
    fault = why_not_private(folder) or why_not_own_files(folder)
    for variable in NAMED:
        named = os.environ.get(variable)
        if named and folder.is_relative_to(os.path.abspath(named)):
            fault = why_not_private(Path(named)) or fault
            if fault is not None:
                raise refused_cache(f"{variable}={named}", fault)
    return fault


def refused_cache(named: str, fault: str) -> ConfigError:
    """Return the error about a folder of compiled code that is not this user's alone."""
    return ConfigError(
        f"{named}: compiled code is loaded from this folder, and {fault}: whoever can write there could run programs "
        "as you. It and the folders above it must be yours, or root's, and closed to others (chmod -R go-w), without "
        "files of others. Remove those, or name another folder, such as VELODROME_CACHE=~/.cache/velodrome."
    )
