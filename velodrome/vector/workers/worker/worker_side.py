"""The worker's side: the process that steps some environments of a batch.

Every worker pays for what this module imports, so it imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import pickle
import select
import signal
import traceback
from operator import length_hint
from typing import Any

from velodrome.vector.infos import RowInfo, Schema, schema_of
from velodrome.vector.space_arrays import WrongValueError, check_spaces, reader
from velodrome.vector.workers.env_host import EnvDescription, EnvHost, HostSettings, Interruption, fault_of
from velodrome.vector.workers.worker.protocol import (
    DOORBELL,
    MAILED,
    WRAP,
    Command,
    Line,
    SharedLayout,
    control_words,
    first_word,
    pack,
)
from velodrome.vector.workers.worker.shared_memory import SharedBlock
from velodrome.vector.workers.worker.wakeups import Word, order_memory

LOOK_SECONDS = 1.0  # between checks that the parent lives
F_SETSIG = 10  # Linux: which signal a descriptor sends


def run_worker(index: int, spin: float, control: SharedBlock, connection: Any, life: Any) -> None:
    """Serve until told to stop, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # the workers themselves are the parallelism
    # An environment may start processes of its own, as it may where it is stepped in a plain loop.
    getattr(multiprocessing.current_process(), "_config", {})["daemon"] = False
    die_with_parent(life)
    worker = Worker(index, spin, control, connection, life)
    signal.signal(signal.SIGUSR1, worker.interrupt)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        worker.serve()


def die_with_parent(life: Any) -> None:
    """Let the kernel kill this process when the parent's end of a pipe closes, whatever it is doing then."""
    descriptor = life.fileno()
    if hasattr(fcntl, "F_SETOWN") and os.uname().sysname == "Linux":
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if parent_is_gone(life):
        os._exit(1)


def parent_is_gone(life: Any) -> bool:
    """Return whether nobody holds the other end of the pipe any more; nothing is ever written to it."""
    return bool(select.select([life], [], [], 0)[0])


