"""The process beside the one that trains: it keeps the lease, and outlives whatever happens to the training.

It is a process of its own because compiled code may hold Python's lock for longer than a lease lasts, and because the
system kills the one that takes the memory. If it is killed itself, the system kills the training with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from velodrome.errors import BucketError, JobError, LeaseLostError, StoreError, VelodromeError
from velodrome.runs.bucket.place import Bucket, bring
from velodrome.runs.interrupts import SIGNALS
from velodrome.runs.machine.disk import ran_out
from velodrome.runs.machine.use import bytes_text
from velodrome.runs.store.fence import Fence
from velodrome.runs.store.from_folder import members_of
from velodrome.runs.store.rebuild import catch_up
from velodrome.runs.store.store import open_store
from velodrome.service.job import Job
from velodrome.service.machine import handle_of, memory_of, state_of
from velodrome.service.queue import Queue
from velodrome.service.worker import trainer
from velodrome.service.worker.task import Task, done_steps, folder_of, saved_steps, signs_of_life

BEAT_SECONDS = 1.0
MEMORY_SECONDS = 5.0  # between two looks at the memory of a training that is far from its limit
BUSY_SECONDS = 3.0  # that the store may keep this process waiting, which has other things to look after
LOOK_SECONDS = 0.05  # between two looks at whether the training has ended
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
Result = TypeVar("Result")
GROUP = Path("/sys/fs/cgroup/memory.events")  # how often the system has ended processes of this container for memory


def keep(task: Task) -> int:
    """Carry out an attempt; return the exit code of this process."""
    fence = Fence(task.job, task.attempt)
    with open_store(task.root, task.store, busy_seconds=BUSY_SECONDS, fence=fence) as store:
        queue = Queue(store)
        try:
            job = _patiently(queue.attach)(task.job, task.attempt, task.place + handle_of(os.getpid()))
            bring(Path(task.root) / job.folder, whole=True)
            if task.took_over:
                own = trainer.folder_of_its_own(task.root, job, time.time())
                _patiently(queue.beat)(task.job, task.attempt, folder=own)
                job = replace(job, folder=own)
            trainer.set_others_aside(task.root, job)
        except (LeaseLostError, JobError):
            return 1
        except (BucketError, OSError) as error:  # the machine's fault: another may reach it
            kind = "no_room" if ran_out(error) else "machine_lost"
            with contextlib.suppress(LeaseLostError, JobError):
                _patiently(queue.end)(task.job, task.attempt, kind, str(error), 0)
            return 1
        store.close()  # a connection must not be shared with the process that is forked now
        return Keeper(task, job, queue).run()


def _patiently(work: Callable[..., Result]) -> Callable[..., Result]:
    """Return work that is done again while the store is busy, or away."""

    def again(*arguments: Any, **named: Any) -> Result:
        while True:
            try:
                return work(*arguments, **named)
            except (LeaseLostError, JobError):
                raise
            except StoreError as error:
                sys.stderr.write(f"{error}\n")
                time.sleep(BEAT_SECONDS)

    return again


class Keeper:
    """Watches over one training."""

    def __init__(self, task: Task, job: Job, queue: Queue) -> None:
        self.task, self.job, self.queue = task, job, queue
        self.signalled = False  # this process was asked to stop
        self.asked = 0.0  # when the training was asked to stop; 0: it was not
        self.reason = trainer.Ended("")  # why it was killed
        self.told_problem = ""
        self.process, self.report = self._start()
        self.signs, self.signs_at = signs_of_life(task.root, job), time.monotonic()
        self.stopped_since: float | None = None
        self.weighed_at = time.monotonic() - MEMORY_SECONDS + BEAT_SECONDS
        self.killed_before = _killed_by_the_system()

    def _start(self) -> tuple[int, int]:
        """Fork the process that trains; return its number, and from where to read how it ended."""
        begin, end = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            os.close(end)
            for number in SIGNALS:
                signal.signal(number, self._receive)
            return pid, begin
        code = 1
        try:
            os.close(begin)
            die_with(parent)
            ended = trainer.train(self.task, self.job)
            os.write(end, json.dumps(ended._replace(message=ended.message[:4000])).encode())
            code = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True

    def run(self) -> int:
        """Watch until the training has ended, and write down how."""
        next_beat = 0.0
        while (status := self._ended()) is None:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT_SECONDS
                try:
                    self._beat(now)
                except LeaseLostError:  # the work was given to another: nothing more may be written
                    self._kill()
                    os.waitpid(self.process, 0)
                    return 1
                except (VelodromeError, OSError) as error:  # a store that does not answer; training goes on
                    self._complain(str(error))
            if self.signalled and not self.asked:
                self._ask(self.task.drain_seconds)
            if self.asked and now > self.asked:
                self._kill()
            time.sleep(LOOK_SECONDS)
        return self._finish(self._classify(status))

    def _beat(self, now: float) -> None:
        task, job = self.task, self.job
        memory = self._memory(now)
        self.job = job = replace(job, memory_used=max(job.memory_used, memory))
        if memory > job.memory:
            told = f"it took {bytes_text(memory)} of memory and was given {bytes_text(job.memory)}"
            self._give_up("out_of_memory", f"{told}. Give it more (--memory), or use fewer environments (num_envs).")
        signs = signs_of_life(task.root, job)
        if signs != self.signs:
            self.signs, self.signs_at = signs, now
        elif now - self.signs_at > job.stall_seconds:
            told = f"nothing happened for {job.stall_seconds:g} seconds"
            self._give_up("stalled", f"{told}: an environment may hang. A longer wait: --stall-seconds.")
        if state_of(self.process) not in ("T", "t"):
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = now
        elif now - self.stopped_since > task.lease_seconds:
            self._give_up("stalled", f"its process was frozen for {task.lease_seconds:g} seconds")
        # The store comes last: a frozen process may hold it.
        seen = {"steps": done_steps(task.root, job), "memory_used": job.memory_used}
        wanted = self.queue.beat(task.job, task.attempt, **seen)
        if wanted and not self.asked:
            self._ask(task.drain_seconds if wanted == "drain" else task.grace_seconds)

    def _memory(self, now: float) -> int:
        """Return the memory of all processes, 0 if it is not time: the system holds them up while it counts."""
        near = self.job.memory_used > self.job.memory // 2
        if now < self.weighed_at + (BEAT_SECONDS if near else MEMORY_SECONDS):
            return 0
        self.weighed_at = now
        return memory_of(handle_of(os.getpid()))

    def _ask(self, seconds: float) -> None:
        self.asked = time.monotonic() + seconds
        os.kill(self.process, signal.SIGTERM)

    def _give_up(self, kind: str, message: str) -> None:
        if not self.reason.kind:
            self.reason = trainer.Ended(kind, message)
            self._kill()

    def _kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self.process, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _classify(self, status: int) -> trainer.Ended:
        """Return how the training ended: as it says itself, or as its process did."""
        said = b""
        while select.select([self.report], [], [], 0)[0] and (part := os.read(self.report, 1 << 16)):
            said += part
        if said:
            return trainer.Ended(*json.loads(said))
        if self.reason.kind:
            return self.reason
        if self.asked or status in (-signal.SIGTERM, -signal.SIGUSR1, -signal.SIGINT):
            return trainer.Ended("stopped")
        if status == -signal.SIGKILL and _killed_by_the_system() > self.killed_before:
            return trainer.Ended("out_of_memory", "the system killed its process because memory ran out")
        if status < 0:
            name = signal.Signals(-status).name
            return trainer.Ended("machine_lost", f"its process was ended by {name}, which nobody asked for")
        return trainer.Ended(
            "error", f"its process ended by itself with code {status}; velodrome jobs logs {self.job.id}"
        )

    def _finish(self, ended: trainer.Ended) -> int:
        """Write the end into the store, however long that takes; whoever is quicker to give the work away wins."""
        task = self.task
        while True:
            try:
                steps = (
                    done_steps(task.root, self.job) if ended.kind == "finished" else saved_steps(task.root, self.job)
                )
                ended = self._sent(ended)
                self._complete_rows()
                self.queue.end(task.job, task.attempt, *ended, steps, most_memory=task.most_memory)
                return 0
            except (LeaseLostError, JobError):  # given to another, or removed
                return 1
            except (VelodromeError, OSError) as error:
                self._complain(str(error))
                time.sleep(BEAT_SECONDS)

    def _sent(self, ended: trainer.Ended) -> trainer.Ended:
        """Send what was written after the training, and what its processes printed, if the folder stands for a URL."""
        folder, bucket = Path(self.task.root) / self.job.folder, Bucket.behind(self.task.root)
        if bucket is None:
            return ended
        try:
            if folder.is_dir():
                bucket.send(folder, check=False)
            bucket.send_file(self.task.output)
        except BucketError as error:
            return trainer.Ended("machine_lost", str(error)) if ended.kind == "finished" else ended
        return ended

    def _complete_rows(self) -> None:
        """Enter what the training could not, because somebody held the store when it ended; its folder has all."""
        folder = folder_of(self.task.root, self.job)
        if folder is not None:
            catch_up(self.queue.store, [one for one in (folder, *members_of(folder)) if one.has_begun])

    def _complain(self, problem: str) -> None:
        if problem != self.told_problem:
            self.told_problem = problem
            sys.stderr.write(f"{problem}\n")
            sys.stderr.flush()


def die_with(parent: int) -> None:
    """Let the system end this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def _killed_by_the_system() -> int:
    """Return how often the system has ended a process of this container because memory ran out."""
    try:
        return int(dict(line.split() for line in GROUP.read_text().splitlines())["oom_kill"])
    except (OSError, ValueError, KeyError):
        return 0
