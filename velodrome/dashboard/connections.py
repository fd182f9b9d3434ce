"""A connection's time to say what it wants: who connects and stays silent would otherwise keep a place for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 15.0  # until the first lines of a request must have come, from the connection or their first byte on


class PatientProtocol(H11Protocol):
    """HTTP over one connection that is closed if the head of a request does not come in time.

    How long a body may take is the guard's to say, and how long a connection may rest between requests uvicorn's.
    """

    head_seconds = HEAD_SECONDS

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came; a head that has begun must end in time, however slowly its bytes come."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
