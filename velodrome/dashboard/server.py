"""The web server's process, and the scheduler's beside it: a slow question of a browser must not delay a lease."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from velodrome.dashboard.login import token_file
from velodrome.dashboard.settings import PORT, Settings
from velodrome.errors import ConfigError
from velodrome.service.machine import PARENT

TRIED_PORTS = 20  # from the usual one on, if nobody asked for a certain one
CONNECTIONS = 512  # open at once; the system refuses more
WAITING_CONNECTIONS = 128
KEEP_ALIVE = 30  # seconds
HEAD_SECONDS = 15.0  # until the head of a request must have come, from the connection or its first byte on
LONGEST_HEAD = 64 * 1024  # bytes of a request's first lines
GRACE = 3  # seconds that answers may take when the server ends
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a scheduler that failed is started again
REFUSED = 2  # exit code of a command that cannot be done as asked
ARENAS = -8  # glibc's M_ARENA_MAX
PAGE = "dashboard.html"  # in the folder of the token: leads a browser to the server without showing others the link

Tell = Callable[[str], None]


class Scheduler:
    """The process that carries out trainings, as long as the web server lives; one that fails is started again.

    One that is refused as it first starts would be refused again: by the words it was given, or a cluster that is not
    there. `was_refused` says so, and `when_refused` is called.
    """

    def __init__(self, words: Sequence[str], tell: Tell) -> None:
        self._words, self._tell = list(words), tell
        self.was_refused = False
        self._process: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="velodrome scheduler", daemon=True)

    def start(self, when_refused: Callable[[], object] = lambda: None) -> None:
        """Begin."""
        self._when_refused = when_refused
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let trainings save and stop; asked twice, the process leaves at once, and they go on by themselves."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _keep(self) -> None:
        pause, is_first = FIRST_PAUSE, True
        while not self._stopping.is_set():
            begun = time.monotonic()
            code = self._run()
            if is_first and code == REFUSED and time.monotonic() - begun < LONGEST_PAUSE:
                self.was_refused = True
                self._when_refused()
                return
            is_first = False
            if self._stopping.is_set() or code == 0:  # it was drained: whoever did that wants nothing to begin
                if not self._stopping.is_set():
                    self._tell("the scheduler has ended; the dashboard stays. Start it again: velodrome serve")
                return
            pause = FIRST_PAUSE if time.monotonic() - begun > LONGEST_PAUSE else min(2.0 * pause, LONGEST_PAUSE)
            self._tell(f"warning: the scheduler ended with code {code}; it is started again in {pause:g} s")
            self._stopping.wait(pause)

    def _run(self) -> int:
        """Run it once, pass on what it prints, and return its exit code."""
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "velodrome", "serve", "--no-dashboard", *self._words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches it through this process, once
            env={**os.environ, PARENT: str(os.getpid())},
        )
        if self._stopping.is_set():
            process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        for line in process.stdout:
            self._tell(line.rstrip())
        return process.wait()


def listen(settings: Settings, chosen: bool) -> tuple[socket.socket, Settings]:
    """Return the socket that a server listens at, and its settings with the port. chosen: somebody asked for the port.

    A port that is taken is refused, or, if nobody asked for it, the next one is tried.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    last: OSError | None = None
    for port in [settings.port] if chosen else range(PORT, PORT + TRIED_PORTS):
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((settings.host, port))
            found.listen(WAITING_CONNECTIONS)
        except OSError as error:
            found.close()
            last = error
            continue
        return found, replace(settings, port=found.getsockname()[1])
    assert last is not None
    raise ConfigError(
        f"{settings.host} port {settings.port}: cannot be listened at ({last.strerror}). Another server may have it; "
        "choose another: --port 8800, or any: --port 0"
    )


def address_of(settings: Settings) -> str:
    """Return the address of a server, without its token."""
    name = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    return f"http://{f'[{name}]' if ':' in name else name}:{settings.port}{settings.prefix}/"


def link_of(settings: Settings) -> str:
    """Return the link that lets a browser in."""
    return f"{address_of(settings)}?token={settings.token}"


def open_browser(link: str) -> None:
    """Open a link in the user's browser, where there is one.

    Others can read the words of a command, so the browser is given a file that only its user can read.
    """
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    page = token_file().with_name(PAGE)
    new = page.with_name(f"{PAGE}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(
                f'<!doctype html><meta http-equiv="refresh" content="0;url={link}"><a href="{link}">Velodrome</a>'
            )
        os.replace(new, page)
        webbrowser.open(Path(page).as_uri())
    except (OSError, webbrowser.Error):  # the link is printed, too
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)


def patient_protocol(seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """Return what speaks HTTP over one connection, and closes it if the head of a request does not come in time.

    Who connects and stays silent would otherwise keep a place for ever. How long a body may take is the guard's to say,
    and how long a connection may rest between requests uvicorn's.
    """
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class PatientProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # A head that has begun must end in time, however slowly its bytes come.
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                self._wait()
            else:
                self._stop_waiting()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return PatientProtocol


def serve(settings: Settings, at: socket.socket, scheduler: Scheduler | None, tell: Tell) -> bool:
    """Serve until Ctrl-C or a signal to end; return whether it was one. A second one leaves at once."""
    import uvicorn

    from velodrome.dashboard.app import make_app

    with contextlib.suppress(OSError, AttributeError):  # each thread would keep what it has freed to itself
        ctypes.CDLL(None).mallopt(ARENAS, 2)

    class Server(uvicorn.Server):
        def capture_signals(self) -> Any:  # they are for the scheduler, too: see `receive`
            return contextlib.nullcontext()

    application: Any = make_app(settings)
    server = Server(
        uvicorn.Config(
            application,
            log_level="error",  # a warning for each request that is refused would fill the terminal
            access_log=False,
            server_header=False,
            proxy_headers=False,  # who asks is known by the connection, not by what a header says
            lifespan="on",
            ws="none",
            http=patient_protocol(),
            loop="asyncio",
            limit_concurrency=CONNECTIONS,
            backlog=WAITING_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
            h11_max_incomplete_event_size=LONGEST_HEAD,
        )
    )
    interrupted = threading.Event()

    def receive(number: int, frame: Any) -> None:
        if interrupted.is_set():
            server.force_exit = True
        else:
            told = "trainings save and stop; they go on when a service runs again"
            tell(f"stopping: {told if scheduler is not None else 'the dashboard ends; trainings go on'}")
        interrupted.set()
        end()
        if scheduler is not None:
            scheduler.ask_to_stop()

    def end() -> None:
        server.should_exit = True
        application.inner.state.live.end()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, receive)
    if scheduler is not None:
        scheduler.start(when_refused=end)
    try:
        with at:
            asyncio.run(server.serve([at]))
    finally:
        if scheduler is not None:
            if not interrupted.is_set():
                scheduler.ask_to_stop()
            scheduler.wait()
    return interrupted.is_set()
