"""Work on several cores whose result does not depend on how many there are.

Work is cut into lanes by its size alone. One thread does a lane from beginning to end, matrix products included, and
the results of lanes are added up in order, so it does not matter which thread did which lane.

A waiting thread first watches a counter for a moment: waking it from sleep takes 50 µs on a virtual machine, a third of
the time in which a few hundred environments act. Tasks still go through queues, so only time depends on the counters.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from velodrome.errors import ConfigError
from velodrome.vector.cores import available_cores

MOST_THREADS = 256
# Looks at the counter before sleeping, each some 0.3 µs apart: longer than the time between two minibatches.
LOOKS = 1_000
COUNTER_SPACING = 16  # of 8 bytes: no two counters in one cache line or in neighbours that are fetched together


Work = Callable[[int, int], None]


def available_threads(threads: int | None) -> int:
    """Return how many threads to use: those asked for, or one per core that this process may run on."""
    if threads is None:
        return available_cores()
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MOST_THREADS:
        raise ConfigError(f"threads = {threads!r}: a whole number from 1 to {MOST_THREADS}, or None for every core")
    return threads


@intrinsic
def _look(typing_context: Any, counter: Any) -> Any:
    """Read counter[0] from memory, however often the loop around it has read it before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.load_atomic(data, ordering="acquire", align=8)

    return types.int64(counter), generate


# Lets another thread have the core, perhaps the very thread that is waited for.
_give_way = types.ExternalFunction("sched_yield", types.int32())


@njit(cache=True, nogil=True)
def _watch(counter, seen, looks):
    """Return when counter[0] is no longer what was seen, or after a number of looks."""
    for _ in range(looks):
        if _look(counter) != seen:
            break
        _give_way()


class Mailbox:
    """A queue with a counter of what was put into it, for a receiver that watches before it sleeps."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._sent = np.zeros(COUNTER_SPACING, np.int64)
        self._received = 0

    def put(self, thing: Any) -> None:
        """Hand something over."""
        self._queue.put(thing)
        self._sent[0] += 1

    def get(self) -> Any:
        """Wait for the next thing."""
        _watch(self._sent, self._received, LOOKS)
        self._received += 1
        return self._queue.get()


def _serve(tasks: Mailbox, results: Mailbox) -> None:
    """Do tasks, on this core alone, until there is None."""
    torch.set_num_threads(1)
    while (task := tasks.get()) is not None:
        try:
            task()
        except BaseException as error:
            results.put(error)
        else:
            results.put(None)
        # What a task refers to is not to live until the next one.
        del task


class Helper(NamedTuple):
    """A thread that does tasks and says, after each, None or the error that ended it."""

    thread: threading.Thread
    tasks: Mailbox
    results: Mailbox


class Lanes:
    """One thread per core, this one included, that do the lanes of one piece of work after another."""

    def __init__(self, threads: int | None = None) -> None:
        self.threads = available_threads(threads)
        self._helpers: list[Helper] = []
        self._process = os.getpid()

    def run(self, work: Work, lanes: int) -> None:
        """Call work(thread, lane) once for every lane; threads are counted from 0, which is this one."""
        pending = iter(range(lanes))
        helpers = self._started(min(self.threads, lanes) - 1)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for thread, helper in enumerate(helpers, 1):
                helper.tasks.put(functools.partial(_work_off, work, thread, pending))
            _work_off(work, 0, pending)
            for error in [helper.results.get() for helper in helpers]:
                if error is not None:
                    raise error
        except BaseException:
            # An interruption (Ctrl-C) may have left results unread, and no helper may go on writing.
            self._dismiss()
            raise
        finally:
            # The number is this thread's own, but also what new threads start with.
            torch.set_num_threads(before)

    def _started(self, count: int) -> list[Helper]:
        if self._process != os.getpid():
            # A forked process has none of its parent's threads.
            self._helpers, self._process = [], os.getpid()
        while len(self._helpers) < count:
            tasks, results = Mailbox(), Mailbox()
            name = f"velodrome lane {len(self._helpers) + 1}"
            thread = threading.Thread(target=_serve, args=(tasks, results), name=name, daemon=True)
            thread.start()
            weakref.finalize(self, tasks.put, None)
            self._helpers.append(Helper(thread, tasks, results))
        return self._helpers[:count]

    def _dismiss(self) -> None:
        """Let all helpers finish what they are at and end; the next work starts new ones."""
        helpers, self._helpers = self._helpers, []
        for helper in helpers:
            helper.tasks.put(None)
        for helper in helpers:
            helper.thread.join()


def _work_off(work: Work, thread: int, pending: Iterator[int]) -> None:
    for lane in pending:
        work(thread, lane)
