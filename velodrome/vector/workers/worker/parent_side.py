"""The parent's side of one worker: starting it, ringing its bell, waiting for it, checking that it lives."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Iterator
from typing import Any, Literal

import psutil

from velodrome.errors import BackendError
from velodrome.vector.workers.env_host import HostSettings
from velodrome.vector.workers.worker.protocol import WRAP, Command, Line, control_words, first_word, pack
from velodrome.vector.workers.worker.shared_memory import SharedBlock
from velodrome.vector.workers.worker.starting import also_from_daemons, process_context, without_main_module
from velodrome.vector.workers.worker.wakeups import Word
from velodrome.vector.workers.worker.worker_side import run_worker

LOOK_SECONDS = 0.05  # between checks that a worker still lives, while waiting for it
GRACE_SECONDS = 1.0  # for an environment that was asked to end its call, before its worker is killed
LEAVE_SECONDS = 5.0  # for environments to close


class WorkerLostError(Exception):
    """A worker died, or had to be killed. `row` is the environment that it was busy with, if any."""

    moment = "step"

    def __init__(self, kind: Literal["died", "hung"], row: int | None, message: str) -> None:
        super().__init__(message)
        self.kind, self.row, self.message = kind, row, message


class RefusedError(BackendError):
    """A worker could not do what it was asked. `original` is the exception there, if it could be sent."""

    original: Exception | None = None


class WorkerHandle:
    """One worker process and the rows whose environments it has.

    spin: seconds to poll before sleeping, on both sides.
    """

    def __init__(self, index: int, settings: HostSettings, control: SharedBlock, spin: float) -> None:
        begin = pack(("begin", settings))  # raises before there is a process if something cannot be sent
        self._set_up(index, settings, control, spin)
        context = process_context(settings.options.start_method)
        self.connection, other = context.Pipe()
        # Nobody writes to this pipe: as long as its other end is open, the worker knows that this process lives.
        life, self.life = context.Pipe(duplex=False)
        self.process: Any = context.Process(
            target=run_worker,
            args=(self.index, self.spin, control, other, life),
            name=f"velodrome-worker-{self.index}",
            daemon=True,
        )
        try:
            with without_main_module(), also_from_daemons():
                self.process.start()
            self.send("begin", begin)
        except BaseException:
            self.close(0.0)
            raise
        finally:
            other.close()
            life.close()

    def _set_up(self, index: int, settings: HostSettings, control: SharedBlock, spin: float) -> None:
        """Begin with words that say nothing yet."""
        self.index, self.spin, self.timeout = index, spin, settings.options.timeout
        self.rows: list[int] = []
        self.lost = False
        self.too_large = ""  # why it was killed for its memory
        self.moment = "start"
        words = control_words(control)
        first = first_word(self.index)
        self.first = first
        words[first : first_word(index + 1)] = 0
        self.bell = Word(words, first + Line.BELL, first + Line.ASLEEP)
        self.done = Word(words, first + Line.DONE, first + Line.AWAITED)
        self.words = self.bell.words
        self.rung = 0
        self.mail_read = 0

    # Asking

    def ring(self, command: Command) -> None:
        """Ask for something; `wait` returns when it is done."""
        # The command is the bell's two lowest bits: in a word of its own it could be read with the ring before it.
        self.rung = ((self.rung | 3) + 1) & WRAP | command
        self.bell.set(self.rung)

    def ask(self, name: str, *arguments: Any, block: SharedBlock | None = None) -> None:
        """Send a message; `answer` returns the reply."""
        self.send(name, pack((name, *arguments)), block)

    def send(self, name: str, message: bytes, block: SharedBlock | None = None) -> None:
        """Send a packed message."""
        self.moment = name
        self.ring(Command.MESSAGE)
        with self._connection_errors():
            self.connection.send_bytes(message)
            if block is not None:
                block.send(self.connection, self.process.pid)

    def answer(self) -> Any:
        """Wait for the reply to a message; an exception in the worker is raised here."""
        self.wait()
        fine, *result = self.take_mail()
        if not fine:
            text, trace, pickled = result
            refused = RefusedError(f"worker {self.index}, {self.moment}: {text}\n{trace}")
            with contextlib.suppress(Exception):  # it may be of a class that only the worker can import
                refused.original = pickle.loads(pickled)
            raise refused
        return result[0]

    def wait(self, spin: float = 0.0) -> None:
        """Wait until the last command is done; raises WorkerLostError if it never will be."""
        target, last = self.rung, self.words[self.first + Line.DONE]
        watch = None
        while last != target:
            if not self.done.wait_while(last, LOOK_SECONDS, spin):
                watch = watch or Watch(self)
                watch.look()
            last = self.words[self.first + Line.DONE]

    def done_by(self, deadline: float) -> bool:
        """Return whether the last command is done, or never will be, by this time of `time.monotonic`."""
        while (last := self.words[self.first + Line.DONE]) != self.rung and self.process.is_alive():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.done.wait_while(last, min(left, LOOK_SECONDS), self.spin)
        return True

    def take_mail(self) -> Any:
        """Return the worker's next message, which it has announced."""
        with self._connection_errors():
            while not self.connection.poll(LOOK_SECONDS):
                if not self.process.is_alive() and not self.connection.poll(0):
                    raise EOFError
            self.mail_read += 1
            return pickle.loads(self.connection.recv_bytes())

    @property
    def has_news(self) -> bool:
        """Whether the last step brought more than numbers: the end of an episode, an info, a fault."""
        return bool(self.words[self.first + Line.NEWS])

    @property
    def has_mail(self) -> bool:
        """Whether a message was announced and not yet taken."""
        return self.words[self.first + Line.MAIL] != self.mail_read

    def asked(self, name: str, *arguments: Any, block: SharedBlock | None = None) -> Any:
        """Send a message and return the reply."""
        self.ask(name, *arguments, block=block)
        return self.answer()

    # Life and death

    @property
    def current_row(self) -> int | None:
        """The row whose environment the worker is busy with."""
        return self.words[self.first + Line.CURRENT] - 1 if self.words[self.first + Line.CURRENT] else None

    @property
    def progress(self) -> tuple[int, int, int]:
        """Words of which at least one changes whenever the call of an environment ends."""
        return tuple(self.words[self.first + word] for word in (Line.CURRENT, Line.TAKEN, Line.DONE))  # type: ignore[return-value]

    def check_alive(self) -> None:
        """Raise WorkerLostError if the process has ended."""
        if self.process.is_alive():
            return
        code = self.process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        raise WorkerLostError("died", self.current_row, f"its process ended with {how}")

    def interrupt(self) -> None:
        """Interrupt the environment that is running; kill the worker if that does not help."""
        row, before = self.current_row, self.progress
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)
        end = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end:
            if self.progress != before:
                return
            self.check_alive()
            time.sleep(0.005)
        self.kill()
        message = f"no answer within {self.timeout:g} s, nor to a signal; its worker was killed"
        raise WorkerLostError("hung", row, message)

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(ProcessLookupError, OSError):
            self.process.kill()
        self.process.join(LEAVE_SECONDS)

    def memory(self) -> int:
        """Return the bytes of memory that the process has for itself, without what it shares with others."""
        try:
            used = psutil.Process(self.process.pid).memory_info()
            return used.rss - getattr(used, "shared", 0)
        except psutil.Error:
            return 0

    def leave(self) -> None:
        """Ask the worker to close its environments and end."""
        if not self.lost and self.process.is_alive():
            with contextlib.suppress(WorkerLostError, OSError):
                self.ask("leave")

    def close(self, seconds: float = LEAVE_SECONDS) -> None:
        """Wait for the worker to end; kill it if it does not."""
        if self.process.pid is not None:  # else it never began
            self.process.join(seconds)
            if self.process.is_alive():
                self.kill()
        self.disconnect()
        with contextlib.suppress(ValueError):
            self.process.close()

    def disconnect(self) -> None:
        """Close this process's ends of the pipes; if it was the last to hold them, the kernel kills the worker."""
        self.life.close()
        self.connection.close()

    @contextlib.contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self.process.join(1.0)
            self.check_alive()
            raise WorkerLostError("died", self.current_row, f"its connection broke: {error!r}") from error


class Watch:
    """Checks on a worker while somebody waits for it."""

    def __init__(self, worker: WorkerHandle) -> None:
        self.worker = worker
        self.progress = worker.progress
        self.since = time.monotonic()

    def look(self) -> None:
        """Raise if the worker is gone; interrupt an environment that takes longer than it may."""
        worker = self.worker
        worker.check_alive()
        progress, now = worker.progress, time.monotonic()
        if progress != self.progress or worker.current_row is None:
            self.progress, self.since = progress, now
        elif worker.timeout is not None and now - self.since > worker.timeout:
            worker.interrupt()
            self.progress, self.since = worker.progress, time.monotonic()
