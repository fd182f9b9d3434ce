"""Puts a rule into the loops of `batch.py`, and tells by a hash what a loop was made of.

Functions are rebuilt with the same code and other globals: names that are Python functions become compiled ones, and
names to be substituted (the rule's functions, a user's reward) become those given. What the loops call `step` is the
rule's; what a rule's helper calls by that name is the helper's own.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from velodrome.envs.contract import LOCKSTEP, Rule, World, increment
from velodrome.envs.terms import are_drawn
from velodrome.errors import ConfigError

# Code does not change, and each evaluation rebuilds the rule that it plays: what is known of it is kept.
kept = functools.lru_cache(maxsize=4096)


@kept
def _referenced_names(code: CodeType) -> frozenset[str]:
    within = (_referenced_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*within)


@kept
def _global_names(code: CodeType) -> frozenset[str]:
    """Return the names that a function takes from its module; `step` in `state.step` is none of them."""
    names = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    within = (_global_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(names).union(*within)


def _is_plain_function(value: Any) -> bool:
    """Return whether this is a plain Python function, which must be compiled too, and not one that Numba knows."""
    # The module is None for code that was executed without a module's name (a notebook's, a doctest's).
    return isinstance(value, FunctionType) and (value.__module__ or "").split(".")[0] not in ("numba", "numpy", "math")


def rebuild(
    function: FunctionType,
    substitutions: Mapping[str, Any],
    finish: Callable[[FunctionType], Any] = lambda function: function,
    filename: str | None = None,
    known: dict[str, Any] | None = None,
) -> FunctionType:
    """Return the function with every function that it calls rebuilt and passed through `finish`.

    Names in `substitutions` stand for the values given; those of the loops only in Velodrome's own loops, and none in
    functions that are substitutes themselves: what a user's reward calls `step` is the user's.
    known: by fingerprint, functions that were rebuilt and finished before, for other loops; read and added to.
    """
    known = {} if known is None else known
    done: dict[FunctionType, Any] = {}
    begun: list[FunctionType] = [function]  # each calls the next

    def inner(value: FunctionType, names: Mapping[str, Any]) -> Any:
        if value in begun:
            circle = " → ".join(each.__qualname__ for each in (*begun[begun.index(value) :], value))
            raise ConfigError(
                f"{circle}: a function of a rule that calls itself, directly or through others, cannot be compiled for "
                "a GPU; write a loop"
            )
        if value not in done:
            begun.append(value)
            key = f"{value.__module__}.{value.__qualname__} {fingerprint(value, names)}"
            if key not in known:
                known[key] = finish(_copy_with(value, names, inner))
            done[value] = known[key]
            begun.pop()
        return done[value]

    copy = _copy_with(function, substitutions, inner)
    if filename is not None:
        copy.__code__ = copy.__code__.replace(co_filename=filename)
    return copy


def _copy_with(
    function: FunctionType, substitutions: Mapping[str, Any], inner: Callable[[FunctionType, Mapping], Any]
) -> FunctionType:
    """Return a copy that calls what `inner` makes of each function; names are those of `substitutions`."""
    namespace = dict(function.__globals__)
    of_rule = USER_FUNCTIONS in substitutions
    for name in sorted(_global_names(function.__code__)):
        if of_rule and name in REPLACED_ON_A_GPU and namespace.get(name) is not REPLACED_ON_A_GPU[name]:
            raise ConfigError(
                f"{function.__qualname__} uses a global {name!r} of its own; code for a GPU has Velodrome's of that "
                "name in its place. Choose another name."
            )
        value = substitutions.get(name, namespace.get(name))
        if _is_plain_function(value):
            namespace[name] = inner(value, _names_within(value, substitutions))
        elif name in substitutions:
            namespace[name] = value
    closure = function.__closure__
    if closure is not None:
        contents = [cell.cell_contents for cell in closure]
        closure = tuple(
            CellType(inner(value, _names_within(value, substitutions)) if _is_plain_function(value) else value)
            for value in contents
        )
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    # Numba finds a cached function's globals through its module, so the name must be that of a real one.
    copy.__module__ = function.__module__
    return copy


def _names_within(function: FunctionType, substitutions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the substitutions that apply inside a function: none, if it is a substitute of the user's, and none of
    the loops' in any other that is not of the loops.
    """
    if function in substitutions.get(USER_FUNCTIONS, ()):
        return {}
    if (function.__module__ or "").startswith(LOOPS):
        return substitutions
    return {name: value for name, value in substitutions.items() if name not in NAMES_OF_LOOPS}


LOOPS = "velodrome.vector."  # modules of the loops, and of what takes the place of their functions
OF_LOOPS = (
    "wrong_in_row wrong_in_block chosen_params CONSTANT unpack own_address copy_floats "
    "stream_floats wait_for_stores prefetch_floats"
)
NAMES_OF_LOOPS = frozenset((*Rule._fields, *OF_LOOPS.split()))
# What kernels for a GPU have other things in place of, wherever a rule names it.
REPLACED_ON_A_GPU = {"increment": increment, "are_drawn": are_drawn, "LOCKSTEP": LOCKSTEP}

