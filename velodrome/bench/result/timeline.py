"""One training in a process of its own, from the start of the process to the highest level or until its time is up."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Collection, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from velodrome.bench.result.contenders import Entrant, check_jax
from velodrome.bench.result.problems import PROBLEMS
from velodrome.bench.trainer import torch_threads
from velodrome.errors import VelodromeError
from velodrome.vector.workers.worker.starting import without_main_module

GROWTH = 1.1  # of the training seconds between two looks at a policy: a time is known to this factor
CLOSE_SECONDS = 10.0
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

End = Literal["reached", "time", "steps", "interrupted", "failed"]


class Look(BaseModel):
    """Where a policy stood."""

    seconds: float = Field(description="spent learning until then")
    whole: float = Field(description="the same from the start of the process: imports, data and compilation included")
    steps: int
    score: float = Field(description="share of the known optimum, or mean return; the time that it took counts nowhere")


class Timeline(BaseModel):
    """One training."""

    problem: str
    peer: str
    label: str
    seed: int
    about: str = Field("", description="its settings, for people")
    ready: float = Field(0.0, description="seconds from the start of the process until learning began")
    looks: list[Look] = Field(default_factory=list)
    end: End = Field(
        "interrupted",
        description="reached: the highest level; time: its time was up; steps: all that it was told to do is done",
    )

    def reached(self, level: float) -> Look | None:
        """Return the first look at which it had reached a level."""
        return next((look for look in self.looks if look.score >= level), None)

    @property
    def best(self) -> float:
        """The best score of all."""
        return max((look.score for look in self.looks), default=float("-inf"))


class Contest:
    """The parent's hold on the process of one training."""

    def __init__(
        self, entrant: Entrant, timeline: Timeline, limit: float, folder: Path, cores: Collection[int]
    ) -> None:
        """cores: those that it runs on, with as many threads."""
        self.timeline, self.error, self.cores = timeline, "", cores
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe(duplex=False)
        given = (theirs, entrant, timeline.problem, timeline.seed, limit, folder, time.time(), cores)
        self.process = context.Process(target=learn, args=given, daemon=True)
        with without_main_module(), threads_of(len(cores)), unheard_interrupts():
            self.process.start()
        theirs.close()

    def hear(self) -> bool:
        """Write down what it says; return whether it has ended."""
        try:
            name, value = self.line.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(CLOSE_SECONDS)
            self.error = f"failed: its process ended with exit code {self.process.exitcode}"
            self.timeline.end = "failed"
            return True
        if name == "look":
            self.timeline.looks.append(value)
        elif name == "failed":
            self.timeline.end, self.error = "failed", f"failed: {value}"
        else:
            setattr(self.timeline, name, value)
        return name in ("end", "failed")

    def close(self) -> None:
        """End the process."""
        self.line.close()
        self.process.join(0.0 if self.timeline.end in ("interrupted", "failed") else CLOSE_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(CLOSE_SECONDS)


@contextlib.contextmanager
def threads_of(count: int) -> Iterator[None]:
    """Let processes that are started meanwhile compute on so many threads."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ |= dict.fromkeys(THREADS, str(count))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {} if value is None else {name: value}


@contextlib.contextmanager
def unheard_interrupts() -> Iterator[None]:
    """Let processes that are started meanwhile leave Ctrl-C to this one, which ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# What the process does


def learn(
    line: Connection,
    entrant: Entrant,
    problem: str,
    seed: int,
    limit: float,
    folder: Path,
    began: float,
    cores: Collection[int],
) -> None:
    """Learn, and tell the parent how it goes. limit: seconds of learning; 0: only once, which fills the caches.

    cores: of the machine, which are this process's alone: XLA asks no variable how many threads to start.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    with contextlib.suppress(BrokenPipeError), contextlib.ExitStack() as stack:
        silence = stack.enter_context(open(os.devnull, "w"))
        stack.enter_context(contextlib.redirect_stdout(silence))
        try:
            for told in looks(entrant, problem, seed, limit, folder, began, stack):
                line.send(told)
        except Exception as error:
            why = str(error) if isinstance(error, VelodromeError) else f"{type(error).__name__}: {error}"
            line.send(("failed", why.splitlines()[0]))


def looks(
    entrant: Entrant, name: str, seed: int, limit: float, folder: Path, began: float, stack: contextlib.ExitStack
) -> Iterator[tuple[str, Any]]:
    """Yield what there is to tell: settings, when it was ready, every look, and how it ended."""
    problem = PROBLEMS[name]
    given = problem.given(entrant.device, seed, entrant.taught)
    learning = entrant.open(given, stack, folder)
    ready = time.time() - began
    yield "about", learning.about
    yield "ready", ready
    judge, highest = problem.judge(given), max(problem.levels.values())
    if not limit and entrant.peer == "jax":
        check_jax(given)
    seconds, next_look = 0.0, 0.0
    while True:
        over = seconds > limit or learning.steps() >= learning.total
        if over or seconds >= next_look:
            with torch_threads(1):  # more of them would wait for one another in batches this small
                score = judge(learning.policy())
            yield "look", Look(seconds=seconds, whole=ready + seconds, steps=learning.steps(), score=score)
            next_look = GROWTH * seconds
            if score >= highest:
                yield "end", "reached"
                return
        if over:
            yield "end", "time" if seconds > limit else "steps"
            return
        started = time.perf_counter()
        learning.iterate()
        seconds += time.perf_counter() - started
