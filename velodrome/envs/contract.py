"""What an environment is: scalar rule functions, and the arrays they work on.

A rule is four plain functions about environment `i` of many:

    reset(i, state, tables, params)                      begin an episode
    step(i, action, state, tables, params)               -> (reward, terminated, truncated)
    observe(i, state, tables, params, out)               write the endogenous part of the observation into `out`
    finish(i, state, tables, params, out)                write the statistics of the episode that just ended into `out`

They are written in the subset of Python that Numba compiles for the CPU and for CUDA: no allocation, no exceptions, no
Python objects. The same functions run uncompiled, so a debugger can step through them. `docs/add_an_environment.md`
walks through the smallest one.

`state` is a block of LANES environments, column after column, and `i` is a lane of it: `state.cash[i]`. A batch is an
array of such blocks. To compiled code a block is one pointer, where a tuple of columns would be hundreds of arguments
to every call (docs/decisions/0001-state-in-blocks.md); on a GPU neighbouring threads read neighbouring memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import gymnasium
import numpy as np
from numpy.typing import NDArray

from velodrome.errors import ConfigError
from velodrome.tables.windows import WindowTables, no_windows


@dataclass(frozen=True)
class Column:
    """One state column: its type, and its number of rows if an environment has several values."""

    dtype: type
    rows: int | None = None  # None: one value per environment, shape [lanes]; else shape [rows, lanes]
    scratch: bool = False  # means nothing between steps, and differs from one kind of machine to another


Float64 = Annotated[NDArray[np.float64], Column(np.float64)]
Int64 = Annotated[NDArray[np.int64], Column(np.int64)]
Int32 = Annotated[NDArray[np.int32], Column(np.int32)]
Int8 = Annotated[NDArray[np.int8], Column(np.int8)]
UInt16 = Annotated[NDArray[np.uint16], Column(np.uint16)]
UInt64 = Annotated[NDArray[np.uint64], Column(np.uint64)]

LANES = 64  # environments in a block; a multiple of the 32 threads of a GPU's warp

# Every State has these; the engine seeds the generator and reads the cursor to gather windows. A column `episode`, if
# there is one, is set to 0 when an environment is seeded.
REQUIRED_COLUMNS = {"rng_key": np.uint64, "rng_counter": np.uint64, "cursor": np.int32}


class Rule(NamedTuple):
    """The four functions of an environment."""

    reset: Callable
    step: Callable
    observe: Callable
    finish: Callable


@dataclass(frozen=True)
class InstrumentLayout:
    """Which parts of an observation and of an action belong to which instrument.

    A row of every window holds the features of each instrument in turn. The first `count` components of an action
    belong to the instruments, the others to none of them.
    """

    count: int
    own: tuple[int, ...] = ()  # where runs of `count` values, one for each instrument in turn, begin in `observed`

    def shared(self, values: int) -> tuple[tuple[int, int], ...]:
        """Return [begin, end) of the observed values, of this number, that belong to no instrument."""
        begins = (0, *(first + self.count for first in sorted(self.own)))
        ends = (*sorted(self.own), values)
        return tuple((begin, end) for begin, end in zip(begins, ends, strict=True) if end > begin)

    def check(self, values: int, windows: tuple[tuple[int, int], ...]) -> None:
        """Refuse a layout that does not fit this number of observed values and windows of [rows, features]."""
        runs = sorted(self.own)
        apart = all(first + self.count <= after for first, after in pairwise((*runs, values)))
        if self.count < 1 or not apart or (runs and runs[0] < 0):
            raise ConfigError(
                f"World.instruments = {self}: needs runs of `count` values that lie side by side or apart within the "
                f"{values} observed ones."
            )
        for rows, features in windows:
            if features % self.count:
                raise ConfigError(
                    f"World.instruments has {self.count} instruments; a window of [{rows}, {features}] does not divide "
                    f"by them."
                )


@dataclass(frozen=True)
class World:
    """One environment ready to be run any number of times: its rule, its parameters and its read-only tables."""

    name: str
    rule: Rule
    state_type: type  # a class whose fields are annotated with Float64, Int32 …
    params: Any  # a NamedTuple of scalars
    tables: Any  # a NamedTuple of read-only arrays, shared by all environments
    action_space: gymnasium.Space
    observed: tuple[str, ...]  # names of the values that `observe` writes
    statistics: tuple[str, ...]  # names of the values that `finish` writes
    windows: WindowTables = field(default_factory=lambda: no_windows(0))
    window_names: tuple[str, ...] = ()
    cursors: tuple[tuple[int, int], ...] = ()  # [begin, end) of the bars that a cursor can be at; none given: all
    instruments: InstrumentLayout | None = None  # how observations and actions divide by instrument, if they do
    in_turn: bool = False  # whether environment i begins at place i: `rng.stream_index` and `episode` add up to it then
    shortest_truncation: int = 1  # the fewest steps that a truncated episode can have had
    substitutions: Mapping[str, Callable] = field(default_factory=dict)  # name in the rule -> function in its place
    substitution_examples: Mapping[str, tuple] = field(default_factory=dict)  # arguments to try each on
    reset_options: Mapping[str, str] = field(default_factory=dict)  # option of reset() -> state column that takes it
    check_options: Callable[[Mapping[str, NDArray]], None] | None = None  # raises if an option of reset() is illegal
    # Lowest and highest value of the state columns by which a rule reads its tables. Compiled code does not look: a
    # saved state beyond them is refused, because it would read or write what is not the environment's.
    index_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    describe_state: Callable[[Mapping[str, Any]], str] | None = None  # a line about an environment, given its columns
    action_names: tuple[str, ...] = ()  # of discrete actions, for people; none where they have no names

    def __post_init__(self) -> None:
        if self.instruments is not None:
            self.instruments.check(len(self.observed), self.window_shapes)

    @property
    def window_shapes(self) -> tuple[tuple[int, int], ...]:
        """[rows, features] of each window."""
        return tuple(zip(self.windows.length.tolist(), self.windows.width.tolist(), strict=True))


# Whether neighbouring environments run in lockstep and read memory together: False on CPUs; code for a GPU sees True.
# A rule may let it decide in which order things are done, never what comes out.
LOCKSTEP = False


def increment(counts: NDArray[np.int32], row: int, i: int) -> None:
    """Count something in a column of several rows. On a GPU this is an atomic addition, which nothing waits for."""
    counts[row, i] += 1


def check_name(owner: str, name: str) -> None:
    """Refuse a name that NumPy's records use for something else: uncompiled code would read that instead."""
    if hasattr(np.recarray, name) or hasattr(np.record, name):
        raise ConfigError(f"{owner}.{name}: NumPy's records have an attribute of that name; choose another")


