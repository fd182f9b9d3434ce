"""What stands here for a worker on another machine: the words of one on this, which a thread keeps up to date.

The thread hands requests on and writes results into the arrays of the batch, so that whoever looks at words and arrays
need not know where a worker is.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import pickle
import queue
import sys
import sysconfig
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from velodrome.outside.cluster import told
from velodrome.vector.space_arrays import flat_leaves
from velodrome.vector.workers.env_host import HostSettings
from velodrome.vector.workers.env_maker import EnvMaker
from velodrome.vector.workers.remote.actor import CHANGING, GRACE_SECONDS, RemoteWorker, Rows
from velodrome.vector.workers.worker.parent_side import LOOK_SECONDS, WorkerHandle, WorkerLostError
from velodrome.vector.workers.worker.protocol import DOORBELL, WRAP, Command, Line, control_words, pack
from velodrome.vector.workers.worker.shared_memory import SharedBlock
from velodrome.vector.workers.worker.wakeups import Word

START_SECONDS = 120.0  # for a node to have a free core, and to import what environments need
SLICE_SECONDS = 0.03  # of work in one call: enough to hide the way there, and little to wait for
IN_FLIGHT = 2  # calls of an actor: one is carried out while the other is on its way
LARGE = 1 << 16  # bytes of a message that goes through the object store, once for each node
LEAVE = None


@contextlib.contextmanager
def own_code_by_value(makers: list[EnvMaker]) -> Iterator[None]:
    """Let environments take the code of their module along where it is no installed package: nodes may not have it."""
    import cloudpickle

    names = {getattr(maker.source, "__module__", None) for maker in makers if maker.specification is None}
    modules = [module for name in names if (module := sys.modules.get(str(name))) and _is_own(module)]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType) -> bool:
    """Return whether a module lies in a folder of its user; those of Python, of packages and of Velodrome do not."""
    file, installed = getattr(module, "__file__", None), [sysconfig.get_path(name) for name in ("stdlib", "purelib")]
    own = file is not None and not any(file.startswith(place) for place in (*installed, sysconfig.get_path("platlib")))
    return own and module.__name__ not in ("__main__",) and not module.__name__.startswith("velodrome.")


class ActorProcess:
    """An actor, with the names that processes have."""

    exitcode = None

    def __init__(self, handle: RemoteHandle) -> None:
        self.handle = handle
        self.pid = 0

    def is_alive(self) -> bool:
        """Whether the actor is there."""
        return not self.handle.gone

    def kill(self) -> None:
        """End the actor at once."""
        with contextlib.suppress(Exception):  # it is gone, or the cluster is
            self.handle.ray.kill(self.handle.actor)
        self.handle.gone = self.handle.gone or "it was ended"

    def join(self, seconds: float | None = None) -> None:
        """Wait until the thread has nothing more to hand on."""
        if threading.current_thread() is not self.handle.thread:
            self.handle.thread.join(seconds)

    def close(self) -> None:
        """Nothing is left to close."""


class RemoteHandle(WorkerHandle):
    """One actor and the rows whose environments it has.

    objects: what the batch has put into the object store, by its content.
    """

    def __init__(
        self, index: int, settings: HostSettings, control: SharedBlock, ray: Any, objects: dict[str, Any]
    ) -> None:
        with own_code_by_value(settings.makers):
            begin = pack(("begin", settings))  # raises before there is an actor if something cannot be sent
        self._set_up(index, settings, control, 0.0)
        self.ray, self.objects = ray, objects
        self.gone = ""  # why the actor is, in words
        self.used = 0  # bytes
        self.seconds = 0.0  # that a step of an environment takes
        self.doorbell = Word(control_words(control), DOORBELL, DOORBELL + 1)
        self.orders: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.mail: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.fields: Rows = {}
        self.begun = time.monotonic()  # when the actor was last asked for something
        # Slow environments leave their core to others most of the time, so that the scheduler's count decides.
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self.actor = ray.remote(RemoteWorker).options(**options).remote(index)
        self.process = ActorProcess(self)
        self.thread = threading.Thread(target=self._serve, name=f"velodrome-actor-{index}", daemon=True)
        self.thread.start()
        self.send("begin", begin)

    # Asking

    def ring(self, command: Command) -> None:
        """Ask for something; `wait` returns when it is done."""
        super().ring(command)
        if command == Command.REQUESTS:
            self.orders.put(command)

    def ask(self, name: str, *arguments: Any, block: SharedBlock | None = None) -> None:
        """Send a message; `answer` returns the reply."""
        if block is not None:
            layout = arguments[0]
            self.fields, view = block.arrays(layout.fields), layout.view(block)
            self.actions = flat_leaves(layout.action_space, view.actions)
            self.requests, self.completions = view.requests[self.index], view.completions[self.index]
            for word in (Line.TAKEN, Line.COMPLETIONS):
                self.words[self.first + word] = 0
        self._send(name, pack((name, *arguments)), arguments[0] if name in CHANGING else [])

    def send(self, name: str, message: bytes, block: SharedBlock | None = None) -> None:
        """Send a packed message."""
        self._send(name, message, [])

    def _send(self, name: str, message: bytes, rows: list[int]) -> None:
        """Send a message after which some rows have other values."""
        self.moment = name
        self.check_alive()
        placed = self._placed(message)
        self.ring(Command.MESSAGE)
        self.orders.put((self.rung, name, placed, rows))

    def _placed(self, message: bytes) -> Any:
        """Return a message as it goes to the actor: a large one by reference, which its node fetches once."""
        if len(message) < LARGE:
            return message
        content = hashlib.sha256(message).hexdigest()
        if content not in self.objects:
            with told("the cluster"):
                self.objects[content] = self.ray.put(message)
        return self.objects[content]

    def take_mail(self) -> Any:
        """Return the worker's next message, which it has announced."""
        while True:
            try:
                packed = self.mail.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                self.check_alive()
                continue
            self.mail_read += 1
            return pickle.loads(packed)

    # The thread

    def _serve(self) -> None:
        """Hand on what is asked, until there is nobody to ask, or to be asked."""
        try:
            while (order := self.orders.get()) is not LEAVE:
                if order == Command.REQUESTS:
                    self._step()
                    continue
                rung, name, message, rows = order
                self.begun = time.monotonic()
                limit = START_SECONDS if name == "begin" else None
                self._take(self.ray.get(self.actor.message.remote(message), timeout=limit), rows)
                self.done.set(rung)
                if name == "leave":
                    return
        except Exception as error:  # Ray's errors have no common base
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            late = "no node had a free core for it in time" if type(error).__name__ == "GetTimeoutError" else ""
            self.gone = self.gone or late or (lines[0] if lines else type(error).__name__)[:300]
            self._wake()

    def _step(self) -> None:
        """Hand requests on in small calls, and note environments that have stepped, until none is asked for."""
        words, first = self.words, self.first
        flying: deque[tuple[Any, list[int]]] = deque()
        while True:
            taken, asked = words[first + Line.TAKEN], words[first + Line.REQUESTS]
            while taken != asked and len(flying) < IN_FLIGHT:
                size = min((asked - taken) & WRAP, math.ceil(SLICE_SECONDS / max(self.seconds, 1e-6)))
                rows = [int(self.requests[(taken + at) % len(self.requests)]) for at in range(size)]
                taken = (taken + size) & WRAP
                words[first + Line.TAKEN] = taken
                index = np.asarray(rows)
                call = self.actor.step.remote(rows, [leaf[index] for leaf in self.actions])
                flying.append((call, rows))
            if not flying:
                return
            call, rows = flying.popleft()
            words[first + Line.CURRENT] = rows[0] + 1
            self.begun = time.monotonic()
            answer = self.ray.get(call)
            words[first + Line.CURRENT] = 0
            self._take(answer, rows)
            self.seconds = float(np.mean(self.fields["step_seconds"][rows]))
            done = words[first + Line.COMPLETIONS]
            self.completions[(done + np.arange(len(rows))) % len(self.completions)] = rows
            words[first + Line.COMPLETIONS] = (done + len(rows)) & WRAP
            self._wake()

    def _take(self, answer: tuple[list[bytes], Rows, int], rows: list[int]) -> None:
        """Write what an actor has sent into the arrays of the batch, and announce its messages."""
        messages, values, self.used = answer
        for name, own in values.items():
            self.fields[name][rows] = own
        for message in messages:
            self.mail.put(message)
        self.words[self.first + Line.MAIL] += len(messages)

    def _wake(self) -> None:
        self.doorbell.set((self.doorbell.words[DOORBELL] + 1 + self.index) & WRAP)

    # Life and death

    def check_alive(self) -> None:
        """Raise WorkerLostError if the actor has ended."""
        if not self.gone:
            return
        row, limit = self.current_row, self.timeout
        if limit is not None and row is not None and time.monotonic() - self.begun > limit + GRACE_SECONDS / 2:
            raise WorkerLostError("hung", row, f"no answer within {limit:g} s, nor to a signal; its worker was killed")
        raise WorkerLostError("died", row, f"its actor ended: {self.gone}")

    def interrupt(self) -> None:
        """Leave it to the actor, which ends calls that take too long, and itself if that does not help."""

    def memory(self) -> int:
        """Return the bytes of memory that the actor's process had for itself when it last answered."""
        return self.used

    def disconnect(self) -> None:
        """Let the thread end, and the actor with it."""
        self.orders.put(LEAVE)
        self.process.kill()