# A key that is not a name: the substitutes that come from the user, each with arguments to try it on.
USER_FUNCTIONS = "functions of the user"


def check_that_it_compiles(function: FunctionType, example: tuple) -> None:
    """Compile a user's function alone, which takes a moment, and explain a failure in the user's terms."""
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
        parts = list(map(_fingerprint_constant, value))
        return f"({','.join(sorted(parts) if isinstance(value, frozenset) else parts)})"
    return f"{type(value).__name__}:{value!r}"


@kept
def _fingerprint_code(code: CodeType) -> str:
    constants = "|".join(map(_fingerprint_constant, code.co_consts))
    names = "|".join((*code.co_names, "/", *code.co_varnames, "/", *code.co_freevars))
    return hashlib.sha256(code.co_code + constants.encode() + names.encode()).hexdigest()


def fingerprint(function: FunctionType, substitutions: Mapping[str, Any]) -> str:
    """Return a hash of a function's code and of all that it refers to: functions, constants, attributes."""
    given = {name: value for name, value in substitutions.items() if name != USER_FUNCTIONS or value}
    found = _own_fingerprint(function, frozenset(given.items())) if all(map(callable, given.values())) else None
    return found or _fingerprint(function, substitutions)[0]


@kept
def _own_fingerprint(function: FunctionType, given: frozenset[tuple[str, Any]]) -> str | None:
    """Return the hash if everything is Velodrome's; what a user's functions refer to may change from call to call."""
    found, is_own = _fingerprint(function, dict(given))
    return found if is_own else None


def _fingerprint(function: FunctionType, substitutions: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the hash, and whether all functions that it is of are Velodrome's."""
    is_own = True
    digest = hashlib.sha256()
    pending, seen = [(function, substitutions)], set()
    while pending:
        current, names = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        is_own &= (current.__module__ or "").startswith("velodrome.")
        # Numba imports the module of a function that it has cached: one that has moved must be compiled again.
        digest.update(f"{current.__module__}.{_fingerprint_code(current.__code__)}".encode())
        digest.update(repr(current.__defaults__).encode())
        referenced = sorted(_referenced_names(current.__code__))
        found = [("cell", cell.cell_contents) for cell in current.__closure__ or ()]
        found += [(name, names.get(name, current.__globals__.get(name))) for name in referenced]
        for name, value in found:
            # What is read through a module counts too: settings.weight.
            if isinstance(value, ModuleType) and value.__name__.split(".")[0] not in ("numpy", "math", "numba"):
                parts = [(f"{name}.{part}", getattr(value, part)) for part in referenced if hasattr(value, part)]
            else:
                parts = [(name, value)]
            for label, part in parts:
                # A function that the user has already compiled counts by its source.
                part = getattr(part, "py_func", part)
                if _is_plain_function(part):
                    pending.append((part, _names_within(part, names)))
                digest.update(_fingerprint_value(label, part).encode())
    return digest.hexdigest(), is_own


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
    """Replace `chosen_params` in a specialised loop, where CONSTANT is the world's parameters."""
    return CONSTANT


def rule_substitutions(world: World, specialise: bool = False) -> dict[str, Any]:
    """Return what each name in the loops stands for: functions of the rule and the user and, if wanted, constants."""
    for name, function in world.substitutions.items():
        if not isinstance(function, FunctionType):
            raise ConfigError(
                f"{name.removeprefix('custom_')} must be a plain Python function (def or lambda), received "
                f"{function!r}; it is compiled together with the rule"
            )
        _check_parameters(world, name, function)
    constants = {"chosen_params": constant_params, "CONSTANT": constant_scalars(world)} if specialise else {}
    examples = world.substitution_examples
    users = {function: examples.get(name, ()) for name, function in world.substitutions.items()}
    return {**world.rule._asdict(), **world.substitutions, **constants, USER_FUNCTIONS: users}


def _check_parameters(world: World, name: str, function: FunctionType) -> None:
    """Refuse a function of the user that cannot be called with what the rule gives it."""
    example = world.substitution_examples.get(name)
    if not example:
        return
    signature = inspect.signature(function)
    try:
        signature.bind(*example)
    except TypeError as error:
        stand_ins = (getattr(each, "__globals__", {}).get(name) for each in world.rule)
        known = next((inspect.signature(each) for each in stand_ins if each is not None), None)
        legal = ", ".join(known.parameters) if known else f"{len(example)} values"
        raise ConfigError(
            f"{name.removeprefix('custom_')} takes ({legal}); {function.__qualname__} takes "
            f"({', '.join(signature.parameters)}): {error}"
        ) from error


def constant_scalars(world: World) -> Any:
    """Return the rule's scalars as floats and integers."""
    return type(world.params)(*(value if isinstance(value, float) else int(value) for value in world.params))
