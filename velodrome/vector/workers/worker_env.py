"""Environments in worker processes: starting the workers, spreading rows over them, asking them, closing them.

How they are stepped is in `process.py` (all at once) and `asynchronous.py` (each for itself).
"""

from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from velodrome.errors import BackendError, VelodromeError
from velodrome.turns import Turn, policy_of
from velodrome.vector.cores import available_cores
from velodrome.vector.infos import Schema
from velodrome.vector.space_arrays import flat_leaves
from velodrome.vector.workers.batch_arrays import copy_arrays
from velodrome.vector.workers.env_host import HostSettings
from velodrome.vector.workers.env_maker import EnvMaker, registered_here
from velodrome.vector.workers.faults import EnvironmentFaultError, Fault
from velodrome.vector.workers.foreign_env import ForeignVectorEnv
from velodrome.vector.workers.pending import checked_timeout
from velodrome.vector.workers.worker.parent_side import LEAVE_SECONDS, RefusedError, WorkerHandle, WorkerLostError
from velodrome.vector.workers.worker.protocol import SharedLayout, SharedView, control_block
from velodrome.vector.workers.worker.shared_memory import SharedBlock, size_of
from velodrome.vector.workers.worker.wakeups import spin_seconds

Lost = tuple[WorkerHandle, WorkerLostError]


class Asked(NamedTuple):
    """Questions to workers, and what came back so far."""

    waiting: deque[WorkerHandle]
    answers: list[tuple[WorkerHandle, Any]]
    lost: list[Lost]
    refused: list[RefusedError]


