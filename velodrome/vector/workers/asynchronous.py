"""The backend whose environments do not wait for each other: `recv` returns the first that are ready."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from velodrome.errors import BackendError, ConfigError
from velodrome.vector.infos import RowInfo, add_info, numbers_of
from velodrome.vector.space_arrays import take_rows
from velodrome.vector.workers.pending import by_one_thread
from velodrome.vector.workers.process import News, ProcessVectorEnv
from velodrome.vector.workers.worker.parent_side import LOOK_SECONDS, Watch, WorkerHandle, WorkerLostError
from velodrome.vector.workers.worker.protocol import DOORBELL, MAILED, WRAP, Command, Line, control_words
from velodrome.vector.workers.worker.wakeups import Word, order_memory

HEALTH_SECONDS = 0.5  # between checks of all workers while results keep coming


class AsyncVectorEnv(ProcessVectorEnv):
    """n environments in worker processes, each stepped as soon as its own action is there.

    send(actions, ids) hands out actions; recv(min_ready) returns the first that have finished, in the order in which
    they finished, so that none is passed over. step() sends to all and waits for all.
    """

    backend = "async"

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.outstanding: set[int] = set()  # sent and not yet finished
        self.ready: deque[int] = deque()  # finished and not yet returned
        self._cut: set[int] = set()  # lost while nobody waited for them: their next step only reports that
        self._news = News({}, [], [])  # not yet returned
        self._fault_lines: dict[int, str] = {}
        self._completions: dict[int, int] = {}  # seen so far, by worker
        self._watches: dict[int, Watch] = {}
        self._looked = time.monotonic()
        super().__init__(*arguments, **keywords)
        self.doorbell = Word(control_words(self.control), DOORBELL, DOORBELL + 1)

    # Send

    @by_one_thread
    def send(self, actions: Any, ids: Sequence[int] | NDArray | None = None) -> None:
        """Hand out actions to the environments `ids` (None: to all). None of them may be stepping already."""
        rows = list(range(self.num_envs)) if ids is None else self._rows(ids)
        self._check_ready("send", rows)
        self._finish()
        if len(set(rows)) != len(rows):
            raise ConfigError(f"ids = {rows} names an environment twice")
        busy = (self.outstanding | set(self.ready)) & set(rows)
        if busy:
            raise BackendError(f"environments {sorted(busy)} have a step whose result recv has not returned yet")
        index = np.asarray(rows)
        for target, given in zip(self._actions, self._action_leaves(actions, len(rows)), strict=True):
            target[index] = given
        self._hand_out([row for row in rows if self.alive[row]])

    def _hand_out(self, rows: list[int]) -> None:
        self._look_at_memory()
        rung: dict[int, int] = {}
        for row in rows:
            if row in self._cut:
                self._cut.discard(row)
                arrays = self.arrays
                arrays.rewards[row], arrays.terminated[row], arrays.truncated[row] = 0.0, False, True
                self.ready.append(row)
                continue
            worker = self._owners[row]
            ring = self.shared.requests[worker.index]
            first = rung.setdefault(worker.index, worker.words[worker.first + Line.REQUESTS])
            ring[first % len(ring)] = row
            rung[worker.index] = (first + 1) & WRAP
            self.outstanding.add(row)
        for index, requests in rung.items():
            worker = self.workers[index]
            order_memory()
            worker.words[worker.first + Line.REQUESTS] = requests
            worker.ring(Command.REQUESTS)

    # Receive

    @by_one_thread
    def recv(self, min_ready: int | None = None) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any], NDArray]:
        """Return results of the first `min_ready` environments that finish (None: of all that were sent).

        observations, rewards, terminated, truncated, infos, ids: copies, one row for each, in the order of finishing.
        """
        self._check_free("recv")
        self._finish()
        waited = len(self.outstanding) + len(self.ready)
        if waited == 0:
            raise BackendError("recv without send: no environment is stepping")
        wanted = waited if min_ready is None else min_ready
        if isinstance(wanted, bool) or not 1 <= wanted <= waited:
            raise BackendError(
                f"min_ready = {min_ready!r}: {waited} environments are stepping or ready, so 1 … {waited}"
            )
        self._wait_for(wanted)
        self._tell_faults()
        ids = np.array([self.ready.popleft() for _ in range(min(wanted, len(self.ready)))], np.int64)
        return self._results_of(ids)

    def _wait_for(self, wanted: int, deadline: float = inf) -> bool:
        """Wait until so many are ready; return whether they are by this time of `time.monotonic`."""
        while True:
            rung = self.doorbell.words[DOORBELL]
            order_memory()
            self._collect()
            # Environments dropped in the meantime will never be ready.
            if len(self.ready) >= min(wanted, len(self.ready) + len(self.outstanding)):
                break
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if not self.doorbell.wait_while(rung, min(left, LOOK_SECONDS), self.workers[0].spin):
                self._look_at_workers()
        if time.monotonic() - self._looked > HEALTH_SECONDS:
            self._look_at_workers()
        return True

    def _done_by(self, deadline: float) -> bool:
        if self._busy == "step":
            return self._wait_for(len(self.outstanding) + len(self.ready), deadline)
        return super()._done_by(deadline)

    def _collect(self) -> None:
        """Note every environment that has finished."""
        for worker in self.workers:
            done = worker.words[worker.first + Line.COMPLETIONS]
            seen = self._completions.get(worker.index, 0)
            if done == seen and not worker.has_mail:
                continue
            order_memory()
            ring = self.shared.completions[worker.index]
            while seen != done:
                row = int(ring[seen % len(ring)])
                seen = (seen + 1) & WRAP
                self._completions[worker.index] = seen
                self.outstanding.discard(row)
                self.ready.append(row)
            while worker.has_mail:
                try:
                    self._take(worker, worker.take_mail(), self._news)
                except WorkerLostError as error:
                    self._lost(worker, error)
                    break

    def _tell_faults(self) -> None:
        """Record all faults since the last time, and raise if on_fault says so."""
        if not self._news.faults:
            return
        said, faults, exhausted = self._news
        self._news = News(said, [], [])
        infos: dict[str, Any] = {}
        try:
            self._take_faults(faults, infos)
            if exhausted:
                self._check_limit(exhausted[-1])
        finally:
            # A row that waits for reset() has no result.
            self.ready = deque(row for row in self.ready if row not in self._broken)
        for row in np.flatnonzero(infos["_fault"]):
            self._fault_lines[int(row)] = infos["fault"][row]

    def _look_at_workers(self) -> None:
        """Find workers that are lost, and environments that take too long."""
        self._looked = time.monotonic()
        for worker in list(self.workers):
            watch = self._watches.get(worker.index)
            if watch is None or watch.worker is not worker:
                watch = self._watches[worker.index] = Watch(worker)
            try:
                watch.look()
            except WorkerLostError as error:
                self._lost(worker, error)

    def _lost(self, worker: WorkerHandle, error: WorkerLostError) -> None:
        """Replace a lost worker: rows that were stepping are ready; the others report it at their next step."""
        stepping = [row for row in worker.rows if row in self.outstanding]
        idle = [row for row in worker.rows if row not in self.outstanding and row not in self.ready and self.alive[row]]
        self.outstanding -= set(stepping)
        known = len(self._news.faults)
        self._lose(worker, error, None, self._news)
        faults = self._news.faults[known:]
        policy = self.options.on_fault
        if policy == "raise":
            return
        dropped = {fault.environment for fault in faults if fault.kind != "lost with its worker"}
        gone = dropped if policy == "drop" else set()
        self.ready.extend(row for row in stepping if row not in gone)
        self._cut |= set(idle) - gone

    def _results_of(self, ids: NDArray) -> tuple[Any, NDArray, NDArray, NDArray, dict[str, Any], NDArray]:
        arrays = self.arrays
        rewards, terminated, truncated = arrays.rewards[ids], arrays.terminated[ids], arrays.truncated[ids]
        if self.mode is AutoresetMode.DISABLED:
            self._needs_reset[ids] = terminated | truncated
        infos: dict[str, Any] = {}
        for at, row in enumerate(ids.tolist()):
            self._report(infos, row, (at, len(ids)))
        return take_rows(arrays.observations, ids), rewards, terminated, truncated, infos, ids

    def _report(self, infos: dict[str, Any], row: int, place: tuple[int, int] | None = None) -> None:
        """Add what one environment said, and its fault if there is one, to the infos of all, or of some."""
        shared, arrays = self.shared, self.arrays
        entry = self._news.said.pop(row, None)
        kind = int(shared.info_kind[row])
        if kind:
            shared.info_kind[row] = 0
            if kind != MAILED:
                schema = self.schemas[self._owners[row].index][kind - 1]
                entry = RowInfo(row, numbers_of(schema, shared.info_values[row]))
        same_step = self.mode is AutoresetMode.SAME_STEP
        self._add_row(infos, row, entry, same_step and bool(arrays.terminated[row] or arrays.truncated[row]), place)
        line = self._fault_lines.pop(row, None)
        if line is not None:
            add_info(infos, {"fault": line}, *(place or (row, self.num_envs)))

    # All at once

    def _begin_step(self, actions: list[NDArray]) -> None:
        self._finish()
        if self.outstanding or self.ready:
            raise BackendError("step() while results of send() have not been received; call recv() first")
        for target, given in zip(self._actions, actions, strict=True):
            target[...] = given
        self._busy = "step"
        self._hand_out([row for row in range(self.num_envs) if self.alive[row]])

    def _finish_step(self) -> dict[str, Any]:
        self._wait_for(len(self.outstanding) + len(self.ready))
        self._busy = ""
        ids = sorted(self.ready)
        self.ready.clear()
        self._tell_faults()
        for dropped in np.flatnonzero(~self.alive):
            if int(dropped) not in self._fault_lines:
                self.arrays.truncated[dropped] = False
        infos: dict[str, Any] = {}
        for row in sorted({*ids, *self._fault_lines}):
            self._report(infos, row)
        return infos

    # What else changes the batch

    def _move_to_new_block(self, num_envs: int) -> None:
        super()._move_to_new_block(num_envs)
        self._completions.clear()
        for worker in self.workers:
            worker.words[worker.first + Line.REQUESTS] = 0

    def _make_rows(self, rows: dict[int, list[tuple[int, int]]]) -> None:
        self._owners = {row: worker for worker in self.workers for row in worker.rows}
        super()._make_rows(rows)

    def _start_worker(self, index: int | None = None) -> WorkerHandle:
        worker = super()._start_worker(index)
        self._completions[worker.index] = 0
        return worker

    def _assemble(self, said: dict[int, RowInfo], reset: bool) -> dict[str, Any]:
        self._news.said.update(said)
        infos: dict[str, Any] = {}
        for row in sorted(self._resetting.rows) if reset else ():
            self._report(infos, row)
        return infos

    def _begin_reset(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> None:
        self._settle()
        self.ready = deque(row for row in self.ready if row not in set(rows))
        self._cut -= set(rows)
        for row in rows:
            self._news.said.pop(row, None)
            self._fault_lines.pop(row, None)
        super()._begin_reset(rows, seeds, options)

    def _resize_rows(self, num_envs: int) -> None:
        self._settle()
        self.ready = deque(row for row in self.ready if row < num_envs)
        self._cut = {row for row in self._cut if row < num_envs}
        super()._resize_rows(num_envs)

    def _begin_asking(self, rows: list[int], question: Any) -> None:
        self._settle()
        super()._begin_asking(rows, question)

    def _settle(self) -> None:
        """Wait until workers are idle; results of send() stay ready."""
        self._finish()  # first: an answer that is on its way is not one of those that `_collect` takes
        if self.outstanding:
            self._wait_for(len(self.outstanding) + len(self.ready))
        self._collect()
