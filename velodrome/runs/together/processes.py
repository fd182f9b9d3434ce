"""Trainings in processes side by side: how many of them, and how they are watched and stopped."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from velodrome.envs.catalog import CATALOG
from velodrome.errors import OutOfMemoryError, RunError, VelodromeError
from velodrome.learn.catalog import ALGORITHMS
from velodrome.runs.interrupts import Interrupts
from velodrome.runs.machine.memory import shortage
from velodrome.runs.store.from_folder import steps_of
from velodrome.vector.cores import allowed_envs, available_cores, free_memory, is_rank
from velodrome.vector.fleet.autoscale import bytes_in_use

if TYPE_CHECKING:
    from rich.console import Console

    from velodrome.runs.config.run_config import RunConfig
    from velodrome.runs.folder import RunFolder
    from velodrome.tables.basket import Basket
    from velodrome.tables.market import Market

POLL_SECONDS = 0.25
START_SECONDS = 10.0  # that a process takes to import, to receive the data and to load kernels
INTERRUPTED = 130  # exit code of a process that saved and stopped
OUT_OF_MEMORY = errno.ENOMEM  # exit code of a process whose training ran out of memory

log = logging.getLogger("velodrome.runs")


class Seen(NamedTuple):
    """What a run's folder says of a training."""

    steps: int = 0
    status: str = ""
    error: str = ""


def seen_in(folder: RunFolder) -> Seen:
    """Return what a run's folder says of its training."""
    state = folder.state
    return Seen(steps_of(folder), state.status if state else "", state.error if state else "")


@dataclass(frozen=True, eq=False)
class Job:
    """A training for a process of its own. The process ends with another code than 0 if it failed."""

    title: str  # such as "fold 2"
    work: Callable[..., None]  # of a module, so that another process finds it
    arguments: tuple[Any, ...]
    steps: int
    look: Callable[[], Seen]


class _Pace:
    """How fast some trainings come along together."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.began, self.before = time.monotonic(), {job: job.look().steps for job in jobs}
        self.steps = dict(self.before)

    def told_left(self, count: int) -> str:
        """Return how many trainings are left and about how long they take, if they go on as those so far."""
        from velodrome.runs.report.listing import age

        done = sum(self.steps.values()) - sum(self.before.values())
        left = sum(max(job.steps - steps, 0) for job, steps in self.steps.items())
        seconds = left * (time.monotonic() - self.began) / done if done else 0.0
        return f"; {count:,} left" + (f", about {age(seconds)}" if seconds else "") if count else ""


def train_together(
    jobs: Sequence[Job], processes: int, console: Console, mode: str, ended: Callable[[], None] = lambda: None
) -> tuple[bool, RunError | None]:
    """Train in this many processes at a time; whoever stops this one lets them save and stop, too.

    Return whether all have ended by themselves, and what went wrong in the first that failed, None if none did; the
    others are stopped then. ended: called when one has ended.
    """
    from rich.progress import Progress

    from velodrome.vector.workers.worker.starting import process_context, without_main_module

    threads, waiting = max(1, available_cores() // processes), list(jobs)
    running: dict[Job, Any] = {}
    error: RunError | None = None
    asked = False
    pace = _Pace(jobs)
    with Interrupts() as interrupts, Progress(console=console, disable=mode != "live") as bars:
        tasks: dict[Job, Any] = {}
        try:
            while running or (waiting and not asked):
                while waiting and not asked and len(running) < processes:
                    job = waiting.pop(0)
                    about = (threads, job.work, *job.arguments)
                    process = process_context("spawn").Process(target=_work_apart, args=about)
                    with without_main_module():
                        process.start()
                    running[job] = process
                    tasks[job] = bars.add_task(job.title, total=job.steps)
                time.sleep(POLL_SECONDS)
                for job, process in list(running.items()):
                    code, seen = process.exitcode, job.look()
                    pace.steps[job] = seen.steps
                    bars.update(tasks[job], completed=seen.steps)
                    if code is None:
                        continue
                    del running[job]
                    pace.steps[job] = job.steps  # also where patience ended it before
                    bars.remove_task(tasks.pop(job))  # a terminal has no room for all that have ended
                    if code and not (asked or interrupts.requested):
                        kind = OutOfMemoryError if code == OUT_OF_MEMORY else RunError
                        error = error or kind(f"{job.title}: {seen.error or f'exit {code}'}")
                    elif mode in ("live", "plain") and seen.status:
                        left = "" if code else pace.told_left(len(running) + len(waiting))
                        console.print(f"{job.title}: {seen.status}{left}", soft_wrap=True)
                    ended()
                if (error or interrupts.requested) and not asked:
                    asked = True
                    for process in running.values():
                        process.terminate()
        finally:
            for process in running.values():  # a second signal: at once
                process.terminate()
            for process in running.values():
                process.join()
    return not asked, error


def _work_apart(threads: int, work: Callable[..., None], *arguments: Any) -> None:
    """Do work in a process of its own, which stops, and saves, when it is asked to or when the first one is gone."""
    import numba
    import torch

    os.setpgid(0, 0)  # Ctrl-C is the first process's, which passes it on; a service finds all by their session
    parent = multiprocessing.parent_process()
    assert parent is not None

    def stop() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    torch.set_num_threads(threads)
    numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
    with _stopped_by_a_signal():
        work(*arguments)


@contextlib.contextmanager
def _stopped_by_a_signal() -> Iterator[None]:
    """End this process as interrupted where it is stopped, also while a run begins and cannot save yet."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def processes_for(config: RunConfig, market: Market | Basket | None, count: int) -> int:
    """Return how many of some trainings this machine takes side by side; 1 where they are better kept in this process.

    market: what a process is sent.
    """
    if count < 2 or not can_be_apart(config) or is_rank() or config.usable_device() != "cpu":
        return 1
    try:
        pickle.dumps(market)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        log.info("trained one after the other: the market cannot be sent to a process (%s)", error)
        return 1
    envs = allowed_envs()
    allowed = count if envs is None else envs // config.num_envs
    return max(min(count, allowed, available_cores(), free_memory() // (2 * bytes_in_use())), 1)


def worth_apart(processes: int, count: int, seconds: float) -> int:
    """Return in how many processes, this many at most, to do so many pieces of work; 1: in this one.

    seconds: that a piece takes here, one after the other.
    """
    return 1 if processes < 2 or -(-count // processes) * seconds + START_SECONDS >= count * seconds else processes


@contextlib.contextmanager
def told_by_its_folder() -> Iterator[None]:
    """End this process, whose run failed inside, with the code that says how; the run's folder says why."""
    try:
        yield
    except Exception as error:
        lacks_memory = shortage(error) is not None
        if not (lacks_memory or isinstance(error, VelodromeError)):
            raise
        sys.exit(OUT_OF_MEMORY if lacks_memory else 1)


def can_be_apart(config: RunConfig) -> bool:
    """Return whether trainings of a configuration may have processes of their own, on a machine where that is faster.

    What Velodrome does not know by itself, and what shares its environments, stays in one process.
    """
    own = config.env in CATALOG and str(CATALOG.get(config.env).world).startswith("velodrome.")
    own = own and str(ALGORITHMS.get(config.algorithm).learner).startswith("velodrome.")
    return own and not config.vector.autoscale and config.vector.max_concurrent_envs is None
