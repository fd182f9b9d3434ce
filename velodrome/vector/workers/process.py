"""The backend of worker processes: several environments each, everything they exchange in shared memory."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.errors import BackendError, ConfigError
from velodrome.vector.cores import available_cores
from velodrome.vector.infos import RowInfo, Schema, add_info, add_numbers, numbers_of
from velodrome.vector.seeding import spread_seed
from velodrome.vector.space_arrays import flat_leaves, nested_arrays
from velodrome.vector.workers.faults import EnvironmentFaultError, Fault, FaultSettings
from velodrome.vector.workers.foreign_env import ForeignVectorEnv
from velodrome.vector.workers.worker.parent_side import LEAVE_SECONDS, StartMethod, WorkerHandle, WorkerLostError
from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.worker.protocol import (
    MAILED,
    MOST_WORKERS,
    WORDS,
    Command,
    SharedRows,
    SharedView,
    WorkerSettings,
)
from velodrome.vector.workers.serial import copy_rows
from velodrome.vector.workers.worker.shared_memory import SharedBlock, size_of
from velodrome.vector.workers.worker.wakeups import spin_seconds

MEMORY_LOOKS = 1.0  # seconds between looks at the memory of workers, where it has a limit


class Resetting(NamedTuple):
    """A reset that is going on."""

    rows: frozenset[int]
    options: dict[str, Any] | None


class ProcessVectorEnv(ForeignVectorEnv):
    """n environments in worker processes.

    workers: how many processes; None is one for each core, and no more than environments.
    """

    backend = "process"

    def __init__(
        self, makers: list[EnvMaker], num_envs: int, *, seed: int | None = None, copy: bool = False,
        autoreset: Any = True, faults: FaultSettings | None = None, workers: int | None = None,
        start_method: StartMethod = "forkserver", spin: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            makers, num_envs, seed=seed, copy=copy, autoreset=autoreset, faults=faults or FaultSettings()
        )  # fmt: skip
        if workers is not None and (isinstance(workers, bool) or not 1 <= workers <= MOST_WORKERS):
            raise ConfigError(f"workers = {workers!r}: needs 1 … {MOST_WORKERS}, or None for one each core")
        self.most_workers = workers or available_cores()
        self.start_method: StartMethod = start_method
        self._spin = spin
        self.workers: list[WorkerHandle] = []
        self.schemas: dict[int, list[Schema]] = {}
        self.shared: SharedView | None = None
        self._stepping = False  # a step was begun and its end has not been waited for
        self._memory_looked = time.monotonic()
        self.control = SharedBlock((MOST_WORKERS + 1) * WORDS * 4)
        self._finalizer = weakref.finalize(self, _close_workers, self.workers, self.control, os.getpid())
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    # Starting

    @property
    def num_workers(self) -> int:
        """How many worker processes there are."""
        return len(self.workers)

    def _begin(self) -> None:
        count = min(self.most_workers, self.num_envs)
        for _ in range(count):
            self._start_worker()
        first = self.workers[0]
        try:
            for worker in self.workers:
                worker.answer()
            first.ask("describe", 0)
            self._describe(*first.answer(), spec=self.makers[0].specification)
        except (WorkerLostError, BackendError) as error:
            raise EnvironmentFaultError([_start_fault(first, error)], "No environment could be made.") from error
        for row in range(self.num_envs):
            self._least_busy().rows.append(row)
        self._move_to_new_block(self.num_envs)
        self._make_rows({worker.index: [(row, 0) for row in worker.rows] for worker in self.workers})

    def _start_worker(self, index: int | None = None) -> WorkerHandle:
        index = len(self.workers) if index is None else index
        settings = WorkerSettings(index, self.makers, self.mode, self.settings, self._spare_seed, self._spin_seconds())
        handle = WorkerHandle(settings, self.control, self.start_method, self.settings.timeout)
        self.schemas[index] = []
        if index == len(self.workers):
            self.workers.append(handle)
        else:
            self.workers[index] = handle
        return handle

    def _spin_seconds(self) -> float:
        return spin_seconds(min(self.most_workers, self.num_envs) + 1) if self._spin is None else self._spin

    def _least_busy(self) -> WorkerHandle:
        return min(self.workers, key=lambda worker: (len(worker.rows), worker.index))

    def _move_to_new_block(self, num_envs: int) -> None:
        """Allocate shared arrays, keep what the old ones held, and have all workers use them."""
        layout = SharedRows(
            self.single_observation_space, self.single_action_space, num_envs, max(1, len(self.workers))
        )
        block = SharedBlock(size_of(layout.fields))
        view = layout.view(block)
        if self.shared is not None:
            kept = min(num_envs, len(self.shared.rows.rewards))
            copy_rows(self.shared.rows, view.rows, kept)
            view.info_kind[:kept], view.info_values[:kept] = (
                self.shared.info_kind[:kept],
                self.shared.info_values[:kept],
            )
        self.layout, self.shared = layout, view
        self.rows = view.rows
        self._actions = flat_leaves(self.single_action_space, view.actions)
        self._close_block()
        self._block = block  # its descriptor is sent to workers that start later
        for worker in self.workers:
            self._tell(worker, lambda worker: worker.attach(layout, block))

    def _close_block(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None:
            block.close()

    def _tell(self, worker: WorkerHandle, what: Callable[[WorkerHandle], Any]) -> Any:
        """Do something with a worker that has no business failing at it."""
        try:
            return what(worker)
        except WorkerLostError as lost:
            raise EnvironmentFaultError([_start_fault(worker, lost)], "The worker could not be set up.") from lost

    def _make_rows(self, rows: dict[int, list[tuple[int, int]]]) -> None:
        """Have workers make environments, (row, restarts) each, all at the same time; raise if one cannot be made."""
        busy = [worker for worker in self.workers if rows.get(worker.index)]
        faults: list[Fault] = []
        asked = []
        for worker in busy:
            try:
                worker.ask("make", rows[worker.index], self.layout)
                asked.append(worker)
            except WorkerLostError as lost:
                faults.append(_start_fault(worker, lost))
        for worker in asked:
            try:
                faults += worker.answer()
            except WorkerLostError as lost:
                faults.append(_start_fault(worker, lost))
        if faults:
            self.faults += faults
            self._broken |= {fault.environment for fault in faults}
            raise EnvironmentFaultError(faults, "It could not be made.")

    # Reset

    def _reset_rows(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> dict[str, Any]:
        self._finish_step()
        self._revive(rows)
        seed_of = dict(zip(rows, seeds, strict=True))
        asked: list[tuple[WorkerHandle, list[int]]] = []
        lost: list[tuple[WorkerHandle, WorkerLostError]] = []
        for worker in self.workers:
            own = [row for row in worker.rows if row in seed_of]
            if own:
                try:
                    worker.ask("reset", own, [seed_of[row] for row in own], options)
                    asked.append((worker, own))
                except WorkerLostError as error:
                    lost.append((worker, error))
        mails = []
        for worker, _ in asked:
            try:
                mail = worker.answer()
                if mail is not None:
                    mails.append((worker, mail))
            except WorkerLostError as error:
                error.moment = "reset"
                lost.append((worker, error))
        self._broken -= set(rows)
        return self._gather(mails, lost, Resetting(frozenset(rows), options))

    def _revive(self, rows: Iterable[int]) -> None:
        """Start workers again that were lost when faults were to be raised."""
        wanted = set(rows)
        for worker in list(self.workers):
            if worker.lost and wanted & set(worker.rows):
                self._replace_worker(worker, {row: int(self.restarts[row]) for row in worker.rows})

    # Step

    def _step_all(self, actions: list[NDArray]) -> dict[str, Any]:
        self._begin_step(actions)
        return self._finish_step()

    def step_async(self, actions: Any) -> None:
        """Begin a step; `step_wait` returns its results."""
        self._check_ready()
        if self._stepping:
            raise BackendError("step_async was called twice; call step_wait first")
        self._begin_step(self._action_leaves(actions, self.num_envs))

    def step_wait(self) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Return the results of the step that `step_async` began."""
        if not self._stepping:
            raise BackendError("step_wait without step_async")
        return self._results(self._finish_step())

    def _begin_step(self, actions: list[NDArray]) -> None:
        if self._stepping:  # its results were never taken: a caller was interrupted while it waited
            self._finish_step()
        if self.settings.memory_limit is not None:
            self._look_at_memory()
        for target, given in zip(self._actions, actions, strict=True):
            target[...] = given
        self._stepping = True
        for worker in self.workers:
            worker.ring(Command.STEP)

    def _finish_step(self) -> dict[str, Any]:
        if not self._stepping:
            return {}
        mails, lost, news = [], [], False
        for worker in self.workers:
            try:
                worker.wait(worker.spin)
                news = news or worker.has_news
                if worker.has_mail:
                    mails.append((worker, worker.take_mail()))
            except WorkerLostError as error:
                lost.append((worker, error))
        self._stepping = False
        return self._gather(mails, lost) if news or mails or lost else {}

    def _look_at_memory(self) -> None:
        """Replace workers whose memory has grown beyond its limit; their environments count as lost."""
        now = time.monotonic()
        if now - self._memory_looked < MEMORY_LOOKS:
            return
        self._memory_looked = now
        limit = self.settings.memory_limit
        assert limit is not None
        for worker in self.workers:
            used = worker.memory()
            if used > limit and not worker.lost:
                worker.kill()
                worker.too_large = f"its worker used {used / 2**20:,.0f} MiB, more than memory_limit allows"

    # Infos and faults

    def _gather(
        self, mails: list[tuple[WorkerHandle, Any]], lost: list[tuple[WorkerHandle, WorkerLostError]],
        reset: Resetting | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the infos of a step, or of a reset, after seeing to what was lost."""
        said: dict[int, RowInfo] = {}
        faults: list[Fault] = []
        exhausted: list[Fault] = []

        def take(worker: WorkerHandle, mail: Any) -> None:
            mailed, failed, schemas, restarts = mail
            said.update({entry.row: entry for entry in mailed})
            self.schemas[worker.index] += schemas
            faults.extend(failed)
            for row, (count, has_environment) in restarts.items():
                self.restarts[row] = count
                if not has_environment and self.settings.policy == "restart":
                    exhausted.append(next(fault for fault in reversed(failed) if fault.environment == row))

        for worker, mail in mails:
            take(worker, mail)
        for worker, error in lost:
            faults += self._lose(worker, error, reset, take, exhausted)
        infos = self._assemble(said, reset is not None)
        if faults:
            self._take_faults(faults, infos)
            if exhausted:
                self._check_limit(exhausted[-1])
        return infos

    def _assemble(self, said: dict[int, RowInfo], reset: bool) -> dict[str, Any]:
        shared, rows, infos, n = self.shared, self.rows, {}, self.num_envs  # type: ignore[var-annotated]
        assert shared is not None
        kinds = shared.info_kind
        same_step = self.mode is AutoresetMode.SAME_STEP and not reset
        ended = np.flatnonzero(rows.terminated | rows.truncated) if same_step else np.zeros(0, np.int64)
        speaking = np.flatnonzero(kinds)
        if not len(ended) and not said and len(speaking):
            owners = {row: worker.index for worker in self.workers for row in worker.rows}
            schemas = {self.schemas[owners[int(row)]][kinds[row] - 1] for row in speaking}
            if len(schemas) == 1:
                add_numbers(infos, schemas.pop(), speaking, shared.info_values[speaking], n)
                kinds[:] = 0
                return infos
        if len(ended) or len(speaking):
            owners = {row: worker.index for worker in self.workers for row in worker.rows}
            for row in sorted({*ended.tolist(), *speaking.tolist()}):
                entry = said.get(row)
                if kinds[row] not in (0, MAILED):
                    entry = RowInfo(row, numbers_of(self.schemas[owners[row]][kinds[row] - 1], shared.info_values[row]))
                if same_step and (rows.terminated[row] or rows.truncated[row]):
                    final_info = (entry.final_info if entry else None) or {}
                    add_info(infos, {"final_obs": self._final_observation(row), "final_info": final_info}, row, n)
                if entry is not None and entry.info:
                    add_info(infos, entry.info, row, n)
            kinds[:] = 0
        return infos

    def _lose(
        self, worker: WorkerHandle, error: WorkerLostError, reset: Resetting | None,
        take: Callable[[WorkerHandle, Any], None], exhausted: list[Fault],
    ) -> list[Fault]:  # fmt: skip
        """See to a worker that is gone, and return a fault for each environment that went with it."""
        worker.lost = True
        message = worker.too_large or error.message
        kind: Any = "memory" if worker.too_large else error.kind
        culprit = error.row if error.row in worker.rows else None
        living = [row for row in worker.rows if self.alive[row]]
        first = culprit if culprit is not None else (living[0] if living else None)
        faults = [
            Fault(row, worker.index, kind if row == first else "lost with its worker", message, "", error.moment)
            for row in living
        ]
        policy = self.settings.policy
        if policy == "raise":
            return faults
        restarts = {row: int(self.restarts[row]) + (policy == "restart" or row != first) for row in living}
        if policy == "drop":
            restarts.pop(first, None)  # type: ignore[arg-type]
            if first is not None:
                self._cut_off(first, reset is not None)
        elif first is not None and self.restarts[first] >= self.settings.max_restarts:
            exhausted.append(faults[living.index(first)])
            self._broken |= set(living)
            return faults
        self.restarts[list(restarts)] = list(restarts.values())
        self._replace_worker(worker, restarts)
        replacement = self.workers[worker.index]
        # BatchArrays that were being reset begin with a seed of their own; the others' episodes are cut off.
        resetting = [row for row in restarts if reset is not None and row in reset.rows]
        bystanders = [row for row in restarts if row not in resetting]
        seeds = [spread_seed(self._spare_seed, row, restarts[row]) for row in resetting]
        try:
            for rows, question in ((bystanders, ("replaced", bystanders)),
                                   (resetting, ("reset", resetting, seeds, reset and reset.options))):  # fmt: skip
                if rows:
                    replacement.ask(*question)
                    mail = replacement.answer()
                    if mail is not None:
                        take(replacement, mail)
        except WorkerLostError as again:
            again.moment = "reset"
            return faults + self._lose(replacement, again, reset, take, exhausted)
        return faults

    def _cut_off(self, row: int, reset: bool) -> None:
        """End the episode of a row that is dropped together with its worker."""
        rows = self.rows
        rows.rewards[row], rows.terminated[row], rows.truncated[row] = 0.0, False, not reset
        for last, final in zip(nested_arrays(rows.observations), nested_arrays(rows.final_observations), strict=True):
            final[row] = last[row]

    def _replace_worker(self, worker: WorkerHandle, rows: dict[int, int]) -> None:
        """Start a worker in place of one that is gone, with new environments for these rows: row -> restarts."""
        worker.close(0.0)
        self.worker_restarts += 1
        assert self.shared is not None
        self.shared.info_kind[worker.rows] = 0  # by schemas that went with the worker
        replacement = self._start_worker(worker.index)
        self._tell(replacement, WorkerHandle.answer)
        replacement.rows = list(worker.rows)
        self._tell(replacement, lambda new: new.attach(self.layout, self._block))
        if rows:
            self._make_rows({worker.index: list(rows.items())})
        gone = [row for row in worker.rows if row not in rows]
        if gone:
            self._tell(replacement, lambda new: _asked(new, "drop", gone))

    # For people

    def _ask_rows(self, rows: list[int], question: Callable[[WorkerHandle, list[int]], Any]) -> dict[int, Any]:
        """Ask each worker about those of its rows that are wanted; return the answers by row."""
        self._finish_step()
        wanted = set(rows)
        asked = []
        problems: list[BackendError] = []
        for worker in self.workers:
            own = [row for row in worker.rows if row in wanted]
            if own:
                try:
                    self._tell(worker, lambda worker, own=own: question(worker, own))  # type: ignore[misc]
                    asked.append((worker, own))
                except BackendError as error:  # the others' answers are on their way and must be taken
                    problems.append(error)
        found: dict[int, Any] = {}
        for worker, own in asked:
            try:
                found |= dict(zip(own, self._tell(worker, WorkerHandle.answer) or [None] * len(own), strict=True))
            except BackendError as error:
                problems.append(error)
        if problems:
            raise problems[0]
        return found

    def _call_rows(self, rows: list[int], name: str, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        found = self._ask_rows(rows, lambda worker, own: worker.ask("call", own, name, arguments, keywords))
        return [found[row] for row in rows]

    def _set_rows(self, rows: list[int], name: str, values: list[Any]) -> None:
        value_of = dict(zip(rows, values, strict=True))
        self._ask_rows(rows, lambda worker, own: worker.ask("set_attribute", own, name, [value_of[row] for row in own]))

    # Size

    def _resize_rows(self, num_envs: int) -> None:
        self._finish_step()
        self._close_rows(num_envs)
        started = [self._start_worker() for _ in range(len(self.workers), min(self.most_workers, num_envs))]
        for worker in started:
            self._tell(worker, WorkerHandle.answer)
        new: dict[int, list[tuple[int, int]]] = {}
        for row in range(self.num_envs, num_envs):
            worker = self._least_busy()
            worker.rows.append(row)
            new.setdefault(worker.index, []).append((row, 0))
        self._move_to_new_block(num_envs)
        try:
            self._make_rows(new)
        except EnvironmentFaultError:
            self._forget_rows(self.num_envs)
            raise

    def _forget_rows(self, num_envs: int) -> None:
        """Go back to the first rows after those behind them could not be made."""
        self._broken = {row for row in self._broken if row < num_envs}
        self._close_rows(num_envs)
        self._move_to_new_block(num_envs)

    def _close_rows(self, num_envs: int) -> None:
        """Close the environments of all rows from a number on, and workers that have none left."""
        for worker in self.workers:
            gone = [row for row in worker.rows if row >= num_envs]
            worker.rows = [row for row in worker.rows if row < num_envs]
            if gone and not worker.lost:
                self._tell(worker, lambda worker, gone=gone: _asked(worker, "remove", gone))  # type: ignore[misc]
        while len(self.workers) > 1 and not self.workers[-1].rows:
            worker = self.workers.pop()
            worker.leave()
            worker.close()

    def memory_of_workers(self) -> int:
        """Return the bytes of memory that all workers use."""
        return sum(worker.memory() for worker in self.workers)

    def close_extras(self, **kwargs: Any) -> None:
        """End the workers; environments that do not close within a few seconds are killed."""
        if hasattr(self, "_finalizer"):
            self._finalizer()
            self._close_block()


def _asked(worker: WorkerHandle, name: str, *arguments: Any) -> Any:
    """Ask a worker something and return its answer."""
    worker.ask(name, *arguments)
    return worker.answer()


def _start_fault(worker: WorkerHandle, error: Exception) -> Fault:
    """Return the record of a worker that failed before it had environments to lose."""
    row = worker.rows[0] if worker.rows else 0
    if isinstance(error, WorkerLostError):
        return Fault(row if error.row is None else error.row, worker.index, error.kind, error.message, "", "make")
    head, _, rest = str(error).partition("\n")
    return Fault(row, worker.index, "raised", head, rest, "make")


def _close_workers(workers: list[WorkerHandle], control: SharedBlock, owner: int) -> None:
    """End all workers, at the same time."""
    if os.getpid() != owner:  # a process that was forked from the one that has the workers
        return
    for worker in workers:
        with contextlib.suppress(Exception):
            worker.leave()
    deadline = time.monotonic() + LEAVE_SECONDS
    for worker in workers:
        with contextlib.suppress(Exception):
            worker.close(max(0.0, deadline - time.monotonic()))
    workers.clear()
    control.close()
