"""Evaluations and promotions that somebody asks for in a browser: commands of their own, one after the other.

They need torch, take minutes and much memory, so they are no work for the web process; and they are the same commands
that a terminal would run, with the same refusals.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from velodrome.dashboard.answers import Refusal
from velodrome.tune.champions.registry import check_name

KEPT = 200  # tasks that are over
MOST_OUTPUT = 1 << 20  # bytes of what a command printed
SECONDS_TO_END = 5.0
PROGRAM = ["-m", "velodrome"]  # for Python
PROBLEM_FOUND = 1  # exit code of a promotion that was refused


@dataclass(frozen=True)
class Task:
    """A command that was asked for."""

    id: str
    kind: str
    about: str
    command: str
    created: float  # seconds since 1970
    run: str | None = None
    study: str | None = None
    status: str = "waiting"
    ended: float | None = None
    message: str = ""
    result: Any = None

    def content(self) -> dict[str, Any]:
        """Return it in plain values."""
        return asdict(self)


class Tasks:
    """The tasks of a web server; a thread carries them out while there are any."""

    def __init__(self, folder: Path, store: str | None, most: int) -> None:
        self._place = ["--folder", str(folder)]
        self._store = [] if store is None else ["--store", store]
        self._most = most
        self._tasks: dict[str, Task] = {}
        self._words: dict[str, list[str]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self.tell: Callable[[Task], None] = lambda task: None  # called with each change

    def evaluate(self, run: str, split: str | None, official: bool) -> Task:
        """Ask for an evaluation of a run."""
        words = ["eval", run, "--json", *(["--split", split] if split else []), *(["--official"] if official else [])]
        return self._add("evaluate", f"run {run}", [*words, *self._place], run=run)

    def promote(self, name: str | None, margin: float, run: str | None = None, study: str | None = None) -> Task:
        """Ask for a promotion of a run, or of a study's winner."""
        if name is not None:
            check_name(name)
        candidate = str(run or study)
        options = [*(["--name", name] if name else []), *([f"--margin={margin:g}"] if margin else [])]
        words = ["promote", candidate, "--json", *options, *self._place, *self._store]
        return self._add("promote", f"run {run}" if run else f"study {study}", words, run=run, study=study)

    def _add(self, kind: str, about: str, words: Sequence[str], **named: Any) -> Task:
        # The address of a store may have a password in it, which pages need not show.
        command = " ".join("…" if word in self._store[1:] else shlex.quote(word) for word in ("velodrome", *words))
        task = Task(secrets.token_hex(6), kind, about, command, time.time(), **named)
        with self._changed:
            open_ones = [one for one in self._tasks.values() if one.ended is None]
            if self._closed or len(open_ones) >= self._most:
                raise Refusal(503, f"{len(open_ones)} tasks wait already; ask again later.", retry_after=10.0)
            same = next((one for one in open_ones if one.command == command), None)
            if same is not None:
                raise Refusal(409, f"the same is being done already (task {same.id}).")
            self._tasks[task.id], self._words[task.id] = task, list(words)
            over = [one.id for one in self._tasks.values() if one.ended is not None]
            for old in over[: max(0, len(over) - KEPT)]:
                del self._tasks[old]
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="velodrome tasks", daemon=True)
                self._thread.start()
        self.tell(task)
        return task

    def all(self) -> list[Task]:
        """Return all tasks, newest first."""
        with self._changed:
            return list(reversed(self._tasks.values()))

    def get(self, identity: str) -> Task:
        """Return a task by its id."""
        with self._changed:
            found = self._tasks.get(identity)
        if found is None:
            raise Refusal(404, f"there is no task {identity[:40]!r}; those of an earlier server are forgotten.")
        return found

    def cancel(self, identity: str) -> Task:
        """End a task; what it has written by then stays."""
        task = self.get(identity)
        with self._changed:
            if task.ended is not None:
                raise Refusal(409, f"task {identity} is over already: {task.status}.")
            self._words.pop(identity, None)
            process = self._process if task.status == "running" else None
        if process is None:
            return self._note(task, status="cancelled", ended=time.time(), message="cancelled before it began")
        _end(process)
        return self.get(identity)

    def close(self) -> None:
        """End what runs, and begin nothing more."""
        with self._changed:
            self._closed = True
            self._words.clear()
            process, thread = self._process, self._thread
        if process is not None:
            _end(process)
        if thread is not None:
            thread.join(SECONDS_TO_END + 2.0)

    # The thread

    def _work(self) -> None:
        while True:
            with self._changed:
                waiting = next((task for task in self._tasks.values() if task.status == "waiting"), None)
                words = None if waiting is None else self._words.get(waiting.id)
                if waiting is None or self._closed:
                    self._thread = None
                    return
            if words is None:  # cancelled meanwhile
                self._note(waiting, status="cancelled", ended=time.time(), message="cancelled before it began")
                continue
            self._carry_out(self._note(waiting, status="running"), words)

    def _carry_out(self, task: Task, words: Sequence[str]) -> None:
        environment = {**os.environ, "COLUMNS": "140", "NO_COLOR": "1"}
        with contextlib.ExitStack() as stack:
            try:
                process = subprocess.Popen(
                    [sys.executable, *PROGRAM, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C of the server is for the server
                    env=environment,
                )
            except OSError as error:
                self._note(task, status="failed", ended=time.time(), message=f"cannot be started: {error}")
                return
            stack.callback(_end, process)
            with self._changed:
                self._process = process
            output, problem = process.communicate()
            with self._changed:
                self._process = None
                cancelled = self._closed or task.id not in self._words
        self._note(task, ended=time.time(), **_end_of(process.returncode, output, problem, cancelled))

    def _note(self, task: Task, **values: Any) -> Task:
        new = replace(task, **values)
        with self._changed:
            self._tasks[task.id] = new
            if new.ended is not None:
                self._words.pop(task.id, None)
        self.tell(new)
        return new


def _end_of(code: int, output: bytes, problem: bytes, cancelled: bool) -> dict[str, Any]:
    """Return how a command ended, from its exit code and what it printed."""
    result = None
    if len(output) <= MOST_OUTPUT:
        with contextlib.suppress(ValueError):
            result = json.loads(output)
    lines = [line for line in problem[-MOST_OUTPUT:].decode("utf-8", "replace").splitlines() if line.strip()]
    said = (lines[-1] if lines else "").removeprefix("velodrome: ")
    if code == 0:
        return {"status": "done", "message": "", "result": result}
    if cancelled:
        return {"status": "cancelled", "message": "cancelled"}
    if code == PROBLEM_FOUND and isinstance(result, dict):
        return {"status": "refused", "message": "; ".join(result.get("reasons", [])), "result": result}
    return {"status": "failed", "message": said or f"it ended with code {code}", "result": result}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command with all that it started: it may save what it has, but not for long."""
    for kind, seconds in ((signal.SIGINT, SECONDS_TO_END), (signal.SIGKILL, 1.0)):
        if process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, kind)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
