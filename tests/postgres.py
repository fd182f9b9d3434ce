"""A PostgreSQL server for tests: one of its own, in a temporary folder, wherever its programs are installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

NO_SERVER = "PostgreSQL is not installed (apt-get install postgresql), and VELODROME_TEST_POSTGRES names no database"


def programs() -> Path | None:
    """The folder of `initdb` and `pg_ctl`; Debian keeps them off the PATH."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextlib.contextmanager
def server() -> Iterator[str | None]:
    """Yield the URL of an empty database, or None where there is neither a server nor its programs."""
    given, folder = os.environ.get("VELODROME_TEST_POSTGRES"), programs()
    if given or folder is None:
        yield given
        return
    # The server refuses to run as root; Debian's package brings a user for it.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    home = Path(tempfile.mkdtemp(prefix="velodrome-postgres-"))
    home.chmod(0o777)

    def call(program: str, *words: str) -> None:
        command = [*as_user, str(folder / program), *words]
        subprocess.run(command, check=True, cwd=home, stdout=subprocess.DEVNULL, timeout=120)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = str(home / "data")
    try:
        call("initdb", "-D", data, "-U", "velodrome", "--auth=trust", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        call("pg_ctl", "-D", data, "-o", options, "-l", str(home / "log"), "-w", "start")
        try:
            yield f"postgresql://velodrome@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
