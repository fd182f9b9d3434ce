"""One environment of a rule from outside, played in plain Python before the rule is compiled.

Compiled code does not look where it writes: a value too many goes into the next environment's row. Here every row has
its exact length, and is filled with a mark by which a value that was never written is known.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from velodrome.envs.contract import World, declared_columns
from velodrome.errors import ConfigError
from velodrome.vector.compile.assemble import USER_FUNCTIONS, rebuild, rule_substitutions

if TYPE_CHECKING:
    from velodrome.vector.native import NativeVectorEnv

ADVICE = "backend='python' runs the rule uncompiled, so that a debugger stops there."
FORMS = {
    "reset": "reset(i, state, tables, params)",
    "step": "step(i, action, state, tables, params), which returns (reward, terminated, truncated)",
    "observe": "observe(i, state, tables, params, out)",
    "finish": "finish(i, state, tables, params, out)",
}
# NaN with digits of its own: a rule that writes NaN writes another.
MARKS = {np.dtype(np.float32): 0x7FC0_5EED, np.dtype(np.float64): 0x7FF8_0000_0000_5EED}
WORDS = {np.dtype(np.float32): np.uint32, np.dtype(np.float64): np.uint64}
MOST_NAMED = 8  # values in an error

_rehearsed: set[Any] = set()


def is_from_outside(world: World) -> bool:
    """Return whether one of the four functions is not Velodrome's own."""
    return any(not (function.__module__ or "").startswith("velodrome.") for function in world.rule)


def rehearse(world: World, make: Callable[[], NativeVectorEnv]) -> None:
    """Play one environment once, and explain in the terms of the rule what is wrong with it.

    Velodrome's own rules are proven by its tests. make: a batch of one environment, uncompiled, without windows.
    """
    if not is_from_outside(world):
        return
    key = (world.rule, world.observed, world.statistics, world.state_type)
    if key in _rehearsed:
        return
    functions = _playable(world)
    envs = make()
    lane, action = np.uint32(0), _action_of(envs)
    with np.errstate(all="ignore"):
        with _explained(world, "reset"):
            envs.reset(seed=0)
        shared = envs.buffers.blocks[0], world.tables, envs.params_of_rule()
        _write(world, "observe", functions["observe"], (lane, *shared))
        with _explained(world, "step"):
            returned = functions["step"](lane, action, *shared)
        _check_result(world, returned)
        _write(world, "observe", functions["observe"], (lane, *shared))
        _write(world, "finish", functions["finish"], (lane, *shared))
    _rehearsed.add(key)


def _playable(world: World) -> dict[str, Callable]:
    """Return the rule's functions, uncompiled, with those of the user that they call."""
    known = {**world.substitutions, USER_FUNCTIONS: rule_substitutions(world)[USER_FUNCTIONS]}
    return {name: rebuild(_plain(function), known) for name, function in world.rule._asdict().items()}


def _action_of(envs: NativeVectorEnv) -> Any:
    space = copy.deepcopy(envs.single_action_space)  # its generator is the user's
    space.seed(0)
    return envs.checked(np.asarray(space.sample())[None])[0]


def _write(world: World, role: str, function: Callable, arguments: tuple) -> None:
    """Let a function write into a row of the length that the world declares, and look at what it wrote."""
    dtype = np.dtype(np.float32 if role == "observe" else np.float64)
    field, names = _declared(world, role)
    row = np.full(len(names), MARKS[dtype], WORDS[dtype])
    with _explained(world, role):
        function(*arguments, row.view(dtype).view(_Row))
    left = [name for name, bits in zip(names, row.tolist(), strict=True) if bits == MARKS[dtype]]
    if left:
        raise ConfigError(
            f"{_named(world, role)} writes no value for {_listed(left)}: `out` has a place for each name in {field} = "
            f"({_listed(names)}). Write all of them in every call, or leave names out."
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(map(repr, names[:MOST_NAMED]))}{more}"


def _declared(world: World, role: str) -> tuple[str, tuple[str, ...]]:
    return ("observed", world.observed) if role == "observe" else ("statistics", world.statistics)


class _Row(np.ndarray):
    """A row that counting from the end does not reach either: compiled code would write before it."""

    def __setitem__(self, place: Any, value: Any) -> None:
        if isinstance(place, int | np.integer) and place < 0:
            raise IndexError(f"index {place} is out of bounds for axis 0 with size {self.size}")
        super().__setitem__(place, value)


def _check_result(world: World, returned: Any) -> None:
    if not isinstance(returned, tuple) or len(returned) != 3:
        raise ConfigError(
            f"{_named(world, 'step')} returned {returned!r}; a step returns three values: (reward, terminated, "
            f"truncated). {ADVICE}"
        )
    for name, value in zip(("reward", "terminated", "truncated"), returned, strict=True):
        if not isinstance(value, bool | int | float | np.number | np.bool_):
            raise ConfigError(f"{_named(world, 'step')} returned {name} = {value!r}; it must be a number. {ADVICE}")


def _plain(function: Any) -> Any:
    """Return a function as it was written, where its author has compiled it already."""
    return getattr(function, "py_func", function)


def _named(world: World, role: str) -> str:
    function = _plain(getattr(world.rule, role))
    code = function.__code__
    return f"{role} of the rule {world.name!r} ({function.__qualname__}, {code.co_filename}:{code.co_firstlineno})"


@contextmanager
def _explained(world: World, role: str) -> Iterator[None]:
    """Raise what a function of the rule raises as an error that names it, the line, and what is legal."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        frames = list(traceback.walk_tb(error.__traceback__))
        codes = {_plain(function).__code__: name for name, function in world.rule._asdict().items()}
        role = next((codes[frame.f_code] for frame, _ in frames if frame.f_code in codes), role)
        raise ConfigError(
            f"{_named(world, role)} raised {type(error).__name__}{_place(frames)}: {error}. It was played once in "
            f"plain Python before it is compiled. The engine calls {FORMS[role]}, with {_legal(world, role)}. {ADVICE}"
        ) from error


def _place(frames: list[tuple[FrameType, int]]) -> str:
    """Return where the rule was when it raised; a call with the wrong number of arguments never got there."""
    own = [(frame.f_code.co_filename, line) for frame, line in frames if not _is_of_library(frame)]
    return f" at {own[-1][0]}:{own[-1][1]}" if own else ""


def _is_of_library(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").split(".")[0] in ("numpy", "velodrome", "contextlib")


def _legal(world: World, role: str) -> str:
    if role in ("reset", "step"):
        return f"the columns {', '.join(declared_columns(world.state_type))} in `state`"
    field, names = _declared(world, role)
    return f"room in `out` for {len(names)} values: {field} = ({_listed(names)})"


@contextmanager
def compiling(world: World) -> Iterator[None]:
    """Explain a rule from outside that cannot be compiled."""
    from numba.core.errors import NumbaError

    try:
        yield
    except (NumbaError, KeyError, RuntimeError, NotImplementedError) as error:
        functions = ", ".join(f"{name} {function.__qualname__}" for name, function in world.rule._asdict().items())
        code = _plain(world.rule.step).__code__
        raise ConfigError(
            f"the rule {world.name!r} ({functions}; {code.co_filename}) cannot be compiled: it may use scalars, "
            f"`math`, plain functions and the columns of its state, no lists, strings, objects or exceptions. "
            f"backend='python' runs it uncompiled. What Numba says:\n{str(error).strip()}"
        ) from error