class WorkerVectorEnv(ForeignVectorEnv):
    """n environments in worker processes: one process per core or as `options.workers` says, at most n."""

    shared: SharedView

    def __init__(self, makers: list[EnvMaker], num_envs: int, **shared: Any) -> None:
        super().__init__(makers, num_envs, **shared)
        self._busy = ""  # what workers were asked to do and has not been waited for: step, reset, call
        self.most_workers = self.options.workers or self._default_workers()
        self.workers: list[WorkerHandle] = []
        self.schemas: dict[int, list[Schema]] = {}
        self._block: SharedBlock | None = None
        self.control = control_block()
        self._finalizer = weakref.finalize(self, _close_workers, self.workers, self.control)
        _BATCHES.add(self)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    # Start

    @property
    def num_workers(self) -> int:
        """How many worker processes there are."""
        return len(self.workers)

    def _begin(self) -> None:
        for _ in range(min(self.most_workers, self.num_envs)):
            self._start_worker()
        first = self.workers[0]
        try:
            for worker in self.workers:
                worker.answer()
            description = first.asked("describe", 0)
        except (WorkerLostError, BackendError) as error:
            raise EnvironmentFaultError([start_fault(first, error)], "No environment could be made.") from error
        self._describe(description._replace(spec=self.makers[0].with_own(description.spec)))
        self._move_to_new_block(self.num_envs)
        self._make_rows(self._spread_rows(0, self.num_envs))

    def _start_worker(self, index: int | None = None) -> WorkerHandle:
        """Start a further worker, or one in place of another."""
        index = len(self.workers) if index is None else index
        settings = HostSettings(self.makers, self.mode, self.options, self._spare_seed, registered_here())
        handle = self._new_worker(index, settings)
        self.schemas[index] = []
        self.workers[index : index + 1] = [handle]
        return handle

    def _default_workers(self) -> int:
        """Return how many workers there are if nobody says how many."""
        return available_cores()

    def _new_worker(self, index: int, settings: HostSettings) -> WorkerHandle:
        """Return a worker that has begun."""
        processes = min(self.most_workers, self.num_envs) + 1
        return WorkerHandle(index, settings, self.control, spin_seconds(processes))

    def _spread_rows(self, first: int, end: int) -> dict[int, list[tuple[int, int]]]:
        """Give each row to the worker whose turn it is; return (row, restarts) for each by the worker's index."""
        new: dict[int, list[tuple[int, int]]] = {}
        policy = policy_of(self.options.placement)
        taken = self.arrays.step_seconds if first else ()  # nothing has been stepped yet
        seconds = {worker: sum(taken[row] for row in worker.rows) for worker in self.workers}

        def turn(worker: WorkerHandle) -> Any:
            last = float(worker.rows[-1]) if worker.rows else -1.0
            return policy(Turn(0, len(worker.rows), last, last, f"{worker.index:06d}", seconds[worker]))

        for row in range(first, end):
            worker = min(self.workers, key=turn)
            worker.rows.append(row)
            new.setdefault(worker.index, []).append((row, 0))
        return new

    def _move_to_new_block(self, num_envs: int) -> None:
        """Allocate shared arrays, copy what the old ones held, and let all workers use them."""
        spaces = self.single_observation_space, self.single_action_space
        layout = SharedLayout(*spaces, num_envs, max(1, len(self.workers)))
        block = SharedBlock(size_of(layout.fields))
        view = layout.view(block)
        if self._block is not None:
            old, kept = self.shared, min(num_envs, len(self.arrays.rewards))
            copy_arrays(old.batch, view.batch, kept)
            view.info_kind[:kept], view.info_values[:kept] = old.info_kind[:kept], old.info_values[:kept]
        self.layout, self.shared, self.arrays = layout, view, view.batch
        self._actions = flat_leaves(self.single_action_space, view.actions)
        self._close_block()
        self._block = block  # its descriptor is sent to workers that start later
        for worker in self.workers:
            with setting_up(worker):
                worker.asked("attach", layout, block=block)

    def _close_block(self) -> None:
        if self._block is not None:
            self._block.close()

    def _make_rows(self, rows: dict[int, list[tuple[int, int]]]) -> None:
        """Let workers make environments, (row, restarts) each, all at the same time; raise if one cannot be made."""
        questions = {index: ("make", own, self.layout) for index, own in rows.items() if own}
        answers, lost = self._answers(self._send_questions(questions))
        faults = [fault for _, failed in answers for fault in failed]
        faults += [start_fault(worker, error) for worker, error in lost]
        if faults:
            self.faults += faults
            self._broken |= {fault.environment for fault in faults}
            raise EnvironmentFaultError(faults, "It could not be made.")

    def _replace_worker(self, worker: WorkerHandle, rows: dict[int, int]) -> WorkerHandle:
        """Start a worker in place of a lost one, with new environments for these rows: row -> restarts."""
        worker.close(0.0)
        self.worker_restarts += 1
        self.shared.info_kind[worker.rows] = 0  # their schemas were lost with the worker
        replacement = self._start_worker(worker.index)
        replacement.rows = list(worker.rows)
        assert self._block is not None
        with setting_up(replacement):
            replacement.answer()
            replacement.asked("attach", self.layout, block=self._block)
        if rows:
            self._make_rows({worker.index: list(rows.items())})
        gone = [row for row in worker.rows if row not in rows]
        if gone:
            with setting_up(replacement):
                replacement.asked("drop", gone)
        return replacement

    # Ask

    def _finish(self) -> Any:
        """Wait for the end of what was begun, if anything was, and return its results."""
        raise NotImplementedError

    def _send_questions(self, questions: dict[int, tuple]) -> Asked:
        """Ask workers, by index, all at the same time; `_answers` waits for what they say."""
        asked = Asked(deque(), [], [], [])
        for worker in (worker for worker in self.workers if worker.index in questions):
            try:
                worker.ask(*questions[worker.index])
                asked.waiting.append(worker)
            except WorkerLostError as error:
                asked.lost.append((worker, error))
        return asked

    def _answers(self, asked: Asked) -> tuple[list[tuple[WorkerHandle, Any]], list[Lost]]:
        """Return the answers of workers, and the workers that were lost.

        If the caller is interrupted, a second call goes on where the first stopped.
        """
        while asked.waiting:
            worker = asked.waiting[0]
            try:
                asked.answers.append((worker, worker.answer()))
            except WorkerLostError as error:
                asked.lost.append((worker, error))
            except RefusedError as error:  # the others' answers are on their way and must be taken
                asked.refused.append(error)
            asked.waiting.popleft()
        for refused in asked.refused:
            if refused.original is None:
                raise refused
            raise refused.original from refused
        return asked.answers, asked.lost

    def _begin_asking(self, rows: list[int], question: Callable[[list[int]], tuple]) -> None:
        """Ask each worker about those of the rows that it has."""
        self._finish()
        own = self._rows_by_worker(rows)
        self._asked = self._send_questions({index: question(mine) for index, mine in own.items()})
        self._asked_rows = rows, own
        self._busy = "call"

    def _finish_call(self) -> list[Any]:
        """Return the answers by row."""
        rows, own = self._asked_rows
        try:
            answers, lost = self._answers(self._asked)
        finally:
            self._busy = "call" if self._asked.waiting else ""
        for worker, error in lost:
            with setting_up(worker):
                raise error
        found: dict[int, Any] = {}
        for worker, answer in answers:
            mine = own[worker.index]
            found |= dict(zip(mine, answer or [None] * len(mine), strict=True))
        return [found[row] for row in rows]

    def _rows_by_worker(self, rows: Iterable[int]) -> dict[int, list[int]]:
        wanted = set(rows)
        own = {worker.index: [row for row in worker.rows if row in wanted] for worker in self.workers}
        return {index: mine for index, mine in own.items() if mine}

    def _ask_rows(self, rows: list[int], question: str, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        self._begin_asking(rows, lambda own: ("ask", own, question, arguments, keywords))
        return self._finish()

    def _set_rows(self, rows: list[int], name: str, values: list[Any]) -> None:
        value_of = dict(zip(rows, values, strict=True))
        self._begin_asking(rows, lambda own: ("set_attribute", own, name, [value_of[row] for row in own]))
        self._finish()

    # Size

    def _resize_rows(self, num_envs: int) -> None:
        self._finish()
        self._close_rows(num_envs)
        started = [self._start_worker() for _ in range(len(self.workers), min(self.most_workers, num_envs))]
        for worker in started:
            with setting_up(worker):
                worker.answer()
        new = self._spread_rows(self.num_envs, num_envs)
        self._move_to_new_block(num_envs)
        try:
            self._make_rows(new)
        except VelodromeError:
            # Go back to the rows of before.
            self._broken = {row for row in self._broken if row < self.num_envs}
            self._close_rows(self.num_envs)
            self._move_to_new_block(self.num_envs)
            raise

    def _close_rows(self, num_envs: int) -> None:
        """Close the environments of all rows from a number on, and workers that have none left."""
        for worker in self.workers:
            gone = [row for row in worker.rows if row >= num_envs]
            worker.rows = [row for row in worker.rows if row < num_envs]
            if gone and not worker.lost:
                with setting_up(worker):
                    worker.asked("remove", gone)
        while len(self.workers) > 1 and not self.workers[-1].rows:
            worker = self.workers.pop()
            worker.leave()
            worker.close()

    def memory_of_workers(self) -> int:
        """Return the bytes of memory that all workers use."""
        return sum(worker.memory() for worker in self.workers)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the environments and end the workers; kill those that do not end within `timeout` seconds.

        timeout: 5 seconds by default.
        terminate: kill them at once.
        """
        closing = self._finalizer.detach() if hasattr(self, "_finalizer") else None
        if closing is not None:
            self.closing = True
            seconds = LEAVE_SECONDS if timeout is None else checked_timeout(timeout)
            workers, control = closing[2]
            _close_workers(workers, control, 0.0 if terminate else seconds)
            self._close_block()


@contextlib.contextmanager
def setting_up(worker: WorkerHandle) -> Iterator[None]:
    """Do something with a worker that is not expected to fail."""
    try:
        yield
    except WorkerLostError as lost:
        raise EnvironmentFaultError([start_fault(worker, lost)], "The worker could not be set up.") from lost


def start_fault(worker: WorkerHandle, error: Exception) -> Fault:
    """Return the record of a worker that failed before it had environments to lose."""
    row = worker.rows[0] if worker.rows else 0
    if isinstance(error, WorkerLostError):
        return Fault(row if error.row is None else error.row, worker.index, error.kind, error.message, "", "make")
    head, _, rest = str(error).partition("\n")
    return Fault(row, worker.index, "raised", head, rest, "make")


# Batches of this process, whose workers a process forked from it must leave alone.
_BATCHES: weakref.WeakSet[WorkerVectorEnv] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """Close what a forked process has inherited: the batches are its parent's, and the workers live as long as that."""
    for batch in list(_BATCHES):
        batch._finalizer.detach()
        for worker in batch.workers:
            worker.disconnect()
            # Else multiprocessing would terminate it when this process ends.
            getattr(multiprocessing.process, "_children", set()).discard(worker.process)
        batch.control.close()
        batch._close_block()
        batch.closed = True


os.register_at_fork(after_in_child=_leave_to_the_parent)


def _close_workers(workers: list[WorkerHandle], control: SharedBlock, seconds: float = LEAVE_SECONDS) -> None:
    """End all workers at the same time."""
    for worker in workers:
        with contextlib.suppress(Exception):
            worker.leave()
    deadline = time.monotonic() + seconds
    for worker in workers:
        with contextlib.suppress(Exception):
            worker.close(max(0.0, deadline - time.monotonic()))
    workers.clear()
    control.close()
