"""A worker in an actor of Ray: the same loop over environments, with arrays of its own that are sent back by rows."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time

import numpy as np
import psutil
from numpy.typing import NDArray

from velodrome.vector.space_arrays import flat_leaves, reader
from velodrome.vector.workers.batch_arrays import copy_arrays
from velodrome.vector.workers.worker.protocol import Line, SharedLayout, control_block
from velodrome.vector.workers.worker.shared_memory import SharedBlock, size_of
from velodrome.vector.workers.worker.worker_side import Worker

LOOK_SECONDS = 0.02  # between two looks at whether an environment takes too long
GRACE_SECONDS = 1.0  # for an environment that was asked to end its call, before this process ends
NOT_SENT = ("action", "requests", "completions")  # beginnings of the names of arrays that only go one way
CHANGING = ("reset", "replaced")  # messages after which rows have other values
Rows = dict[str, NDArray]


class Outbox(list[bytes]):
    """What a worker has to say besides numbers, until it is taken; in place of a pipe."""

    def send_bytes(self, packed: bytes) -> None:
        """Keep a message."""
        self.append(packed)

    def taken(self) -> list[bytes]:
        """Return all messages, and forget them."""
        found = list(self)
        self.clear()
        return found


class RemoteWorker(Worker):
    """One worker on another machine. Environments run in the main thread, where a signal can end their calls."""

    def __init__(self, index: int) -> None:
        self.outbox = Outbox()
        super().__init__(index, 0.0, control_block(), self.outbox, None)
        self.fields: Rows = {}
        self.process = psutil.Process()
        signal.signal(signal.SIGUSR1, self.interrupt)
        threading.Thread(target=self._watch, daemon=True).start()

    def message(self, packed: bytes) -> tuple[list[bytes], Rows, int]:
        """Do something rare; return messages, the rows that it changed, and the bytes that this process uses."""
        mail = self.handle(packed)
        self.send(mail)
        name, *arguments = pickle.loads(packed)
        rows = arguments[0] if name in CHANGING else []
        return self.outbox.taken(), self._values_of(rows), self._memory()

    def step(self, rows: list[int], actions: list[NDArray]) -> tuple[list[bytes], Rows, int]:
        """Step some environments, in this order; return what `message` returns."""
        index = np.asarray(rows)
        for target, given in zip(self.actions, actions, strict=True):
            target[index] = given
        requests, words = self.shared.requests[self.index], self.words
        first = words[self.first + Line.REQUESTS]
        requests[(first + np.arange(len(rows))) % len(requests)] = index
        words[self.first + Line.REQUESTS] = first + len(rows)
        self.step_requested()
        return self.outbox.taken(), self._values_of(rows), self._memory()

    def on_attach(self, shared: SharedLayout) -> None:
        """Use other arrays from now on, which nobody shares."""
        before = getattr(self, "shared", None)
        self.block = SharedBlock(size_of(shared.fields))
        self.fields = self.block.arrays(shared.fields)
        self.shared = shared.view(self.block)
        self.block.close()
        if before is not None:
            copy_arrays(before.batch, self.shared.batch, min(len(before.info_kind), len(self.shared.info_kind)))
        self.host.attach(self.shared.batch, shared.observation_space)
        self.read_action = reader(shared.action_space, self.shared.actions)
        self.actions = flat_leaves(shared.action_space, self.shared.actions)
        for word in (Line.REQUESTS, Line.TAKEN, Line.COMPLETIONS):
            self.words[self.first + word] = 0

    def _values_of(self, rows: list[int]) -> Rows:
        """Return the values of some rows by the name of their array; infos are told once."""
        if not rows:
            return {}
        index = np.asarray(rows)
        found = {name: array[index] for name, array in self.fields.items() if not name.startswith(NOT_SENT)}
        self.shared.info_kind[index] = 0
        return found

    def _memory(self) -> int:
        used = self.process.memory_info()
        return used.rss - getattr(used, "shared", 0)

    def _watch(self) -> None:
        """End the call of an environment that takes too long; if that does not help, this process."""
        progress, since = (0, 0), time.monotonic()
        while True:
            time.sleep(LOOK_SECONDS)
            found, now = self._progress(), time.monotonic()
            limit = self.host.options.timeout if hasattr(self, "host") else None
            if found != progress or not found[0]:
                progress, since = found, now
            elif limit is not None and now - since > limit:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                time.sleep(GRACE_SECONDS)
                if self._progress() == progress:
                    os._exit(1)
                progress, since = self._progress(), time.monotonic()

    def _progress(self) -> tuple[int, int]:
        return self.words[self.first + Line.CURRENT], self.words[self.first + Line.TAKEN]
