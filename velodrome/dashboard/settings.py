"""What a web server is told: where the runs are, at which address it listens, and how much it lets pass."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from velodrome.errors import ConfigError

PORT = 8700
PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]+)*")
HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]{2,45}\]")
HERE = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class Limits:
    """How much is let pass. Rates are in requests a second, for each address; a burst is what may come at once."""

    body: int = 256 * 1024  # bytes
    target: int = 16 * 1024  # bytes of path and query
    body_seconds: float = 10.0  # until a request's body must have come
    at_once: int = 64  # requests that are being answered
    threads: int = 8  # that look into the store
    streams: int = 100  # open connections for events
    queued_events: int = 256  # of one stream
    unknown: tuple[float, float] = (50.0, 400.0)  # rate and burst of requests without a token
    known: tuple[float, float] = (500.0, 2000.0)
    writes: tuple[float, float] = (10.0, 50.0)
    addresses: int = 4096  # whose rates are remembered
    tasks: int = 32  # evaluations and promotions that wait


@dataclass(frozen=True)
class Settings:
    """What a web server is told."""

    folder: Path = Path("runs")
    store: str | None = None
    host: str = "127.0.0.1"
    port: int = PORT
    prefix: str = ""  # path under which a reverse proxy shows it, such as /velodrome
    allowed_hosts: tuple[str, ...] = ()  # further names by which it may be called
    remote: bool = False  # whether it may listen at an address that others can reach
    token: str = field(default="", repr=False)
    limits: Limits = field(default_factory=Limits)
    benchmarks: tuple[Path, ...] = ()  # folders of results of `velodrome bench`

    def __post_init__(self) -> None:
        if not PREFIX.fullmatch(self.prefix):
            raise ConfigError(
                f"--prefix {self.prefix!r}: it is a path such as /velodrome, of letters, digits, '.', '_', '~' and "
                "'-', without a slash at its end."
            )
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port}: a port is 1 … 65535, or 0 for any that is free.")
        for name in self.allowed_hosts:
            if not HOST.fullmatch(name):
                raise ConfigError(f"--allow-host {name!r}: it is a name such as trainer.example.org, without a port.")
        if not self.is_local and not self.remote:
            raise ConfigError(
                f"--host {self.host}: others could reach the server there, and who has its token can run code as you. "
                "To use it from elsewhere, a tunnel is safer (ssh -L 8700:127.0.0.1:8700 MACHINE); if you mean it, say "
                "so: --allow-remote, behind a proxy that speaks HTTPS."
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> frozenset[str]:
        """The names by which the server may be called, without ports; another in a request is somebody's trick."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        wild = {"0.0.0.0", "[::]"}
        return frozenset(name.lower() for name in (*HERE, *self.allowed_hosts, *(() if own in wild else (own,))))
