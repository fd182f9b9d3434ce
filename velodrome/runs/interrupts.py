"""Ctrl-C, SIGTERM and SIGUSR1 as a request to stop: what was learnt is saved first. In processes side by side, too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from velodrome.runs.folder import LEASE
from velodrome.vector.cores import available_cores, is_rank

if TYPE_CHECKING:
    from rich.console import Console

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # the last is what Slurm sends before a machine is taken away
POLL_SECONDS = 0.25


class Interrupted(KeyboardInterrupt):
    """The run stopped as requested: everything is saved."""


class Interrupts:
    """While open, the first signal sets `requested`; a second one interrupts at once.

    Under a service, or torchrun, a second one changes nothing: a cluster sends the same signal to every process, and a
    service passes on what it receives. It ends itself whoever does not stop in time.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        # Only the main thread may set what a signal does; in another thread signals keep their meaning.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested and LEASE not in os.environ and not is_rank():
            raise KeyboardInterrupt
        self.requested = True


# Trainings side by side


class Seen(NamedTuple):
    """What a run's folder says of a training."""

    steps: int = 0
    status: str = ""
    error: str = ""


@dataclass(frozen=True, eq=False)
class Job:
    """A training for a process of its own. The process ends with another code than 0 if it failed."""

    title: str  # such as "fold 2"
    work: Callable[..., None]  # of a module, so that another process finds it
    arguments: tuple[Any, ...]
    steps: int
    look: Callable[[], Seen]


def train_together(
    jobs: Sequence[Job], processes: int, console: Console, mode: str, ended: Callable[[], None] = lambda: None
) -> tuple[bool, str]:
    """Train in this many processes at a time; whoever stops this one lets them save and stop, too.

    Return whether all have ended by themselves, and what went wrong in the first that failed, "" if none did; the
    others are stopped then. ended: called when one has ended.
    """
    from rich.progress import Progress

    from velodrome.vector.workers.worker.starting import process_context, without_main_module

    threads, waiting = max(1, available_cores() // processes), list(jobs)
    running: dict[Job, Any] = {}
    error, asked = "", False
    with Interrupts() as interrupts, Progress(console=console, disable=mode != "live") as bars:
        tasks: dict[Job, Any] = {}
        try:
            while running or (waiting and not asked):
                while waiting and not asked and len(running) < processes:
                    job = waiting.pop(0)
                    about = (threads, job.work, *job.arguments)
                    running[job] = process_context("spawn").Process(target=_work_apart, args=about)
                    with without_main_module():
                        running[job].start()
                    tasks[job] = bars.add_task(job.title, total=job.steps)
                time.sleep(POLL_SECONDS)
                for job, process in list(running.items()):
                    code, seen = process.exitcode, job.look()
                    bars.update(tasks[job], completed=seen.steps)
                    if code is None:
                        continue
                    del running[job]
                    if code and not (asked or interrupts.requested):
                        error = error or f"{job.title}: {seen.error or f'exit {code}'}"
                    elif mode in ("live", "plain") and seen.status:
                        console.print(f"{job.title}: {seen.status}", soft_wrap=True)
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
    work(*arguments)
