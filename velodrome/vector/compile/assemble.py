"""Puts a rule into the loops of `batch.py` and compiles them, with a disk cache that hits on the second start.

Functions are rebuilt with the same code and other globals: names that are Python functions become compiled ones, and
names to be substituted (the rule's functions, a user's reward) become those given. Numba looks for its cache beside the
file that a function comes from, so each rebuilt loop is said to come from a file in a folder of Velodrome's cache that
is named by the hash of everything that the loop was made of. Changed code is another folder: a stale hit cannot be.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
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
    return writable_folder(wanted)


@functools.cache
def writable_folder(wanted: Path) -> Path:
    """Return the kernels' folder within a wanted one or, if that cannot be written, within a temporary one."""
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
    """Return a folder that is this user's alone: compiled code is loaded from it."""
    user = os.getuid() if hasattr(os, "getuid") else None
    folder = Path(tempfile.gettempdir()) / f"velodrome-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_mine = not folder.is_symlink() and (user is None or (status.st_uid == user and not status.st_mode & 0o022))
    except OSError:
        is_mine = False
    return folder if is_mine else Path(tempfile.mkdtemp(prefix="velodrome-"))


def tell(message: str) -> None:
    """Say something to a person without getting between them and the program's output."""
    sys.stderr.write(f"velodrome: {message}\n")


def _referenced_names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _referenced_names(constant)
    return names


def _is_plain_function(value: Any) -> bool:
    """Tell plain Python functions, which must be compiled too, from everything that Numba knows by itself."""
    # Code that was executed without a module's name (a notebook's, a doctest's) has None for it.
    return isinstance(value, FunctionType) and (value.__module__ or "").split(".")[0] not in ("numba", "numpy", "math")


def rebuild(
    function: FunctionType,
    substitutions: Mapping[str, Any],
    finish: Callable[[FunctionType], Any] = lambda function: function,
    filename: str | None = None,
    known: dict[str, Any] | None = None,
) -> FunctionType:
    """Return the function with every function that it calls rebuilt and passed through `finish`.

    Names in `substitutions` stand for the values given, except within functions that are substitutes themselves: what a
    user's reward calls `step` is the user's.
    known: by fingerprint, functions that were rebuilt and finished before, for other loops; taken from and added to.
    """
    return _rebuild(function, substitutions, finish, {}, {} if known is None else known, filename)


