"""What the processes of a batch agree on: the words by which they talk, and the arrays that they share."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.vector.infos import MOST_NUMBERS
from velodrome.vector.space_arrays import leaves, nest
from velodrome.vector.workers.faults import FaultSettings
from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.env_host import BatchArrays
from velodrome.vector.workers.worker.shared_memory import Field, SharedBlock

WORDS = 96  # int32 of each worker: six cache lines
DOORBELL = 0  # word that every worker of an asynchronous batch rings; those of the workers follow
MOST_WORKERS = 1024
WRAP = 0x7FFFFFFF  # counters stay positive as int32


class Line(IntEnum):
    """Words of one worker. Each cache line has one writer, so that no two processes fight over it."""

    BELL = 0  # parent: changed when there is something to do; its two lowest bits are the command
    REQUESTS = 2  # parent: environments asked to step so far (asynchronous)
    ASLEEP = 16  # worker: sleeps on BELL
    DONE = 32  # worker: the last BELL that it has answered
    CURRENT = 33  # worker: 1 + the row whose environment runs; 0: none
    TAKEN = 34  # worker: requests taken so far (asynchronous)
    COMPLETIONS = 35  # worker: environments that have stepped so far (asynchronous)
    MAIL = 36  # worker: messages sent so far
    NEWS = 37  # worker: whether an episode ended, or there are infos or faults, in this step
    AWAITED = 48  # parent: sleeps on DONE


class Command(IntEnum):
    """What a worker is to do when its bell rings."""

    STEP = 1  # all of its rows
    MESSAGE = 2  # read the pipe
    REQUESTS = 3  # look at the ring of requests


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker is told when it starts."""

    index: int
    makers: list[EnvMaker]
    mode: AutoresetMode
    faults: FaultSettings
    seed: int  # of environments that replace others
    spin: float  # seconds


def control_words(block: SharedBlock) -> NDArray[np.int32]:
    """Return all words of a block."""
    return np.frombuffer(block.memory, np.int32)


def first_word(worker: int) -> int:
    """Return where a worker's words begin."""
    return (worker + 1) * WORDS


class SharedRows:
    """The arrays of a batch in shared memory, the same for parent and workers."""

    def __init__(self, observation_space: Space, action_space: Space, num_envs: int, workers: int) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.num_envs, self.workers = num_envs, workers
        n = num_envs
        self.observation_leaves = leaves(observation_space, "observation")
        self.action_leaves = leaves(action_space, "action")
        self.fields = [
            *self._fields("observation", self.observation_leaves),
            *self._fields("final", self.observation_leaves),
            *self._fields("action", self.action_leaves),
            Field("rewards", np.dtype(np.float64), (n,)),
            Field("terminated", np.dtype(bool), (n,)),
            Field("truncated", np.dtype(bool), (n,)),
            Field("step_seconds", np.dtype(np.float64), (n,)),
            Field("info_kind", np.dtype(np.int32), (n,)),
            Field("info_values", np.dtype(np.float64), (n, MOST_NUMBERS)),
            Field("requests", np.dtype(np.int32), (workers, n)),
            Field("completions", np.dtype(np.int32), (workers, n)),
        ]

    def _fields(self, prefix: str, parts: list[Any]) -> list[Field]:
        return [Field(f"{prefix}{index}", leaf.dtype, (self.num_envs, *leaf.shape)) for index, leaf in enumerate(parts)]

    def view(self, block: SharedBlock) -> SharedView:
        """Return the arrays in a block."""
        arrays = block.arrays(self.fields)

        def nested(space: Space, prefix: str, parts: list[Any]) -> Any:
            return nest(space, [arrays[f"{prefix}{index}"] for index in range(len(parts))])

        rows = BatchArrays(
            observations=nested(self.observation_space, "observation", self.observation_leaves),
            final_observations=nested(self.observation_space, "final", self.observation_leaves),
            rewards=arrays["rewards"], terminated=arrays["terminated"], truncated=arrays["truncated"],
            step_seconds=arrays["step_seconds"],
        )  # fmt: skip
        return SharedView(
            rows, nested(self.action_space, "action", self.action_leaves), arrays["info_kind"], arrays["info_values"],
            arrays["requests"], arrays["completions"], arrays,
        )  # fmt: skip


@dataclass(frozen=True)
class SharedView:
    """Arrays in a block of shared memory, one row per environment unless said otherwise."""

    rows: BatchArrays
    actions: Any  # nested as the action space is
    info_kind: NDArray[np.int32]  # 0: no info; k: numbers of the worker's schema k - 1; MAILED: in the pipe
    info_values: NDArray[np.float64]  # [n, numbers]
    requests: NDArray[np.int32]  # [workers, n] ring of rows to step
    completions: NDArray[np.int32]  # [workers, n] ring of rows that have stepped
    arrays: dict[str, NDArray]


MAILED = -1


def pack(message: Any) -> bytes:
    """Return a message as bytes; what plain pickle cannot name, such as classes of a script, travels by value."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception:
        import cloudpickle

        return cloudpickle.dumps(message)
