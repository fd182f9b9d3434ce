"""What may be chosen for environments of other libraries: the names of backends, and the options of workers.

Every option is declared here, once: its meaning and range in OPTIONS, its type and default in `WorkerOptions`.
`make_vec`, the backends and `VectorizedEnvConfig` all read this declaration.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, get_args

from velodrome.errors import ConfigError, did_you_mean
from velodrome.turns import Policy, PolicyName

FOREIGN_BACKENDS = ("auto", "serial", "process", "async", "ray")
# What other libraries call it, and the backend that does the same here.
SPELLINGS = {
    "DummyVecEnv": "serial",
    "SyncVectorEnv": "serial",
    "SubprocVecEnv": "process",
    "ShmemVecEnv": "process",
    "AsyncVectorEnv": "process",
}
MOST_WORKERS = 1024

StartMethod = Literal["forkserver", "spawn"]
FaultPolicy = Literal["raise", "restart", "drop"]
CheckedValues = bool | Literal["finite"] | None


def backend_name(backend: str) -> str:
    """Return our name of a backend, given ours or another library's."""
    return SPELLINGS.get(backend, backend)


class Option(NamedTuple):
    """What one option means, and its legal values: one of the choices, or a number within bounds."""

    meaning: str  # as people who configure a run read it
    needs: str  # legal values in words, or advice where there are choices
    choices: tuple[Any, ...] = ()
    kind: type = numbers.Integral
    bounds: Mapping[str, Any] = {}  # "ge", "gt", "le", as pydantic names them
    none: bool = False  # None is legal too
    of_processes: bool = True  # means nothing if environments run in this process
    or_function: bool = False  # a function is legal too

    def allows(self, value: Any) -> bool:
        """Return whether a value is legal."""
        if value is None:
            return self.none
        if self.or_function and callable(value):
            return True
        if self.choices:
            return any(type(value) is type(choice) and value == choice for choice in self.choices)  # 1 is not True
        compare = {"ge": operator.ge, "gt": operator.gt, "le": operator.le}
        is_number = isinstance(value, self.kind) and not isinstance(value, bool)
        return is_number and all(compare[name](value, bound) for name, bound in self.bounds.items())


OPTIONS = {
    "workers": Option(
        "processes that step environments; null: measured by auto, else one each core",
        f"1 … {MOST_WORKERS}, or None for one per core",
        bounds={"ge": 1, "le": MOST_WORKERS},
        none=True,
    ),
    "start_method": Option(
        "how processes are started",
        "Forking the running process is not offered: it copies locks that its threads hold.",
        choices=get_args(StartMethod),
    ),
    "on_fault": Option(
        "what to do about an environment that raises, hangs, returns nonsense or dies: stop, replace it by a new one, "
        "or go on without it (not in training)",
        "",
        choices=get_args(FaultPolicy),
        of_processes=False,
    ),
    "check_values": Option(
        "treat a value outside its space, a reward that is no finite number or a flag that is no boolean as a failure "
        "of the environment; finite: but not a finite number beyond the bounds of a Box; null: finite, and false for "
        "Velodrome's own rules",
        "",
        choices=(True, "finite", False),
        none=True,
        of_processes=False,
    ),
    "max_restarts": Option(
        "replacements of one environment before it is given up",
        "a whole number of at least 0",
        bounds={"ge": 0},
        of_processes=False,
    ),
    "timeout": Option(
        "seconds that one call of an environment in a process may take; null: for ever",
        "seconds above 0, or None to wait for ever",
        kind=numbers.Real,
        bounds={"gt": 0.0},
        none=True,
    ),
    "memory_limit": Option(
        "bytes that one process may use before it is replaced; null: no limit",
        "bytes above 0, or None for no limit",
        bounds={"ge": 1},
        none=True,
    ),
    "placement": Option(
        "which worker takes the next environment: fair, the one with the fewest; fifo, in turn; priority, the one "
        "whose environments take the least time",
        "A function of velodrome.turns.Turn is legal in make_vec.",
        choices=get_args(PolicyName),
        or_function=True,
    ),
}
# Options that mean nothing if environments run in this process.
PROCESS_OPTIONS = tuple(name for name, option in OPTIONS.items() if option.of_processes)


@dataclass(frozen=True)
class WorkerOptions:
    """How environments of other libraries are run, and what happens when one of them fails; OPTIONS says more."""

    workers: int | None = None
    start_method: StartMethod = "forkserver"
    on_fault: FaultPolicy = "raise"
    check_values: CheckedValues = None
    max_restarts: int = 10
    timeout: float | None = 60.0
    memory_limit: int | None = None
    placement: PolicyName | Policy = "fair"

    def __post_init__(self) -> None:
        for name in OPTIONS:
            check_option(name, getattr(self, name))


def check_option(name: str, value: Any) -> None:
    """Refuse a value that an option may not have."""
    option = OPTIONS[name]
    if option.allows(value):
        return
    if not option.choices:
        raise ConfigError(f"{name} = {value!r}: needs {option.needs}")
    choices = tuple(map(str, option.choices))
    told = f"{', '.join(choices)}.{did_you_mean(str(value), choices)} {option.needs}".rstrip()
    raise ConfigError(f"{name} = {value!r}; legal: {told}")


DEFAULTS = asdict(WorkerOptions())