def _rebuild(
    function: FunctionType,
    substitutions: Mapping[str, Any],
    finish: Callable[[FunctionType], Any],
    done: dict[FunctionType, Any],
    known: dict[str, Any],
    filename: str | None = None,
) -> FunctionType:
    def inner(value: FunctionType, names: Mapping[str, Any]) -> Any:
        if value not in done:
            key = f"{value.__module__}.{value.__qualname__} {fingerprint(value, names)}"
            if key not in known:
                known[key] = finish(_rebuild(value, names, finish, done, known))
            done[value] = known[key]
        return done[value]

    namespace = dict(function.__globals__)
    for name in sorted(_referenced_names(function.__code__)):
        value = substitutions.get(name, namespace.get(name))
        if _is_plain_function(value) and value is not function:
            namespace[name] = inner(value, _names_within(value, substitutions))
        elif name in substitutions:
            namespace[name] = value
    closure = function.__closure__
    if closure is not None:
        contents = [cell.cell_contents for cell in closure]
        closure = tuple(
            CellType(inner(value, substitutions) if _is_plain_function(value) else value) for value in contents
        )
    code = function.__code__ if filename is None else function.__code__.replace(co_filename=filename)
    copy = FunctionType(code, namespace, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    # Numba finds a cached function's globals through its module, so the name must be that of a real one.
    copy.__module__ = function.__module__
    return copy


def _names_within(function: FunctionType, substitutions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the substitutions that reach into a function: none of the rule's, if it is a user's substitute."""
    return {} if function in substitutions.get(USER_FUNCTIONS, ()) else substitutions


# A key that is no name: the substitutes that are a user's, each with arguments to try it on.
USER_FUNCTIONS = "functions of the user"


def check_that_it_compiles(function: FunctionType, example: tuple) -> None:
    """Compile a user's function by itself, which takes a moment, and explain a failure in the user's own terms."""
    if not example:
        return
    from numba import njit
    from numba.core.errors import NumbaError

    try:
        result = njit(rebuild(function, {}, njit))(*example)
    except NumbaError as error:
        raise ConfigError(
            f"{function.__qualname__} cannot be compiled; it may use scalars, `math` and plain functions only, no "
            f"objects, strings or lists. What Numba says:\n{str(error).strip()}"
        ) from error
    if not isinstance(result, int | float):
        raise ConfigError(f"{function.__qualname__} must return a number, received {result!r}")


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
    """Return a hash of a function's code and of everything that it refers to: functions, constants, attributes."""
    digest = hashlib.sha256()
    pending, seen = [(function, substitutions)], set()
    while pending:
        current, names = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        digest.update(_fingerprint_code(current.__code__).encode())
        digest.update(repr(current.__defaults__).encode())
        referenced = sorted(_referenced_names(current.__code__))
        found = [("cell", cell.cell_contents) for cell in current.__closure__ or ()]
        found += [(name, names.get(name, current.__globals__.get(name))) for name in referenced]
        for name, value in found:
            # What is read through a module or a class counts too: settings.weight.
            if isinstance(value, ModuleType) and value.__name__.split(".")[0] not in ("numpy", "math", "numba"):
                parts = [(f"{name}.{part}", getattr(value, part)) for part in referenced if hasattr(value, part)]
            else:
                parts = [(name, value)]
            for label, part in parts:
                # A function that the user has compiled already counts by its source.
                part = getattr(part, "py_func", part)
                if _is_plain_function(part):
                    pending.append((part, _names_within(part, names)))
                digest.update(_fingerprint_value(label, part).encode())
    return digest.hexdigest()


def _fingerprint_value(name: str, value: Any) -> str:
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
                f"{name.removeprefix('custom_')} must be a plain Python function (def or lambda), received "
                f"{function!r}; it is compiled together with the rule"
            )
    constants = {"chosen_params": constant_params, "CONSTANT": constant_scalars(world)} if specialise else {}
    users = {
        USER_FUNCTIONS: {
            function: world.substitution_examples.get(name, ()) for name, function in world.substitutions.items()
        }
    }
    return {**world.rule._asdict(), **world.substitutions, **constants, **users}


def constant_scalars(world: World) -> Any:
    """Return the rule's scalars as floats and integers only."""
    return type(world.params)(*(value if isinstance(value, float) else int(value) for value in world.params))


def kernel_folder(
    name: str, function: FunctionType, target: str, substitutions: Mapping[str, Any], how: str = ""
) -> Path:
    """Return the folder for a compiled function; if it is new, check the user's functions and tell the user.

    how: says apart what else decides on the code that is generated.
    """
    versions = "|".join(f"{package}={_version(package)}" for package in ("numba", "numba-cuda", "numpy", "llvmlite"))
    key = hashlib.sha256(f"{fingerprint(function, substitutions)}|{target}|{sys.version}|{versions}|{how}".encode())
    label = re.sub(r"[^A-Za-z0-9_]+", "-", f"{name}-{target}")
    folder = cache_folder() / f"{label}-{key.hexdigest()[:24]}"
    source = folder / f"{function.__name__}.py"
    if not source.exists():
        for user_function in substitutions.get(USER_FUNCTIONS, {}).items():
            check_that_it_compiles(*user_function)
        tell(f"compiling {name} ({target}); the next start is faster")
        folder.mkdir(exist_ok=True)
        # Numba compares size and modification time of this file only; what it stands for is in the folder's name.
        source.write_text(f'"""Stands for {function.__module__}.{function.__qualname__} of {name}."""\n')
    return folder


@functools.cache
def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"
