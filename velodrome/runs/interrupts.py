"""Ctrl-C, SIGTERM, SIGUSR1 and a terminal that is closed as a request to stop: what was learnt is saved first."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from velodrome.runs.folder import LEASE
from velodrome.vector.cores import is_rank

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # the last is what Slurm sends before a machine is taken away
HANGUP = signal.SIGHUP  # the terminal was closed, or the connection to it was lost


class Interrupted(KeyboardInterrupt):
    """The run stopped as requested: everything is saved."""


class Interrupts:
    """While open, the first signal sets `requested`; a second one interrupts, once what is being saved is saved.

    Under a service, or torchrun, a second one changes nothing: a cluster sends the same signal to every process, and a
    service passes on what it receives. It ends itself whoever does not stop in time. So does a terminal that is closed:
    the system and the shell both send the signal. Where it is ignored (nohup) it stays ignored.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        # Only the main thread may set what a signal does; in another thread signals keep their meaning.
        if threading.current_thread() is threading.main_thread():
            hangup = () if signal.getsignal(HANGUP) == signal.SIG_IGN else (HANGUP,)
            self._before = {number: signal.signal(number, self._receive) for number in (*SIGNALS, *hangup)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number != HANGUP and LEASE not in os.environ and not is_rank():
            raise KeyboardInterrupt
        self.requested = True