class Worker:
    """Environments, the words through which the parent gives orders, and the pipe for everything rare."""

    host: EnvHost

    def __init__(self, index: int, spin: float, control: SharedBlock, connection: Any, life: Any) -> None:
        self.index, self.spin, self.connection, self.life = index, spin, connection, life
        words = control_words(control)
        self.control = control  # keeps the memory
        first = first_word(index)
        self.first = first
        self.bell = Word(words, first + Line.BELL, first + Line.ASLEEP)
        self.done = Word(words, first + Line.DONE, first + Line.AWAITED)
        self.doorbell = Word(words, DOORBELL, DOORBELL + 1)
        self.words = self.bell.words
        self.current = self.words[first + Line.CURRENT : first + Line.CURRENT + 1]
        self.answered = 0
        self.schemas: dict[Schema, int] = {}
        self.new_schemas: list[Schema] = []
        self.leaving = False

    def interrupt(self, signum: int, frame: Any) -> None:
        """End the call of an environment that takes too long, on the parent's signal."""
        if self.current[0]:
            raise Interruption(f"no answer within {self.host.options.timeout:g} s")

    # Waiting and answering

    def serve(self) -> None:
        """Do what is asked until told to leave."""
        words, first = self.words, self.first
        while not self.leaving:
            if not self.bell.wait_while(self.answered, LOOK_SECONDS, self.spin):
                if parent_is_gone(self.life):
                    return
                continue
            rung = words[first + Line.BELL]
            command = rung & 3
            mail = None
            if command == Command.STEP:
                mail = self.step_all()
            elif command == Command.REQUESTS:
                self.answered = rung
                self.step_requested()
                continue
            elif command == Command.MESSAGE:
                mail = self.handle(self.connection.recv_bytes())
            self.answered = rung
            if mail is not None:
                words[first + Line.MAIL] += 1
            self.done.set(rung)
            # After the answer: the parent must be reading when a message is too large for the pipe.
            if mail is not None:
                self.send(mail)

    def send(self, mail: Any) -> None:
        """Send what does not fit into arrays; in infos, a note replaces what cannot be sent."""
        try:
            packed = pack(mail)
        except Exception as error:
            if isinstance(mail[0], bool):
                text = f"the answer cannot be sent to another process: {error}"
                packed = pack((False, text, traceback.format_exc(), None))
            else:
                infos, *rest = mail
                clean = [RowInfo(row, sendable(info) or {}, sendable(final)) for row, info, final in infos]
                packed = pack((clean, *rest))
        self.connection.send_bytes(packed)

    # Step

    def step_all(self) -> Any:
        """Step every environment of this worker; return what does not fit into arrays, or None."""
        host = self.host
        self.step_rows(list(host.envs))
        check = host.check
        if host.doubts or (check is not None and not check.is_right(host.ended)):
            host.look_closely(host.envs)
        news = bool(host.ended or host.infos or host.faults)
        self.words[self.first + Line.NEWS] = news
        return self.write_infos() if news else None

    def step_rows(self, rows: list[int]) -> None:
        """Step the environments of some rows, all of them even if a signal comes too late for one."""
        left = iter(rows)
        while True:
            try:
                return self.host.step(left, self.read_action)
            except Interruption as error:  # when a step had ended
                self.current[0] = 0
                row = rows[-1 - length_hint(left)]
                self.host.faults.append(fault_of(row, self.index, error, "step"))

    def write_infos(self) -> Any:
        """Write infos that are numbers into their arrays; return the rest for the pipe, or None."""
        host, kinds, values = self.host, self.shared.info_kind, self.shared.info_values
        mailed: list[RowInfo] = []
        for entry in host.infos:
            row, info, final_info = entry
            if not info and not final_info:
                continue
            schema = schema_of(info) if not final_info else None
            if schema is None:
                kinds[row] = MAILED
                mailed.append(entry)
                continue
            number = self.schemas.get(schema)
            if number is None:
                number = self.schemas[schema] = len(self.schemas) + 1
                self.new_schemas.append(schema)
            values[row, : len(schema)] = list(info.values())
            kinds[row] = number
        host.infos.clear()
        host.ended.clear()
        faults, schemas = host.faults, self.new_schemas
        if not (mailed or faults or schemas):
            return None
        host.faults, self.new_schemas = [], []
        rows = [fault.environment for fault in faults]
        # How often each was restarted, and whether it still has an environment.
        restarts = {row: (host.restarts.get(row, 0), host.envs.get(row) is not None) for row in rows}
        return mailed, faults, schemas, restarts

    def step_requested(self) -> None:
        """Step environments one by one, in the order of the requests."""
        words, first, host = self.words, self.first, self.host
        requests, completions = self.shared.requests[self.index], self.shared.completions[self.index]
        size = len(requests)
        host.look_apart()
        taken = words[first + Line.TAKEN]
        while taken != words[first + Line.REQUESTS]:
            order_memory()
            row = int(requests[taken % size])
            taken = (taken + 1) & WRAP
            words[first + Line.TAKEN] = taken
            self.step_rows([row])
            check = None if host.doubting else host.check_of.get(row)
            if host.doubts or (check is not None and not check.is_right(host.ended)):
                host.look_closely((row,))
            mail = self.write_infos() if host.infos or host.faults else None
            host.ended.clear()
            if mail is not None:
                words[first + Line.MAIL] += 1
            completed = words[first + Line.COMPLETIONS]
            completions[completed % size] = row
            order_memory()
            words[first + Line.COMPLETIONS] = (completed + 1) & WRAP
            # Any change wakes the parent, whichever worker wrote last.
            self.doorbell.set((self.doorbell.words[DOORBELL] + 1 + self.index) & WRAP)
            if mail is not None:
                self.send(mail)

    # Messages

    def handle(self, message: bytes) -> Any:
        """Do something rare and return the answer: (True, result), or (False, error, traceback, pickled error).

        A message names a method: one of those below, without its "on_", or one of the host.
        """
        try:
            name, *arguments = pickle.loads(message)
            method = getattr(self, f"on_{name}", None) or getattr(self.host, name)
            return True, method(*arguments)
        except (Exception, SystemExit) as error:
            self.current[0] = 0
            pickled = None
            if not isinstance(error, SystemExit | Interruption | WrongValueError):
                with contextlib.suppress(Exception):
                    pickled = pack(error)
            return False, f"{type(error).__name__}: {error}", traceback.format_exc(), pickled

    def on_begin(self, settings: HostSettings) -> None:
        """Receive the makers of environments; one that cannot be loaded here is an error like any other."""
        if settings.registered is not None:
            settings.registered.register()
        self.host = EnvHost(settings, self.index)
        self.host.current = self.current

    def on_describe(self, row: int) -> EnvDescription:
        """Make a first environment and return its description."""
        self.host.make(row)
        described = self.host.describe(row)
        spec = self.host.makers[0].without_own(described.spec)
        try:
            pack(spec)
        except Exception:  # it may name a function that holds a lock
            spec = None
        return described._replace(spec=spec)

    def on_make(self, rows: list[tuple[int, int]], shared: SharedLayout) -> list[Any]:
        """Make the environments of some rows, given as (row, restarts); return the faults of those that failed."""
        faults = []
        for row, restarts in rows:
            try:
                if self.host.envs.get(row) is None:
                    self.host.make(row, restarts)
                env = self.host.envs[row]
                check_spaces(row, env, shared.observation_space, shared.action_space)
            except (Exception, SystemExit) as error:
                self.current[0] = 0
                self.host.envs[row] = None
                self.host.restarts.setdefault(row, restarts)
                faults.append(fault_of(row, self.index, error, "make"))
        self.host.envs = dict(sorted(self.host.envs.items()))
        if not faults:
            self.host.check_distinct()
        return faults

    def on_attach(self, shared: SharedLayout) -> None:
        """Use other shared arrays from now on; their block follows this message."""
        self.block = SharedBlock.receive(self.connection)
        self.shared = shared.view(self.block)
        self.block.close()
        self.host.attach(self.shared.batch, shared.observation_space)
        self.read_action = reader(shared.action_space, self.shared.actions)
        for word in (Line.TAKEN, Line.COMPLETIONS):
            self.words[self.first + word] = 0

    def on_reset(self, rows: list[int], seeds: list[int | None], options: dict[str, Any] | None) -> Any:
        """Start episodes; return infos and faults as a step does."""
        self.host.reset(rows, seeds, options)
        return self.write_infos()

    def on_replaced(self, rows: list[int]) -> Any:
        """Begin episodes of environments that replace lost ones, whose episodes were cut off."""
        self.host.replaced(rows)
        return self.write_infos()

    def on_drop(self, rows: list[int]) -> None:
        """Leave some rows empty: their environments were dropped together with the previous worker."""
        for row in rows:
            self.host.envs[row], self.host.restarts[row] = None, 0
            self.host.dropped.add(row)
        self.host.envs = dict(sorted(self.host.envs.items()))

    def on_leave(self) -> None:
        """Close everything and end."""
        self.host.close()
        self.leaving = True


def sendable(info: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return an info in which a note replaces what cannot be sent to another process."""
    if info is None:
        return None
    found = {}
    for key, value in info.items():
        try:
            pack(value)
            found[key] = value
        except Exception as error:
            found[key] = f"cannot be sent to another process: {error}"
    return found
