"""Puts a rule into the loops of `batch.py` and compiles them, with a disk cache that hits on the second start.

Functions are rebuilt with the same code and other globals: names that are Python functions become compiled ones, and
names to be substituted (the rule's functions, a user's reward) become those given. Numba looks for its cache beside the
file that a function comes from, so each rebuilt loop is said to come from a file in a folder of Velodrome's cache that
is named by the hash of everything that the loop was made of. Changed code is another folder: a stale hit cannot be.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from velodrome.envs.contract import World
from velodrome.errors import ConfigError

CACHE_VARIABLE = "VELODROME_CACHE"


def cache_folder() -> Path:
    """Return the folder of compiled kernels: $VELODROME_CACHE, the user's cache folder, or a temporary one."""
    named = os.environ.get(CACHE_VARIABLE)
    home = os.environ.get("XDG_CACHE_HOME")
    wanted = Path(named) if named else (Path(home) if home else Path.home() / ".cache") / "velodrome"
    folder = wanted / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        fallback = Path(tempfile.gettempdir()) / f"velodrome-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
        folder = fallback / "kernels"
        folder.mkdir(parents=True, exist_ok=True)
        tell(f"the cache folder {wanted} cannot be written ({error.strerror}); compiled kernels are kept in {fallback}")
    return folder


def tell(message: str) -> None:
    """Say something to a person without getting between them and the program's output."""
    sys.stderr.write(f"velodrome: {message}\n")


def _referenced_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _referenced_names(constant)
    return names


def _is_rule_function(value: Any) -> bool:
    """Tell plain Python functions, which must be compiled too, from everything that Numba knows by itself."""
    return isinstance(value, FunctionType) and not value.__module__.startswith(("numba.", "numpy.", "math"))


def rebuild(
    function: FunctionType,
    substitutions: Mapping[str, Any],
    finish: Callable[[FunctionType], Any] = lambda function: function,
    filename: str | None = None,
    done: dict[FunctionType, Any] | None = None,
) -> Any:
    """Return the function with every function that it calls rebuilt and passed through `finish`, as is itself."""
    done = {} if done is None else done
    if function in done:
        return done[function]
    namespace = dict(function.__globals__)
    for name in sorted(_referenced_names(function.__code__)):
        value = substitutions.get(name, namespace.get(name))
        if isinstance(value, FunctionType) and _is_rule_function(value) and value is not function:
            namespace[name] = rebuild(value, substitutions, finish, None, done)
        elif name in substitutions:
            namespace[name] = value
    code = function.__code__ if filename is None else function.__code__.replace(co_filename=filename)
    copy = FunctionType(code, namespace, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    # Numba finds a cached function's globals through its module, so the name must be that of a real one.
    copy.__module__ = function.__module__
    done[function] = finish(copy)
    return done[function]


def _fingerprint_constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _fingerprint_code(value)
    if isinstance(value, tuple | frozenset):
        return "(" + ",".join(sorted(map(_fingerprint_constant, value)) if isinstance(value, frozenset) else
                              map(_fingerprint_constant, value)) + ")"  # fmt: skip
    return f"{type(value).__name__}:{value!r}"


def _fingerprint_code(code: CodeType) -> str:
    constants = "|".join(map(_fingerprint_constant, code.co_consts))
    names = "|".join((*code.co_names, "/", *code.co_varnames, "/", *code.co_freevars))
    return hashlib.sha256(code.co_code + constants.encode() + names.encode()).hexdigest()


def fingerprint(function: FunctionType, substitutions: Mapping[str, Any]) -> str:
    """Return a hash of a function's code and of everything that it refers to, functions and constants."""
    digest = hashlib.sha256()
    pending, seen = [function], set()
    while pending:
        current = pending.pop()
        if id(current.__code__) in seen:
            continue
        seen.add(id(current.__code__))
        digest.update(_fingerprint_code(current.__code__).encode())
        digest.update(repr(current.__defaults__).encode())
        for cell in current.__closure__ or ():
            digest.update(_fingerprint_global("cell", cell.cell_contents, pending).encode())
        for name in sorted(_referenced_names(current.__code__)):
            value = substitutions.get(name, current.__globals__.get(name))
            digest.update(_fingerprint_global(name, value, pending).encode())
    return digest.hexdigest()


def _fingerprint_global(name: str, value: Any, pending: list[FunctionType]) -> str:
    if isinstance(value, FunctionType) and _is_rule_function(value):
        pending.append(value)
        return f"{name}=function"
    if isinstance(value, bool | int | float | str | np.generic | tuple):
        return f"{name}={type(value).__name__}:{value!r}"
    if isinstance(value, np.dtype):
        return f"{name}=dtype:{value.descr if value.names else value.str}"
    if isinstance(value, type):
        return f"{name}=class:{value.__module__}.{value.__qualname__}:{getattr(value, '_fields', '')}"
    if isinstance(value, np.ndarray):
        return f"{name}={value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return f"{name}:{type(value).__name__}"


CONSTANT: Any = None


def constant_params(params: Any) -> Any:
    """Take the place of `chosen_params` in a specialised loop: CONSTANT is then the world's own parameters."""
    return CONSTANT


def rule_substitutions(world: World, specialise: bool = False) -> dict[str, Any]:
    """Return what takes which name's place in the loops: the rule's functions, the user's and, if asked, constants."""
    for name, function in world.substitutions.items():
        if not isinstance(function, FunctionType):
            raise ConfigError(
                f"{name} must be a plain Python function (def or lambda), received {function!r}; "
                f"it is compiled together with the rule"
            )
    constants = {"chosen_params": constant_params, "CONSTANT": constant_scalars(world)} if specialise else {}
    return {**world.rule._asdict(), **world.substitutions, **constants}


def constant_scalars(world: World) -> Any:
    """Return the rule's scalars as floats and integers only."""
    return type(world.params)(*(value if isinstance(value, float) else int(value) for value in world.params))


def kernel_folder(
    world: World, function: FunctionType, target: str, substitutions: Mapping[str, Any]
) -> tuple[Path, bool]:
    """Return the folder for a compiled loop, and whether something was compiled there before."""
    versions = "|".join(f"{name}={_version(name)}" for name in ("numba", "numba-cuda", "numpy", "llvmlite"))
    key = hashlib.sha256(
        f"{fingerprint(function, substitutions)}|{target}|{sys.version}|{versions}".encode()
    ).hexdigest()
    folder = cache_folder() / f"{world.name}-{target}-{key[:24]}"
    known = folder.is_dir() and any(folder.rglob("*.nbi"))
    folder.mkdir(exist_ok=True)
    source = folder / f"{function.__name__}.py"
    if not source.exists():
        # Numba compares size and modification time of this file only; what it stands for is in the folder's name.
        source.write_text(f'"""Stands for {function.__module__}.{function.__qualname__} of {world.name}."""\n')
    return folder, known


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"
