"""What parent and workers agree on: the words through which they talk, and the arrays that they share."""

from __future__ import annotations

import pickle
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from numpy.typing import NDArray

from velodrome.vector.infos import MOST_NUMBERS
from velodrome.vector.space_arrays import Leaf, leaves, nest
from velodrome.vector.workers.batch_arrays import BatchArrays
from velodrome.vector.workers.options import MOST_WORKERS
from velodrome.vector.workers.worker.shared_memory import SharedBlock

WORDS = 96  # int32 of each worker: six cache lines
DOORBELL = 0  # word that every worker of an asynchronous batch rings; those of the workers follow
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
    """What a worker must do when its bell rings."""

    STEP = 1  # all of its rows
    MESSAGE = 2  # read the pipe
    REQUESTS = 3  # look at the ring of requests


def control_block() -> SharedBlock:
    """Allocate the words of a batch."""
    return SharedBlock((MOST_WORKERS + 1) * WORDS * 4)


def control_words(block: SharedBlock) -> NDArray[np.int32]:
    """Return all words of a block."""
    return np.frombuffer(block.memory, np.int32)


def first_word(worker: int) -> int:
    """Return where a worker's words begin."""
    return (worker + 1) * WORDS


class SharedLayout:
    """Where the arrays of a batch lie in a block of shared memory, the same for parent and workers."""

    def __init__(self, observation_space: Space, action_space: Space, num_envs: int, workers: int) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        n, whole, real, flag = num_envs, np.dtype(np.int32), np.dtype(np.float64), np.dtype(bool)
        self.fields = [
            leaf._replace(shape=(n, *leaf.shape))
            for name, space in self._spaces().items()
            for leaf in leaves(space, name)
        ]
        self.fields += [
            Leaf("rewards", real, (n,)),
            Leaf("terminated", flag, (n,)),
            Leaf("truncated", flag, (n,)),
            Leaf("step_seconds", real, (n,)),
            Leaf("info_kind", whole, (n,)),
            Leaf("info_values", real, (n, MOST_NUMBERS)),
            Leaf("requests", whole, (workers, n)),
            Leaf("completions", whole, (workers, n)),
        ]

    def _spaces(self) -> dict[str, Space]:
        """Return the spaces whose arrays come first."""
        return {"observation": self.observation_space, "final": self.observation_space, "action": self.action_space}

    def view(self, block: SharedBlock) -> SharedView:
        """Return the arrays in a block."""
        arrays = block.arrays(self.fields)
        values = iter(arrays.values())
        observations, final, actions = (nest(space, values) for space in self._spaces().values())
        batch = BatchArrays(observations, final, *(arrays[name] for name in BatchArrays._fields[2:]))
        return SharedView(batch, actions, *(arrays[name] for name in SharedView._fields[2:]))


class SharedView(NamedTuple):
    """Arrays in a block of shared memory, one row per environment unless said otherwise."""

    batch: BatchArrays
    actions: Any  # nested as the action space is
    info_kind: NDArray[np.int32]  # 0: no info; k: numbers of the worker's schema k - 1; MAILED: in the pipe
    info_values: NDArray[np.float64]  # [n, numbers]
    requests: NDArray[np.int32]  # [workers, n] ring of rows to step
    completions: NDArray[np.int32]  # [workers, n] ring of rows that have stepped


MAILED = -1


def pack(message: Any) -> bytes:
    """Return a message as bytes; what plain pickle cannot name, such as classes of a script, is sent by value."""
    try:
        return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    except Exception:
        import cloudpickle

        return cloudpickle.dumps(message)
