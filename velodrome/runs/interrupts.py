"""Ctrl-C and SIGTERM as a request to stop, so that what was learnt is saved first."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """The run stopped as requested: everything is saved."""


class Interrupts:
    """While open, the first signal sets `requested`; a second one interrupts at once."""

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
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
