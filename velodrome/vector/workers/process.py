"""The backend of worker processes that step together: each has several environments, all data is in shared memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import logger
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.vector.infos import RowInfo, add_numbers, numbers_of
from velodrome.vector.seeding import spread_seed
from velodrome.vector.workers.batch_arrays import cut_off
from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.faults import Fault
from velodrome.vector.workers.foreign_env import check_callable
from velodrome.vector.workers.pending import already_pending, by_one_thread, checked_timeout, nothing_pending, timed_out
from velodrome.vector.workers.worker.parent_side import WorkerHandle, WorkerLostError
from velodrome.vector.workers.worker.protocol import MAILED, Command
from velodrome.vector.workers.worker_env import Lost, WorkerVectorEnv

MEMORY_LOOKS = 1.0  # seconds between looks at the memory of workers, if it has a limit


class Resetting(NamedTuple):
    """A reset in progress."""

    rows: frozenset[int]
    options: dict[str, Any] | None


class News(NamedTuple):
    """What workers had to say about a step or a reset."""

    said: dict[int, RowInfo]  # by row
    faults: list[Fault]
    exhausted: list[Fault]  # whose environment has no restarts left


class ProcessVectorEnv(WorkerVectorEnv):
    """n environments in worker processes, all stepped together."""

    backend = "process"

    def __init__(self, makers: list[EnvMaker], num_envs: int, **shared: Any) -> None:
        self._memory_looked = time.monotonic()
        super().__init__(makers, num_envs, **shared)

    # Reset

    def _reset_rows(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> dict[str, Any]:
        self._begin_reset(rows, seeds, options)
        return self._finish()

    @by_one_thread
    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin to reset; `reset_wait` returns the results."""
        self._check_free("reset_async")
        self._begin_reset(*self._plan_reset(seed, options))
        self._pending = True

    @by_one_thread
    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the results of the reset that `reset_async` began; see `step_wait` about `timeout`."""
        infos = self._wait("reset", timeout)
        return self._after_reset(sorted(self._resetting.rows), infos)

    def _begin_reset(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        self._finish()
        self._revive(rows)
        seed_of = dict(zip(rows, seeds, strict=True))
        own = self._rows_by_worker(rows)
        self._asked = self._send_questions(
            {index: ("reset", mine, [seed_of[row] for row in mine], options) for index, mine in own.items()}
        )
        self._resetting = Resetting(frozenset(rows), options)
        self._busy = "reset"

    def _finish_reset(self) -> dict[str, Any]:
        answers, lost = self._answers(self._asked)
        self._busy = ""
        for _, error in lost:
            error.moment = "reset"
        self._broken -= self._resetting.rows
        mails = [(worker, mail) for worker, mail in answers if mail is not None]
        return self._gather(mails, lost, self._resetting)

    def _revive(self, rows: list[int]) -> None:
        """Replace workers that were lost while on_fault was "raise"."""
        wanted = set(rows)
        for worker in list(self.workers):
            if worker.lost and wanted & set(worker.rows):
                self._replace_worker(worker, {row: int(self.restarts[row]) for row in worker.rows})

    # Step

    def _step_all(self, actions: list[NDArray]) -> dict[str, Any]:
        self._begin_step(actions)
        return self._finish_step()

    @by_one_thread
    def step_async(self, actions: Any) -> None:
        """Begin a step; `step_wait` returns its results."""
        self._check_ready("step_async")
        self._begin_step(self._action_leaves(actions, self.num_envs))
        self._pending = True

    @by_one_thread
    def step_wait(self, timeout: float | None = None) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any]]:
        """Return the results of the step that `step_async` began.

        timeout: seconds to wait before a multiprocessing.TimeoutError; None waits for the end. After such an error the
            step goes on: wait again, or call anything else, which waits for its end first.
        """
        return self._results(self._wait("step", timeout))

    def _begin_step(self, actions: list[NDArray]) -> None:
        self._finish()
        self._look_at_memory()
        for target, given in zip(self._actions, actions, strict=True):
            target[...] = given
        self._busy = "step"
        for worker in self.workers:
            worker.ring(Command.STEP)

    def _finish_step(self) -> dict[str, Any]:
        mails, lost, news = [], [], False
        for worker in self.workers:
            try:
                worker.wait(worker.spin)
                news = news or worker.has_news
                if worker.has_mail:
                    mails.append((worker, worker.take_mail()))
            except WorkerLostError as error:
                lost.append((worker, error))
        self._busy = ""
        return self._gather(mails, lost) if news or mails or lost else {}

    def _look_at_memory(self) -> None:
        """Kill workers whose memory has grown beyond its limit; their environments count as lost."""
        limit = self.options.memory_limit
        if limit is None or time.monotonic() - self._memory_looked < MEMORY_LOOKS:
            return
        self._memory_looked = time.monotonic()
        for worker in self.workers:
            used = worker.memory()
            if used > limit and not worker.lost:
                worker.kill()
                worker.too_large = f"its worker used {used / 2**20:,.0f} MiB, more than memory_limit allows"

    # Calls, begun and waited for

    @by_one_thread
    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Begin to call a method, or to read an attribute, of each environment; `call_wait` returns the results."""
        self._check_free("call_async")
        check_callable(name)
        self._begin_asking(list(range(self.num_envs)), lambda own: ("ask", own, "call", (name, *args), kwargs))
        self._pending = True

    @by_one_thread
    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Return the results of the call that `call_async` began; see `step_wait` about `timeout`."""
        return tuple(self._wait("call", timeout))

    def _check_free(self, called: str) -> None:
        super()._check_free(called)
        if self._pending:
            raise already_pending(called, self._busy)

    def _wait(self, name: str, timeout: float | None) -> Any:
        """Return the results of what the caller has begun under this name."""
        super()._check_free(f"{name}_wait")
        if self._busy != name:
            raise nothing_pending(name)
        in_time = timeout is None or self._done_by(time.monotonic() + checked_timeout(timeout))
        self._pending = False
        if not in_time:
            assert timeout is not None
            raise timed_out(name, timeout)
        return self._finish()

    def _done_by(self, deadline: float) -> bool:
        """Return whether workers are done with what they were asked, or lost, by this time of `time.monotonic`."""
        return all(
            worker.done_by(deadline) for worker in (self.workers if self._busy == "step" else self._asked.waiting)
        )

    def _finish(self) -> Any:
        """Wait for the end of what was begun, if anything was; it may be left from a caller who was interrupted."""
        return getattr(self, f"_finish_{self._busy}")() if self._busy else None

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers; see WorkerVectorEnv."""
        super().close_extras(timeout, terminate)
        if self._pending:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._busy}` to complete.")

    # Infos and faults

    def _gather(
        self, mails: list[tuple[WorkerHandle, Any]], lost: list[Lost], reset: Resetting | None = None
    ) -> dict[str, Any]:
        """Return the infos of a step, or of a reset, after replacing what was lost."""
        news = News({}, [], [])
        for worker, mail in mails:
            self._take(worker, mail, news)
        for worker, error in lost:
            self._lose(worker, error, reset, news)
        infos = self._assemble(news.said, reset is not None)
        if news.faults:
            self._take_faults(news.faults, infos)
            if news.exhausted:
                self._check_limit(news.exhausted[-1])
        return infos

    def _take(self, worker: WorkerHandle, mail: Any, news: News) -> None:
        """Add the mail of a worker to the news."""
        mailed, faults, schemas, restarts = mail
        news.said.update({entry.row: entry for entry in mailed})
        news.faults.extend(faults)
        self.schemas[worker.index] += schemas
        for row, (count, has_environment) in restarts.items():
            self.restarts[row] = count
            if not has_environment and self.options.on_fault == "restart":
                news.exhausted.append(next(fault for fault in reversed(faults) if fault.environment == row))

    def _assemble(self, said: dict[int, RowInfo], reset: bool) -> dict[str, Any]:
        """Return the infos of all environments: those that were mailed and those in shared arrays."""
        shared, arrays = self.shared, self.arrays
        infos: dict[str, Any] = {}
        kinds = shared.info_kind
        same_step = self.mode is AutoresetMode.SAME_STEP and not reset
        ended = np.flatnonzero(arrays.terminated | arrays.truncated) if same_step else np.zeros(0, np.int64)
        speaking = np.flatnonzero(kinds)
        if not len(ended) and not len(speaking):
            return infos
        owners = {row: worker.index for worker in self.workers for row in worker.rows}
        if not len(ended) and not said:
            schemas = {self.schemas[owners[int(row)]][kinds[row] - 1] for row in speaking}
            if len(schemas) == 1:  # all say the same, in numbers
                add_numbers(infos, schemas.pop(), speaking, shared.info_values[speaking], self.num_envs)
                kinds[:] = 0
                return infos
        for row in sorted({*ended.tolist(), *speaking.tolist()}):
            entry = said.get(row)
            if kinds[row] not in (0, MAILED):
                entry = RowInfo(row, numbers_of(self.schemas[owners[row]][kinds[row] - 1], shared.info_values[row]))
            self._add_row(infos, row, entry, same_step and bool(arrays.terminated[row] or arrays.truncated[row]))
        kinds[:] = 0
        return infos

    def _lose(self, worker: WorkerHandle, error: WorkerLostError, reset: Resetting | None, news: News) -> None:
        """Replace a lost worker as on_fault says; there is a fault for each environment that was lost with it."""
        worker.lost = True
        message = worker.too_large or error.message
        kind: Any = "memory" if worker.too_large else error.kind
        culprit = error.row if error.row in worker.rows else None
        living = [row for row in worker.rows if self.alive[row]]
        first = culprit if culprit is not None else (living[0] if living else None)
        faults = {
            row: Fault(row, worker.index, kind if row == first else "lost with its worker", message, "", error.moment)
            for row in living
        }
        news.faults.extend(faults.values())
        policy = self.options.on_fault
        if policy == "raise":
            return
        restarts = {row: int(self.restarts[row]) + (policy == "restart" or row != first) for row in living}
        if policy == "drop":
            if first is not None:
                restarts.pop(first, None)
                cut_off(self.arrays, first, reset is None)
        elif first is not None and self.restarts[first] >= self.options.max_restarts:
            news.exhausted.append(faults[first])
            self._broken |= set(living)
            return
        self.restarts[list(restarts)] = list(restarts.values())
        replacement = self._replace_worker(worker, restarts)
        # Rows that were being reset begin with a seed of their own; the episodes of the others are cut off.
        resetting = [row for row in restarts if reset is not None and row in reset.rows]
        bystanders = [row for row in restarts if row not in resetting]
        seeds = [spread_seed(self._spare_seed, row, restarts[row]) for row in resetting]
        questions: list[Any] = [("replaced", bystanders), ("reset", resetting, seeds, reset and reset.options)]
        try:
            for question in questions:
                if question[1]:
                    replacement.ask(*question)
                    mail = replacement.answer()
                    if mail is not None:
                        self._take(replacement, mail, news)
        except WorkerLostError as again:
            again.moment = "reset"
            self._lose(replacement, again, reset, news)