# Resolving the annotations of a type takes milliseconds, and every batch needs them often.
@functools.lru_cache(maxsize=64)
def declared_columns(state_type: type) -> Mapping[str, Column]:
    """Return all columns of a State type by field name, checking that it has what the engine needs."""
    columns: dict[str, Column] = {}
    for name, hint in get_type_hints(state_type, include_extras=True).items():
        found = [extra for extra in get_args(hint)[1:] if isinstance(extra, Column)]
        if not found:
            raise ConfigError(
                f"{state_type.__name__}.{name} has no column type; annotate with Float64, Int64, Int32, Int8, UInt16, "
                f"UInt64 or Annotated[NDArray, Column(dtype, rows=…)] from velodrome.envs.contract"
            )
        check_name(state_type.__name__, name)
        columns[name] = found[0]
    for name, dtype in REQUIRED_COLUMNS.items():
        if name not in columns or columns[name].dtype is not dtype:
            raise ConfigError(f"{state_type.__name__} needs a column {name!r} of type {dtype.__name__}")
    return MappingProxyType(columns)


def state_columns(state_type: type) -> Mapping[str, Column]:
    """Return the columns that make up the state of an environment between steps, by field name."""
    return {name: column for name, column in declared_columns(state_type).items() if not column.scratch}


@functools.lru_cache(maxsize=64)
def state_dtype(state_type: type) -> np.dtype:
    """Return the record of one block of environments."""
    fields = [
        (name, column.dtype, (LANES,) if column.rows is None else (column.rows, LANES))
        for name, column in declared_columns(state_type).items()
    ]
    return np.dtype(fields, align=True)


def params_record(params: Any) -> NDArray:
    """Return a rule's scalars as an array of one record, in which compiled code reads `params.name`."""
    fields = [(name, np.float64 if isinstance(value, float) else np.int64) for name, value in params._asdict().items()]
    for name, _ in fields:
        check_name(type(params).__name__, name)
    # Aligned: a GPU would read the fields of a packed record byte by byte.
    record = np.array([tuple(params)], dtype=np.dtype(fields, align=True)).view(np.recarray)
    record.flags.writeable = False
    return record
