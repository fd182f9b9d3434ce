"""The suite that every executor inherits: subclass it and give it a fixture `executor`.

class TestMine(ExecutorContract):
    @pytest.fixture
    def executor(self):
        made = MyExecutor(...)
        yield made
        made.close()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from velodrome.runs.store.store import open_store
from velodrome.service.executor import Executor
from velodrome.service.job import Job
from velodrome.service.queue import Choice, Queue
from velodrome.service.worker.task import Task

SECONDS = 120.0  # a process that takes longer to begin or end hangs, even on a busy machine


def waited_for(what: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def processes_in(folder: Path) -> list[int]:
    """Return the processes that work in a folder, as those of a training do."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found += [process.pid] if process.cwd() == str(folder) else []
    return found


class ExecutorContract:
    """What holds for every executor."""

    @pytest.fixture
    def queue(self, tmp_path) -> Iterator[Queue]:
        with open_store(tmp_path) as store:
            yield Queue(store)

    def begin(self, executor: Executor, queue: Queue, root: Path, config: dict[str, object]) -> Job:
        """Start a job with a configuration, and return it when its process has entered itself."""
        now = time.time()
        queue.submit(Job("ab12cd34", "trading", "me", config, str(root), "trading-ab12cd34", now, now))
        (job,) = queue.claim("service", executor.machine, lambda waiting: [Choice(each) for each in waiting.jobs])
        executor.start(Task(job.id, job.attempt, str(root), None, executor.machine))
        waited_for(lambda: queue.job(job.id).process or queue.job(job.id).status != "running")
        return queue.job(job.id)

    def test_it_says_what_there_is(self, executor):
        there = executor.resources()
        assert there.cores >= 1
        assert there.memory > 1 << 28
        assert all(0 <= gpu.free <= gpu.total for gpu in there.gpus)

    def test_a_task_is_carried_out_and_its_end_is_in_the_store(self, executor, queue, tmp_path):
        self.begin(executor, queue, tmp_path, {"steps": "many"})
        waited_for(lambda: queue.job("latest").status == "failed")
        assert "steps" in queue.job("latest").message
        assert queue.job("latest").ended == "error"

    def test_a_process_is_seen_and_ended_for_good(self, executor, queue, tmp_path):
        config = {"env": "CartPole-v1", "steps": 10**9, "market": {}, "logging": {"folder": str(tmp_path)}}
        job = self.begin(executor, queue, tmp_path, {key: value for key, value in config.items() if key != "market"})
        assert executor.poll(job.machine, job.process) is True
        assert executor.stop(job.machine, job.process) is True
        assert executor.poll(job.machine, job.process) is False
        assert executor.stop(job.machine, job.process) is True  # again does no harm
        assert queue.job(job.id).status == "running"  # nothing could be written any more: who watches says so
        waited_for(lambda: not processes_in(tmp_path))

    def test_of_another_machine_nothing_is_claimed(self, executor):
        assert executor.poll("elsewhere|boot|pid:[1]", "1:1") is None
        assert executor.stop("elsewhere|boot|pid:[1]", "1:1") is False
        assert executor.poll(executor.machine, "") is None
        assert executor.stop(executor.machine, "") is False
